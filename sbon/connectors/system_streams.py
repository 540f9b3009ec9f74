"""The agent's own measurements as streams: `sys.probes`, `sys.load`, `sys.links`.

The agent pushes a row when it has measured something; every running `sys.*` source has a bounded queue of its own. While no query listens,
a push costs one dictionary lookup. This module imports no polars: `system_source` makes frames of the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

QUEUE_ROWS_MAX = 65_536
"""Most rows waiting in one subscription. Larger: a stalled query loses nothing for longer, but takes more memory."""


class Subscription:
    """A bounded queue of the rows of one stream; when it is full, the oldest rows are dropped and counted."""

    def __init__(self, stream: str, close: Callable[[Subscription], None], rows_max: int = QUEUE_ROWS_MAX) -> None:
        self.stream = stream
        self.dropped_rows = 0
        self.ready: Callable[[], None] | None = None
        self._rows: deque[tuple[Any, ...]] = deque()
        self._rows_max = rows_max
        self._close = close

    def __len__(self) -> int:
        return len(self._rows)

    def offer(self, row: tuple[Any, ...]) -> None:
        """Queues a row; the first row in an empty queue calls `ready`."""
        if len(self._rows) >= self._rows_max:
            self._rows.popleft()
            self.dropped_rows += 1
        self._rows.append(row)
        if len(self._rows) == 1 and self.ready is not None:
            self.ready()

    def take(self, count: int) -> list[tuple[Any, ...]]:
        """Takes out up to `count` of the oldest rows."""
        return [self._rows.popleft() for _ in range(min(count, len(self._rows)))]

    def close(self) -> None:
        """Ends the subscription."""
        self._close(self)


class SystemStreams:
    """Passes the agent's measurements on to the `sys.*` sources that subscribe."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, list[Subscription]] = {}

    def wanted(self, stream: str) -> bool:
        """Tells whether anyone listens, so that costly measurements can be left out otherwise."""
        return bool(self._subscriptions.get(stream))

    def push(self, stream: str, row: tuple[Any, ...]) -> None:
        """Passes a row, in the order of the stream's columns in `sbon.query.system`, to all subscriptions.

        Times are microseconds since 1970.
        """
        for subscription in self._subscriptions.get(stream, ()):
            subscription.offer(row)

    def subscribe(self, stream: str, rows_max: int = QUEUE_ROWS_MAX) -> Subscription:
        """Makes a queue that gets every row pushed from now on."""
        subscription = Subscription(stream, self._closed, rows_max)
        self._subscriptions.setdefault(stream, []).append(subscription)
        return subscription

    def _closed(self, subscription: Subscription) -> None:
        listeners = self._subscriptions.get(subscription.stream, [])
        if subscription in listeners:
            listeners.remove(subscription)
