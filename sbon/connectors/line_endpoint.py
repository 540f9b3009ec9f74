"""Connections that carry lines, for the `tcp` connector: listens, or connects and connects again. Free of I/O.

    listening    each accepted stream is a connection; beyond `connections_max` it is closed at once
    connecting   dial -> open -> (settle ->) connection -> lost -> pause -> dial ...
                 dial -> closed -> pause -> dial ...

A connection that the peer may still refuse, because it dislikes our certificate, settles first: nothing is written to it until the peer has
had time for the refusal, which it sends after the handshake. The pause doubles with each attempt, and is the shortest again after a
connection that has lasted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from sbon.connectors.outside import OuterStream, Outside
from sbon.errors import ConnectorError
from sbon.ports import SeededClock, Timer

RECONNECT_S_MIN = 0.1
RECONNECT_S_MAX = 10.0
"""Longest pause between attempts to connect, in seconds. The pause doubles from the shortest to this, and is reduced by up to a quarter at
random."""
STEADY_S = 1.0
"""Seconds that a connection must last for the next pause to be the shortest again."""
REFUSAL_S = 0.2
"""Least time that a peer has to refuse our certificate, in seconds."""


class Owner(Protocol):
    """Callbacks of the connections; the source or sink implements them."""

    def connected(self, connection: Connection) -> None:
        """Called when a connection is open."""

    def received(self, connection: Connection, data: bytes) -> None:
        """Called when bytes have arrived."""

    def writable(self) -> None:
        """Called when a full connection has room again, or the endpoint has something to report."""

    def closed(self, connection: Connection) -> None:
        """Called when a connection is closed."""


class LineTail:
    """The line of one connection that is not complete yet."""

    def __init__(self) -> None:
        self.tail = bytearray()
        self.skipping = False
        """True inside a line that is too long."""


class Connection(LineTail):
    """Connection to one peer: the handler of its stream."""

    def __init__(self, endpoint: LineEndpoint) -> None:
        super().__init__()
        self._endpoint = endpoint
        self.stream: OuterStream | None = None

    @property
    def is_open(self) -> bool:
        """Tells whether bytes can be written."""
        return self.stream is not None and self.stream.is_open

    @property
    def full(self) -> bool:
        """Tells whether the peer reads too slowly: wait for `Owner.writable`."""
        return self.stream is not None and self.stream.congested

    def write(self, data: bytes) -> None:
        """Sends bytes to the peer."""
        assert self.stream is not None
        self.stream.write(data)

    def pause(self) -> None:
        """Stops reading from the peer, whose TCP stack then slows it down."""
        if self.stream is not None:
            self.stream.pause()

    def resume(self) -> None:
        """Resumes reading."""
        if self.stream is not None:
            self.stream.resume()

    # --------------------------------------------------------------------------------------------- outside.OuterHandler

    def connected(self, stream: OuterStream) -> None:
        """Tells the endpoint of the open stream."""
        self.stream = stream
        self._endpoint.made(self)

    def received(self, data: bytes) -> None:
        """Passes bytes on."""
        self._endpoint.owner.received(self, data)

    def writable(self) -> None:
        """Tells the owner that there is room again."""
        self._endpoint.owner.writable()

    def closed(self, reason: str) -> None:
        """Tells the endpoint that the stream is gone, or could not be opened."""
        self._endpoint.lost(self, reason)


class Peers(NamedTuple):
    """The way in which an endpoint finds its peers."""

    what: str
    """The connector's name in messages, such as `source trades`."""
    host: str
    port: int
    listens: bool
    connections_max: int
    """Most connections; 1 if the endpoint connects."""
    secured: bool
    """True if connections speak TLS."""
    settles: bool
    """True if a new connection must settle first."""


class LineEndpoint:
    """Keeps connections open."""

    def __init__(self, peers: Peers, outside: Outside, clock: SeededClock) -> None:
        self.what = peers.what
        self.connections: list[Connection] = []
        self.owner: Owner
        self.error: ConnectorError | None = None
        """Why the endpoint has failed for good; None while it works."""
        self.outside = outside
        self._peers = peers
        self._clock = clock
        self._timer: Timer | None = None
        self._pause_s = RECONNECT_S_MIN
        self._settling: Connection | None = None
        self._since_s: float | None = None
        """When the present connection was added; None if there is none."""
        self._trouble = ""
        """Why the last TLS connection has failed; empty if it has not."""
        self._stopped = False

    @property
    def address(self) -> tuple[str, int] | None:
        """Address on which the endpoint listens; None before it does."""
        return self.outside.address

    @property
    def remark(self) -> str:
        """Returns why a new certificate is not in use, or why there is no TLS with the peer; empty if there is no problem."""
        return "; ".join(filter(None, (self.outside.problem, self._trouble)))

    def check(self) -> None:
        """Checks whether the address may be used; see `Outside.check`."""
        self.outside.check()

    def start(self, owner: Owner) -> None:
        """Starts to listen or connect. Call it on the agent's thread."""
        self.owner = owner
        if self._stopped:
            return
        if self._peers.listens:
            self.outside.listen(lambda: Connection(self), self._fail)
        else:
            self._dial()

    def stop(self) -> None:
        """Closes everything; buffered data is still sent. Call it on the agent's thread."""
        self._stopped = True
        self._cancel()
        self.outside.stop()
        for connection in [*self.connections, *filter(None, [self._settling])]:
            if connection.stream is not None:
                connection.stream.close()

    def made(self, connection: Connection) -> None:
        """Adds an open connection, or lets it settle first."""
        assert connection.stream is not None
        if self._stopped or len(self.connections) >= self._peers.connections_max:
            connection.stream.abort()
        elif self._peers.settles:
            # A refusal takes one round trip, and a handshake takes two.
            self._settling = connection
            self._after(max(REFUSAL_S, connection.stream.opening_s), lambda: self._add(connection))
        else:
            self._add(connection)

    def _add(self, connection: Connection) -> None:
        self._settling = None
        self._since_s = self._clock.now()
        self._trouble = ""
        self.connections.append(connection)
        self.owner.connected(connection)

    def lost(self, connection: Connection, reason: str) -> None:
        """Removes a closed connection, or takes note that there is none; connects again after a pause."""
        refused = connection is self._settling
        if refused:
            self._settling = None
            self._cancel()
            reason = reason or "the peer has closed the connection after the handshake; it may not trust our certificate"
        if reason and self._peers.secured and not self._peers.listens:
            self._trouble = f"no TLS with {self._peers.host}:{self._peers.port}: {reason}"
            self.owner.writable()
        if connection in self.connections:
            self.connections.remove(connection)
            self.owner.closed(connection)
        if not self._peers.listens and not self._stopped:
            self._again()

    def _again(self) -> None:
        since_s, self._since_s = self._since_s, None
        if since_s is not None and self._clock.now() - since_s >= STEADY_S:
            self._pause_s = RECONNECT_S_MIN
        pause_s = self._pause_s
        self._pause_s = min(RECONNECT_S_MAX, 2.0 * pause_s)
        self._after(pause_s * (1.0 - 0.25 * float(self._clock.rng.random())), self._dial)

    def _dial(self) -> None:
        self.outside.connect(Connection(self), self._fail)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._cancel()
        self._timer = self._clock.call_at(self._clock.now() + seconds, call)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, error: ConnectorError) -> None:
        self.error = error
        self.owner.writable()
