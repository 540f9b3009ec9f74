"""Answers that stay at the agent that took the query, for `sbon tail`: the newest rows are kept, and watchers get them as they come."""

from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sbon.query.schema import Schema
from sbon.types import QueryId

if TYPE_CHECKING:
    import polars as pl

KEPT_ROWS = 10_000
"""Rows that a watcher who comes later still sees. More: a longer look back, more memory for each query."""
PIECE_ROWS = 1_000
"""Rows of one reply, so that no reply grows with what was kept."""

ROW_BYTES, CELL_BYTES = 56, 56
"""What a list takes in Python, and a value beyond what it has in a column: the object and the list's reference to it."""

Watcher = Callable[[list[list[Any]] | None], None]
"""Gets rows, in pieces; None: there will be no more."""


class Tail:
    """A sink of the agent's own (`sbon_agent.connectors.base.SinkConnector`)."""

    def __init__(self, query: QueryId, schema: Schema) -> None:
        self.query = query
        self.columns = [field.name for field in schema]
        self.dropped_rows = 0
        self.rows = 0
        """Delivered since the query began."""
        self._kept: deque[list[Any]] = deque(maxlen=KEPT_ROWS)
        self._fresh: deque[list[list[Any]]] = deque()
        self._watchers: list[Watcher] = []
        self._ended = False
        self._bytes = 0
        self._rows = 0

    @property
    def kept_bytes(self) -> int:
        """About how much memory the kept rows take, each taken as large as the mean of all."""
        return len(self._kept) * self._bytes // max(1, self._rows)

    def write(self, frame: "pl.DataFrame") -> None:
        """On an executor thread: rows as plain values."""
        self._fresh.append([[_plain(value) for value in row] for row in frame.iter_rows()])
        self._rows += frame.height
        self._bytes += int(frame.estimated_size()) + frame.height * (ROW_BYTES + CELL_BYTES * frame.width)

    def close(self) -> None:
        """Nothing is held that must be let go."""

    def publish(self) -> None:
        """On the agent's thread, after `write`: to whoever watches."""
        while self._fresh:
            rows = self._fresh.popleft()
            self.rows += len(rows)
            self._kept.extend(rows)
            for watcher in list(self._watchers):
                watcher(rows)

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """What is kept, then everything new; the returned function ends it."""
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
        """The query has ended."""
        self._ended = True
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher(None)


def _plain(value: Any) -> Any:
    """As JSON can hold it: instants in ISO 8601, spans in seconds, no NaN."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds" if value.microsecond else "seconds")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, float) and value != value:
        return None
    return value
