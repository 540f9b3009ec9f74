"""A neighbouring host's part in a migration: its operators do not move while one that they have links with moves. A machine without I/O.

The host that moves an operator (`sbon.migration.coordinator`) asks for a lock on all operators here that have links with it, and asks again
long before the lock ends. One host gives many locks, one for each operator that moves; the table is for one of them.

    FREE    nobody has asked, or the lock has ended
    LOCKED  the neighbours of the moving operator do not move, and its new host has been named at their ends of the links

    FREE -> LOCKED -> FREE   lock, then unlock by its holder, or the end of the lease
         LOCKED -> LOCKED    locked again: renewed, or taken over by a later holder

Invariants: only operators with a link to the moving one are locked. A lock ends by itself, so that a coordinator that has crashed holds
nothing for ever. The name of the new host stays then, since the operator may have moved there.
"""

from collections.abc import Container
from enum import Enum
from typing import TypeAlias

import msgspec

from sbon.errors import MigrationError
from sbon.transitions import Transitions
from sbon.types import NodeId, OperatorId
from sbon.wire.migration import Lock, Unlock


class Promise(Enum):
    """The state of a neighbouring host's lock for one operator that moves."""

    FREE = "free"
    LOCKED = "locked"


TABLE = Transitions(
    {
        Promise.FREE: {"lock": (Promise.LOCKED,)},
        Promise.LOCKED: {"lock": (Promise.LOCKED,), "unlock": (Promise.LOCKED, Promise.FREE), "lease over": (Promise.FREE,)},
    }
)


class NameNext(msgspec.Struct, frozen=True):
    """Note at this host's ends of an operator's links that the operator may run on `node` from `epoch` on."""

    operator: OperatorId
    node: NodeId
    epoch: int


class UnnameNext(msgspec.Struct, frozen=True):
    """Drop the hosts that `holder` has named at this host's ends of an operator's links."""

    operator: OperatorId
    holder: NodeId


class Grant(msgspec.Struct, frozen=True):
    """Answer that the lock is given."""


class Reach(msgspec.Struct, frozen=True):
    """Open a connection to the new host."""

    node: NodeId
    grants: bool
    """The answer waits for the connection: the lock is given once it is open, or refused because it cannot be opened."""


Action: TypeAlias = NameNext | UnnameNext | Grant | Reach


class _Given(msgspec.Struct, frozen=True):
    holder: NodeId
    operators: tuple[OperatorId, ...]
    until: float


class Neighbour:
    """All locks that one host has given.

    Parameters
    ----------
    me : name of this host
    lease_s_max : longest lease that is given
    """

    def __init__(self, me: NodeId, lease_s_max: float) -> None:
        self._me = me
        self._lease_s_max = lease_s_max
        self._given: dict[OperatorId, _Given] = {}

    def promise(self, moving: OperatorId, now: float) -> Promise:
        """Returns the state of the lock for an operator that moves."""
        given = self._given.get(moving)
        return Promise.LOCKED if given is not None and given.until > now else Promise.FREE

    def lock(
        self, ask: Lock, beside: tuple[OperatorId, ...], here: Container[OperatorId], leaving: Container[OperatorId], now: float
    ) -> list[Action]:
        """Gives a lock, or renews it.

        Parameters
        ----------
        beside : operators here that have a link with the moving one; these are locked, whatever the message names
        here, leaving : operators on this host, and those of them that move away

        Raises
        ------
        MigrationError
            The lock is refused.
        """
        for operator in (*ask.neighbours, *beside):
            if operator in leaving:
                raise MigrationError(f"{operator} is moving itself")
            if operator not in here:
                raise MigrationError(f"{operator} is not on {self._me}")
        if ask.lease_s > self._lease_s_max:
            longest = f"{self._me} gives {self._lease_s_max:g} s at most (migration.lease_s_max)"
            raise MigrationError(f"a lock of {ask.lease_s:g} s was requested, and {longest}")
        self._end_leases(now)
        given = self._given.get(ask.operator)
        renewed = given is not None and bool(beside) and set(beside) <= set(given.operators)
        self._given[ask.operator] = _Given(ask.coordinator, beside, now + ask.lease_s)
        actions: list[Action] = [NameNext(ask.operator, ask.there, ask.epoch)] if ask.there else []
        reaches = ask.sends and bool(ask.there)
        if renewed or not reaches:
            actions.append(Grant())
        if reaches:
            actions.append(Reach(ask.there, grants=not renewed))
        return actions

    def unlock(self, told: Unlock, holder: NodeId) -> list[Action]:
        """Ends the lock of its present holder. The late message of an earlier one changes nothing."""
        given = self._given.get(told.operator)
        if given is None or given.holder != holder:
            return []
        del self._given[told.operator]
        return [] if told.moved else [UnnameNext(told.operator, holder)]

    def holder(self, moving: OperatorId) -> NodeId | None:
        """Returns the host that moves an operator, by the last lock given for it; None: there is none."""
        given = self._given.get(moving)
        return None if given is None else given.holder

    def keeps_still(self, operator: OperatorId, now: float) -> bool:
        """Tells whether an operator must not move now. Several migrations may lock the same operator."""
        return any(operator in given.operators and given.until > now for given in self._given.values())

    def _end_leases(self, now: float) -> None:
        self._given = {moving: given for moving, given in self._given.items() if given.until > now}
