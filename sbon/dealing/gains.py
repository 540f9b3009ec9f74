"""Gains and peak as the paper predicts them (section 4, figure 9): how much later each row makes the next one.

The gain of a row is its cost minus the gap to the next row. Gains above 0 are the paper's *negative* gains: they make the queue longer.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from sbon.errors import ShapeError
from sbon.types import FloatArray

BLOCK = 16_384
"""Values of a sample that are put in bins at once, so that intermediate results stay in the cache."""


class Bins(msgspec.Struct, frozen=True):
    """A sample in bins of equal width: mean of each bin with members, and its share of the sample; both (bins,)."""

    means: FloatArray
    weights: FloatArray
    mean: float
    deviation: float
    """Mean and standard deviation of the whole sample."""


def binned(sample: FloatArray, bins: int) -> Bins:
    """Returns a sample in `bins` bins of equal width between its least and its greatest value; empty bins are left out.

    Raises
    ------
    ShapeError
        The sample is empty, or `bins` is below 1.

    Source
    ------
    Section 4.2, figure 7.

    Examples
    --------
    >>> binned(np.array([1.0, 2.0, 9.0]), 2).means.tolist()
    [1.5, 9.0]
    """
    if not len(sample) or bins < 1:
        raise ShapeError(f"a sample of {len(sample)} values in {bins} bins, expected at least 1 of each")
    least, most, mean = float(sample.min()), float(sample.max()), float(sample.mean())
    scale = bins / (most - least) if most > least else 0.0
    counts, sums, squares = np.zeros(bins, dtype=np.int64), np.zeros(bins), 0.0
    for first in range(0, len(sample), BLOCK):
        block = sample[first : first + BLOCK]
        place = np.minimum(((block - least) * scale).astype(np.int64), bins - 1)
        counts += np.bincount(place, minlength=bins)
        sums += np.bincount(place, block, minlength=bins)
        squares += float(np.square(block - mean).sum())
    has = counts > 0
    return Bins(sums[has] / counts[has], counts[has] / len(sample), mean, math.sqrt(squares / len(sample)))


def gains(costs_s: Sequence[float], rows: Sequence[float], gaps_s: Sequence[float], gap_rows: Sequence[float]) -> tuple[float, float]:
    """Returns the total negative gain (0 or more) and the total positive gain (0 or less) of the rows of a window.

    The dearest rows are combined with the shortest gaps.

    Parameters
    ----------
    costs_s, rows : cost and number of rows of each bin of costs
    gaps_s, gap_rows : length and number of rows of each bin of gaps

    Source
    ------
    Figure 9, with the cost of a row in all its windows in place of mean overlap times cost in one window.

    Examples
    --------
    The example of section 4.1: gaps of 5, two rows of 8, two of 7, two of 4 and one of 2.

    >>> gains([8, 7, 4, 2], [2, 2, 2, 1], [5], [7])
    (10.0, -5.0)
    """
    costs = sorted(zip(costs_s, rows, strict=True), reverse=True)
    gaps = sorted(zip(gaps_s, gap_rows, strict=True))
    negative = positive = 0.0
    cost = gap = 0
    rows_left, gaps_left = (costs[0][1] if costs else 0.0), (gaps[0][1] if gaps else 0.0)
    while cost < len(costs) and gap < len(gaps):
        taken = min(rows_left, gaps_left)
        gain = taken * (costs[cost][0] - gaps[gap][0])
        if gain > 0:
            negative += gain
        else:
            positive += gain
        rows_left -= taken
        gaps_left -= taken
        if gaps_left <= 0:
            gap += 1
            gaps_left = gaps[gap][1] if gap < len(gaps) else 0.0
        if rows_left <= 0:
            cost += 1
            rows_left = costs[cost][1] if cost < len(costs) else 0.0
    return float(negative), float(positive)


def mean_overlap(windows: float, scope_s: float, shift_s: float) -> float:
    """Returns the mean number of windows of a batch that a row of the newest window is in.

    Parameters
    ----------
    windows : open windows of the batch, the newest among them
    scope_s, shift_s : how long a window is open, and the time between two openings

    Source
    ------
    Section 4.2, figure 8. If the batch is longer than a scope, the paper's formula would give less than windows / 2, the result here.

    Examples
    --------
    >>> mean_overlap(5, 10.0, 1.0)
    4.0
    """
    closing = min(1.0, max(0.0, (windows - 1) * shift_s / scope_s))
    return windows * (1 - closing) + windows / 2 * closing


def queueing_peak(begun_s: float, negative_s: float, positive_s: float, alpha: float) -> float:
    """Returns the longest time that a row of the window will wait.

    Source
    ------
    Section 4.1 with footnote 5.

    Examples
    --------
    >>> queueing_peak(0.0, 10.0, -5.0, 0.8)
    6.0
    """
    return begun_s + max(0.0, negative_s + alpha * positive_s)


def t_count(transitions: int, dear: int, cheap: int) -> float:
    """Returns alpha by T-COUNT: the number of changes between dear and cheap rows, as a share of the greatest possible number.

    Source
    ------
    Section 4.2.

    Examples
    --------
    >>> t_count(5, 2, 4)
    1.0
    """
    most = 2 * min(dear, cheap)
    return min(1.0, max(0.0, (transitions - 1) / most)) if most else 0.0
