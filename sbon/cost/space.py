"""The coordinates of all known nodes as arrays, so that a placement looks at thousands of nodes at once."""

from collections.abc import Mapping, Sequence

import numpy as np

from sbon.cost_space.coordinate import Coordinate
from sbon.cost_space.nearest import NearestIndex
from sbon.errors import PlacementError
from sbon.types import FloatArray, NodeId


class CostSpace:
    """An immutable table of nodes. Make it once and use it for many queries.

    Attributes
    ----------
    names : nodes in order of name
    vectors_ms : (nodes, 3)
    heights_ms, loads_ms, errors : (nodes,)
    """

    def __init__(self, coordinates: Mapping[NodeId, Coordinate]) -> None:
        self.coordinates = dict(coordinates)
        self.names: tuple[NodeId, ...] = tuple(sorted(coordinates))
        self.row = {name: row for row, name in enumerate(self.names)}
        table = np.array(
            [(*c.vector, c.height_ms, c.load_ms, c.error) for c in (coordinates[name] for name in self.names)], dtype=np.float64
        )
        table = table.reshape(-1, 6)
        self.vectors_ms: FloatArray = table[:, :3]
        self.heights_ms: FloatArray = table[:, 3]
        self.loads_ms: FloatArray = table[:, 4]
        self.errors: FloatArray = table[:, 5]
        self._index: NearestIndex | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, node: object) -> bool:
        return node in self.row

    @property
    def index(self) -> NearestIndex:
        """For the nearest nodes to a point; built when first asked for."""
        if self._index is None:
            self._index = NearestIndex(self.coordinates)
        return self._index

    def rows(self, nodes: Sequence[NodeId]) -> list[int]:
        """Rows of nodes.

        Raises
        ------
        PlacementError
            A node has no coordinate.
        """
        missing = [node for node in nodes if node not in self.row]
        if missing:
            raise PlacementError(f"node {missing[0]!r} has no coordinate, expected one of {len(self)} known nodes")
        return [self.row[node] for node in nodes]

    def rtt_ms(self, a: NodeId, b: NodeId) -> float:
        """Predicted RTT; 0 within a node."""
        return float(self.rtt_matrix_ms([a], [b])[0, 0])

    def rtt_matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """(sources, targets) of predicted RTTs (distance plus both heights); 0 where both are one node."""
        s, t = np.array(self.rows(sources), dtype=np.intp), np.array(self.rows(targets), dtype=np.intp)
        difference = self.vectors_ms[s][:, None, :] - self.vectors_ms[t][None, :, :]
        rtt: FloatArray = np.sqrt(np.einsum("ijk,ijk->ij", difference, difference))
        rtt += self.heights_ms[s][:, None]
        rtt += self.heights_ms[t][None, :]
        rtt[s[:, None] == t[None, :]] = 0.0
        return rtt
