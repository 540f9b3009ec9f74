"""One authenticated connection to another agent: messages, requests and their replies, keep-alive.

`sbon.peers.peers` makes and owns them.

Runs `sbon.framing.SecureStream` over a `Stream` of the host and handles its frames::

    MESSAGE  one way                     PING, PONG  the other end is alive
    REQUEST  answered by one REPLY or    BYE         closed on purpose, with the reason
             ERROR of the same number    DATA        a batch of the link of that number (`sbon.links.frames`)

A connection is *dialled* or *accepted*. Only the dialler pings and sends requests; otherwise both ends are alike. A connection finishes
exactly once: one end closes it, or an error or silence ends it. Later events are ignored.

Memory is bounded. While the host's send buffer is full (`Stream.congested`), a connection accepts only small messages, up to
`slack_bytes_max` in all, and replies to accepted requests, up to `backlog_bytes_max` and one reply more.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

from sbon.compression import DrainMeter
from sbon.errors import RemoteProtocolError, SbonError
from sbon.framing import RANDOM_BYTES, Event, Frame, SecureStream, Send
from sbon.handshake import ORIGINS, SPOKEN, Versions
from sbon.links.frames import HEAD, Buffer, Data, LinkFrameReader, LinkFrameWriter
from sbon.peer_settings import PeerConfig
from sbon.peers.keep_alive import KeepAlive
from sbon.peers.kinds import Kind
from sbon.peers.open_requests import Asked, OpenRequests
from sbon.ports import Network, Stream
from sbon.sealing import KeyRing
from sbon.types import Address, NodeId

T = TypeVar("T")

SMALL_BYTES_MAX = 4096
"""Largest message that may be sent while the send buffer is full, for example acknowledgements, which must not wait behind the data that
they would free."""

_REASON_CHARACTERS_MAX = 200


class Owner(Protocol):
    """Owner of the connection. Each of these calls is the last action for its event."""

    counters: dict[str, int]

    def rejected(self, connection: "Connection", error: RemoteProtocolError) -> None: ...
    def established(self, connection: "Connection") -> None: ...
    def message(self, connection: "Connection", payload: bytes) -> None: ...
    def data(self, connection: "Connection", data: Data) -> None: ...
    def request_arrived(self, connection: "Connection", payload: bytes, respond: Callable[[bytes | SbonError], None]) -> None: ...
    def writable(self, connection: "Connection") -> None: ...
    def finished(self, connection: "Connection", reason: str) -> None: ...


class Connection:
    """One end of a connection; a `StreamHandler` of the host.

    Attributes
    ----------
    node
        The peer's authenticated name; empty until the handshake is done.
    address
        The dialled address, or the origin of an accepted connection (an ephemeral port, not the one that the peer listens on).
    dialled
        True if this end opened the connection.
    """

    def __init__(
        self,
        host: Network,
        owner: Owner,
        config: PeerConfig,
        me: NodeId,
        ring: KeyRing | None,
        address: Address,
        dialled: bool,
        versions: Versions = SPOKEN,
    ) -> None:
        self.node: NodeId = ""
        self.address = address
        self.dialled = dialled
        now = host.now()
        self.established_at_s = self.used_at_s = now
        self._alive = KeepAlive(config, dialled=dialled, now=now)
        self._host, self._owner, self._config, self._me = host, owner, config, me
        self._secure = SecureStream(
            dialler=dialled,
            name=me,
            key_ring=ring,
            random_bytes=host.random_bytes(RANDOM_BYTES) if ring else b"",
            frame_bytes_max=config.frame_bytes_max,
            versions=versions,
        )
        self._links_out = LinkFrameWriter(checksum=ring is None, frame_bytes_max=config.frame_bytes_max)
        self._links_in = LinkFrameReader(checksum=ring is None)
        self._stream: Stream | None = None
        self.drain = DrainMeter(lambda: 0.0 if self._stream is None else self._stream.held_up_s)
        self._finished = self._closing = False
        self._over_bytes = 0
        self.requests = OpenRequests(self, host.call_soon, config, owner.counters)

    def __repr__(self) -> str:
        arrow = "to" if self.dialled else "from"
        return f"<Connection {arrow} {self.node or '?'} at {self.address[0]}:{self.address[1]}>"

    @property
    def version(self) -> int:
        """Protocol version that both ends speak; 0 until the hellos are exchanged."""
        return self._secure.version

    @property
    def is_ready(self) -> bool:
        """True if the handshake is done and the connection is open."""
        return not self._finished and not self._closing and bool(self.node)

    @property
    def is_clogged(self) -> bool:
        """True while more bytes wait than the peer may leave unread."""
        return self._over_bytes > self._config.backlog_bytes_max

    def may_send(self, size_bytes: int) -> bool:
        """Tells whether `send` would accept a payload of this size now."""
        if not self.is_ready or self._stream is None:
            return False
        if not self._stream.congested:
            return True
        return size_bytes <= SMALL_BYTES_MAX and self._over_bytes + size_bytes <= self._config.slack_bytes_max

    def send(self, payload: bytes) -> bool:
        """Sends a one-way message; returns False if the connection is not ready or its buffer is full (the caller sends again later).

        Raises
        ------
        LocalProtocolError
            The payload is larger than `frame_bytes_max`.
        """
        if not self.may_send(len(payload)):
            return False
        self.write(Kind.MESSAGE, 0, payload)
        self.used_at_s = self._alive.sent_at_s
        self._owner.counters["messages_sent"] += 1
        return True

    def send_data(self, data: Data) -> bool:
        """Sends a batch of a link; otherwise like `send`.

        Raises
        ------
        UnpackableError
            The batch does not fit into a frame.
        """
        if not self.may_send(HEAD.size + len(data.payload)):
            return False
        number, head = self._links_out.head(data)
        self.write(Kind.DATA, number, head, data.payload)
        self.used_at_s = self._alive.sent_at_s
        self._owner.counters["messages_sent"] += 1
        return True

    def ask(self, payload: bytes, asked: Asked) -> None:
        """Sends a request; `may_send` must have returned True."""
        self.requests.ask(payload, asked)
        self.used_at_s = self._alive.sent_at_s

    def write(self, kind: Kind, number: int, *payload: Buffer) -> None:
        """Writes a frame, even if the send buffer is full."""
        assert self._stream is not None
        for piece in self._secure.send(kind, number, *payload):
            if self._stream.congested:
                self._over_bytes += len(piece)
            self._owner.counters["bytes_sent"] += len(piece)
            self._stream.write(piece)
            self.drain.wrote(len(piece), self._stream.unsent_bytes, full=self._stream.congested, now=self._host.now())
        self._alive.sent_at_s = self._host.now()

    def close(self, reason: str) -> None:
        """Closes the connection and tells the peer the reason. Written data is still sent; the owner is told afterwards."""
        if self._finished or self._closing:
            return
        if self.is_ready:
            self.write(Kind.BYE, 0, reason.encode("utf-8")[:_REASON_CHARACTERS_MAX])
        self._closing = True
        self._host.call_soon(lambda: self.finish(f"closed here: {reason}"))

    def finish(self, reason: str) -> None:
        """Ends the connection now, without telling the peer; tells the owner and all who wait for replies."""
        if self._finished:
            return
        self._finished = True
        if self._stream is not None:
            self._stream.close()
        self.requests.fail(reason)
        self._owner.finished(self, reason)

    def check(self, now: float) -> None:
        """Sends a ping or pong if one is due, or gives the connection up. Called every half keep-alive interval."""
        given_up = self._alive.given_up(now, is_ready=self.is_ready)
        if given_up is not None:
            self._owner.counters[given_up.counter] += 1
            self.finish(given_up.reason)
        elif self.is_ready and (sign := self._alive.sign(now)) is not None:
            self.write(sign, 0, b"")
        self.requests.expire(now)

    def excuse(self, now: float) -> None:
        """Restarts the silence timeout: this process was suspended, so the peer's silence so far means nothing."""
        self._alive.excuse(now, is_ready=self.is_ready)

    # Callbacks of the host.

    def connected(self, stream: Stream) -> None:
        """`StreamHandler.connected`."""
        if self._finished:
            stream.close()
            return
        self._stream = stream
        if start := self._secure.start():
            stream.write(start)

    def received(self, data: bytes) -> None:
        """`StreamHandler.received`."""
        self._received(len(data), self._secure.receive, data)

    def room(self) -> memoryview:
        """`ReadingHandler.room`."""
        return self._secure.room()

    def filled(self, count: int) -> None:
        """`ReadingHandler.filled`."""
        self._received(count, self._secure.filled, count)

    def _received(self, count: int, take: Callable[[T], Iterator[Event]], what: T) -> None:
        if self._finished or self._closing:
            return
        self._alive.received_at_s = self._host.now()
        self._owner.counters["bytes_received"] += count
        try:
            for event in take(what):
                self._handle(event)
                if self._finished or self._closing:
                    return
        except RemoteProtocolError as error:
            self._reject(error)
        except Exception as error:
            # A bug in this agent: the position in the stream is lost, so the connection cannot go on. The host logs the error.
            self.finish(f"internal error: {error!r}")
            raise

    def writable(self) -> None:
        """`StreamHandler.writable`."""
        self._over_bytes = 0
        if self._stream is not None:
            self.drain.emptied(self._stream.unsent_bytes, self._host.now())
        if self.is_ready:
            self._owner.writable(self)

    def closed(self, reason: str) -> None:
        """`StreamHandler.closed`."""
        if self._finished:
            return
        if self._stream is not None:
            try:
                self._secure.end()
            except RemoteProtocolError as error:
                reason = f"{reason}; {error}"
        self.finish(reason)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Frame):
            self._handle_frame(event)
        elif isinstance(event, Send):
            assert self._stream is not None
            self._stream.write(event.data)
        else:
            if event.peer == self._me:
                raise RemoteProtocolError(f"the peer has this agent's name, {event.peer!r}: it is this agent, or another one of that name")
            self.node = event.peer
            self.established_at_s = self.used_at_s = self._host.now()
            self._links_out.tells_origins = self.version >= ORIGINS
            self._owner.established(self)

    def _handle_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.MESSAGE:
            self._owner.counters["messages_received"] += 1
            self.used_at_s = self._alive.received_at_s
            self._owner.message(self, frame.payload)
        elif frame.kind == Kind.DATA:
            self._owner.counters["messages_received"] += 1
            self.used_at_s = self._alive.received_at_s
            self._owner.data(self, self._links_in.read(frame.number, frame.payload))
        elif frame.kind == Kind.REQUEST:
            self.used_at_s = self._alive.received_at_s
            self.requests.arrived(frame, self.used_at_s, partial(self._owner.request_arrived, self))
        elif frame.kind in (Kind.REPLY, Kind.ERROR):
            self.requests.answered(frame)
        elif frame.kind == Kind.PING:
            self.write(Kind.PONG, 0, b"")
        elif frame.kind == Kind.BYE:
            text = frame.payload[:_REASON_CHARACTERS_MAX].decode("utf-8", "replace")
            self.finish(f"closed by the peer: {''.join(c for c in text if c.isprintable())}")
        elif frame.kind != Kind.PONG:
            self._owner.counters["frames_unknown"] += 1  # from a later release: complete and authentic, so ignored

    def _reject(self, error: RemoteProtocolError) -> None:
        self._owner.counters["frames_bad" if self.node else "handshakes_failed"] += 1
        self._owner.rejected(self, error)
        if self._secure.refusal and self._stream is not None:
            self._stream.write(self._secure.refusal)
        self.finish(str(error))
