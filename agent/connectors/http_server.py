"""An HTTP/1.1 server for requests with short bodies, on the agent's event loop. `h11` parses the messages.

Each connection goes through `_State`: it reads a head, then a body, then waits for the answer without reading from its socket, and begins
again. Each state except the wait for an answer has a time limit, which a trickle of bytes does not extend. `HttpServer.reserve` limits the
bytes that all connections hold together; a request beyond the limit is refused at once with status 429.
"""

from __future__ import annotations

import asyncio
import enum
import http
import zlib
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import parse_qs

import h11

from sbon.errors import ConnectorError
from sbon.formats.http_answers import Answer, refusal
from sbon.options import Options
from sbon_agent.connectors.addresses import SocketPlace
from sbon_agent.connectors.listening import Listener
from sbon_agent.connectors.push_clients import Client
from sbon_agent.connectors.tls_files import TlsFiles

HEAD_BYTES_MAX = 16 * 1024
"""Most bytes of the first line and the headers of a request."""
HEAD_TIMEOUT_S = 30.0
"""Longest time from the opening of a connection, or the last answer on it, to the end of the next head."""
DRAIN_TIMEOUT_S = 2.0
"""Time that a connection stays open after an answer to a partly read request: closing at once could destroy the answer on its way."""
DRAIN_BYTES_MAX = 4 << 20
PARAMETERS_MAX = 16
REQUEST_OVERHEAD_BYTES = 1024
"""Bytes counted for each request in addition to its body, so that the number of small bodies is limited, too."""


class Handler(Protocol):
    """Handles requests. Called on the event loop."""

    def admit(self, request: Request) -> Answer | None:
        """Checks the head of a request before its body is read. Returns a refusal, or None to continue."""

    def handle(self, request: Request) -> None:
        """Takes a request with its whole body; `Request.answer` must follow, now or later."""


