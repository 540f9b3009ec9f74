"""Reliable, authenticated connections to other agents: one-way messages, and requests with replies.

The agent's directory sends through it.

There is one dialled connection for every address that is wanted, or to which a request is sent::

    idle --want, request--> dialling --handshake done--> ready --loss--> backing off --timer, want, request--> dialling
                               '------------------failure-----------------^

A connection is kept while it is wanted, and otherwise until it has been idle for `idle_s`. Connections of other agents are accepted in
addition: when two agents dial each other at once, each sends on the connection that it dialled, and replies on the connection of the
request.

A failed dial fails the waiting requests at once, because nobody knows how long a machine stays away. A wanted connection is dialled again
after a pause that doubles each time and has jitter, so that a hundred agents do not reconnect to a restarted agent at the same moment.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from sbon.admission import LineLimit, source_of
from sbon.errors import KeyMismatchError, LinkError, LocalProtocolError, RemoteProtocolError, SbonError
from sbon.handshake import SPOKEN
from sbon.links.frames import Data
from sbon.peer_settings import PeerConfig
from sbon.peers.checks import Checks
from sbon.peers.connection import Connection
from sbon.peers.incoming import Incoming
from sbon.peers.remotes import Remote, Request
from sbon.ports import Network, Stream, StreamHandler
from sbon.sealing import KeyRing
from sbon.types import Address, NodeId

log = structlog.get_logger()

COUNTERS = (
    "dials",
    "dials_failed",
    "connections_accepted",
    "connections_refused",
    "connections_silent",
    "handshakes_failed",
    "handshakes_timed_out",
    "handshakes_displaced",
    "connections_displaced",
    "frames_bad",
    "frames_unknown",
    "messages_sent",
    "messages_received",
    "requests_sent",
    "requests_timed_out",
    "requests_refused",
    "requests_unanswered",
    "replies_late",
    "bytes_sent",
    "bytes_received",
)


_COMPLAINT_PAUSE_S = 60.0
_COMPLAINTS_MAX = 20
"""Most machines with a log line in one pause, so that peers that send nonsense cannot fill the disk."""


class PeerEvents(Protocol):
    """Callbacks for messages and events of connections; the node implements them.

    Calls come one at a time, never before the call that caused them has returned.
    """

    def message(self, connection: Connection, payload: bytes) -> None:
        """Handles a one-way message; `connection.send` answers on the same connection. A RemoteProtocolError closes the connection."""

    def data(self, connection: Connection, data: Data) -> None:
        """Handles a batch of a link; otherwise like `message`."""

    def request(self, connection: Connection, payload: bytes, respond: Callable[[bytes | SbonError], None]) -> None:
        """Handles a request: call `respond` once, now or later.

        An SbonError raised here is the response; a RemoteProtocolError closes the connection.
        """

    def connected(self, address: Address, node: NodeId) -> None:
        """Reports that a wanted connection is ready. `node` is the agent's name, which changes if another agent takes the address."""

    def no_common_key(self, address: Address) -> None:
        """Reports that the agent dialled there holds none of our cluster keys."""

    def lost(self, address: Address, reason: str) -> None:
        """Reports that a wanted connection that was ready is lost. Dialling continues while it is wanted."""

    def writable(self, address: Address) -> None:
        """Reports that a dialled connection that was full accepts messages again."""


class _Turned:
    """Handler of a connection that arrives while the agent is stopping."""

    def connected(self, stream: Stream) -> None:
        stream.close()

    def received(self, data: bytes) -> None: ...
    def writable(self) -> None: ...
    def closed(self, reason: str) -> None: ...


