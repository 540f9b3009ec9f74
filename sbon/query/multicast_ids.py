"""Ids of multicast operators: the id of the operator whose stream they carry, a mark, and a suffix."""

from sbon.types import OperatorId

MULTICAST_MARK = "~"
"""Mark that only ids of multicast operators contain; names of agents cannot contain it."""


def multicast_id(of: OperatorId, suffix: str) -> OperatorId:
    """Returns the id of a multicast operator that carries the stream of `of`. If that is a multicast, too, the new id keeps only the id of
    the operator behind it.

    Examples
    --------
    >>> multicast_id("ams.t1.2", "x"), multicast_id("ams.t1.2~x", "y")
    ('ams.t1.2~x', 'ams.t1.2~y')
    """
    return f"{of.partition(MULTICAST_MARK)[0]}{MULTICAST_MARK}{suffix}"


def is_multicast(operator: OperatorId) -> bool:
    """Tells whether an id belongs to a multicast operator."""
    return MULTICAST_MARK in operator
