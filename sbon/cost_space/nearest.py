"""Finds the nodes nearest to a point of the cost space (SBON, section 3.1.2: mapping)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbon.cost_space.coordinate import Coordinate
from sbon.types import FloatArray, NodeId

BRUTE_FORCE_MAX = 512
"""Largest table that is scanned: up to here a scan is faster than building a tree, and an agent that hosts nothing need not load scipy."""


class NearestIndex:
    """Index of the nearest nodes by `cost_distance_ms`, from one table of coordinates.

    The height is not a metric, but d + h lies between sqrt(d^2 + h^2) and sqrt(2) times that, so that a tree with the height as one more
    dimension finds nearly the right nodes: it is asked for more of them until the next one's bound exceeds the k-th best distance found.
    """

    def __init__(self, coordinates: Mapping[NodeId, Coordinate]) -> None:
        names = sorted(coordinates)
        table = np.array([(*c.vector, c.load_ms, c.height_ms) for c in (coordinates[name] for name in names)], dtype=np.float64)
        self._fill(names, table.reshape(-1, 5))

    @classmethod
    def of_arrays(cls, names: Sequence[NodeId], vectors_ms: FloatArray, loads_ms: FloatArray, heights_ms: FloatArray) -> "NearestIndex":
        """Builds the index from columns, in order of name: (nodes, 3), (nodes,), (nodes,)."""
        index = cls.__new__(cls)
        index._fill(names, np.column_stack((vectors_ms, loads_ms, heights_ms)))
        return index

    def _fill(self, names: Sequence[NodeId], table: FloatArray) -> None:
        self._names = names
        self._table = table
        self._tree: Any = None
        if len(names) > BRUTE_FORCE_MAX:
            from scipy.spatial import cKDTree

            # Median splits of a million points take seconds and save nothing here.
            self._tree = cKDTree(table, balanced_tree=False, compact_nodes=False, copy_data=False)

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, point: tuple[float, float, float], k: int) -> list[tuple[NodeId, float]]:
        """Returns up to `k` nodes and their distance in ms, nearest first; equal distances in order of name."""
        if k < 1 or not len(self._names) or not all(math.isfinite(v) for v in point):
            return []
        rows = self._candidates(point, k)
        # The scalar function decides, so that the last bit does not depend on how many nodes there are; rows are in order of name.
        ranked = sorted((self._distance_ms(point, row), int(row)) for row in rows)
        return [(self._names[row], distance) for distance, row in ranked[:k]]

    def around(self, points: FloatArray, k: int) -> npt.NDArray[np.intp]:
        """Returns the merged rows, in order of name, of about the `k` nearest nodes to each of the points, (points, 3). Fast, not exact."""
        if self._tree is None or k >= len(self._names):
            return np.arange(len(self._names))
        _, rows = self._tree.query(np.column_stack((points, np.zeros((len(points), 2)))), k=k)
        return np.unique(rows)

    def _distance_ms(self, point: tuple[float, float, float], row: int) -> float:
        x, y, z, load, height = self._table[row].tolist()
        return float(math.hypot(math.dist(point, (x, y, z)), load) + height)

    def _candidates(self, point: tuple[float, float, float], k: int) -> npt.NDArray[np.intp]:
        """Returns rows that are certain to include the k nearest."""
        size = len(self._names)
        if self._tree is not None:
            ask = 4 * k + 16
            while ask < size:
                bounds, rows = self._tree.query((*point, 0.0, 0.0), k=ask)
                exact = self._distances_ms(point, self._table[rows])
                worst = float(np.partition(exact, k - 1)[k - 1]) * (1 + 1e-9) + 1e-9
                if bounds[-1] > worst:
                    near: npt.NDArray[np.intp] = rows[exact <= worst]
                    return near
                ask *= 4
        if size <= k:
            return np.arange(size)
        distance = self._distances_ms(point, self._table)
        worst = float(np.partition(distance, k - 1)[k - 1])
        # Slightly beyond the k-th, so that the exact function ranks ties that differ in the last bit.
        return np.flatnonzero(distance <= worst * (1 + 1e-9) + 1e-9)

    def _distances_ms(self, point: tuple[float, float, float], table: FloatArray) -> FloatArray:
        difference = table[:, :3] - np.array(point)
        distance: FloatArray = np.sqrt(np.einsum("ij,ij->i", difference, difference) + table[:, 3] ** 2) + table[:, 4]
        return distance
