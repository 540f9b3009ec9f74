"""Connector `tcp`: NDJSON lines over TCP, one object a line, UTF-8. As a source (`tcp_source`) it reads rows, as a sink it writes them.

Options of both
---------------
port : required; port to listen on or to connect to
host : address to listen on or to connect to, default 127.0.0.1; to admit other machines, name an address of this machine, or 0.0.0.0; there
    is no password on this port
mode : `listen` (default of sources) or `connect` (default of sinks), which reconnects whenever the connection is lost
connections_max : with `listen`, most connections, default 16
tls_certificate, tls_key : with `listen`: files with the certificate (chain) and its key, PEM; peers must then speak TLS. With `connect` and
    `tls = 'true'`: the certificate to show to a peer that asks for one. Only its owner may have read access to the key. New connections use
    changed files within 10 s. Default: plain text, or no certificate
tls : with `connect`: `true` or `false` (default): whether the peer must speak TLS 1.2 or later and have a trusted certificate
ca_file : with `tls = 'true'`: certificates (PEM) of the authorities to trust instead of the system's
server_name : with `tls = 'true'`: name or address that the peer's certificate must have; default: `host`

Statements of other agents may listen on and connect to the addresses of the setting `connectors.tcp.allow`, by default those of loopback.

Options of a source
-------------------
line_bytes_max : longer lines are left out and counted; default 65536
buffer_bytes_max : memory for lines that wait for the overlay; when it is full, the sockets are not read; default 8 MiB
time_format, time_unit : see `time_format.TimeFormat`
batch_rows_max : most rows of a batch, default 65536; fewer if they would take longer than the engine's quantum
ahead_max : longest time, such as '1 hour', by which event times may be ahead of this machine's clock; rows further ahead are left out and
    counted. Default: no limit, and `sbon operators` reports the first row that is a day ahead

Options of a sink
-----------------
buffer_bytes_max : memory for lines that wait for the peer; when it is full, the query waits; default 4 MiB

With `listen`, every connected peer gets every row written while it is connected, at the pace of the slowest; rows wait while no peer is
connected. Rows that had been given to a connection when it broke may be lost: TCP does not say which arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

from sbon.connectors.interface import Congested
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.operators.values import Values
from sbon.options import Options
from sbon.query.params.source import SinkParams
from sbon.schema import Schema
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.lines import Connection, Endpoint

if TYPE_CHECKING:
    import polars as pl

FLUSH_ON_CLOSE_S = 5.0
"""Seconds that a closing sink may take to deliver waiting rows."""


def check_tcp_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
    """Refuses options as `TcpSink` would, without listening or connecting."""
    _tcp_sink_options(params, context)


def _tcp_sink_options(params: SinkParams, context: ConnectorContext) -> tuple[Endpoint, int]:
    """Reads the options; returns the endpoint, not started, and `buffer_bytes_max`."""
    what = f"sink {params.name}"
    options = Options(what, params.connector, params.options)
    endpoint = Endpoint(what, options, "connect", context, writes=True)
    buffer_bytes_max = options.integer("buffer_bytes_max", 4 << 20, 1024, 1 << 30)
    options.finish()
    return endpoint, buffer_bytes_max


class TcpSink:
    """Sink that writes lines to all connections. `write` runs on an executor thread or the loop's, everything else on the loop's."""

    brief = True

    def __init__(self, params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
        self._endpoint, self._buffer_bytes_max = _tcp_sink_options(params, context)
        self.dropped_rows = 0
        self._what = self._endpoint.what
        self._lines = LineFormat("ndjson", schema)
        self._lock = threading.Lock()
        self._held: deque[tuple[bytes, int]] = deque()
        self._held_bytes = 0
        self._refused_bytes = 0
        """Size of the batch that was refused last and will be offered again."""
        self._closing = self._flushing = False
        self._loop_thread = 0

    @property
    def address(self) -> tuple[str, int] | None:
        """Address on which the sink listens; None before it does."""
        return self._endpoint.address

    def open(self) -> None:
        """Checks whether its address may be used, then listens or connects."""
        self._endpoint.check()
        self._endpoint.loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        self._loop_thread = threading.get_ident()
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
        if threading.get_ident() == self._loop_thread:
            self._flush()
        else:
            self._endpoint.loop.call_soon_threadsafe(self._flush)

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
            # The loop of a stopping agent may be closed already, and every connection with it.
            with contextlib.suppress(RuntimeError):
                self._endpoint.loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._flush()
        if self._held:
            self._endpoint.loop.call_later(FLUSH_ON_CLOSE_S, self._give_up)

    def _give_up(self) -> None:
        with self._lock:
            self.dropped_rows += sum(rows for _, rows in self._held)
            self._held.clear()
            self._held_bytes = 0
        self._endpoint.stop()

    def _flush(self) -> None:
        """Writes held lines, on the loop's thread only.

        A call from inside a transport's `write`, which may report room, does nothing, so that rows stay in order.
        """
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._held and (open_now := self._open_transports()):
                with self._lock:
                    data, _ = self._held.popleft()
                    self._held_bytes -= len(data)
                for transport in open_now:
                    transport.write(data)
        finally:
            self._flushing = False
        if self._closing and not self._held:
            self._endpoint.stop()

    def _open_transports(self) -> list[asyncio.Transport]:
        """Returns the transports of all peers except closing ones; an empty list if one peer is full."""
        connections = self._endpoint.connections
        if any(connection.full for connection in connections):
            return []
        return [one.transport for one in connections if one.transport is not None and not one.transport.is_closing()]

    # ------------------------------------------------------------------------------------------------- lines.Owner

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
