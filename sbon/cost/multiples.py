"""Computes the greatest multiple of a profile at which polynomials keep within their limits (WhiteWater, section 4.4)."""

import numpy as np

from sbon.types import FloatArray

ROUNDS = 60
"""Most steps of the search for a root. Each step doubles the correct digits; a dozen is common for ten joins."""
PRECISION = 1e-10
"""Relative change at which the search for a root ends."""


def greatest_multiple(coefficients: FloatArray, limit: FloatArray) -> FloatArray:
    """Returns the greatest x of 0 or more at which each polynomial is at most its limit.

    Parameters
    ----------
    coefficients : (..., k), of 1, x, x^2 ...; 0 or more
    limit : (...), or a shape that broadcasts to it

    Returns
    -------
    FloatArray
        (...): infinite where nothing grows with x; 0 where the constant alone is too much.

    Source
    ------
    WhiteWater, section 4.4. The paper halves intervals; here linear polynomials have a closed form, and others are solved by Newton's
    method on logarithms: log f is convex in log x, so steps from the right never pass the root.

    Examples
    --------
    >>> greatest_multiple(np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 4.0], [1.0, 0.0, 0.0]]), np.array([10.0, 37.0, 1.0]))
    array([ 5.,  3., inf])
    """
    shape, terms = coefficients.shape[:-1], coefficients.shape[-1]
    rows = coefficients.reshape(-1, terms)
    left = np.broadcast_to(limit, shape).reshape(-1) - rows[:, 0]
    found = np.where(left >= 0, np.inf, 0.0)
    if terms > 1:
        # The starts are above the root: each power alone would reach the limit there.
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.minimum(found, np.maximum(left, 0.0) / rows[:, 1])
            found = np.where(np.isnan(found), np.where(left >= 0, np.inf, 0.0), found)
            used = [power for power in range(2, terms) if rows[:, power].any()]
            for power in used:
                start = (np.maximum(left, 0.0) / rows[:, power]) ** (1.0 / power)
                found = np.where(rows[:, power] > 0, np.minimum(found, start), found)
        if used:
            curved = (rows[:, 2:] > 0).any(axis=1) & (found > 0) & np.isfinite(found)
            curved &= (rows[:, 1:] > 0).sum(axis=1) > 1
            if curved.any():
                powers = np.array([1, *used])
                found[curved] = _root(rows[curved][:, powers], powers.astype(np.float64), left[curved], found[curved])
    return found.reshape(shape)


def _root(coefficients: FloatArray, powers: FloatArray, limit: FloatArray, start: FloatArray) -> FloatArray:
    """Returns where each polynomial without a constant reaches its limit, from a start that is not below."""
    at = np.log(start)
    target = np.log(limit)
    for _ in range(ROUNDS):
        values = coefficients * np.exp(at[:, None] * powers)
        total = values.sum(axis=1)
        step = (np.log(total) - target) * total / (values @ powers)
        at = at - step
        if np.abs(step).max() < PRECISION:
            break
    found: FloatArray = np.exp(at)
    return found
