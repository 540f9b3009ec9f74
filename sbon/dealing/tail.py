"""Bounds the probability that a row waits longer than a limit: an exponential bound on the waiting work, for rates and costs that change.

Rows of kind y arrive at random, r_y a second, and cost s_y each. Let X be the work that has arrived minus the time since. Then
log E exp(theta X) grows by g(theta) = sum_y r_y (exp(theta s_y) - 1) - theta a second. The queue is X minus its minimum so far, so its
exponent follows the recursion of cumulative excess: h <- max(0, h + g dt), from theta times the work that waits now. By Markov's inequality
a row of cost s that arrives then waits longer than LB - s with a probability of at most exp(h - theta (LB - s)), for each theta > 0. If
rates stay constant, the best theta is the one with g = 0: E[exp(theta (S - A))] = 1.
"""

import math

import numpy as np

from sbon.cost.excess import cumulative_excess
from sbon.types import FloatArray

THETAS = 16
"""Values of theta tried, from `_LEAST` / LB by equal ratios to `_MOST` / LB."""
_LEAST, _MOST = 3.0, 150.0
_GRID = np.geomspace(_LEAST, _MOST, THETAS)
_EXPONENT_MAX = 60.0


def log_tail(rates: FloatArray, costs_s: FloatArray, width_s: float, begun_s: FloatArray, bound_s: float) -> FloatArray:
    """Returns a bound on the logarithm of the probability that a row is late, for each instance and interval.

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
        (..., intervals); above 0 where nothing can be said. Where nothing comes and nothing waits, it is far below 0.

    Source
    ------
    Kingman (1970) for the stationary queue; Chang, Performance Guarantees in Communication Networks (2000), chapter 7, for the recursion.
    """
    theta = (_GRID / bound_s).reshape((-1,) + (1,) * (costs_s.ndim - 1))
    growth = -theta
    dearest = np.zeros(costs_s.shape[1:])
    for rate, cost in zip(rates, costs_s, strict=True):
        growth = growth + rate * np.expm1(np.minimum(theta * cost, _EXPONENT_MAX))
        np.maximum(dearest, np.where(rate > 0, cost, 0.0), out=dearest)
    waiting = cumulative_excess(growth * width_s, 0.0, theta[..., 0] * begun_s)
    # Within an interval the exponent is at most the greater of those at its ends.
    waiting[..., 1:] = np.maximum(waiting[..., 1:], waiting[..., :-1])
    waiting[..., 0] = np.maximum(waiting[..., 0], theta[..., 0] * begun_s)
    found: FloatArray = (waiting + theta * (dearest - bound_s)).min(axis=0)
    return found


def allowed(rows: float, chance: float) -> float:
    """Returns the logarithm of the probability that a row may be late with, if one of so many is to be late with a chance of this."""
    return math.log(chance / max(1.0, rows))
