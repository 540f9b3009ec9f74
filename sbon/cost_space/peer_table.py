"""The latest coordinates of peers, in columns for the re-fit.

One agent has one table. In a simulation many localisers may share one table, which makes gossip instant and saves memory.
"""

import numpy as np

from sbon.cost_space.coordinate import Coordinate
from sbon.types import FloatArray, NodeId

ROWS_MIN = 64
COLUMNS = 5
"""Number of columns: x, y, z, height in ms; error estimate."""


class PeerTable:
    """Coordinates of peers by row; the row of a forgotten peer is reused."""

    def __init__(self) -> None:
        self._rows: dict[NodeId, int] = {}
        self._free: list[int] = []
        self.columns: FloatArray = np.zeros((COLUMNS, ROWS_MIN))
        """Coordinates, (5, rows): x, y, z, height, error."""

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, peer: NodeId) -> int | None:
        """Returns the row of a known peer."""
        return self._rows.get(peer)

    def put(self, peer: NodeId, coordinate: Coordinate) -> int:
        """Stores a checked coordinate; returns its row."""
        row = self._rows.get(peer)
        if row is None:
            if not self._free:
                self._grow()
            row = self._rows[peer] = self._free.pop()
        x, y, z = coordinate.vector
        self.columns[:, row] = (x, y, z, coordinate.height_ms, coordinate.error)
        return row

    def remove(self, peer: NodeId) -> None:
        """Removes a peer, known or not."""
        row = self._rows.pop(peer, None)
        if row is not None:
            self._free.append(row)

    def get(self, peer: NodeId) -> Coordinate | None:
        """Returns the stored coordinate (without a load dimension)."""
        row = self._rows.get(peer)
        if row is None:
            return None
        x, y, z, height, error = self.columns[:, row].tolist()
        return Coordinate((x, y, z), height, error)

    def _grow(self) -> None:
        used = len(self._rows)
        size = self.columns.shape[1]
        if used < size:  # the first rows of a new table
            self._free.extend(range(size - 1, used - 1, -1))
            return
        grown = np.zeros((COLUMNS, size * 2))
        grown[:, :size] = self.columns
        self.columns = grown
        self._free.extend(range(size * 2 - 1, size - 1, -1))
