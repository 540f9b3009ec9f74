"""Actions that the membership machine returns: requests to the agent, and events."""

from typing import TypeAlias

import msgspec

from sbon.cost_space.coordinate import Coordinate
from sbon.membership.members import MemberStatus
from sbon.types import Address, NodeId


class SendDatagram(msgspec.Struct, frozen=True):
    """Request to seal and send a datagram, without retry.

    Probes and acks depend on their sending time, which must be taken right before the system call, because sealing takes longer than a
    round trip to a near peer. An agent that cannot tell the time of sending ignores `probe` and `answers_at`.
    """

    address: Address
    data: bytes
    probe: int | None = None
    """Sequence number of a probe; call `Membership.probe_leaves` with it when the datagram is sent."""
    answers_at: float | None = None
    """For an ack: arrival time of the probe, monotonic seconds. `messages.with_held` writes the holding time into the ack."""


class PushPull(msgspec.Struct, frozen=True):
    """Request to send `full_state()` to the agent at an address over a reliable connection and to pass its answer to `merge()`.

    Failures need not be reported: the machine tries again by itself.
    """

    address: Address


class RttMeasured(msgspec.Struct, frozen=True):
    """A direct probe was answered. The RTT is a sample for the coordinate; the peer's holding time is subtracted."""

    peer: NodeId
    rtt_ms: float
    coordinate: Coordinate


class CoordinateHeard(msgspec.Struct, frozen=True):
    """A peer's newer coordinate arrived without a measurement."""

    peer: NodeId
    coordinate: Coordinate


class MemberChanged(msgspec.Struct, frozen=True):
    """A member's status changed; `before` is None if the member was unknown."""

    name: NodeId
    before: MemberStatus | None
    after: MemberStatus


class MemberUpdated(msgspec.Struct, frozen=True):
    """A member's address, labels or digest changed, or it has `restarted` and lost the operators that it hosted."""

    name: NodeId
    restarted: bool


class MemberForgotten(msgspec.Struct, frozen=True):
    """A member failed or departed so long ago that its row was dropped."""

    name: NodeId


class PingDone(msgspec.Struct, frozen=True):
    """A measurement requested with `ping` has ended; the RTT is None if nobody answered in time."""

    token: int
    peer: NodeId
    rtt_ms: float | None


class NameConflict(msgspec.Struct, frozen=True):
    """Another running agent uses our name, at `address`. One of the two must be renamed."""

    name: NodeId
    address: Address


class LeaveDone(msgspec.Struct, frozen=True):
    """Our departure has been announced often enough: sockets may close."""


Action: TypeAlias = (
    SendDatagram
    | PushPull
    | RttMeasured
    | CoordinateHeard
    | MemberChanged
    | MemberUpdated
    | MemberForgotten
    | PingDone
    | NameConflict
    | LeaveDone
)
