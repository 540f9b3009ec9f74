"""The keepers' side of records: keeps versions, gives promises, and takes over queries whose owners are gone. A machine without I/O.

    keeping   the owner is there
    waiting   the owner is gone; another keeper comes first, or a pause is not over
    asking    the other holders are asked for their promise
    owning    a majority has promised: the record has left the machine, and this agent is the owner. It hands the record back if too few
              holders take its first version

A holder that has restarted has no record, but the promises of its agent are on disk. It promises for the process that has ended
(`Ask.holder`). So does an owner that has restarted; if no holder has a record any more, it may ask the holders itself (`claim`).
One process may be asked twice for the same promise: for itself, and for a former process of its agent. A former owner and a dismissed
keeper remain holders with their latest versions (`former_versions`): holders that have not heard of the change need their promise, and
learn of the change with it. No promise is given for a query that has ended. A query that another agent knows to have ended is not taken
over (`is_over`).

Invariants: an ownership epoch is promised to one process only, also by later processes of this agent (`Promises`). Records of lower epochs
than the promised one are refused. A new owner goes on with the newest version that any of the majority has. A holder that refuses another
one tells it its own version, too. Otherwise a holder of an older version would refuse a candidate that only the newer version names.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from sbon.errors import LocalProtocolError, SbonError
from sbon.links.ends import pause_s
from sbon.supervision.former_versions import FormerVersions
from sbon.supervision.keepers import agree, in_order
from sbon.supervision.promises import Promise, Promises
from sbon.types import NodeId, QueryId
from sbon.wire.messages import Message
from sbon.wire.ownership import SETS_MAX, Holder, HolderSays, Record

TURN_S = 5.0
"""Time that each living keeper gets before the next one asks for promises, in seconds."""
RECORDS_MAX = 20_000
"""Most records that one agent keeps."""
BYTES_MAX = 64 * 2**20
"""Most bytes that the contents of all kept records may have."""
DOUBTS_MAX = 2
"""Number of times in succession that an owner must disown a query before its record is forgotten."""


class Attempt(msgspec.Struct, frozen=True):
    """One holder's request to another for the promise that it may own a query."""

    query: QueryId
    epoch: int
    candidate: Holder
    of: Holder
    """The holder whose promise is asked for: this process, or a former one of the same agent."""
    is_anew: bool = False
    """True if the candidate has restarted and has no record."""


class Phase(Enum):
    """States of a kept record."""

    KEEPING = "keeping"
    WAITING = "waiting"
    ASKING = "asking"
    OWNING = "owning"


class Event(Enum):
    """Events that change the phase."""

    GONE = "gone"
    """The owner's process is not there any more."""
    BACK = "back"
    DUE = "due"
    PROMISED = "promised"
    """One of several holders has promised."""
    MAJORITY = "majority"
    REFUSED = "refused"
    """All holders have answered, and there is no majority."""


TABLE: dict[tuple[Phase, Event], Phase] = {
    (Phase.KEEPING, Event.GONE): Phase.WAITING,
    (Phase.WAITING, Event.BACK): Phase.KEEPING,
    (Phase.WAITING, Event.DUE): Phase.ASKING,
    (Phase.ASKING, Event.BACK): Phase.KEEPING,
    (Phase.ASKING, Event.PROMISED): Phase.ASKING,
    (Phase.ASKING, Event.MAJORITY): Phase.OWNING,
    (Phase.ASKING, Event.REFUSED): Phase.WAITING,
}
"""The next phase, by the present one and the event. Other pairs raise LocalProtocolError."""


class Ask(msgspec.Struct, frozen=True):
    """Ask a holder for its promise; then call `Inheriting.answered`."""

    query: QueryId
    epoch: int
    holder: Holder


class Inherit(msgspec.Struct, frozen=True):
    """This agent owns the query from now on, under this epoch."""

    record: Record
    epoch: int


Action: TypeAlias = Ask | Inherit


class _Held(msgspec.Struct):
    """One record that is kept."""

    record: Record
    promised: int
    promised_to: Holder | None = None
    phase: Phase = Phase.KEEPING
    asked: int = 0
    """The epoch that holders are asked to promise."""
    granted: set[Holder] = msgspec.field(default_factory=set)
    waiting: set[Holder] = msgspec.field(default_factory=set)
    lost: set[Holder] = msgspec.field(default_factory=set)
    """Holders whose promises nobody knows any more."""
    due_s: float = 0.0
    tries: int = 0
    highest: int = 0
    """The highest epoch that another holder has named."""
    written_to: frozenset[Holder] = frozenset()
    """Holders to which this agent has sent a version under a promised epoch, if too few have answered. A holder that has taken it accepts
    no other owner."""
    is_silent: bool = False
    """True once a holder has not answered the present question."""
    doubts: int = 0
    """Number of times in succession that its owner has said that it does not own the query."""


