"""An owner that has restarted asks whether it may run its queries anew, as nobody has their records any more. A machine without I/O.

    asking    the holders of the record are asked for their promise
    free      a majority of each set has promised: nobody else can own the query under its id
    kept      a holder refuses, as it has the record, or as the query is another one's by now
    unheard   too few have answered

The home itself counts as a holder: what its former processes had promised is on its disk, like the names of the holders
(`sbon.supervision.resumption.KeptQuery.holders`). A query that nobody but its home has ever held is free at once. So is one that is `kept`
by the word of its former holders, if all agents have said some times in succession that they neither own nor keep it: the holders had
promised it to an owner that has crashed with all who had its record.
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
    ELSEWHERE = "elsewhere"
    """Another agent owns the query, or has owned it since and may do so still."""
    UNHEARD = "unheard"


class Claiming:
    """The claim of one query.

    Parameters
    ----------
    sets : the holders of the record, as the former process of this agent knew them
    epoch : the ownership epoch that this agent has promised to itself
    has_ended : tells whether a process is known to have ended: a query that it owned belongs to whoever keeps the record
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
        """Takes a holder's answer, or that there is none."""
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
