"""Agents reduced to their `Peers`, for tests of connections in the virtual world and on real sockets."""

from collections.abc import Callable
from typing import Any

from sbon.errors import SbonError
from sbon.peer_settings import PeerConfig
from sbon.peers.connection import Connection
from sbon.peers.peers import Peers
from sbon.sealing import KeyRing
from sbon.types import Address, NodeId
from sbon_agent.host import Host


class Recorder:
    """An agent that records the calls of its `Peers`, and answers requests by `answer`."""

    def __init__(self, host: Host, name: NodeId, ring: KeyRing | None = None, address: Address = ("", 0), **config: Any) -> None:
        self.host = host
        self.name = name
        self.log: list[tuple[Any, ...]] = []
        self.messages: list[bytes] = []
        self.connections: list[Connection] = []
        self.answer: Callable[[bytes, Callable[[bytes | SbonError], None]], None] = lambda payload, respond: respond(b"re: " + payload)
        self.peers = Peers(host, name, ring, PeerConfig(**config), self)
        self.datagrams: list[bytes] = []
        self.address = host.listen(address, lambda data, sender, at: self.datagrams.append(data), self.peers.accept)

    def message(self, connection: Connection, payload: bytes) -> None:
        """Records a one-way message."""
        self.messages.append(payload)
        self.connections.append(connection)

    def request(self, connection: Connection, payload: bytes, respond: Callable[[bytes | SbonError], None]) -> None:
        """Answers a request."""
        self.connections.append(connection)
        self.answer(payload, respond)

    def connected(self, address: Address, node: NodeId) -> None:
        """Records that a wanted connection is ready."""
        self.log.append(("connected", address, node))

    def no_common_key(self, address: Address) -> None:
        """Records that a peer belongs to another cluster."""
        self.log.append(("no_common_key", address))

    def lost(self, address: Address, reason: str) -> None:
        """Records that a wanted connection is gone."""
        self.log.append(("lost", address, reason))

    def writable(self, address: Address) -> None:
        """Records that a connection has room again."""
        self.log.append(("writable", address))

    def ask(self, address: Address, payload: bytes, timeout_s: float = 5.0) -> list[bytes | SbonError]:
        """Sends a request; returns a list that will hold its outcome."""
        outcome: list[bytes | SbonError] = []
        self.peers.request(address, payload, outcome.append, timeout_s)
        return outcome

    def names(self) -> list[str]:
        """Returns the names of all events, without details."""
        return [entry[0] for entry in self.log]