class Request:
    """One request and the way to answer it."""

    def __init__(self, connection: _Connection, event: h11.Request) -> None:
        self._connection: _Connection | None = connection
        self._server = connection.server
        self.method = bytes(event.method).decode("ascii")
        self.path, _, self._query = bytes(event.target).decode("ascii").partition("?")
        self._headers = [(bytes(name), bytes(value)) for name, value in event.headers]
        self.body = b""
        self._parts: list[bytes | bytearray] = []
        self._held = 0
        self._size = 0
        self._inflate: zlib._Decompress | None = None

    def header(self, name: str) -> str | None:
        """Returns the value of a header, or None if the request does not have it exactly once."""
        wanted = name.lower().encode()
        found = [value for key, value in self._headers if key == wanted]
        return found[0].decode("latin-1").strip() if len(found) == 1 else None

    def has_header(self, name: str) -> bool:
        """Tells whether the request has a header, once or several times."""
        wanted = name.lower().encode()
        return any(key == wanted for key, _ in self._headers)

    def parameter(self, name: str) -> str:
        """Returns a parameter of the request's target; empty unless it is there exactly once."""
        try:
            found = parse_qs(self._query, max_num_fields=PARAMETERS_MAX).get(name, [])
        except ValueError:
            return ""
        return found[0] if len(found) == 1 else ""

    def begin_body(self) -> Answer | None:
        """Checks the headers that describe the body. Returns a refusal, or None."""
        encoding = (self.header("content-encoding") or "identity").lower()
        if encoding not in ("identity", "gzip"):
            return refusal(415, f"Content-Encoding is '{encoding[:40]}', expected gzip or none", Accept_Encoding="gzip")
        if encoding == "gzip":
            self._inflate = zlib.decompressobj(wbits=31)
        length = self.header("content-length")
        if length is not None and int(length) > self._server.body_bytes_max:  # h11 has checked that it is a number
            return self._too_large()
        return self._reserve(REQUEST_OVERHEAD_BYTES)

    def add(self, data: bytes | bytearray) -> Answer | None:
        """Adds a piece of the body, which must not change any more. Returns a refusal if the body is too large or cannot be
        decompressed."""
        if self._inflate is not None:
            try:
                data = self._inflate.decompress(data, self._server.body_bytes_max + 1 - self._size)
            except zlib.error as error:
                return refusal(400, f"the body is not gzip: {error}")
            if self._inflate.unused_data:
                return refusal(400, "the body has bytes after the end of its gzip stream")
        self._size += len(data)
        if self._size > self._server.body_bytes_max:
            return self._too_large()
        self._parts.append(data)
        return self._reserve(len(data))

    def end_body(self) -> Answer | None:
        """Ends the body. Returns a refusal if a compressed body is incomplete."""
        self.body = b"".join(self._parts)
        self._parts.clear()
        if self._inflate is not None and not self._inflate.eof:
            return refusal(400, "the body is not gzip: it ends in the middle")
        return None

    def answer(self, answer: Answer) -> None:
        """Sends the answer, if the peer is still there, and drops the body. Further calls do nothing."""
        connection, self._connection = self._connection, None
        self.release()
        if connection is not None:
            connection.answered(answer)

    def begin_stream(self, client: Client, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        """Answers with a stream (with status 101: another protocol) instead of `answer`, and gives the connection to the client."""
        connection, self._connection = self._connection, None
        self.release()
        if connection is not None:
            connection.begin_stream(client, status, headers)

    def abandon(self) -> None:
        """Closes the connection without an answer, so that the peer does not know whether its rows were taken."""
        connection, self._connection = self._connection, None
        self.release()
        if connection is not None:
            connection.abort()

    def release(self) -> None:
        """Drops the body and releases the bytes that it has reserved."""
        self.body = b""
        self._parts.clear()
        self._server.release(self._held)
        self._held = 0

    def _reserve(self, size: int) -> Answer | None:
        if not self._server.reserve(size):
            return refusal(429, "too much waits for the query: try again later", Retry_After="1")
        self._held += size
        return None

    def _too_large(self) -> Answer:
        return refusal(413, f"the body is larger than {self._server.body_bytes_max} bytes (body_bytes_max)")


class HttpServer:
    """Listens, and keeps the limits that hold for all connections together.

    Parameters
    ----------
    body_bytes_max : most bytes of one body, after decompression
    held_bytes_max : most bytes of all requests that are being read or wait for their answers
    body_timeout_s : longest time from the head of a request to the end of its body, and for sending an answer
    """

    def __init__(
        self,
        what: str,
        place: SocketPlace,
        tls: TlsFiles | None,
        handler: Handler,
        *,
        connections_max: int,
        body_bytes_max: int,
        held_bytes_max: int,
        body_timeout_s: float,
    ) -> None:
        self.handler = handler
        self.connections_max = connections_max
        self.body_bytes_max = body_bytes_max
        self.body_timeout_s = body_timeout_s
        self._held_bytes_max = held_bytes_max
        self.held_bytes = 0
        self.connections: set[_Connection | Client] = set()
        self._listener = Listener(what, place, lambda: _Connection(self), tls)

    @property
    def address(self) -> tuple[str, int] | None:
        """Address on which the server listens; None before it does."""
        return self._listener.address

    @property
    def remark(self) -> str:
        """Returns why a new certificate is not in use; empty if it is."""
        return self._listener.remark

    def check(self) -> None:
        """Checks whether the server may listen on its address, and reads certificate and key. May block.

        Raises
        ------
        ConnectorError
            The address may not be used, or certificate or key are unusable.
        """
        self._listener.check()

    def start(self, loop: asyncio.AbstractEventLoop, failed: Callable[[ConnectorError], None]) -> None:
        """Begins to listen. `failed` is called if that is not possible."""
        self.loop = loop
        self._listener.start(loop, failed)

    def stop(self) -> None:
        """Closes everything, after answers already written have been sent."""
        self._listener.stop()
        for connection in list(self.connections):
            connection.close()

    def reserve(self, size: int) -> bool:
        """Counts bytes as held; returns False and counts nothing if they would be too many."""
        if self.held_bytes + size > self._held_bytes_max:
            return False
        self.held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Counts bytes as no longer held."""
        self.held_bytes -= size


class _State(enum.Enum):
    HEAD = enum.auto()
    BODY = enum.auto()
    WAITING = enum.auto()
    """Waits for the handler's answer."""
    DRAINING = enum.auto()
    """Has answered; received bytes are discarded until the peer closes."""


class _Connection(asyncio.Protocol):
    """Connection of one peer."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._state = _State.HEAD
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._advancing = self._full = False
        self._drained = 0
        self._client: Client | None = None
        """The client that has taken the connection over."""
        self._head_only = False
        """True if the request is a HEAD, whose answer has no body."""

    # ----------------------------------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=1, low=0)  # a TLS transport takes 0 for always full
        server = self.server
        if len(server.connections) >= server.connections_max:
            said = f"{server.connections_max} connections are open (connections_max): try again later"
            self._send(refusal(503, said, Retry_After="1"), close=True)
            self._transport.close()
            return
        server.connections.add(self)
        self._arm(HEAD_TIMEOUT_S)

    def data_received(self, data: bytes) -> None:
        if self._state is _State.DRAINING:
            self._drained += len(data)
            if self._drained > DRAIN_BYTES_MAX:
                self.abort()
            return
        if self not in self.server.connections:
            return
        self._http.receive_data(data)
        self._advance()

    def eof_received(self) -> bool:
        if self._state is _State.DRAINING or self not in self.server.connections:
            return False
        self._http.receive_data(b"")
        self._advance()
        # A peer that has closed its half may still read the answer; TLS has no half-closed connections.
        return self._state is _State.WAITING and self._transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._state is _State.HEAD:
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        self._disarm()
        if self._client is not None:  # the loss was already under way when the client took over
            self._client.connection_lost(error)
        self.server.connections.discard(self)
        if self._request is not None and self._state is not _State.WAITING:
            self._request.release()

    # -------------------------------------------------------------------------------------------------------- reading

    def _advance(self) -> None:
        """Handles the messages parsed so far."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._state in (_State.HEAD, _State.BODY) and not self._full:
                try:
                    event = self._http.next_event()
                except h11.RemoteProtocolError as error:
                    self._refuse(refusal(error.error_status_hint, f"the request is not HTTP/1.1: {error}"))
                    return
                if not self._take(event):
                    return
        finally:
            self._advancing = False

    def _take(self, event: object) -> bool:
        """Handles one event; returns False if reading must wait."""
        if event is h11.NEED_DATA:
            if self._state is _State.BODY and self._http.they_are_waiting_for_100_continue:
                self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            return False
        if event is h11.PAUSED:
            return False
        if isinstance(event, h11.ConnectionClosed):
            self.close()
            return False
        refused = None
        if isinstance(event, h11.Request):
            self._state = _State.BODY
            self._arm(self.server.body_timeout_s)
            self._head_only = event.method == b"HEAD"
            self._request = Request(self, event)
            refused = self.server.handler.admit(self._request) or self._request.begin_body()
        elif isinstance(event, h11.Data) and self._request is not None:
            refused = self._request.add(event.data)
        elif isinstance(event, h11.EndOfMessage) and self._request is not None:
            refused = self._request.end_body()
            if refused is None:
                self._state = _State.WAITING
                self._disarm()
                if not self._transport.is_closing():
                    self._transport.pause_reading()
                self.server.handler.handle(self._request)
        if refused is not None:
            self._refuse(refused)
            return False
        return True

    def _next(self) -> None:
        """Goes on to the next request."""
        self._arm(HEAD_TIMEOUT_S)
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._advance()

    # ------------------------------------------------------------------------------------------------------ answering

    def answered(self, answer: Answer) -> None:
        """Sends the handler's answer."""
        self._request = None
        if self._transport.is_closing():
            return
        self._send(answer, close=False)
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self.close()
            return
        self._http.start_next_cycle()
        self._state = _State.HEAD
        if self._full:
            self._arm(self.server.body_timeout_s)
        else:
            self._next()

    def begin_stream(self, client: Client, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        """Sends the head of a stream and gives the connection to the client."""
        self._disarm()
        self._request, self._client = None, client
        connections, transport = self.server.connections, self._transport
        connections.discard(self)
        connections.add(client)
        client.when_gone(lambda: connections.discard(client))
        event = h11.InformationalResponse if status == 101 else h11.Response
        reason = http.HTTPStatus(status).phrase.encode()
        self._write(self._http.send(event(status_code=status, headers=list(headers), reason=reason)))
        transport.set_protocol(client)
        if not transport.is_closing() and not self._full:
            transport.resume_reading()
        client.begin(transport, self._http, bytes(self._http.trailing_data[0]), full=self._full)

    def _refuse(self, answer: Answer) -> None:
        """Answers a partly read request, and closes the connection in a way that lets the answer arrive."""
        if self._request is not None:
            self._request.release()
            self._request = None
        self._state = _State.DRAINING
        self._send(answer, close=True)
        self._arm(DRAIN_TIMEOUT_S)
        if not self._transport.is_closing() and self._transport.can_write_eof():
            self._transport.write_eof()

    def _send(self, answer: Answer, *, close: bool) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(answer.document))), *answer.headers]
        if close:
            headers.append(("Connection", "close"))
        reason = http.HTTPStatus(answer.status).phrase.encode()
        head = self._http.send(h11.Response(status_code=answer.status, headers=headers, reason=reason)) or b""
        body = b"" if self._head_only else self._http.send(h11.Data(data=answer.document)) or b""
        self._write(head + body + (self._http.send(h11.EndOfMessage()) or b""))

    def _write(self, data: bytes | None) -> None:
        if data and not self._transport.is_closing():
            self._transport.write(data)

    # -------------------------------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Closes the connection once written bytes are sent, or after `DRAIN_TIMEOUT_S` if the peer does not read them."""
        self._disarm()
        self._timer = self.server.loop.call_later(DRAIN_TIMEOUT_S, self.abort)
        self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._disarm()
        self._transport.abort()

    def _arm(self, timeout_s: float) -> None:
        self._disarm()
        self._timer = self.server.loop.call_later(timeout_s, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """Refuses a request whose body is late, or closes the connection."""
        if self._state is _State.BODY:
            self._refuse(refusal(408, f"the body has not arrived within {self.server.body_timeout_s:g} s (body_timeout)"))
        else:
            self.abort()


def read_listen(options: Options) -> tuple[str, int]:
    """Returns the host and port of the option `listen`."""
    text = options.required("listen", "127.0.0.1:8080")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise options.refuse("listen", text, "an address and a port such as '127.0.0.1:8080' or '[::1]:8080'")
    return host, int(port)


def read_path(options: Options) -> str:
    """Returns the option `path`."""
    path = options.text("path", "/")
    if not path.startswith("/") or not path.isascii() or any(mark in path for mark in "?# "):
        raise options.refuse("path", path, "a path such as '/in'")
    return path
