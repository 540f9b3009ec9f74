"""What the membership machine asks of the agent, and tells it."""

from typing import TypeAlias

import msgspec

from sbon.cost_space.coordinate import Coordinate
from sbon.membership.members import MemberStatus
from sbon.types import Address, NodeId


class SendDatagram(msgspec.Struct, frozen=True):
    """Seal and send, and forget.

    Instants matter to two kinds of datagrams, and the last moment before the system call is when they are known best: by then the
    datagram has been sealed, which takes longer than a neighbour's round trip. An agent that cannot tell leaves both fields alone.
    """

    address: Address
    data: bytes
    probe: int | None = None
    """The sequence number of this probe, for `Membership.probe_leaves` when it leaves."""
    answers_at: float | None = None
    """This is an ack of a probe that arrived then, monotonic seconds: `messages.with_held` puts in how long it was held."""


class PushPull(msgspec.Struct, frozen=True):
    """Send `full_state()` to the agent there over a reliable connection and give its answer to `merge()`.

    Nothing need be reported when it fails: the machine tries again by itself.
    """

    address: Address


class RttMeasured(msgspec.Struct, frozen=True):
    """A direct probe was answered: a sample for the coordinate. The peer's holding time is taken off."""

    peer: NodeId
    rtt_ms: float
    coordinate: Coordinate


class CoordinateHeard(msgspec.Struct, frozen=True):
    """Newer word of where a peer is, without a measurement."""

    peer: NodeId
    coordinate: Coordinate


class MemberChanged(msgspec.Struct, frozen=True):
    """A member's status; `before` is None where the member was unknown."""

    name: NodeId
    before: MemberStatus | None
    after: MemberStatus


class MemberUpdated(msgspec.Struct, frozen=True):
    """A member's address, labels or digest are new, or its process is (`restarted`): what it hosted before is gone."""

    name: NodeId
    restarted: bool


class MemberForgotten(msgspec.Struct, frozen=True):
    """A member failed or departed so long ago that its row was dropped."""

    name: NodeId


class PingDone(msgspec.Struct, frozen=True):
    """A measurement asked for with `ping` has ended; None: nobody answered in time."""

    token: int
    peer: NodeId
    rtt_ms: float | None


class NameConflict(msgspec.Struct, frozen=True):
    """Another running agent uses our name; `address` is its. One of the two must be renamed."""

    name: NodeId
    address: Address


class LeaveDone(msgspec.Struct, frozen=True):
    """Our departure has been told often enough: sockets may close."""


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
