"""Sends messages to nodes by name: gets the address from the member table and sends over `Peers`; messages to this node stay here.

Engine, queries and optimisers send through it.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from sbon.errors import LinkError, SbonError
from sbon.links.frames import Data
from sbon.peers.peers import Peers
from sbon.ports import Clock
from sbon.types import Address, NodeId
from sbon.wire.messages import Message, decode, encode, protocol_of
from sbon.wire.reports import OperatorsAsk

Done = Callable[[Message | SbonError], None]

REQUEST_TIMEOUT_S = 5.0
REACH_TIMEOUT_S = 3.0
"""Seconds for opening a connection and getting a first answer; shorter than the timeout of the request that waits for it."""


class Requests(Protocol):
    """Handler of requests that this node sends to itself."""

    def handle(self, sender: NodeId, message: Message, respond: Done) -> None:
        """Answers a request, now or later, exactly once."""


class Directory:
    """Sends messages and requests to nodes; implements `sbon.delivery.outgoing.Router`."""

    def __init__(self, host: Clock, me: NodeId, peers: Peers, address_of: Callable[[NodeId], Address | None], own: Requests) -> None:
        self.me = me
        self._host = host
        self._peers = peers
        self._address_of = address_of
        self._own = own
        self._wanted: dict[NodeId, Address] = {}

    def send(self, node: NodeId, message: Message | Data) -> bool:
        """Sends a one-way message on an open connection.

        Returns False if no open connection has room. From then on, a connection to the node is kept open.
        """
        address = self._want(node)
        if address is None:
            return False
        return self._peers.send(address, message if isinstance(message, Data) else encode(message), expect=node)

    def request(self, node: NodeId, message: Message, done: Done, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Sends a request to a node; fails if another node has its address now. `done` gets the answer or the error, once."""
        if node == self.me:
            self._host.call_soon(partial(self._ask_self, message, done))
            return
        address = self._address_of(node)
        if address is None:
            self._host.call_soon(lambda: done(LinkError(f"{node} is not a known member")))
            return
        protocol = protocol_of(message)
        self._peers.request(address, encode(message), partial(self._answered, done), timeout_s, expect=node, protocol=protocol)

    def request_at(self, address: Address, message: Message, done: Done, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Sends a request to the agent at an address, whatever its name."""
        self._peers.request(address, encode(message), partial(self._answered, done), timeout_s)

    def tell(self, node: NodeId, message: Message) -> None:
        """Sends a request and ignores the answer. The caller notices a failure in another way."""
        self.request(node, message, _ignored)

    def reach(self, nodes: Iterable[NodeId], done: Callable[[SbonError | None], None]) -> None:
        """Opens connections to nodes to which this agent will soon send.

        `done` gets None when all nodes have answered, or the first error.
        """
        others = sorted(set(nodes) - {self.me})
        waiting = len(others)

        def answered(node: NodeId, result: Message | SbonError) -> None:
            nonlocal waiting
            if waiting <= 0:
                return
            waiting -= 1
            if isinstance(result, SbonError):
                waiting = 0
                done(LinkError(f"{self.me} cannot reach {node}: {result}"))
            elif not waiting:
                done(None)

        if not others:
            self._host.call_soon(lambda: done(None))
        for node in others:
            self.request(node, OperatorsAsk(operators=()), partial(answered, node), REACH_TIMEOUT_S)

    def node_at(self, address: Address) -> list[NodeId]:
        """Returns the nodes wanted at an address."""
        return [node for node, known in self._wanted.items() if known == address]

    def keep(self, nodes: Iterable[NodeId]) -> None:
        """Releases the connections to all nodes except these, and reconnects to those of these that have a new address."""
        kept = set(nodes)
        for node, address in list(self._wanted.items()):
            if node not in kept:
                del self._wanted[node]
                if address not in self._wanted.values():
                    self._peers.unwant(address)
        for node in sorted(kept):
            self._want(node)

    def hurry(self, node: NodeId) -> None:
        """Dials a wanted node that is back at once, without the rest of the pause after failed attempts."""
        if node in self._wanted:
            self._peers.want(self._wanted[node])

    def _want(self, node: NodeId) -> Address | None:
        address = self._address_of(node)
        if address is not None and self._wanted.get(node) != address:
            old = self._wanted.get(node)
            self._wanted[node] = address
            if old is not None and old not in self._wanted.values():
                self._peers.unwant(old)
            self._peers.want(address)
        return address

    def _ask_self(self, message: Message, done: Done) -> None:
        try:
            self._own.handle(self.me, message, done)
        except SbonError as problem:
            done(problem)

    def _answered(self, done: Done, result: bytes | SbonError) -> None:
        if isinstance(result, SbonError):
            done(result)
            return
        try:
            answer = decode(result)
        except SbonError as problem:
            done(problem)
            return
        done(answer)


def _ignored(result: Message | SbonError) -> None:
    """Ignores the answer."""
