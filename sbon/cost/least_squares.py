"""Least squares without negative coefficients."""

import math

import numpy as np

from sbon.types import FloatArray


def least_squares_from_zero(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    """Returns the x >= 0 that minimises x^T `matrix` x - 2 `vector`^T x, for a positive definite matrix: (n, n), (n,) -> (n,).

    Source
    ------
    Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23; on normal equations as Bro and de Jong (1997).

    Examples
    --------
    >>> least_squares_from_zero(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([2.0, -1.0])).tolist()
    [1.0, 0.0]
    """
    size = len(vector)
    found: FloatArray = np.asarray(np.linalg.solve(matrix, vector), dtype=np.float64)
    if found.min() >= 0:
        return found
    found, tried = np.zeros(size), np.zeros(size)
    free = np.zeros(size, dtype=bool)
    tolerance = 1e-12 * float(np.abs(vector).max())
    for _ in range(8 * size):
        gradient = np.where(free, -math.inf, vector - matrix @ found)
        best = int(gradient.argmax())
        if gradient[best] <= tolerance:
            break
        free[best] = True
        while True:
            tried = np.zeros(size)
            tried[free] = np.linalg.solve(matrix[np.ix_(free, free)], vector[free])
            negative = free & (tried <= 0)
            if not negative.any():
                break
            step = float((found[negative] / (found[negative] - tried[negative])).min())
            found += step * (tried - found)
            free &= found > 1e-15
            found[~free] = 0.0
        found = tried
    return found