class Inheriting:
    """All records that one agent keeps.

    Parameters
    ----------
    heard : returns the highest ownership epoch that this agent has heard of a query
    """

    def __init__(self, me: Holder, heard: Callable[[QueryId], int]) -> None:
        self._me = me
        self._heard = heard
        self.remembers = True
        """False if this process does not know what former ones of the same agent have promised."""
        self._held: dict[QueryId, _Held] = {}
        self.promises = Promises()
        self.former_versions = FormerVersions()
        self._left: frozenset[Holder] = frozenset()

    @property
    def records(self) -> dict[QueryId, Record]:
        """Returns the records that are kept."""
        return {query: held.record for query, held in self._held.items()}

    # ------------------------------------------------------------------------------------------------- what others say

    def keep(self, record: Record) -> HolderSays:
        """Takes a version, and answers whether it is kept."""
        held = self._held.get(record.query)
        promised = self._promised(record.query)
        given = self.promises.of(record.query)
        others = given.to if given is not None and given.epoch == record.epoch and given.to != record.owner else None
        if held is not None and record.owner != held.record.owner and not self.has_promised(record):
            return HolderSays(granted=False, epoch=promised, owner=held.record.owner if held.record.epoch == promised else None)
        if self.promises.is_over(record.query):
            return HolderSays(granted=False, epoch=promised)
        if others is not None:
            return HolderSays(granted=False, epoch=promised, promised_to=others)
        if record.epoch < promised or self._me not in record.holders or (held is None and not _has_room(self._held, record)):
            return HolderSays(granted=False, epoch=promised)
        if held is None:
            self._held[record.query] = _Held(record, record.epoch)
        elif record.rank > held.record.rank:
            if record.epoch > held.record.epoch:
                self._held[record.query] = _Held(record, record.epoch)  # ends any attempt to take the former owner's record over
            else:
                held.record = record
        self.former_versions.forget(record.query)
        if record.epoch > 0:
            self.promises.note(Promise(record.query, record.epoch, record.owner, owns=True))
        return HolderSays(granted=True, epoch=record.epoch, is_lost=not self.remembers)

    def promise(self, attempt: Attempt, *, is_owner_there: bool) -> HolderSays:
        """Answers whether another holder, or the owner itself, may own the query under an epoch.

        Parameters
        ----------
        is_owner_there : whether the owner of the record kept here is there; without a record, whether `last_owner` is there
        """
        query, epoch, candidate = attempt.query, attempt.epoch, attempt.candidate
        held, promised = self._held.get(query), self._promised(query)
        if self.promises.is_over(query):
            return HolderSays(granted=False, epoch=promised)
        if attempt.of != self._me and not self.remembers:
            return HolderSays(granted=False, epoch=promised, is_lost=True)
        if epoch == promised and self.promises.is_latest(query, epoch, candidate):
            return HolderSays(granted=True, epoch=epoch, record=None if held is None else held.record)
        if held is None:
            return self._promise_without_record(attempt, promised, is_owner_there)
        if attempt.is_anew or candidate not in held.record.holders:
            return HolderSays(granted=False, epoch=promised)
        if epoch <= promised or (is_owner_there and candidate != held.record.owner):
            return HolderSays(granted=False, epoch=promised, record=held.record)
        held.promised, held.promised_to = epoch, candidate
        self.promises.note(Promise(query, epoch, candidate))
        return HolderSays(granted=True, epoch=epoch, record=held.record)

    def claim(self, query: QueryId) -> int:
        """Promises a query of a former process of this agent to this process. Returns the epoch, for which the holders are to be asked."""
        epoch = self._promised(query) + 1
        self.promises.note(Promise(query, epoch, self._me))
        return epoch

    def _promise_without_record(self, attempt: Attempt, promised: int, is_owner_there: bool) -> HolderSays:
        """Answers without a kept record: for a former process of this agent, for a record that this one no longer keeps or never got."""
        if attempt.epoch <= promised or is_owner_there:
            return HolderSays(granted=False, epoch=promised)
        self.promises.note(Promise(attempt.query, attempt.epoch, attempt.candidate))
        return HolderSays(granted=True, epoch=attempt.epoch, record=self.former_versions.of(attempt.query))

    def has_promised(self, record: Record) -> bool:
        """Tells whether the owner of a record has got this agent's promise."""
        held = self._held.get(record.query)
        return held is not None and (held.promised, held.promised_to) == (record.epoch, record.owner)

    def forget(self, query: QueryId, epoch: int, *, is_over: bool) -> bool:
        """Forgets a query because the owner of this epoch says that it has ended, or that other agents keep its record.

        Returns False if a later owner's record is kept here: then the query has not ended.
        """
        if not is_over:
            self.owned(query, epoch + 1)
        elif query in self._held and self._held[query].record.epoch > epoch:
            return False
        else:
            self.ended(query)
        return True

    def last_owner(self, query: QueryId) -> tuple[int, Holder] | None:
        """Returns the epoch and owner of the kept version of a query; without one, of the later of its former version and its promise."""
        held, own, given = self._held.get(query), self.former_versions.of(query), self.promises.of(query)
        if held is not None:
            return held.record.epoch, held.record.owner
        known = [] if own is None else [(own.epoch, own.owner)]
        return max(known if given is None else [*known, (given.epoch, given.to)], default=None)

    def doubted(self, asked: Iterable[QueryId], unwanted: Collection[QueryId]) -> None:
        """Counts the answers of owners that they do not own a query, and ends queries that were disowned twice in succession.

        The message that such a query had ended was lost. A single such answer may come from the owner's next process.
        """
        for query in asked:
            held = self._held.get(query)
            if held is not None:
                held.doubts = held.doubts + 1 if query in unwanted and held.phase is Phase.KEEPING else 0
                if held.doubts >= DOUBTS_MAX:
                    self.ended(query)

    def kept_for(self) -> dict[NodeId, set[QueryId]]:
        """Returns the queries whose records are kept here and whose owners are there, by owner."""
        found: dict[NodeId, set[QueryId]] = {}
        for query, held in self._held.items():
            if held.phase is Phase.KEEPING:
                found.setdefault(held.record.owner.name, set()).add(query)
        return found

    def hand_back(self, record: Record, epoch: int, written_to: Iterable[Holder], now: float) -> None:
        """Keeps a record again, because too few holders have taken its first version under this agent's epoch; another may own it first.

        A holder may have taken that version, and accepts no version of the former owner any more. So this agent asks on, even if the former
        owner is there, until it owns the query, has a version of a higher epoch, or knows that no holder has its own version.

        Parameters
        ----------
        written_to : the holders to which that version was sent; the former owner may be among them
        """
        held = self._held[record.query] = _Held(record, max(epoch, record.epoch), self._me, Phase.WAITING, tries=1)
        held.written_to = frozenset(written_to) - {self._me}
        held.due_s = now + self._pause_s(held)

    def give_back(self, record: Record, promised: int, to: Holder, now: float) -> None:
        """Keeps the record of a query that this agent no longer owns, because it has promised the query to a keeper.

        If that keeper does not become the owner, perhaps because too few holders promise, this agent asks for the query again.
        """
        if not self.promises.is_over(record.query):
            self._held[record.query] = _Held(record, max(promised, record.epoch), to, Phase.WAITING, due_s=now + TURN_S, tries=1)

    def owned(self, query: QueryId, epoch: int, owner: NodeId | None = None) -> None:
        """Forgets the record of a query if its epoch is below the one under which another agent owns the query, or counts as its owner.

        Parameters
        ----------
        owner : that agent, if known; then another owner's record of the same epoch is forgotten, too
        """
        held = self._held.get(query)
        if held is not None and (held.record.epoch < epoch or (held.record.epoch == epoch and owner not in (None, held.record.owner.name))):
            self.former_versions.add(self._held.pop(query).record)

    def ended(self, query: QueryId) -> None:
        """Records that a query which this agent owned or kept has ended."""
        self._held.pop(query, None)
        self.former_versions.forget(query)
        known = self.promises.of(query) or Promise(query, 0, self._me)
        self.promises.note(msgspec.structs.replace(known, is_over=True))

    # ------------------------------------------------------------------------------------------------------ taking over

    def look(
        self, is_there: Callable[[Holder], bool], ended: frozenset[Holder], now: float, left: frozenset[Holder] = frozenset()
    ) -> list[Action]:
        """Updates all records by the processes that are there; returns what is to be done now.

        Parameters
        ----------
        ended : processes that have certainly ended, as later processes of the same agents are there
        left : processes that have left in good order; they have no say
        """
        self._left = left
        out: list[Action] = []
        for query, held in list(self._held.items()):
            if is_there(held.record.owner) and held.record.owner != self._me and not held.written_to:
                if held.phase is not Phase.KEEPING:
                    _turn(held, Event.BACK)
                    held.tries = 0
                continue
            if held.phase is Phase.KEEPING:
                _turn(held, Event.GONE)
                held.due_s = now + TURN_S * self._rank(held.record, is_there)
            elif held.phase is Phase.WAITING and not held.tries:
                held.due_s = min(held.due_s, now + TURN_S * self._rank(held.record, is_there))
            if held.phase is Phase.WAITING and held.due_s <= now:
                out += self._ask(query, held, now, ended)
        return out

    def next_wake(self) -> float | None:
        """Returns when a pause ends; None if there is none."""
        return min((held.due_s for held in self._held.values() if held.phase is Phase.WAITING), default=None)

    def answered(self, asked: Ask, result: Message | SbonError, now: float) -> list[Action]:
        """Takes a holder's answer, or the error that there is none."""
        held = self._held.get(asked.query)
        if held is None or held.phase is not Phase.ASKING or held.asked != asked.epoch or asked.holder not in held.waiting:
            return []
        held.waiting.discard(asked.holder)
        if isinstance(result, HolderSays) and result.granted:
            held.granted.add(asked.holder)
            if result.record is not None and self._is_newer(result.record, held.record):
                held.record = result.record
        elif isinstance(result, HolderSays):
            held.highest = max(held.highest, result.epoch)
            if result.is_lost:
                held.lost.add(asked.holder)
            elif result.owner is not None and result.owner not in (self._me, held.record.owner) and result.epoch > held.record.epoch:
                self.former_versions.add(self._held.pop(asked.query).record)  # the query has started again, or another holder owns it
                return []
            elif result.record is not None and self._is_newer(result.record, held.record):
                held.record = result.record  # it may name more holders, one of which is about to own the query
        else:
            held.is_silent = True
        return self._decide(asked.query, held, now)

    def is_over(self, query: QueryId, now: float, *, is_certain: bool) -> None:
        """Gives up taking a query over, because an agent says that it has ended.

        Parameters
        ----------
        is_certain : False: that agent is about to start the query again, or to forget it; it is asked again after a pause
        """
        held = self._held.get(query)
        if held is None or held.phase is not Phase.ASKING:
            return
        if is_certain:
            self.ended(query)
            return
        _turn(held, Event.REFUSED)
        held.tries += 1
        held.due_s = now + self._pause_s(held)

    def _ask(self, query: QueryId, held: _Held, now: float, ended: frozenset[Holder]) -> list[Action]:
        _turn(held, Event.DUE)
        held.asked = held.promised = max(self._promised(query), held.highest) + 1
        held.promised_to = self._me
        self.promises.note(Promise(query, held.promised, self._me))
        silent = self._left if held.record.owner in ended or held.written_to else self._left | {held.record.owner}
        holders = {*held.written_to, *held.record.holders}
        held.granted, held.waiting, held.lost = {self._me}, holders - {self._me} - silent, set()
        held.is_silent = False
        if not held.waiting:
            return self._decide(query, held, now)
        return [Ask(query, held.asked, holder) for holder in sorted(held.waiting)]

    def _decide(self, query: QueryId, held: _Held, now: float) -> list[Action]:
        if self._me not in held.record.holders:  # a newer version has other holders
            self.former_versions.add(self._held.pop(query).record)
            return []
        may = held.promised == held.asked and len(held.record.sets) < SETS_MAX
        if may and agree(held.record.sets, held.granted, self._left | held.lost):
            _turn(held, Event.MAJORITY)
            del self._held[query]
            return [Inherit(held.record, held.asked)]
        if held.waiting:
            _turn(held, Event.PROMISED)
            return []
        _turn(held, Event.REFUSED)
        if not held.is_silent and held.granted == {self._me} and held.highest < held.asked:
            held.written_to = frozenset()  # nobody has taken the version sent before: such a holder would have promised
        held.tries += 1
        held.due_s = now + self._pause_s(held)
        return []

    def _pause_s(self, held: _Held) -> float:
        """Returns a pause that differs from holder to holder: otherwise they might ask each other at the same time for ever."""
        return pause_s(held.tries) + TURN_S * 0.2 * in_order(held.record.query, held.record.holders).index(self._me)

    def _is_newer(self, given: Record, held: Record) -> bool:
        """Tells whether to go on with the version `given` by a holder. A version that this agent itself wrote has not counted."""
        return given.query == held.query and given.owner != self._me and given.rank > held.rank

    def _promised(self, query: QueryId) -> int:
        held, given = self._held.get(query), self.promises.of(query)
        known = [0 if held is None else max(held.promised, held.record.epoch), 0 if given is None else given.epoch]
        return max(self._heard(query), *known)

    def _rank(self, record: Record, is_there: Callable[[Holder], bool]) -> int:
        living = [one for one in record.holders if one == self._me or (one != record.owner and is_there(one))]
        return in_order(record.query, living).index(self._me)


def _has_room(held: Mapping[QueryId, _Held], record: Record) -> bool:
    return len(held) < RECORDS_MAX and len(record.content) + sum(map(_size, held.values())) <= BYTES_MAX


def _size(held: _Held) -> int:
    return len(held.record.content)


def _turn(held: _Held, event: Event) -> None:
    after = TABLE.get((held.phase, event))
    if after is None:
        raise LocalProtocolError(f"a record that is {held.phase.value} cannot take: {event.value}")
    held.phase = after
