"""Sinks that listen and send each row to every connected client: `sse` (server-sent events) and `websocket`.

Options
-------
listen : required; address and port, such as '127.0.0.1:8090' or '[::1]:8090'
path : path of the requests, default '/'
token_file : a file with one line; requests must then have `Authorization: Bearer` and that line, or `?token=` and that line (browsers
    cannot set the header here). Without it, everybody who reaches the address may read, except web pages
origins : web pages that may read, such as 'https://board.example', separated by commas; '*' admits all; default: none
tls_certificate, tls_key : as for `tcp`
connections_max : most connections, default 64; further ones get status 503
kept_rows_max, buffer_bytes_max : most rows, and most bytes of rows, that are kept for slow clients and for those that come back; default
    10000 rows and 4 MiB
heartbeat : pause between heartbeats; a client that takes nothing for two heartbeats is closed; default '15 s'

Statements of other agents may listen on the addresses of the setting `connectors.tcp.allow`, by default those of loopback.

A client gets the rows that arrive while it is connected; with `?kept=true` it first gets the kept rows. The query never waits for clients:
a client is closed, with the reason, when rows that it has not been sent are no longer kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from sbon.connectors.interface import Congested
from sbon.connectors.push_feed import Feed
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.formats.http_answers import Answer, refusal
from sbon.operators.values import Values
from sbon.options import Options
from sbon.query.params.source import SinkParams
from sbon.schema import Schema
from sbon_agent.connectors.addresses import SocketPlace, loop_of
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.http_server import HttpServer, Request, read_listen, read_path
from sbon_agent.connectors.push_clients import Client
from sbon_agent.connectors.secret_files import SecretFile
from sbon_agent.connectors.tls_files import TlsFiles

if TYPE_CHECKING:
    import polars as pl

PIECE_ROWS = 256
"""Rows passed to the clients at once; the event loop serves sockets in between."""
CONGESTED_S = 0.05
REQUEST_BYTES_MAX = 1024
REQUEST_TIMEOUT_S = 10.0
HEARTBEAT_S_MIN, HEARTBEAT_S_MAX = 0.1, 3600.0


class Streams(Protocol):
    """The parts in which the sinks `sse` and `websocket` differ."""

    def frame(self, number: int, line: bytes) -> bytes:
        """Returns a row, given as JSON, in the form in which it is sent to every client."""

    def admit(self, request: Request) -> Answer | None:
        """Checks the head of a request. Returns a refusal, or None to continue."""

    def answer(self, request: Request) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Returns status and headers of the answer."""

    def client(self, request: Request, feed: Feed, begins_at: int) -> Client:
        """Makes the client that sends the stream.

        Parameters
        ----------
        begins_at : number of the first row to send, unless the request says otherwise
        """


class PushOptions(NamedTuple):
    """Options of a sink, read and checked."""

    what: str
    connector: str
    place: SocketPlace
    path: str
    token: SecretFile | None
    origins: frozenset[str]
    tls: TlsFiles | None
    connections_max: int
    kept_rows_max: int
    buffer_bytes_max: int
    heartbeat_s: float

    @classmethod
    def read(cls, params: SinkParams, context: ConnectorContext) -> PushOptions:
        """Reads the options of a sink, without accessing anything outside.

        Raises
        ------
        ConnectorError
            An option is missing, unknown or out of range.
        """
        what = f"sink {params.name}"
        options = Options(what, params.connector, params.options)
        host, port = read_listen(options)
        origins = options.words("origins")
        for origin in origins:
            if origin not in ("*", "null") and not _is_origin(origin):
                raise options.refuse("origins", origin, "origins such as 'https://board.example', or '*'")
        heartbeat_s = options.duration_us("heartbeat", 15_000_000) / 1e6
        if not HEARTBEAT_S_MIN <= heartbeat_s <= HEARTBEAT_S_MAX:
            raise options.refuse("heartbeat", options.text("heartbeat", ""), "a span from 100 ms to 1 hour")
        found = cls(
            what,
            options.connector,
            SocketPlace(what, host, port, context.reach, listens=True, option="listen"),
            read_path(options),
            SecretFile.of_option(what, options, "token_file", context.reach),
            frozenset(origins),
            TlsFiles.of_options(what, options, context.reach),
            options.integer("connections_max", 64, 1, 4096),
            options.integer("kept_rows_max", 10_000, 1, 10_000_000),
            options.integer("buffer_bytes_max", 4 << 20, 4096, 1 << 30),
            heartbeat_s,
        )
        options.finish()
        return found


