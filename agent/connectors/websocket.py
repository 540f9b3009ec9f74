"""Connector `websocket` (sink): sends each row as a text message in JSON, by WebSocket (RFC 6455), for browsers and others.

Its options are in `push_sink`. Messages have no ids: a client that comes back may ask for the kept rows (`?kept=true`), and may get some of
them twice. Messages from clients are ignored, and pings are answered. At the end the agent closes with a code: 1000 if the query has ended;
1008 if the client is too slow, does not answer pings or sends too much; 1002 or 1007 if it violates the protocol.

`wsproto` makes and parses frames; compression is not offered. A row is framed once for all clients, which is possible because a server's
frames have no mask.
"""

from __future__ import annotations

import base64
import binascii

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.utilities import generate_accept_token

from sbon.connectors.push_feed import Feed
from sbon.formats.http_answers import Answer, refusal
from sbon.query.params.source import SinkParams
from sbon.schema import Schema
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.http_server import Request
from sbon_agent.connectors.push_clients import BEATS_MAX, SILENT, Client
from sbon_agent.connectors.push_sink import PushOptions, PushSink

SAID_BYTES_MAX = 64 * 1024
"""Most bytes that a client may send in messages."""
_NORMAL, _POLICY = 1000, 1008
_PING_BYTES = b"sbon"


def check_websocket_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> None:
    """Refuses options as `build_websocket_sink` would, without listening."""
    PushOptions.read(params, context)


def build_websocket_sink(params: SinkParams, schema: Schema, context: ConnectorContext) -> PushSink:
    """Makes the sink, which does not listen yet.

    Raises
    ------
    ConnectorError
        An option is missing, unknown or out of range.
    """
    return PushSink(PushOptions.read(params, context), schema, context, SocketStreams())


class SocketStreams:
    """WebSocket for `PushSink`."""

    def __init__(self) -> None:
        self._framing = Connection(ConnectionType.SERVER)
        """Frames rows; not connected to any peer."""

    def frame(self, number: int, line: bytes) -> bytes:
        """Returns a row as a message."""
        return bytes(self._framing.send(TextMessage(data=line.decode())))

    def admit(self, request: Request) -> Answer | None:
        """Accepts requests for WebSocket version 13 with a key of 16 bytes."""
        version = request.header("sec-websocket-version")
        if (request.header("upgrade") or "").lower() != "websocket" or not _names_upgrade(request) or version != "13":
            said = "the request does not ask for WebSocket, expected Upgrade: websocket and Sec-WebSocket-Version: 13"
            return refusal(426, said, Upgrade="websocket", Sec_WebSocket_Version="13")
        try:
            key = base64.b64decode(request.header("sec-websocket-key") or "", validate=True)
        except (binascii.Error, ValueError):
            key = b""
        return None if len(key) == 16 else refusal(400, "Sec-WebSocket-Key is no key of 16 bytes in base 64")

    def answer(self, request: Request) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Returns status and headers."""
        accepted = generate_accept_token((request.header("sec-websocket-key") or "").encode()).decode()
        return 101, (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accepted))

    def client(self, request: Request, feed: Feed, begins_at: int) -> Client:
        """Makes the client that sends the messages."""
        return _SocketClient(feed, begins_at)


def _names_upgrade(request: Request) -> bool:
    return "upgrade" in [word.strip() for word in (request.header("connection") or "").lower().split(",")]


class _SocketClient(Client):
    """A client that gets messages."""

    def __init__(self, feed: Feed, begins_at: int) -> None:
        super().__init__(feed, begins_at)
        self._socket = Connection(ConnectionType.SERVER)
        self._said_bytes = 0
        self._unanswered = 0
        """Number of successive pings without an answer."""

    def heartbeat(self) -> bytes:
        """Returns a ping; a peer that has left several unanswered is given up."""
        if self._unanswered >= BEATS_MAX:
            self.end(SILENT, over=False)
            return b""
        self._unanswered += 1
        return bytes(self._socket.send(Ping(payload=_PING_BYTES)))

    def farewell(self, reason: str, *, over: bool) -> bytes:
        """Returns the closing frame; the connection is closed when the peer has answered it."""
        self.awaits_answer = True
        return bytes(self._socket.send(CloseConnection(code=_NORMAL if over else _POLICY, reason=reason)))

    def received(self, data: bytes) -> None:
        """Answers pings and the closing frame; counts other messages and drops them."""
        self._socket.receive_data(data)
        for event in self._socket.events():
            if isinstance(event, Ping):
                self.write(bytes(self._socket.send(event.response())))
            elif isinstance(event, Pong):
                self._unanswered = 0
            elif isinstance(event, CloseConnection):  # from the peer, or because it violated the protocol
                self.end_with(bytes(self._socket.send(event.response())))
                return
            elif isinstance(event, (TextMessage, BytesMessage)):
                self._said_bytes += len(event.data)
                if self._said_bytes > SAID_BYTES_MAX:
                    self.end("this client sends messages, but this sink reads none", over=False)
                    return

    def received_at_the_end(self, data: bytes) -> None:
        """Waits for the answer to the closing frame."""
        if self._socket.state is ConnectionState.LOCAL_CLOSING:
            self._socket.receive_data(data)
            if any(isinstance(event, CloseConnection) for event in self._socket.events()):
                self.hang_up()
