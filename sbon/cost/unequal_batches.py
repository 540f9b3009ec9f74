"""Draws batches of unequal size where only the rows of intervals are known.

Rows that come at random make batches of unequal size. Near the capacity of a node, a few large batches in a row queue although the rate is
below the capacity. How much sizes scatter is estimated from the rows of intervals: by how much they scatter about a smooth rate.
"""

import numpy as np

from sbon.cost.mace import quantile
from sbon.errors import ShapeError
from sbon.types import FloatArray

_MEDIAN_OF_SQUARE = 0.4549364
"""Median of the square of a standard normal number."""


def dispersion(rows: FloatArray) -> float:
    """Returns the variance of an interval's rows divided by their mean: 1 for rows that come independently of each other, 0 for even ones.

    It rests on the medians of squared first and second differences, whichever are smaller, so that neither a rate that changes smoothly nor
    jumps count.

    Parameters
    ----------
    rows : (intervals,)

    Examples
    --------
    >>> dispersion(np.array([10.0, 20.0, 30.0, 40.0, 50.0]))
    0.0
    """
    stepped = _scatter(rows[1:] - rows[:-1], (rows[1:] + rows[:-1]) / 2, 2)
    return min(stepped, _scatter(rows[2:] - 2 * rows[1:-1] + rows[:-2], (rows[2:] + rows[1:-1] + rows[:-2]) / 3, 6))


def _scatter(differences: FloatArray, mean: FloatArray, terms: int) -> float:
    """Returns the variance of rows divided by their mean, from differences whose variance is `terms` times that of the rows."""
    some = mean > 0
    if not some.any():
        return 0.0
    return quantile(differences[some] ** 2 / (terms * mean[some]), 0.5, mean[some]) / _MEDIAN_OF_SQUARE


def drawn(expected: FloatArray, parts: int, scatter: float, rng: np.random.Generator) -> FloatArray:
    """Returns rows of batches: the rows of each interval are kept.

    Parameters
    ----------
    expected : (intervals x parts,), expected rows of each batch
    parts : batches of an interval
    scatter : variance of a batch's rows divided by their mean

    Raises
    ------
    ShapeError
        The number of batches is no multiple of `parts`.
    """
    if len(expected) % parts:
        raise ShapeError(f"{len(expected)} batches, {parts} in an interval, expected a multiple")
    mean = expected.reshape(-1, parts)
    whole = mean.sum(axis=1, keepdims=True)
    noise = np.sqrt(scatter * mean) * rng.standard_normal(mean.shape)
    share = np.divide(mean, whole, out=np.zeros_like(mean), where=whole > 0)
    found = np.maximum(mean + noise - share * noise.sum(axis=1, keepdims=True), 0.0)
    total = found.sum(axis=1, keepdims=True)
    found *= np.divide(whole, total, out=np.zeros_like(total), where=total > 0)
    rows: FloatArray = found.ravel()
    return rows
