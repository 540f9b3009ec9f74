"""The coordinates of all known nodes as arrays, so that placement can evaluate thousands of nodes at once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from sbon.cost_space.coordinate import ORIGIN, Coordinate
from sbon.cost_space.nearest import NearestIndex
from sbon.errors import CoordinateError, PlacementError, ShapeError
from sbon.types import FloatArray, NodeId

CAUTION_ERROR = 0.15
"""Penalty for a node's error estimate, as a share of the typical RTT of the space, if candidates are compared by predictions alone.
Among many that look equally good, the one with the larger error is probably worse than it looks, however near it seems."""
CAUTION_HEIGHT = 1.0
"""Additional penalty for a node's height, since the height absorbs the RTT that no point in three dimensions explains."""
TYPICAL_SAMPLE = 256
"""Number of nodes from which the typical RTT of a space is computed."""


class CostSpace:
    """An immutable table of nodes. Build it once and use it for many queries.

    Attributes
    ----------
    names : nodes in order of name
    row : of each node in the arrays
    coordinates : of each node
    vectors_ms : (nodes, 3)
    heights_ms, loads_ms, errors : (nodes,)
    """

    def __init__(self, coordinates: Mapping[NodeId, Coordinate]) -> None:
        names = tuple(sorted(coordinates))
        rows = [(*c.vector, c.height_ms, c.load_ms, c.error) for c in (*(coordinates[name] for name in names), ORIGIN)]
        self.coordinates: Mapping[NodeId, Coordinate] = dict(coordinates)
        self._fill(names, {name: row for row, name in enumerate(names)}, np.array(rows, dtype=np.float64).T.copy())

    @classmethod
    def from_arrays(
        cls,
        names: npt.NDArray[np.str_],
        vectors_ms: FloatArray,
        heights_ms: FloatArray,
        loads_ms: FloatArray | None = None,
        errors: FloatArray | None = None,
    ) -> "CostSpace":
        """Builds the table without an object for each node, for spaces of a million nodes.

        Parameters
        ----------
        names : (nodes,) in any order, each once
        vectors_ms : (nodes, 3)
        heights_ms, loads_ms, errors : (nodes,); 0 where left out

        Raises
        ------
        ShapeError
            The arrays differ in length, or a name comes twice.
        CoordinateError
            A number is not finite.
        """
        count = len(names)
        if vectors_ms.shape != (count, 3) or any(a is not None and a.shape != (count,) for a in (heights_ms, loads_ms, errors)):
            raise ShapeError(f"coordinates of {count} names in arrays of other lengths, expected one row for each name")
        order = np.argsort(names, kind="stable")
        ordered = names[order]
        if (ordered[1:] == ordered[:-1]).any():
            raise ShapeError(f"node {str(ordered[1:][ordered[1:] == ordered[:-1]][0])!r} comes twice among the names, expected each once")
        columns = np.zeros((6, count + 1))
        columns[:3, :count], columns[3, :count] = vectors_ms[order].T, heights_ms[order]
        for column, values in ((4, loads_ms), (5, errors)):
            if values is not None:
                columns[column, :count] = values[order]
        columns[5, count] = ORIGIN.error
        if not np.isfinite(columns).all():
            wrong = ordered[int(np.flatnonzero(~np.isfinite(columns).all(axis=0))[0])]
            raise CoordinateError(f"coordinate of node {str(wrong)!r} is not finite, expected finite numbers")
        space = cls.__new__(cls)
        row = _Rows(ordered)
        space._fill(_Names(ordered), row, columns)
        space.coordinates = _Coordinates(row, columns)
        return space

    def _fill(self, names: Sequence[NodeId], row: Mapping[NodeId, int], columns: FloatArray) -> None:
        count = len(names)
        self.names = names
        self.row = row
        self.columns = columns
        """Columns, (6, nodes + 1): x, y, z, height, load, error. The last row is the origin, the assumed point of nodes without a
        coordinate."""
        self.vectors_ms: FloatArray = columns[:3, :count].T
        self.heights_ms: FloatArray = columns[3, :count]
        self.loads_ms: FloatArray = columns[4, :count]
        self.errors: FloatArray = columns[5, :count]
        self._strangers: frozenset[NodeId] = frozenset()
        self._index: NearestIndex | None = None
        self._cautious_heights_ms: FloatArray | None = None

    def with_strangers(self, nodes: Sequence[NodeId]) -> "CostSpace":
        """Returns the same space with nodes that have no coordinate assumed at the origin; they are not among its names."""
        strangers = frozenset(node for node in nodes if node not in self.row)
        if not strangers:
            return self
        other = CostSpace.__new__(CostSpace)
        other.__dict__.update(self.__dict__)
        other._strangers = self._strangers | strangers
        return other

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, node: object) -> bool:
        return node in self.row

    @property
    def index(self) -> NearestIndex:
        """Returns the index of the nodes nearest to a point, built on first use."""
        if self._index is None:
            self._index = NearestIndex.of_arrays(self.names, self.vectors_ms, self.loads_ms, self.heights_ms)
        return self._index

    @property
    def cautious_heights_ms(self) -> FloatArray:
        """Returns heights, (nodes + 1,), for comparing predictions (see CAUTION_ERROR, CAUTION_HEIGHT); the origin's is last."""
        if self._cautious_heights_ms is None:
            heights, errors = self.columns[3], self.columns[5]
            self._cautious_heights_ms = heights + CAUTION_HEIGHT * heights + CAUTION_ERROR * self._typical_rtt_ms() * errors
        return self._cautious_heights_ms

    def _typical_rtt_ms(self) -> float:
        """Returns the median RTT over the pairs of some nodes; 0 with fewer than two nodes."""
        some = np.unique(np.linspace(0, max(len(self) - 1, 0), min(len(self), TYPICAL_SAMPLE)).astype(np.intp))
        if len(some) < 2:
            return 0.0
        return float(np.median(self.rtt_of_rows_ms(some, some)[np.triu_indices(len(some), 1)]))

    def rows(self, nodes: Sequence[NodeId]) -> list[int]:
        """Returns the rows of nodes; those of unknown nodes admitted by `with_strangers` are the origin's.

        Raises
        ------
        PlacementError
            A node has no coordinate.
        """
        row = self.row
        try:
            return [row[node] for node in nodes]
        except KeyError:
            missing = [node for node in nodes if node not in row and node not in self._strangers]
        if missing:
            raise PlacementError(f"node {missing[0]!r} has no coordinate, expected one of {len(self)} known nodes")
        return [row[node] if node in row else len(self) for node in nodes]

    def points_ms(self, nodes: Sequence[NodeId]) -> FloatArray:
        """Returns the points of nodes, (nodes, 3); unknown ones at the origin."""
        return np.ascontiguousarray(self.columns[:3, self.rows(nodes)].T)

    def coordinate(self, node: NodeId) -> Coordinate:
        """Returns the coordinate of a node; for an unknown one the origin."""
        return ORIGIN if node in self._strangers else self.coordinates[node]

    def rtt_ms(self, a: NodeId, b: NodeId) -> float:
        """Returns the predicted RTT; 0 within a node."""
        return float(self.rtt_matrix_ms([a], [b])[0, 0])

    def rtt_matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """Returns the predicted RTTs (distance plus both heights), (sources, targets); 0 if both are one node."""
        s, t = np.array(self.rows(sources), dtype=np.intp), np.array(self.rows(targets), dtype=np.intp)
        return self.rtt_of_rows_ms(s, t)

    def rtt_of_rows_ms(self, s: npt.NDArray[np.intp], t: npt.NDArray[np.intp], *, cautious: bool = False) -> FloatArray:
        """Returns the predicted RTTs between rows of the table, (s, t); with cautious heights if asked for."""
        # One dimension after the other: avoids an array of differences, and a library that would spread small work over busy cores.
        here, there = self.columns[:3, s], self.columns[:3, t]
        rtt: FloatArray = np.zeros((len(s), len(t)))
        for axis in range(3):
            difference = np.subtract.outer(here[axis], there[axis])
            difference *= difference
            rtt += difference
        np.sqrt(rtt, out=rtt)
        heights = self.cautious_heights_ms if cautious else self.columns[3]
        rtt += heights[s][:, None]
        rtt += heights[t]
        rtt[s[:, None] == t] = 0.0
        return rtt


