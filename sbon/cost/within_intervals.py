"""Estimates how arrivals are spread within an interval, from the intervals around it.

A backlog is greatest at the instant at which a busy period ends, mostly in the middle of an interval. If the rows of that interval are
taken as even, part of the backlog has drained by the interval's end, and the predicted worst case is up to half an interval too low.

Rates between jumps are lines, with the smaller of the slopes to both neighbours, or flat where these differ in sign. If the lines of both
neighbours, continued into the interval, enclose its rows, the rate jumps there from one line to the other, at the only place that gives
these rows (Harten's subcell resolution). If not, the interval has a line of its own. The rows of each interval stay what they are.
"""

import numpy as np

from sbon.errors import ShapeError
from sbon.types import FloatArray


def refined(rows: FloatArray, parts: int) -> FloatArray:
    """Returns arrivals in intervals that are `parts` times narrower.

    Parameters
    ----------
    rows : (sources, intervals), rows in each interval, 0 or more
    parts : parts of an interval, 1 or more

    Returns
    -------
    FloatArray
        (sources, intervals x parts). The parts of an interval add up to its rows.

    Raises
    ------
    ShapeError
        `rows` is not a matrix, or `parts` is below 1.

    Source
    ------
    Harten, ENO schemes with subcell resolution, Journal of Computational Physics 83 (1989); van Leer's minmod slopes.

    Examples
    --------
    A high period of 8 rows a second ends a quarter of a second after the second interval begins.

    >>> refined(np.array([[8.0, 8.0, 2.0, 0.0, 0.0]]), 4)[0, 8:12].tolist()
    [2.0, 0.0, 0.0, 0.0]
    >>> refined(np.array([[1.0, 2.0, 3.0, 4.0]]), 2)[0].tolist()
    [0.5, 0.5, 0.875, 1.125, 1.375, 1.625, 2.0, 2.0]
    """
    if rows.ndim != 2 or parts < 1:
        raise ShapeError(f"rows {rows.shape} in {parts} parts, expected (sources, intervals) and 1 part at least")
    step = np.pad(np.diff(rows, axis=1), ((0, 0), (2, 2)))
    back, ahead = step[:, 1:-2], step[:, 2:-1]
    before, after = (np.pad(rows, ((0, 0), (1, 1)), mode="edge")[:, at : at + rows.shape[1]] for at in (0, 2))
    slope_before, slope, slope_after = _minmod(step[:, :-3], back), _minmod(back, ahead), _minmod(ahead, step[:, 3:])

    def by_line_before(at: FloatArray) -> FloatArray:  # rows from the start of the interval to this share of it
        return before * at + slope_before * (at * at + at) / 2

    def by_line_after(at: FloatArray) -> FloatArray:
        return after * at + slope_after * (at * at - 3 * at) / 2

    # The rows are c + b x + a x^2 too many if the rate jumps at the share x.
    a, b, c = (slope_before - slope_after) / 2, before - after + slope_before / 2 + 1.5 * slope_after, after - slope_after - rows
    jumps = c * (a + b + c) < 0
    jump_at = _root(a, b, c, jumps)
    at = (np.arange(1, parts + 1) / parts)[:, None, None]
    jumping = np.where(at <= jump_at, by_line_before(at), by_line_before(jump_at) + by_line_after(at) - by_line_after(jump_at))
    until = np.clip(np.where(jumps, jumping, rows * at + slope * (at * at - at) / 2), 0.0, rows)
    until[-1] = rows
    until = np.maximum.accumulate(until, axis=0)
    found: FloatArray = np.diff(until, axis=0, prepend=0.0).transpose(1, 2, 0).reshape(len(rows), -1)
    return found


def _minmod(left: FloatArray, right: FloatArray) -> FloatArray:
    """Returns the number that is nearer to 0; 0 where the signs differ."""
    found: FloatArray = np.where(left * right > 0, np.where(np.abs(left) < np.abs(right), left, right), 0.0)
    return found


def _root(a: FloatArray, b: FloatArray, c: FloatArray, has: np.ndarray) -> FloatArray:
    """Returns the only root of a x^2 + b x + c between 0 and 1 where there is one (`has`), else 0.5."""
    q = -(b + np.copysign(np.sqrt(np.maximum(b * b - 4 * a * c, 0.0)), b)) / 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small, large = c / q, q / a
    found: FloatArray = np.where(has, np.where((small >= 0) & (small <= 1), small, large), 0.5)
    return found
