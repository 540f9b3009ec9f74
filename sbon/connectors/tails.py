"""The sink of queries without CREATE SINK: keeps the newest rows at the query's home and passes new ones on to watchers, for `sbon
tail`.
"""

from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sbon.schema import Schema
from sbon.types import OperatorId

if TYPE_CHECKING:
    import polars as pl

KEPT_ROWS = 10_000
"""Number of rows that a later watcher still sees. More: a longer history, more memory for each query."""
PIECE_ROWS = 1_000
"""Most rows of one reply, so that replies stay small however many rows are kept."""

ROW_BYTES, CELL_BYTES = 56, 56
"""Memory in bytes of a Python list, and of a value in addition to its size in a column (the object and the list's reference to it)."""

Watcher = Callable[[list[list[Any]] | None], None]
"""Called with rows, in pieces; None means that there will be no more."""


class Tail:
    """Sink without a connector; implements `sbon.connectors.interface.SinkConnector`."""

    def __init__(self, sink: OperatorId, schema: Schema) -> None:
        self.sink = sink
        self.columns = [field.name for field in schema]
        self.dropped_rows = 0
        self.rows = 0
        """Rows delivered since the query began."""
        self._kept: deque[list[Any]] = deque(maxlen=KEPT_ROWS)
        self._fresh: deque[list[list[Any]]] = deque()
        self._watchers: list[Watcher] = []
        self._ended = False
        self._bytes = 0
        self._rows = 0

    @property
    def kept_bytes(self) -> int:
        """Returns the approximate memory of the kept rows in bytes, at the mean size of all rows so far."""
        return len(self._kept) * self._bytes // max(1, self._rows)

    def write(self, frame: "pl.DataFrame") -> None:
        """Takes rows as plain values, on an executor thread."""
        self._fresh.append([[_plain(value) for value in row] for row in frame.iter_rows()])
        self._rows += frame.height
        self._bytes += int(frame.estimated_size()) + frame.height * (ROW_BYTES + CELL_BYTES * frame.width)

    def close(self) -> None:
        """Does nothing: there are no files or sockets to close."""

    def publish(self) -> None:
        """Passes new rows on to watchers, on the agent's thread, after `write`."""
        while self._fresh:
            rows = self._fresh.popleft()
            self.rows += len(rows)
            self._kept.extend(rows)
            for watcher in list(self._watchers):
                watcher(rows)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Sends the kept rows, then every new row, to a watcher, until the returned function is called."""
        kept = list(self._kept)
        for start in range(0, len(kept), PIECE_ROWS):
            watcher(kept[start : start + PIECE_ROWS])
        if self._ended:
            watcher(None)
            return lambda: None
        self._watchers.append(watcher)

        def leave() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return leave

    def end(self) -> None:
        """Tells watchers that the query has ended."""
        self._ended = True
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher(None)


def _plain(value: Any) -> Any:
    """Converts a value to what JSON can hold: instants to ISO 8601, durations to seconds, NaN to null."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds" if value.microsecond else "seconds")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, float) and value != value:
        return None
    return value
