"""One agent's view of the other agents and their distances: drives the membership machine and the node's coordinate with datagrams.

The node runs it. Every answered probe is a sample for the coordinate, and every probe carries the coordinate.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import Coordinate, estimated_rtt_ms
from sbon.cost_space.localiser import Localiser
from sbon.errors import RemoteProtocolError
from sbon.membership.actions import (
    Action,
    CoordinateHeard,
    LeaveDone,
    MemberChanged,
    MemberForgotten,
    MemberUpdated,
    NameConflict,
    PingDone,
    PushPull,
    RttMeasured,
    SendDatagram,
)
from sbon.membership.config import MembershipConfig
from sbon.membership.machine import Membership
from sbon.membership.members import Member, MemberStatus
from sbon.membership.messages import with_held
from sbon.ports import Network, Timer
from sbon.sealing import NONCE_BYTES, KeyRing
from sbon.types import Address, NodeId


class GossipEvents(Protocol):
    """Callbacks of the gossip; the node implements them."""

    def rtt_measured(self, peer: NodeId, rtt_ms: float, estimated_ms: float) -> None:
        """Reports that a probe was answered; `estimated_ms` is the RTT that the coordinates had predicted."""

    def member_changed(self, name: NodeId, before: MemberStatus | None, after: MemberStatus) -> None:
        """Reports that a member's status has changed."""

    def member_updated(self, name: NodeId, restarted: bool) -> None:
        """Reports that a member's address, labels or hosted operators have changed, or that it has restarted."""

    def member_forgotten(self, name: NodeId) -> None:
        """Reports that a member has been gone for so long that its row was dropped."""

    def push_pull(self, address: Address) -> None:
        """Exchanges tables with the agent at an address."""

    def name_conflict(self, address: Address) -> None:
        """Reports that another agent uses this agent's name."""

    def left(self) -> None:
        """Reports that this agent's departure has been announced."""