class Peers:
    """All connections of one agent to others.

    Parameters
    ----------
    me
        This agent's name, which it sends to every peer.
    key_ring
        The cluster keys; None: connections are plain, for loopback only.
    """

    def __init__(self, host: Network, me: NodeId, key_ring: KeyRing | None, config: PeerConfig, events: PeerEvents) -> None:
        self.key_ring = key_ring
        """Keys for new connections; existing connections keep theirs."""
        self.versions = SPOKEN
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self._host, self._me, self._config, self._events = host, me, config, events
        self._rng = host.rng.spawn(1)[0]
        self._remotes: dict[Address, Remote] = {}
        self._connections: dict[Connection, None] = {}
        self._checks = Checks(host, config, self._connections.keys(), self._remotes)
        self._closed = False
        self._complaints = LineLimit(_COMPLAINT_PAUSE_S, _COMPLAINTS_MAX)
        self._incoming = Incoming(host, config, LineLimit(_COMPLAINT_PAUSE_S, _COMPLAINTS_MAX), self.counters)

    def want(self, address: Address) -> None:
        """Keeps a connection to this address open until `unwant`; `PeerEvents.connected` follows, even if a connection is open already.

        A repeated call ends a pause between attempts, so call it when the agent there is alive again.
        """
        if self._closed:
            return
        remote = self._remote(address)
        remote.wanted = True
        if remote.ready is not None:
            self._host.call_soon(partial(self._tell, remote))
        self._dial_early(remote)

    def unwant(self, address: Address) -> None:
        """Lets the connection close when no request is open and it has been idle for `idle_s`. It is no longer reported."""
        remote = self._remotes.get(address)
        if remote is None:
            return
        remote.wanted = remote.told = False

    def is_connected(self, address: Address) -> bool:
        """Tells whether the dialled connection is ready."""
        remote = self._remotes.get(address)
        return remote is not None and remote.ready is not None

    def send(self, address: Address, payload: bytes | Data, expect: NodeId | None = None) -> bool:
        """Sends a one-way message, or a batch of a link, on the dialled connection.

        Parameters
        ----------
        expect
            The agent that must be at the address; None for any.

        Returns
        -------
        bool
            False: nothing was sent, because there is no connection, or to another agent, or it is full; `PeerEvents.connected` or
            `writable` follows. Messages up to 4 KiB may still pass when larger ones do not. True is no proof of arrival: the connection may
            break.

        Raises
        ------
        LocalProtocolError
            The payload is larger than `frame_bytes_max`.
        UnpackableError
            The batch does not fit into a frame.
        """
        remote = self._remotes.get(address)
        connection = remote.ready if remote is not None else None
        if connection is None or (expect is not None and connection.node != expect):
            return False
        return connection.send_data(payload) if isinstance(payload, Data) else connection.send(payload)

    def drained_bytes_per_s(self, address: Address) -> float:
        """Returns the rate at which the dialled connection last drained its full send buffer; 0 if unknown."""
        remote = self._remotes.get(address)
        return 0.0 if remote is None or remote.ready is None else remote.ready.drain.bytes_per_s

    def request(
        self,
        address: Address,
        payload: bytes,
        done: Callable[[bytes | SbonError], None],
        timeout_s: float,
        *,
        expect: NodeId | None = None,
        protocol: int = 0,
    ) -> None:
        """Sends a request to the agent at the address; dials if necessary. `done` is called once, later, with the reply or an error.

        Does not ask an agent other than `expect`, if that is given, or an agent that speaks a protocol below `protocol`.

        The error is a LinkError if the network failed or the time-out passed (the request may or may not have been carried out), an
        UnsupportedError if the agent's protocol is too old, otherwise the other agent's error.

        Raises
        ------
        LocalProtocolError
            The payload is larger than `frame_bytes_max`.
        """
        if len(payload) > self._config.frame_bytes_max:
            raise LocalProtocolError(f"request of {len(payload)} bytes, expected at most {self._config.frame_bytes_max}")
        if self._closed:
            self._host.call_soon(partial(done, LinkError("this agent is stopping")))
            return
        remote = self._remote(address)
        if len(remote.requests) >= self._config.requests_max:
            self.counters["requests_refused"] += 1
            self._host.call_soon(partial(done, LinkError(f"{len(remote.requests)} requests to {remote.where} are open already")))
            return
        request = Request(remote, payload, done, expect, protocol)
        remote.requests[request] = None
        error = LinkError(f"no reply from {remote.where} within {timeout_s:g} s")
        request.timer = self._host.call_at(self._host.now() + timeout_s, partial(self._time_out, request, error))
        self.counters["requests_sent"] += 1
        self._dial_early(remote)
        remote.flush(self._host.call_soon)

    def accept(self, peer: Address) -> StreamHandler:
        """Returns the handler of an incoming stream, for `Host.listen`."""
        if self._closed:
            self.counters["connections_refused"] += 1
            return _Turned()
        self.counters["connections_accepted"] += 1
        connection = self._open(peer, dialled=False)
        self._incoming.accepted(connection)
        return connection

    def close(self) -> None:
        """Closes every connection and fails every request. Reports nothing from now on."""
        self._closed = True
        for connection in list(self._connections):
            connection.close("leaving")
        for remote in list(self._remotes.values()):
            for request in list(remote.requests):
                self._host.call_soon(partial(request.finish, LinkError("this agent is stopping")))
            if remote.timer is not None:
                remote.timer.cancel()
        self._remotes.clear()
        self._checks.stop()

    # Dialling.

    def _remote(self, address: Address) -> Remote:
        if address not in self._remotes:
            self._remotes[address] = Remote(address)
        return self._remotes[address]

    def _drop(self, remote: Remote) -> None:
        if remote.timer is not None:
            remote.timer.cancel()
        if self._remotes.get(remote.address) is remote:
            del self._remotes[remote.address]

    def _dial_early(self, remote: Remote) -> None:
        """Dials now, or after the shortest pause since the last attempt. Does nothing if the connection is open."""
        if remote.connection is not None:
            return
        earliest = remote.dialled_at_s + self._config.dial_backoff_s_min
        if remote.timer is None or self._host.now() >= earliest:
            self._dial(remote)
        else:
            remote.timer.cancel()
            remote.timer = self._host.call_at(earliest, partial(self._dial, remote))

    def _dial(self, remote: Remote) -> None:
        if remote.timer is not None:
            remote.timer.cancel()
            remote.timer = None
        if self._closed or remote.connection is not None:
            return
        if not remote.is_needed:
            self._drop(remote)
            return
        self.counters["dials"] += 1
        remote.dialled_at_s = self._host.now()
        remote.connection = self._open(remote.address, dialled=True)
        self._host.connect(remote.address, remote.connection)

    def _open(self, address: Address, *, dialled: bool) -> Connection:
        connection = Connection(self._host, self, self._config, self._me, self.key_ring, address, dialled, self.versions)
        self._connections[connection] = None
        self._checks.begin()
        return connection

    def _redial_later(self, remote: Remote) -> None:
        config = self._config
        pause_s = min(config.dial_backoff_s_max, config.dial_backoff_s_min * 2.0 ** min(remote.failures, 30))
        # Half of the pause is random ("equal jitter"), so that agents that lost the same peer do not all redial at once.
        remote.timer = self._host.call_at(self._host.now() + pause_s * self._rng.uniform(0.5, 1.0), partial(self._dial, remote))

    def _tell(self, remote: Remote) -> None:
        connection = remote.ready
        if connection is not None and remote.wanted and not remote.told and not self._closed:
            remote.told = True
            self._events.connected(remote.address, connection.node)

    # Requests.

    def _time_out(self, request: Request, error: LinkError) -> None:
        self.counters["requests_timed_out"] += 1
        if request.connection is not None:
            request.connection.requests.forget(request)
        request.finish(error)

    # Callbacks of the connections (`sbon.peers.connection.Owner`).

    def rejected(self, connection: Connection, error: RemoteProtocolError) -> None:
        """Handles a peer that broke the protocol; `finished` follows."""
        if connection.dialled and isinstance(error, KeyMismatchError):
            self._events.no_common_key(connection.address)
        if self._complaints.allows(source_of(connection.address[0]), self._host.now()):
            log.warning("peer.rejected", peer=connection.node, address=connection.address, dialled=connection.dialled, reason=str(error))

    def established(self, connection: Connection) -> None:
        """Handles the end of a handshake."""
        if not connection.dialled:
            self._incoming.established(connection)
        remote = self._remotes.get(connection.address)
        if not connection.dialled or remote is None or remote.connection is not connection:
            return
        remote.reason = ""
        remote.flush(self._host.call_soon)
        self._tell(remote)

    def message(self, connection: Connection, payload: bytes) -> None:
        """Passes on a one-way message."""
        self._events.message(connection, payload)

    def data(self, connection: Connection, data: Data) -> None:
        """Passes on a batch of a link."""
        self._events.data(connection, data)

    def request_arrived(self, connection: Connection, payload: bytes, respond: Callable[[bytes | SbonError], None]) -> None:
        """Passes on a request."""
        self._events.request(connection, payload, respond)

    def writable(self, connection: Connection) -> None:
        """Handles a connection whose send buffer has room again."""
        remote = self._remotes.get(connection.address)
        if not connection.dialled or remote is None or remote.connection is not connection:
            return
        remote.flush(self._host.call_soon)
        self._events.writable(remote.address)

    def finished(self, connection: Connection, reason: str) -> None:
        """Handles a connection that is gone."""
        del self._connections[connection]
        self._incoming.finished(connection)
        remote = self._remotes.get(connection.address)
        if not connection.dialled or remote is None or remote.connection is not connection:
            return
        now = self._host.now()
        remote.connection = None
        was_ready, told, remote.told = bool(connection.node), remote.told, False
        # A connection that breaks soon counts as a failure, too; otherwise it would be redialled without a pause.
        lasted = was_ready and now - connection.established_at_s >= self._config.keepalive_s
        remote.failures = 0 if lasted else remote.failures + 1
        if was_ready and not remote.wanted and not remote.waiting:
            self._drop(remote)
        else:
            self._redial_later(remote)
        if not was_ready:
            self._fail_dial(remote, reason)
        if told:
            self._events.lost(remote.address, reason)

    def _fail_dial(self, remote: Remote, reason: str) -> None:
        self.counters["dials_failed"] += 1
        if reason != remote.reason:
            log.info("peer.unreachable", address=remote.address, reason=reason)
        remote.reason = reason
        for request in remote.waiting:
            self._host.call_soon(partial(request.finish, LinkError(f"cannot reach {remote.where}: {reason}")))
