"""Membership by gossip: which agents are in the overlay, and their addresses."""

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
from sbon.membership.config import MembershipConfig, check_labels
from sbon.membership.digest import make_digest, may_contain
from sbon.membership.machine import Membership, check_name
from sbon.membership.members import Capacity, Member, MemberStatus

__all__ = [
    "Action",
    "Capacity",
    "CoordinateHeard",
    "LeaveDone",
    "Member",
    "MemberChanged",
    "MemberForgotten",
    "MemberStatus",
    "MemberUpdated",
    "Membership",
    "MembershipConfig",
    "NameConflict",
    "PingDone",
    "PushPull",
    "RttMeasured",
    "SendDatagram",
    "check_labels",
    "check_name",
    "make_digest",
    "may_contain",
]
