"""Which nodes lie nearest to a point of the cost space (SBON, section 3.1.2: mapping)."""

import math
from collections.abc import Mapping

import numpy as np

from sbon.cost_space.coordinate import Coordinate, cost_distance_ms
from sbon.types import FloatArray, NodeId

BRUTE_FORCE_MAX = 512
"""Up to this table size a scan takes less time than building a tree, and an agent that hosts nothing need not load scipy."""


class NearestIndex:
    """The nearest nodes by `cost_distance_ms`, from one table of coordinates.

    The height is not a metric, so the tree is searched by the Euclidean part, which is a lower bound: it asks for more neighbours until the
    next one's bound lies behind the k-th best found.
    """

    def __init__(self, coordinates: Mapping[NodeId, Coordinate]) -> None:
        self._names = sorted(coordinates)
        self._coordinates = [coordinates[name] for name in self._names]
        self._table: FloatArray = np.array([(*c.vector, c.load_ms, c.height_ms) for c in self._coordinates], dtype=np.float64).reshape(
            -1, 5
        )
        self._tree = None
        if len(self._names) > BRUTE_FORCE_MAX:
            from scipy.spatial import cKDTree

            self._tree = cKDTree(self._table[:, :4])

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, point: tuple[float, float, float], k: int) -> list[tuple[NodeId, float]]:
        """Up to `k` nodes and their distance in ms, nearest first; equal distances in order of name."""
        if k < 1 or not self._names or not all(math.isfinite(v) for v in point):
            return []
        candidates = self._candidates(point, k)
        ranked = sorted((cost_distance_ms(point, self._coordinates[i]), self._names[i]) for i in candidates)
        return [(name, distance) for distance, name in ranked[:k]]

    def _candidates(self, point: tuple[float, float, float], k: int) -> list[int]:
        """A set of rows that surely holds the k nearest."""
        size = len(self._names)
        table = self._table
        if self._tree is not None:
            ask = 2 * k + 16
            while ask < size:
                bounds, rows = self._tree.query((*point, 0.0), k=ask)
                exact = np.sort(bounds + table[rows, 4])
                if bounds[-1] > exact[k - 1]:
                    return [int(row) for row in rows]
                ask *= 4
        if size <= k:
            return list(range(size))
        difference = table[:, :3] - np.array(point)
        distance = np.sqrt(np.einsum("ij,ij->i", difference, difference) + table[:, 3] ** 2) + table[:, 4]
        worst = np.partition(distance, k - 1)[k - 1]
        # A little beyond the k-th, so that ties that differ in the last bit are ranked by the exact function.
        return [int(row) for row in np.flatnonzero(distance <= worst * (1 + 1e-9) + 1e-9)]
