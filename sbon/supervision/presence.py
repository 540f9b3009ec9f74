"""Tells from the table of members whether a process is there, has ended, or has left."""

from collections.abc import Mapping

from sbon.membership.members import Member, MemberStatus
from sbon.supervision.owners import Owner
from sbon.types import NodeId
from sbon.wire.ownership import Holder


def is_there(members: Mapping[NodeId, Member], me: Holder, holder: Holder) -> bool:
    """Tells whether a holder, or this agent itself, can be reached."""
    member = members.get(holder.name)
    return holder == me or (member is not None and member.reachable and member.boot == holder.boot)


def owner_is_there(members: Mapping[NodeId, Member], owner: Owner) -> bool:
    """Tells whether an owner can be reached."""
    member = members.get(owner.name)
    return member is not None and member.reachable and owner.boot in (None, member.boot)


def has_ended(members: Mapping[NodeId, Member], holder: Holder) -> bool:
    """Tells whether a process is known to have ended: another process has its name, or it has left."""
    member = members.get(holder.name)
    return member is not None and (member.boot != holder.boot or member.status is MemberStatus.LEFT)


def has_left(members: Mapping[NodeId, Member], holder: Holder) -> bool:
    """Tells whether an agent has left the overlay."""
    member = members.get(holder.name)
    return member is not None and member.status is MemberStatus.LEFT
