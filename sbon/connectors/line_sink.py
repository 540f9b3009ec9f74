"""Sink that writes lines to the connections of an endpoint, free of I/O: connector `tcp` (`sbon_agent.connectors.tcp` has its options)."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from sbon.connectors.interface import Congested
from sbon.connectors.line_endpoint import Connection, LineEndpoint
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.operators.values import Values
from sbon.ports import Clock
from sbon.schema import Schema

if TYPE_CHECKING:
    import polars as pl

FLUSH_ON_CLOSE_S = 5.0
"""Seconds that a closing sink may take to deliver waiting rows."""


class LineSink:
    """Sink that writes lines to all connections. `write` runs on any thread, one call at a time, everything else on the agent's.

    Parameters
    ----------
    buffer_bytes_max : most bytes that wait for the peers; a larger batch is taken if nothing waits
    lock : guards the rows that wait
    """

    brief = True

    def __init__(
        self, schema: Schema, endpoint: LineEndpoint, clock: Clock, buffer_bytes_max: int, lock: AbstractContextManager[object]
    ) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._buffer_bytes_max = buffer_bytes_max
        self.dropped_rows = 0
        self._what = endpoint.what
        self._lines = LineFormat("ndjson", schema)
        self._lock = lock
        self._held: deque[tuple[bytes, int]] = deque()
        self._held_bytes = 0
        self._refused_bytes = 0
        """Size of the batch that was refused last and will be offered again."""
        self._closing = self._flushing = False

    @property
    def address(self) -> tuple[str, int] | None:
        """Address on which the sink listens; None before it does."""
        return self._endpoint.address

    @property
    def waiting_bytes(self) -> int:
        """Size of the lines that wait for the peers."""
        return self._held_bytes

    def open(self) -> None:
        """Checks whether its address may be used, then listens or connects."""
        self._endpoint.check()
        self._endpoint.outside.soon(self._start)

    def _start(self) -> None:
        if not self._closing:
            self._endpoint.start(self)

    def write(self, frame: pl.DataFrame) -> None:
        """Queues the lines if there is room. A frame larger than the buffer is taken when the buffer is empty."""
        self._expect_room()
        self._queue(self._lines.lines(frame), frame.height)

    def write_values(self, values: Values) -> None:
        """Does the same for a few rows."""
        self._expect_room()
        self._queue(self._lines.lines_of_values(values), values.rows)

    def _expect_room(self) -> None:
        """Raises Congested before any row is formatted, so that a peer that does not read costs neither work nor memory."""
        if self._endpoint.error is not None:
            raise self._endpoint.error
        if self._closing:
            raise ConnectorError(f"{self._what}: is closed")
        with self._lock:
            if self._is_full(self._refused_bytes):
                raise self._congested()

    def _queue(self, data: bytes, rows: int) -> None:
        with self._lock:
            if self._is_full(len(data)):
                self._refused_bytes = len(data)
                raise self._congested()
            self._refused_bytes = 0
            self._held.append((data, rows))
            self._held_bytes += len(data)
        if self._endpoint.outside.is_here:
            self._flush()
        else:
            self._endpoint.outside.soon(self._flush)

    def _congested(self) -> Congested:
        endpoint = self._endpoint
        peer = "the peer reads too slowly" if endpoint.connections else f"no peer is connected{endpoint.remark and f' ({endpoint.remark})'}"
        return Congested(f"{self._what}: {self._held_bytes} bytes wait, {peer}")

    def _is_full(self, more_bytes: int) -> bool:
        return self._held_bytes >= self._buffer_bytes_max or (bool(self._held) and self._held_bytes + more_bytes > self._buffer_bytes_max)

    def close(self) -> None:
        """Delivers waiting rows in the background, for `FLUSH_ON_CLOSE_S` at most."""
        if not self._closing:
            self._closing = True
            self._endpoint.outside.soon(self._finish)

    def _finish(self) -> None:
        self._flush()
        if self._held:
            self._clock.call_at(self._clock.now() + FLUSH_ON_CLOSE_S, self._give_up)

    def _give_up(self) -> None:
        with self._lock:
            self.dropped_rows += sum(rows for _, rows in self._held)
            self._held.clear()
            self._held_bytes = 0
        self._endpoint.stop()

    def _flush(self) -> None:
        """Writes held lines, on the agent's thread only.

        A call from inside a stream's `write`, which may report room, does nothing, so that rows stay in order.
        """
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._held and (open_now := self._open_connections()):
                with self._lock:
                    data, _ = self._held.popleft()
                    self._held_bytes -= len(data)
                for connection in open_now:
                    connection.write(data)
        finally:
            self._flushing = False
        if self._closing and not self._held:
            self._endpoint.stop()

    def _open_connections(self) -> list[Connection]:
        """Returns the connections to all peers except closing ones; an empty list if one peer is full."""
        connections = self._endpoint.connections
        return [] if any(one.full for one in connections) else [one for one in connections if one.is_open]

    # ------------------------------------------------------------------------------------------------- line_endpoint.Owner

    def connected(self, connection: Connection) -> None:
        """Writes held lines to a new peer."""
        self._flush()

    def received(self, connection: Connection, data: bytes) -> None:
        """Ignores data from a peer."""

    def writable(self) -> None:
        """Writes held lines, as a connection has room again."""
        self._flush()

    def closed(self, connection: Connection) -> None:
        """Writes held lines: the remaining peers may be faster."""
        self._flush()
