"""Bounds the probability that a row waits longer than a limit: an exponential bound on the waiting work, for rates and costs that change.

Rows of kind y arrive at random, r_y a second, and cost s_y each. Let X be the work that has arrived minus the time since. Then
log E exp(theta X) grows by g(theta) = sum_y r_y (exp(theta s_y) - 1) - theta a second. The queue is X minus its minimum so far, so its
exponent follows the recursion of cumulative excess: h <- max(0, h + g dt), from theta times the work that waits now. By Markov's inequality
a row of cost s that arrives then waits longer than LB - s with a probability of at most exp(h - theta (LB - s)), for each theta > 0. If
rates stay constant, the best theta is the one with g = 0: E[exp(theta (S - A))] = 1.
"""

import math
from collections.abc import Sequence

import numpy as np

from sbon.cost.excess import left_over
from sbon.types import FloatArray

THETAS = 16
"""Values of theta tried, from `_LEAST` / LB by equal ratios to `_MOST` / LB."""
_LEAST, _MOST = 3.0, 150.0
_GRID = np.geomspace(_LEAST, _MOST, THETAS)
_EXPONENT_MAX = 60.0


def log_tail(rates: FloatArray, costs_s: FloatArray, width_s: float, begun_s: FloatArray, bound_s: float) -> FloatArray:
    """Returns a bound on the logarithm of the probability that a row is late, for each instance and interval: the least of `log_tails`.

    Returns
    -------
    FloatArray
        (..., intervals)
    """
    found: FloatArray = np.minimum.reduce(log_tails(rates, costs_s, width_s, begun_s, bound_s), axis=0)
    return found


def log_tails(rates: FloatArray, costs_s: FloatArray, width_s: float, begun_s: FloatArray, bound_s: float) -> FloatArray:
    """Returns a bound on the logarithm of the probability that a row is late, for each theta, instance and interval.

    Parameters
    ----------
    rates : (kinds, intervals), rows per second
    costs_s : (kinds, ..., intervals), of one row of each kind
    width_s : of an interval
    begun_s : (...), work that waits at the start
    bound_s : LB

    Returns
    -------
    FloatArray
        (THETAS, ..., intervals); above 0 where nothing can be said. Where nothing comes and nothing waits, it is far below 0.

    Source
    ------
    Kingman (1970) for the stationary queue; Chang, Performance Guarantees in Communication Networks (2000), chapter 7, for the recursion.
    """
    theta = (_GRID / bound_s).reshape((-1,) + (1,) * (costs_s.ndim - 1))
    rates = rates.reshape((len(rates),) + (1,) * (costs_s.ndim - 2) + rates.shape[1:])
    # All kinds and thetas at once: a decision has few numbers, so calls cost more than they do.
    work = theta * costs_s[:, None]
    np.minimum(work, _EXPONENT_MAX, out=work)
    np.expm1(work, out=work)
    work *= rates[:, None]
    growth = work[0]
    growth -= theta
    for of_kind in work[1:]:
        growth += of_kind
    growth *= width_s
    dearest = np.maximum.reduce(costs_s * (rates > 0), axis=0)
    begun = theta[..., 0] * begun_s
    ends = left_over(growth, begun)
    # Within an interval the exponent is at most the greater of those at its ends.
    waiting = ends.copy()
    np.maximum(ends[..., 1:], ends[..., :-1], out=waiting[..., 1:])
    np.maximum(ends[..., 0], begun, out=waiting[..., 0])
    waiting += theta * (dearest - bound_s)
    return waiting


class OneTail:
    """The bound of one theta at one instance whose rows cost the same in equally many windows: a decision asks for few numbers, so it takes
    a tenth of the time that arrays take.

    Parameters
    ----------
    kinds : cost of a row of each kind, and of each window that is open for it
    """

    def __init__(self, number: int, kinds: Sequence[tuple[float, float]], bound_s: float) -> None:
        self.number, self._kinds, self._bound_s = number, kinds, bound_s
        self._theta = float(_GRID[number]) / bound_s
        self._known: dict[int, tuple[list[float], float]] = {}

    def keeps(self, rates: Sequence[Sequence[float]], windows: Sequence[int], width_s: float, begun_s: float, limit: float) -> bool:
        """Tells whether the bound is at most `limit` in each interval.

        Parameters
        ----------
        rates : rows per second by interval, of each kind
        windows : open in each interval
        """
        theta, known = self._theta, self._known
        before = theta * begun_s
        for of_kinds, open_ in zip(rates, windows, strict=True):
            found = known.get(open_)
            if found is None:
                costs = [row_s + window_s * open_ for row_s, window_s in self._kinds]
                found = known[open_] = [math.expm1(min(theta * one, _EXPONENT_MAX)) for one in costs], theta * (max(costs) - self._bound_s)
            growth = -theta
            for rate, factor in zip(of_kinds, found[0], strict=True):
                growth += rate * factor
            after = max(0.0, before + growth * width_s)
            if max(before, after) + found[1] > limit:
                return False
            before = after
        return True


def allowed(rows: float, chance: float) -> float:
    """Returns the logarithm of the probability that a row may be late with, if one of so many is to be late with a chance of this."""
    return math.log(chance / max(1.0, rows))
