"""Ids of multicast operators: that of the operator whose stream they carry, a mark, and a suffix."""

from sbon.types import OperatorId

MULTICAST_MARK = "~"
"""Mark in the ids of multicast operators, and in no other: names of agents do not contain it."""


def multicast_id(of: OperatorId, suffix: str) -> OperatorId:
    """Returns the id of a multicast operator: the operator whose stream it carries, with a suffix. For a multicast of a multicast that is
    the first one's.

    Examples
    --------
    >>> multicast_id("ams.t1.2", "x"), multicast_id("ams.t1.2~x", "y")
    ('ams.t1.2~x', 'ams.t1.2~y')
    """
    return f"{of.partition(MULTICAST_MARK)[0]}{MULTICAST_MARK}{suffix}"


def is_multicast(operator: OperatorId) -> bool:
    """Returns whether an operator id is that of a multicast."""
    return MULTICAST_MARK in operator
