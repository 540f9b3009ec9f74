"""Bounds the probability that a row waits longer than a limit: an exponential bound on the waiting work, for rates and costs that change.

Rows of kind y arrive at random, r_y a second, and cost s_y each. Let X be the work that has arrived minus the time since. Then log E
exp(theta X) grows by g(theta) = sum_y r_y (exp(theta s_y) - 1) - theta a second. The queue is X minus its minimum so far, so its exponent
follows the recursion of cumulative excess: h <- max(0, h + g dt), beginning with theta times the work that waits now. By Markov's
inequality a row of cost s that arrives then waits longer than LB - s with a probability of at most exp(h - theta (LB - s)), for each theta
> 0. If rates stay constant, the best theta is the one with g = 0: E[exp(theta (S - A))] = 1.
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
    costs_s : (kinds, ..., intervals), cost of one row of each kind
    width_s : length of an interval
    begun_s : (...), work that waits at the start
    bound_s : LB

    Returns
    -------
    FloatArray
        (THETAS, ..., intervals); a value above 0 says nothing. If nothing comes and nothing waits, it is far below 0.

    Source
    ------
    Kingman (1970) for the stationary queue; Chang, Performance Guarantees in Communication Networks (2000), chapter 7, for the recursion.
    """
    theta = (_GRID / bound_s).reshape((-1,) + (1,) * (costs_s.ndim - 1))
    rates = rates.reshape((len(rates),) + (1,) * (costs_s.ndim - 2) + rates.shape[1:])
    # All kinds and thetas at once: a decision has few numbers, so calls cost more than the arithmetic.
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
    waiting = _greatest(left_over(growth, begun), begun)
    waiting += theta * (dearest - bound_s)
    return waiting


def _greatest(ends: FloatArray, begun: FloatArray) -> FloatArray:
    """Returns an upper limit of the exponent in each interval: the greater of the exponents at its ends."""
    waiting = ends.copy()
    np.maximum(ends[..., 1:], ends[..., :-1], out=waiting[..., 1:])
    np.maximum(ends[..., 0], begun, out=waiting[..., 0])
    return waiting


class SteadyTails:
    """Computes the bounds of `log_tails` if rates are constant, windows only close, and the cost of a row depends only on its kind and the
    number of windows. What a row adds is then computed once for each number of windows, and a decision takes a tenth of the time.

    Windows are given as `drops`: for each open window, in order, the number of the interval from which on it is closed.

    Parameters
    ----------
    kinds : for each kind, the cost of a row, and the cost of each window that is open for it
    bound_s : LB
    intervals : number of intervals
    limit : logarithm of the greatest allowed probability that a row is late
    """

    def __init__(self, kinds: Sequence[tuple[float, float]], bound_s: float, intervals: int, limit: float) -> None:
        self._kinds, self._bound_s, self._intervals, self._limit = kinds, bound_s, intervals, limit
        self._theta = _GRID / bound_s
        self._factors = np.empty((len(kinds), THETAS, 0))
        """Factors by which a row multiplies the expectation, less 1; by kind, theta and number of windows."""
        self._spare = np.empty((THETAS, 0))
        """Theta times (cost of the dearest row - bound), which is negative; by theta and number of windows."""
        self._of: dict[int, list[tuple[list[float], float]]] = {}
        """Factors and spare of single thetas, by number of windows."""
        self.hopeless_s = bound_s + limit / float(self._theta[-1]) - max(row_s + window_s for row_s, window_s in kinds)
        """Waiting work above which no theta gives a bound within the limit."""

    def keeps(self, number: int, rates: Sequence[float], drops: Sequence[int], width_s: float, begun_s: float) -> bool:
        """Tells whether the bound by one theta is at most the limit in each interval.

        Parameters
        ----------
        number : number of the theta
        rates : rows per second of each kind
        """
        theta, windows, place = float(self._theta[number]), len(drops) + 1, 0
        known, limit = self._one(number, windows), self._limit
        waiting = theta * begun_s
        for end in (*drops, self._intervals):
            if end > place:
                factors, spare = known[windows]
                growth = -theta
                for rate, factor in zip(rates, factors, strict=True):
                    growth += rate * factor
                after = waiting + growth * width_s * (end - place)
                if (after if growth > 0 else waiting) + spare > limit:
                    return False
                waiting = after if after > 0 else 0.0
                place = end
            windows -= 1
        return True

    def tails(self, rates: Sequence[float], drops: Sequence[Sequence[int]], width_s: float, begun_s: Sequence[float]) -> FloatArray:
        """Returns the bounds of `log_tails` for several instances; (THETAS, instances, intervals)."""
        windows = np.array([self._by_interval(one) for one in drops])
        self._reach(int(windows.max()))
        growth = self._factors[0] * rates[0]
        for rate, factors in zip(rates[1:], self._factors[1:], strict=True):
            growth += rate * factors
        growth -= self._theta[:, None]
        growth *= width_s
        begun = self._theta[:, None] * np.array(begun_s)
        ends = left_over(growth[:, windows], begun)
        return _greatest(ends, begun) + self._spare[:, windows]

    def _by_interval(self, drops: Sequence[int]) -> list[int]:
        found: list[int] = []
        windows = len(drops) + 1
        for end in (*drops, self._intervals):
            found += [windows] * (end - len(found))
            windows -= 1
        return found

    def _reach(self, windows: int) -> None:
        """Computes factors and spare for up to `windows` windows."""
        if self._spare.shape[1] > windows:
            return
        costs = np.array([row_s + window_s * np.arange(2 * windows + 1) for row_s, window_s in self._kinds])
        self._factors = np.expm1(np.minimum(self._theta[:, None] * costs[:, None], _EXPONENT_MAX))
        self._spare = self._theta[:, None] * (np.maximum.reduce(costs, axis=0) - self._bound_s)
        self._of = {}

    def _one(self, number: int, windows: int) -> list[tuple[list[float], float]]:
        """Returns the factors and the spare of one theta, by number of windows, at least up to `windows`."""
        self._reach(windows)
        found = self._of.get(number)
        if found is None:
            found = list(zip(self._factors[:, number].T.tolist(), self._spare[number].tolist(), strict=True))
            self._of[number] = found
        return found


def allowed(rows: float, chance: float) -> float:
    """Returns the logarithm of the greatest probability that a row is late, if `chance` of `rows` rows may be late on average."""
    return math.log(chance / max(1.0, rows))
