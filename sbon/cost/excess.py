"""Cumulative excess: the work that a node or a link is behind at the end of each interval (Mace, definition 8).

CE_p = max(0, CE_(p-1) + L_p - C w) is Lindley's recursion. With the running sum S_p of L_p - C w it has a closed form: CE_p is S_p less the
least of 0 and all sums up to p. So a whole matrix of nodes and intervals takes a sum, a running minimum and a difference.
"""

import numpy as np

from sbon.errors import ShapeError
from sbon.types import FloatArray


def cumulative_excess(load: FloatArray, capacity: FloatArray | float, begun: FloatArray | float = 0.0) -> FloatArray:
    """Returns the work left over at the end of each interval.

    Parameters
    ----------
    load : (..., intervals), units of work
        Work that comes in each interval: cycles, bytes or seconds of a core.
    capacity : scalar, or any shape that broadcasts to that of load
        Work that can be done in one interval, in the same unit; it may vary in time.
    begun : scalar, or (...)
        Excess before the first interval.

    Returns
    -------
    FloatArray
        (..., intervals), in the unit of load, 0 or more.

    Raises
    ------
    ShapeError
        The shapes do not fit, or there is no interval.

    Source
    ------
    Mace (Chandramouli et al., ICDE 2011), section IV, definition 8.

    Examples
    --------
    >>> cumulative_excess(np.array([3.0, 6.0, 1.0, 0.0]), 2.0)
    array([1., 5., 4., 2.])
    """
    if load.ndim == 0 or load.shape[-1] == 0:
        raise ShapeError(f"load has the shape {load.shape}, expected at least one interval")
    try:
        surplus = np.subtract(load, capacity)
        first = np.broadcast_to(np.asarray(begun, dtype=float), load.shape[:-1])
    except ValueError as problem:
        raise ShapeError(f"load {load.shape}, capacity {np.shape(capacity)}, begun {np.shape(begun)}: {problem}") from problem
    if surplus.shape != load.shape:
        raise ShapeError(f"capacity has the shape {np.shape(capacity)}, expected one that broadcasts to that of load, {load.shape}")
    return left_over(surplus, first)


def left_over(surplus: FloatArray, begun: FloatArray) -> FloatArray:
    """Returns the work left over at the end of each interval, without checks.

    Parameters
    ----------
    surplus : (..., intervals), load less capacity
    begun : (...), excess before the first interval
    """
    total = surplus.cumsum(axis=-1) + begun[..., None]
    total -= np.minimum(np.minimum.accumulate(total, axis=-1), 0.0)
    return total


def peak_excess(load: FloatArray, capacity: FloatArray | float) -> FloatArray:
    """Returns the greatest cumulative excess over time, without checks, because searches call it thousands of times.

    Parameters
    ----------
    load : (..., intervals), units of work
    capacity : as for `cumulative_excess`

    Returns
    -------
    FloatArray
        (...), in the unit of load.

    Examples
    --------
    >>> float(peak_excess(np.array([3.0, 6.0, 1.0, 0.0]), 2.0))
    5.0
    """
    total = np.cumsum(load - capacity, axis=-1)
    least = np.minimum.accumulate(total, axis=-1)
    np.minimum(least, 0.0, out=least)
    total -= least
    peak: FloatArray = total.max(axis=-1)
    return peak


class WorkClock:
    """Converts instants to the work that a server of varying capacity can have done by then, and work to the instant at which it is done.

    The capacity of the last interval also holds after it. If it is 0, work that is left never ends: its instant is infinite.

    Parameters
    ----------
    capacity_per_s : (intervals,), units of work per second, 0 or more
    width_s : width of an interval

    Examples
    --------
    >>> clock = WorkClock(np.array([1.0, 0.5]), 2.0)
    >>> clock.work_by(np.array([1.0, 3.0, 6.0])), clock.instant_of(np.array([2.5, 4.0]))
    (array([1. , 2.5, 4. ]), array([3., 6.]))
    """

    def __init__(self, capacity_per_s: FloatArray, width_s: float) -> None:
        if capacity_per_s.ndim != 1 or capacity_per_s.size == 0:
            raise ShapeError(f"capacity has the shape {capacity_per_s.shape}, expected (intervals,)")
        if not (np.isfinite(capacity_per_s).all() and (capacity_per_s >= 0).all() and 0 < width_s < np.inf):
            raise ShapeError(f"capacity {capacity_per_s} per s in intervals of {width_s} s, expected finite numbers, a width above 0")
        self._knots_s = width_s * np.arange(capacity_per_s.size + 1)
        self._done = np.concatenate(([0.0], np.cumsum(capacity_per_s * width_s)))
        self._last = float(capacity_per_s[-1])

    def work_by(self, instant_s: FloatArray) -> FloatArray:
        """Returns the work that can be done by each instant, in s since the start."""
        beyond = np.maximum(instant_s - self._knots_s[-1], 0.0)
        found: FloatArray = np.interp(instant_s, self._knots_s, self._done) + (beyond * self._last if self._last > 0 else 0.0)
        return found

    def instant_of(self, work: FloatArray) -> FloatArray:
        """Returns the instant at which so much work can be done, in s since the start; infinite if it never can."""
        within = np.searchsorted(self._done, work, side="left")  # the first knot by which it is done
        knot = np.clip(within, 1, self._knots_s.size - 1)
        before, after = self._done[knot - 1], self._done[knot]
        step = np.where(after > before, after - before, 1.0)
        found = self._knots_s[knot - 1] + (work - before) / step * (self._knots_s[knot] - self._knots_s[knot - 1])
        beyond = work - self._done[-1]
        if self._last > 0:
            late = self._knots_s[-1] + beyond / self._last
        else:
            late = np.full_like(work, np.inf)
        # Rounding of a sum must not make work endless that is done exactly at the end.
        is_late = beyond > 1e-12 * max(1.0, float(self._done[-1]))
        return np.where(is_late, late, np.clip(found, self._knots_s[0], self._knots_s[-1]))
