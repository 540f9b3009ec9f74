"""Event streams and operators of the evaluation: On-Off sources; operators use streams by Zipf's law (sections VIII, IX-B.1)."""

import msgspec
import numpy as np

from sbon.types import FloatArray

HIGH_OVER_LOW = 100.0
"""Average rate of high periods divided by that of low periods."""
HIGH_SHARE = 0.33
"""Average duration of high periods divided by that of low periods."""
ZIPF = 1.0
RANGES = ((0.1, 0.5), (0.5, 1.0), (1.0, 1.5), (1.5, 2.0))
"""Ranges of selectivity factors, by falling probability (Zipf). The paper gives its ranges in a figure that we do not have. With wider
ranges, one operator alone exceeds a node, and every search that isolates it is equally good."""


def zipf(rng: np.random.Generator, count: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Draws `size` numbers below `count`; the probability of number k is proportional to 1 / (k + 1)."""
    weights = 1.0 / np.arange(1, count + 1) ** ZIPF
    return rng.choice(count, size, p=weights / weights.sum())


def on_off_rates(rng: np.random.Generator, intervals: int, high_s: float, width_s: float = 1.0) -> FloatArray:
    """Returns the relative rate of a source in each interval; high and low periods have exponential durations.

    Parameters
    ----------
    high_s : average duration of a high period

    Returns
    -------
    FloatArray
        (intervals,), between 1 and `HIGH_OVER_LOW`; an interval in which a period ends has the mean of both rates.
    """
    length_s = intervals * width_s
    edges, rates = [0.0], []
    is_high = bool(rng.random() < HIGH_SHARE / (1 + HIGH_SHARE))
    while edges[-1] < length_s:
        edges.append(edges[-1] + float(rng.exponential(high_s if is_high else high_s / HIGH_SHARE)))
        rates.append(HIGH_OVER_LOW if is_high else 1.0)
        is_high = not is_high
    until = np.concatenate(([0.0], np.cumsum(np.diff(edges) * rates)))
    found: FloatArray = np.diff(np.interp(width_s * np.arange(intervals + 1), edges, until)) / width_s
    return found


class Workload(msgspec.Struct, frozen=True):
    """The loads of operators without a graph, as in section IX-B.1."""

    work: FloatArray
    """(operators, intervals), seconds of a core"""
    nodes: int
    load: float
    """Average share of the capacity of all nodes."""


def workload(scale: int, seed: int, *, intervals: int = 100, streams: int = 20, load: float = 0.7, high_s: float = 2.0) -> Workload:
    """Returns 200 x scale operators for 20 x scale nodes of one core.

    Parameters
    ----------
    streams : On-Off streams, to which operators are assigned by Zipf's law
    load : average share of the capacity
    high_s : average duration of a high period
    """
    rng = np.random.default_rng(seed)
    operators, nodes = 200 * scale, 20 * scale
    rates = np.array([on_off_rates(rng, intervals, high_s) for _ in range(streams)])
    low, high = np.array(RANGES)[zipf(rng, len(RANGES), operators)].T
    factor = rng.uniform(low, high)[:, None] * rng.uniform(0.9, 1.1, (operators, intervals))
    work = rates[zipf(rng, streams, operators)] * factor
    return Workload(work * (load * nodes * intervals / work.sum()), nodes, load)