class Gossip:
    """One agent's view of the others."""

    def __init__(
        self,
        host: Network,
        membership: MembershipConfig,
        coordinate: CoordinateConfig,
        name: NodeId,
        address: Address,
        labels: dict[str, str],
        incarnation: int,
        start: Coordinate | None,
        key_ring: KeyRing | None,
        events: GossipEvents,
    ) -> None:
        membership_rng, localiser_rng = host.rng.spawn(2)
        self.key_ring = key_ring
        self.localiser = Localiser(coordinate, localiser_rng, start)
        self.machine = Membership(membership, name, address, labels, incarnation, lambda: self.localiser.coordinate, membership_rng)
        self.counters = {"datagrams_sent": 0, "datagrams_received": 0, "datagrams_refused": 0}
        self._host = host
        self._events = events
        self._timer: Timer | None = None
        self._wake_at = float("inf")
        self._pings: dict[int, Callable[[float | None], None]] = {}
        self._closed = False

    @property
    def name(self) -> NodeId:
        """Name of this agent."""
        return self.machine.name

    @property
    def members(self) -> Mapping[NodeId, Member]:
        """All known members, this agent included."""
        return self.machine.members

    def join(self, seeds: Sequence[Address]) -> None:
        """Joins the overlay through these addresses."""
        self._perform(self.machine.join(seeds, self._host.now()))

    def leave(self) -> None:
        """Announces this agent's departure; `GossipEvents.left` follows."""
        self._perform(self.machine.leave(self._host.now()))

    def close(self) -> None:
        """Stops probing and ignores datagrams."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def datagram(self, data: bytes, sender: Address, received_at: float) -> None:
        """Handles a datagram, encrypted if there is a key ring."""
        if self._closed:
            return
        self.counters["datagrams_received"] += 1
        try:
            plain = data if self.key_ring is None else self.key_ring.open(data)
            actions = self.machine.receive(plain, sender, self._host.now(), received_at)
        except RemoteProtocolError:
            self.counters["datagrams_refused"] += 1
            return
        self._perform(actions)

    def merge(self, state: bytes, via: Address | None = None) -> None:
        """Merges another agent's table.

        Raises
        ------
        RemoteProtocolError
            The table cannot be decoded.
        """
        self._perform(self.machine.merge(state, self._host.now(), via))

    def ping(self, peer: NodeId, done: Callable[[float | None], None]) -> None:
        """Measures the RTT to a member now; `done` gets milliseconds, or None without an answer."""
        token, actions = self.machine.ping(peer, self._host.now())
        self._pings[token] = done
        self._perform(actions)

    def address_of(self, node: NodeId) -> Address | None:
        """Returns a member's address; None if it is unknown or has left."""
        member = self.members.get(node)
        return None if member is None or member.status is MemberStatus.LEFT else member.address

    def departure_of(self, node: NodeId) -> MemberStatus | None:
        """Returns FAILED if another node has failed or is no longer a member, LEFT if it has left; otherwise None."""
        member = self.members.get(node)
        status = MemberStatus.FAILED if member is None else member.status
        return status if node != self.name and status in (MemberStatus.FAILED, MemberStatus.LEFT) else None

    def coordinates(self) -> dict[NodeId, Coordinate]:
        """Returns the coordinates of all living members that have sent one, this agent's included."""
        found = {
            member.name: member.coordinate
            for member in self.members.values()
            if member.status is MemberStatus.ALIVE and member.coordinate is not None
        }
        found[self.name] = self.localiser.coordinate
        return found

    def alive_labels(self) -> dict[NodeId, Mapping[str, str]]:
        """Returns the living members and their labels, in order of name."""
        return {name: dict(m.labels) for name, m in sorted(self.members.items()) if m.status is MemberStatus.ALIVE}

    def latency_ms(self, node: NodeId) -> float | None:
        """Returns the one-way latency to a node in ms: half the measured RTT, or else half the RTT that the coordinates predict."""
        if node == self.name:
            return 0.0
        measured = self.localiser.measured_rtt_ms(node)
        rtt_ms = measured if measured is not None else self.estimated_rtt_ms(self.name, node)
        return None if rtt_ms is None else rtt_ms / 2

    def estimated_rtt_ms(self, a: NodeId, b: NodeId) -> float | None:
        """Returns the RTT that the coordinates predict, in ms; None if one is unknown."""
        if a == b:
            return 0.0
        first, second = self.coordinate_of(a), self.coordinate_of(b)
        return None if first is None or second is None else estimated_rtt_ms(first, second)

    def coordinate_of(self, node: NodeId) -> Coordinate | None:
        """Returns a member's coordinate as last received."""
        if node == self.name:
            return self.localiser.coordinate
        member = self.members.get(node)
        return None if member is None else member.coordinate

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._perform_one(action)
        self._rearm()

    def _perform_one(self, action: Action) -> None:
        match action:
            case SendDatagram():
                self._send(action)
            case RttMeasured(peer, rtt_ms, coordinate):
                before = estimated_rtt_ms(self.localiser.coordinate, coordinate)
                if self.localiser.observe(peer, coordinate, rtt_ms, self._host.now()):
                    self._events.rtt_measured(peer, rtt_ms, before)
            case CoordinateHeard(peer, coordinate):
                self.localiser.heard(peer, coordinate, self._host.now())
            case MemberChanged(name, before_status, after):
                self._events.member_changed(name, before_status, after)
            case MemberUpdated(name, restarted):
                self._events.member_updated(name, restarted)
            case MemberForgotten(name):
                self.localiser.forget(name)
                self._events.member_forgotten(name)
            case PingDone(token, _, rtt):
                done = self._pings.pop(token, None)
                if done is not None:
                    done(rtt)
            case PushPull(address):
                self._events.push_pull(address)
            case NameConflict(_, address):
                self._events.name_conflict(address)
            case LeaveDone():
                self._events.left()

    def _send(self, action: SendDatagram) -> None:
        self.counters["datagrams_sent"] += 1
        data = action.data
        # The nonce is made before the time is taken: during this system call, other threads may hold the interpreter for milliseconds.
        nonce = b"" if self.key_ring is None else self._host.random_bytes(NONCE_BYTES)
        if action.answers_at is not None:
            data = with_held(data, self._host.now() - action.answers_at)
        if self.key_ring is not None:
            data = self.key_ring.seal(data, nonce)
        if action.probe is not None:
            self.machine.probe_leaves(action.probe, self._host.now())
        self._host.send_datagram(data, action.address)

    def _rearm(self) -> None:
        when = self.machine.next_wake()
        if self._closed or when is None or (self._timer is not None and when == self._wake_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wake_at = when
        self._timer = self._host.call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        if not self._closed:
            self._perform(self.machine.wake(self._host.now()))