class PushSink:
    """Sink that numbers rows and passes them to the clients.

    `write` runs on an executor thread or the loop's, everything else on the loop's.
    """

    brief = True

    def __init__(self, options: PushOptions, schema: Schema, context: ConnectorContext, streams: Streams) -> None:
        self._options = options
        self._what = options.what
        self._loop = loop_of(options.what, options.connector, context)
        self._streams = streams
        self._lines = LineFormat("ndjson", schema)
        self._feed = Feed(options.kept_rows_max, options.buffer_bytes_max)
        self._server = HttpServer(
            options.what,
            options.place,
            options.tls,
            self,
            connections_max=options.connections_max,
            body_bytes_max=REQUEST_BYTES_MAX,
            held_bytes_max=options.connections_max * 2 * REQUEST_BYTES_MAX,
            body_timeout_s=REQUEST_TIMEOUT_S,
        )
        self.clients: set[Client] = set()
        self.dropped_rows = 0
        """Always 0: a connected client is sent every row, or told that it has missed some."""
        self._lock = threading.Lock()
        self._pieces: deque[list[bytes]] = deque()
        """Rows on their way to the event loop."""
        self._pieces_bytes = self._numbered = 0
        self._pushing = False
        self._error: ConnectorError | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._closing = False

    @property
    def address(self) -> tuple[str, int] | None:
        """Address on which the sink listens; None before it does."""
        return self._server.address

    def open(self) -> None:
        """Checks the address, reads token, certificate and key, then listens."""
        self._server.check()
        if self._options.token is not None:
            self._options.token.read()
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if not self._closing:
            self._server.start(self._loop, self._fail)
            self._heartbeat = self._loop.call_later(self._options.heartbeat_s, self._beat)

    def _fail(self, error: ConnectorError) -> None:
        self._error = error

    # ------------------------------------------------------------------------------------------------------- writing

    def write(self, frame: pl.DataFrame) -> None:
        """Passes the rows to the event loop, unless too many earlier ones still wait."""
        self._expect_room()
        self._queue(self._lines.lines(frame))

    def write_values(self, values: Values) -> None:
        """Does the same for a few rows."""
        self._expect_room()
        self._queue(self._lines.lines_of_values(values))

    def close(self) -> None:
        """Sends the remaining rows to clients that take them, in the background and for some seconds at most; then ends their streams."""
        if not self._closing:
            self._closing = True
            with contextlib.suppress(RuntimeError):  # the loop of a stopping agent may be closed already
                self._loop.call_soon_threadsafe(self._end_if_pushed)

    def _expect_room(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise ConnectorError(f"{self._what}: is closed")
        if self._pieces_bytes >= self._options.buffer_bytes_max:
            raise Congested(f"{self._what}: {self._pieces_bytes} bytes wait for the agent's event loop", CONGESTED_S)

    def _queue(self, data: bytes) -> None:
        lines = data.split(b"\n")[:-1]
        frames = [self._streams.frame(number, line) for number, line in enumerate(lines, self._numbered + 1)]
        self._numbered += len(frames)
        pieces = [frames[begin : begin + PIECE_ROWS] for begin in range(0, len(frames), PIECE_ROWS)]
        with self._lock:
            self._pieces.extend(pieces)
            self._pieces_bytes += sum(map(len, frames))
            begins, self._pushing = not self._pushing, True
        if begins:
            self._loop.call_soon_threadsafe(self._push)

    # ----------------------------------------------------------------------------------------------- on the event loop

    def _push(self) -> None:
        """Passes one piece to all clients, and schedules the next piece after the sockets have been served."""
        with self._lock:
            piece = self._pieces.popleft() if self._pieces else []
            self._pieces_bytes -= sum(map(len, piece))
            self._pushing = bool(self._pieces)
        self._feed.add(piece)
        for client in list(self.clients):
            client.flush()
        self._feed.trim()
        for client in list(self.clients):
            client.end_if_late()
        if self._pushing:
            self._loop.call_soon(self._push)
        elif self._closing:
            self._end()

    def _beat(self) -> None:
        for client in list(self.clients):
            client.beat()
        self._heartbeat = self._loop.call_later(self._options.heartbeat_s, self._beat)

    def _end_if_pushed(self) -> None:
        if not self._pushing:
            self._end()

    def _end(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._server.stop()

    # --------------------------------------------------------------------------------------------- http_server.Handler

    def admit(self, request: Request) -> Answer | None:
        """Checks the credentials and the target of a request. The token comes first, so that strangers learn nothing else."""
        token = self._options.token
        if token is not None:
            given = (request.header("authorization") or "").encode("latin-1", "replace").removeprefix(b"Bearer ")
            asked = request.parameter("token").encode("utf-8", "replace")
            if not (hmac.compare_digest(given, token.value) or hmac.compare_digest(asked, token.value)):
                said = "neither the Authorization header nor the parameter token has the token of this sink"
                return refusal(401, said, WWW_Authenticate="Bearer")
        elif not self._is_own_name(request.header("host") or ""):
            # A page may let its own name resolve to this address (DNS rebinding); the browser then treats the rows as the page's own.
            return refusal(403, "the Host header has a name, expected an address or localhost: set token_file to allow names")
        origin = request.header("origin")
        if request.has_header("origin") and (origin is None or not self._options.origins & {"*", origin}):
            return refusal(403, f"this request comes from a web page ({(origin or '')[:80]}) that the sink's option origins does not name")
        if request.path != self._options.path:
            return refusal(404, f"there is nothing at this path, expected {self._options.path}")
        if request.method != "GET":
            return refusal(405, f"the method is {request.method[:20]}, expected GET", Allow="GET")
        return self._streams.admit(request)

    def handle(self, request: Request) -> None:
        """Answers with a stream."""
        if self._closing:
            request.answer(refusal(503, "the query has ended or the agent stops", Retry_After="1"))
            return
        origin = request.header("origin")
        headers = (("Access-Control-Allow-Origin", origin), ("Vary", "Origin")) if origin is not None else ()
        begins_at = self._feed.first if request.parameter("kept") == "true" else self._feed.last + 1
        client = self._streams.client(request, self._feed, begins_at)
        self.clients.add(client)
        client.when_gone(lambda: self.clients.discard(client))
        status, own = self._streams.answer(request)
        request.begin_stream(client, status, (*own, *headers))

    def _is_own_name(self, host: str) -> bool:
        with contextlib.suppress(ValueError):
            name = urlsplit(f"//{host}").hostname or ""
            if name in ("localhost", self._options.place.host.lower()):
                return True
            ipaddress.ip_address(name)
            return True
        return False


def _is_origin(text: str) -> bool:
    """Tells whether a text is a scheme, a host and optionally a port, as browsers write an origin."""
    try:
        parts = urlsplit(text)
        return bool(parts.scheme and parts.hostname) and text == f"{parts.scheme}://{parts.netloc}" and text == text.lower()
    except ValueError:
        return False
