"""Source of lines from the connections of an endpoint, free of I/O: connector `tcp` (`sbon_agent.connectors.tcp` has its options).

The agent's thread only collects lines. When the engine polls, an executor thread decodes some MiB at once into columns, which are given out
in batches. If only a few lines wait, the agent's thread decodes them to plain values.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from sbon.connectors.interface import BATCH_ROWS, BATCH_ROWS_MAX, Polled
from sbon.connectors.line_batches import LineBatches
from sbon.connectors.line_buffer import LineBuffer
from sbon.connectors.line_endpoint import Connection, LineEndpoint
from sbon.formats.json_blocks import lines_of
from sbon.misfits import Misfits
from sbon.operators.values import FEW_ROWS
from sbon.options import Options
from sbon.query.params.source import SourceParams

if TYPE_CHECKING:
    import polars as pl

BLOCK_BYTES = 2 << 20
"""Bytes decoded at once. More: other work waits longer for a thread. Less: each row costs more."""
SMALL_ROWS_MAX = 1024
SMALL_BYTES_MAX = 256 * 1024
"""A poll for at most SMALL_ROWS_MAX rows decodes no more rows, and at most SMALL_BYTES_MAX bytes: it may run on the agent's thread."""
BUFFER_BYTES = 8 << 20
"""Default of `buffer_bytes_max`."""


class LineSource:
    """Reads lines from all connections, in the order in which they came.

    Parameters
    ----------
    options : options of `LineBatches`, and `line_bytes_max` and `buffer_bytes_max`
    lock : guards the lines that wait, because polls may run on other threads
    """

    def __init__(self, params: SourceParams, options: Options, endpoint: LineEndpoint, lock: AbstractContextManager[object]) -> None:
        self._endpoint = endpoint
        line_bytes_max = options.integer("line_bytes_max", 65_536, 16, 16 << 20)
        self._buffer_bytes_max = options.integer("buffer_bytes_max", BUFFER_BYTES, 1024, 1 << 30)
        self._long = Misfits()
        self.misfits = Misfits(beside=self._long)
        self._buffer = LineBuffer(line_bytes_max, self._long, lock)
        self._batches = LineBatches(params, options, self.misfits, BATCH_ROWS)
        self.batch_rows = BATCH_ROWS_MAX
        self._rest: pl.DataFrame | None = None
        """Decoded rows that have not been given out yet."""
        self._paused = False
        self._ready: Callable[[], None] | None = None

    @property
    def dropped_rows(self) -> int:
        """Lines that could not be read, or whose event time is too far ahead."""
        return self.misfits.rows + self._long.rows

    @property
    def address(self) -> tuple[str, int] | None:
        """Address on which the source listens; None before it does."""
        return self._endpoint.address

    @property
    def remark(self) -> str:
        """Tells of rows from the future, or of a new certificate that cannot be used."""
        return "; ".join(filter(None, (self._batches.remark, self._endpoint.remark)))

    @property
    def threaded(self) -> bool:
        """Tells whether a poll should run on a thread, because more than a handful of rows would hold up the agent's thread."""
        return self._rest is not None or self._buffer.lines > FEW_ROWS

    def open(self) -> None:
        """Checks that its address may be used."""
        self._endpoint.check()

    def start(self, ready: Callable[[], None]) -> None:
        """Listens or connects."""
        self._ready = ready
        self._endpoint.start(self)

    def due_rows(self, now: float) -> int:
        """Returns the number of lines and rows that have arrived."""
        rest = self._rest
        return self._buffer.lines + (rest.height if rest is not None else 0)

    def poll(self, now: float, wall: float) -> Polled:
        """Returns rows of the lines that have arrived; may be called on any thread."""
        if self._endpoint.error is not None:
            raise self._endpoint.error
        rows = min(self.batch_rows, self._batches.rows_max)
        if self._rest is None and self._buffer.lines:
            few, small = self._buffer.lines <= FEW_ROWS, rows <= SMALL_ROWS_MAX
            data = self._buffer.take_lines(rows, SMALL_BYTES_MAX) if few or small else self._buffer.take(BLOCK_BYTES)
            self._let_in()
            if few:
                return self._batches.polled(lines_of(data), wall, now if self._buffer.lines else None)
            self._rest = self._batches.decoded(data)
        if self._rest is None:
            return self._batches.polled([], wall, None)
        part = self._rest.head(rows)
        self._rest = self._rest.slice(rows) if rows < self._rest.height else None
        return self._batches.polled_part(part, wall, now if self._rest is not None or self._buffer.lines else None)

    def stop(self) -> None:
        """Closes all connections."""
        self._endpoint.stop()
        self._buffer.clear()
        self._rest = None

    def _let_in(self) -> None:
        """Schedules reading from the peers again if there is room."""
        if self._paused and self._buffer.size_bytes <= self._buffer_bytes_max // 2:
            self._endpoint.outside.soon(self._resume)

    def _resume(self) -> None:
        if self._paused and self._buffer.size_bytes <= self._buffer_bytes_max // 2:
            self._paused = False
            for connection in self._endpoint.connections:
                connection.resume()

    # ------------------------------------------------------------------------------------------------- line_endpoint.Owner

    def connected(self, connection: Connection) -> None:
        """Pauses a new peer while the buffer is full."""
        if self._paused:
            connection.pause()

    def received(self, connection: Connection, data: bytes) -> None:
        """Keeps the whole lines of the data."""
        begins = self._buffer.received(connection, data)
        if self._buffer.size_bytes > self._buffer_bytes_max and not self._paused:
            self._paused = True
            for one in self._endpoint.connections:
                one.pause()
            self._let_in()  # a poll on another thread may have made room just before
        if begins:
            self.writable()

    def writable(self) -> None:
        """Reports that a poll has something to do."""
        if self._ready is not None:
            self._ready()

    def closed(self, connection: Connection) -> None:
        """Keeps the last line of a closed connection, which may lack its end."""
        if self._buffer.closed(connection):
            self.writable()
