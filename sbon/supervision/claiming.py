"""Finds out whether an owner that has restarted may start a query again, because nobody has its record. A machine without I/O.

    asking      the holders of the record are asked for their promise
    free        a majority of each set has promised: nobody else can own the query under its id
    kept        a holder refuses, and names no other living owner
    elsewhere   a holder refuses, and names another agent as the owner
    unheard     too few holders have answered

The home itself counts as a holder: the promises of its former processes are on its disk, like the names of the holders
(`sbon.supervision.resumption.KeptQuery.holders`). A query that only its home has ever held is free at once.

A `kept` query also becomes free if all agents have said several times in succession that they neither own nor keep it. Its holders had
promised it to an owner that has crashed together with all agents that had its record.
"""

from collections.abc import Callable
from enum import Enum

from sbon.errors import SbonError
from sbon.supervision.keepers import agree
from sbon.types import NodeId, QueryId
from sbon.wire.messages import Message
from sbon.wire.ownership import Holder, HolderSays


class Outcome(Enum):
    """Results of a claim."""

    FREE = "free"
    KEPT = "kept"
    OVER = "over"
    """Another agent knows that the query has ended, or runs it under a new id."""
    ELSEWHERE = "elsewhere"
    """Another agent owns the query, or has owned it and may still do so."""
    UNHEARD = "unheard"


class Claiming:
    """The claim of one query.

    Parameters
    ----------
    sets : the holders of the record, as the former process of this agent knew them
    epoch : the ownership epoch that this agent has promised to itself
    has_ended : tells whether a process is known to have ended; a keeper of the record may take over a query that it owned
    """

    def __init__(
        self,
        query: QueryId,
        sets: tuple[tuple[Holder, ...], ...],
        me: NodeId,
        epoch: int,
        has_ended: Callable[[Holder], bool] = lambda holder: False,
    ) -> None:
        self.query = query
        self.epoch = epoch
        self._sets = sets
        self._me = me
        self._has_ended = has_ended
        self._granted = {holder for holder in self._all if holder.name == me}
        self._lost: set[Holder] = set()
        self._waiting = self._all - self._granted
        self._outcome: Outcome | None = None

    @property
    def _all(self) -> set[Holder]:
        return {holder for holders in self._sets for holder in holders}

    @property
    def asked(self) -> tuple[Holder, ...]:
        """The holders to ask for their promise."""
        return tuple(sorted(self._all - self._granted))

    @property
    def outcome(self) -> Outcome | None:
        """The result; None as long as holders are being asked."""
        if self._outcome is None and agree(self._sets, self._granted, self._lost):
            self._outcome = Outcome.FREE
        if self._outcome is None and not self._waiting:
            self._outcome = Outcome.UNHEARD
        return self._outcome

    def answered(self, holder: Holder, result: Message | SbonError) -> None:
        """Takes a holder's answer, or the error that there is none."""
        self._waiting.discard(holder)
        if self._outcome is not None or not isinstance(result, HolderSays):
            return
        if result.granted:
            self._granted.add(holder)
        elif result.is_lost:
            self._lost.add(holder)
        elif result.owner is not None and result.owner.name != self._me and not self._has_ended(result.owner):
            self._outcome = Outcome.ELSEWHERE
        else:
            self._outcome = Outcome.KEPT