class _Names(Sequence[NodeId]):
    """Names in an array, returned as plain strings."""

    def __init__(self, names: npt.NDArray[np.str_]) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> NodeId: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NodeId]: ...
    def __getitem__(self, index: int | slice) -> NodeId | Sequence[NodeId]:
        return _Names(self._names[index]) if isinstance(index, slice) else str(self._names[index])


class _Rows(Mapping[NodeId, int]):
    """The row of each name, by bisection of the sorted names."""

    def __init__(self, names: npt.NDArray[np.str_]) -> None:
        self._names = names
        self._width = names.dtype.itemsize // 4
        """Characters of the longest name; a longer key would make numpy widen the whole array to compare."""

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[NodeId]:
        return (str(name) for name in self._names)

    def __getitem__(self, name: NodeId) -> int:
        if isinstance(name, str) and len(name) <= self._width:
            row = int(np.searchsorted(self._names, name))
            if row < len(self._names) and self._names[row] == name:
                return row
        raise KeyError(name)


class _Coordinates(Mapping[NodeId, Coordinate]):
    """Coordinates created on access."""

    def __init__(self, rows: _Rows, columns: FloatArray) -> None:
        self._rows = rows
        self._columns = columns

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._rows)

    def __getitem__(self, name: NodeId) -> Coordinate:
        x, y, z, height, load, error = self._columns[:, self._rows[name]].tolist()
        return Coordinate((x, y, z), height, error, load)
