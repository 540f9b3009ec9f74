"""The records of queries on one agent: those that it owns and hands to keepers, and those that it keeps for others. Carries out the actions
of the machines in `owning` and `inheriting`. `sbon.queries` calls it (docs/recovery.md, Ownership).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from sbon.errors import LinkError, PlacementError, SbonError
from sbon.execution.settings import EngineConfig
from sbon.membership.members import Member
from sbon.ports import Clock, Timer
from sbon.query.catalog import Entry
from sbon.supervision import inheriting, owning
from sbon.supervision.former import Former
from sbon.supervision.generations import first_epoch
from sbon.supervision.inheriting import Ask, Inherit, Inheriting
from sbon.supervision.keepers import holders_of
from sbon.supervision.kept_record import decode_content, encode_content
from sbon.supervision.owners import Owner
from sbon.supervision.ownership_requests import OwnershipRequests
from sbon.supervision.owning import Counts, Denied, Depose, Dismiss, Owning, Write
from sbon.supervision.presence import has_ended, has_left, is_there
from sbon.supervision.promises import Promise
from sbon.supervision.record import QueryRecord
from sbon.supervision.register import Register
from sbon.supervision.succession import ANSWER_S, Finished, Owned, Succession
from sbon.supervision.wanted_questions import WantedQuestions
from sbon.types import NodeId, QueryId
from sbon.wire.messages import Done, Message
from sbon.wire.ownership import Forget, Holder, HolderSays, Keep, PromiseAsk, Record
from sbon.wire.replication import Unwanted, WantedAsk
from sbon.wire.requests import Messages

SOON_S = 0.1
"""Pause after a change of the members before records are looked at, in seconds: several members may come or go together."""
FORGET_TRIES = 3
"""Number of times that an agent is told to forget a record."""


class Successor(Protocol):
    """The queries that this agent owns; implemented by `sbon.queries.queries.OwnedQueries`."""

    def inherited(self, query: QueryId, result: QueryRecord | ValueError) -> None:
        """Takes a query over, or gets the error that its record cannot be read, so that nobody can take it over."""

    def owned_elsewhere(self, query: QueryId) -> None:
        """Gives a query up that another agent owns now, without ending it."""


class Ownership:
    """Records that one agent owns or keeps.

    Parameters
    ----------
    wall : returns seconds since 1970
    members : returns the table of members, this agent among them
    settings : say whether the queries of this agent have keepers
    save : writes the promises, and the holders of the queries that this agent owns, to disk; calls back with "" when they are there, or
        with the reason why they are not
    entry_of : returns the catalogue's entry of a name; an agent that takes a query over may not have heard of its sink's entry
    """

    def __init__(
        self,
        clock: Clock,
        wall: Callable[[], float],
        messages: Messages,
        me: Holder,
        members: Callable[[], Mapping[NodeId, Member]],
        register: Register,
        successor: Successor,
        settings: EngineConfig,
        save: Callable[[Callable[[str], None]], None],
        entry_of: Callable[[str], Entry | None],
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._messages = messages
        self._me = me
        self._members = members
        self._register = register
        self._successor = successor
        self._is_on = settings.inherits
        self._settings = settings
        self.owned: dict[QueryId, Owned] = {}
        """The queries that this agent owns."""
        self._succession = Succession(clock, wall, messages, me, members, register, self._take_over)
        self.inheriting = Inheriting(me, lambda query: register.owners.of(query).epoch)
        self.former = Former(messages, me, members, self.inheriting, save, register.owners)
        self.wanted_questions = WantedQuestions(register, self.inheriting, self.owned)
        self.requests = OwnershipRequests(clock, messages, me, members, register, self.inheriting, self.former, save, self)
        self._save = save
        self._entry_of = entry_of
        self._timer: Timer | None = None
        self._due_s = 0.0
        self._closed = False

    # ---------------------------------------------------------------------------------------------------- as an owner

    def look(self, record: QueryRecord) -> None:
        """Hands the record of a query to its keepers, if it has changed."""
        if self._is_on and record.id in self._register.running:
            self._look(self.owned.setdefault(record.id, _begun(record.id, self._me, self.former)), record)

    def permit(self, record: QueryRecord, done: Finished) -> None:
        """Has the keepers of a query note that it is about to be changed; `done` gets None once a majority has, or why too few have."""
        if not self._is_on or record.id not in self._register.running:
            done(None)
            return
        self._look(self.owned.setdefault(record.id, _begun(record.id, self._me, self.former)), record, done)

    def had_other_owners(self, query: QueryId) -> bool:
        """Tells whether another agent owned a query of this agent before, and may have it on its disk."""
        one = self.owned.get(query)
        return one is not None and one.machine.counted > 0

    def when_decided(self, query: QueryId, done: Callable[[], None]) -> bool:
        """Calls `done` once this agent has taken a query over, or does not do so. Returns False if it is not about to take it over."""
        one = self.owned.get(query)
        if one is None or query in self._register.running:
            return False
        one.decided.append(done)
        return True

    def ended(self, query: QueryId, done: Callable[[bool], None] = lambda kept: None) -> None:
        """Tells the keepers of a query that it has ended; `done` gets True if one of them has forgotten it, or if it has no keepers."""
        one = self.owned.pop(query, None)
        if one is not None:
            self.inheriting.ended(query)
        waiting = set() if one is None else {*(holder for holders in one.machine.sets for holder in holders)} - {self._me}
        if one is None or not waiting:
            done(True)
            return
        one.settle(PlacementError("the query has ended"))
        told = [done]

        def answered(keeper: Holder, is_done: bool) -> None:
            waiting.discard(keeper)
            if told and (is_done or not waiting):
                told.pop()(is_done)

        # The epoch of the latest version, which holders know: a later one would be a stranger's to them.
        epoch = one.machine.epoch if one.machine.latest is None else one.machine.latest.epoch
        for keeper in sorted(waiting):
            self._dismiss(keeper, Forget(query=query, epoch=epoch, is_over=True), partial(answered, keeper))

    def give_up(self, query: QueryId, epoch: int, owner: NodeId) -> None:
        """Gives up a query that another agent owns under this epoch."""
        one = self.owned.get(query)
        if one is not None and one.machine.epoch >= epoch:
            return
        if self.owned.pop(query, None) is not None and one is not None:
            self.inheriting.former_versions.add(one.machine.confirmed)
            one.settle(PlacementError(f"{owner} owns the query now"))
            self._decide(one)
        self._successor.owned_elsewhere(query)

    def give_back(self, version: Record, epoch: int, candidate: Holder) -> None:
        """Promises a query that this agent has owned to a candidate, and keeps its record from now on."""
        self.inheriting.give_back(version, epoch, candidate, self._clock.now())
        self._arm(self.inheriting.next_wake())

    def look_at_all(self) -> None:
        """Looks at all records, owned and kept; called periodically, and when members have come or gone.

        Code that changes a query calls `look` itself where the next owner must know of the change at once.
        """
        for query, one in list(self.owned.items()):
            record = self._register.running.get(query)
            if record is not None or one.inherited is not None:
                self._look(one, record)
            if one.is_announced and one.machine.counted > 0:
                self._succession.tell_new(one)
        there = partial(is_there, self._members(), self._me)
        holders = frozenset(holder for record in self.inheriting.records.values() for holder in record.holders)
        left = frozenset(holder for holder in holders if has_left(self._members(), holder))
        self._inherit(self.inheriting.look(there, self._ended(holders), self._clock.now(), left))

    def members_changed(self) -> None:
        """Looks at all records soon, because members have come or gone."""
        self._arm(self._clock.now() + SOON_S)

    def close(self) -> None:
        """Stops all timers."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    # --------------------------------------------------------------------------------------------------------- writing

    def _look(self, one: Owned, record: QueryRecord | None, act: Finished | None = None) -> None:
        query, machine = one.query, one.machine
        living = [Holder(member.name, member.boot) for member in self._members().values() if member.reachable]
        chosen = holders_of(query, self._me, living)
        if record is not None and (entry := self._entry_of(record.name)) is not None and entry.query == query:
            record.health.healing.named = entry.version
        try:
            content = one.inherited.content if record is None and one.inherited is not None else encode_content(record)  # type: ignore[arg-type]
        except ValueError as problem:
            if record is not None:
                record.health.healing.ownership = str(problem)
            if act is not None:
                act(None)
            return
        ended = self._ended(holder for holders in machine.sets for holder in holders)
        actions = machine.look(content, chosen, self._clock.now(), ended=ended, act=act is not None)
        if act is not None:
            one.waiting.append((machine.version_to_come, act))
        self._perform(one, actions)

    def _perform(self, one: Owned, actions: Iterable[owning.Action]) -> None:
        def announce(problem: str = "") -> None:
            if not self._closed and self.owned.get(one.query) is one:
                one.is_announced = True
                self._succession.announce(one)

        writes = [action for action in actions if isinstance(action, Write)]
        if writes and writes[0].record.sets != one.holders:
            # The next process of this agent must know whom to ask, even if only these holders have this version.
            one.holders = writes[0].record.sets
            self._show(one)
            self._save(lambda problem: self._write(one, writes))
        else:
            self._write(one, writes)
        if one.machine.phase is owning.Phase.ALONE and one.holders:
            one.holders = ()  # nobody else will have the record
            self._show(one)
            self._save(lambda problem: None)
        for action in actions:
            match action:
                case Counts(version):
                    if one.machine.counted > 0:
                        self._register.owners.heard(one.query, Owner(self._me.name, self._me.boot, one.machine.counted))
                        self.inheriting.promises.note(Promise(one.query, one.machine.counted, self._me, owns=True))
                    one.settle(None, version)
                    if one.inherited is not None and not one.is_known:
                        one.is_known = True
                        if one.machine.phase is owning.Phase.ALONE:  # nobody else has it: the former owner forgets it when it is told
                            self._save(announce)
                        else:
                            announce()
                case Denied(version, reason):
                    one.settle(PlacementError(reason), version)
                    if one.inherited is not None and not one.is_known:
                        # Too few holders take the first version, perhaps because they have promised the query to another keeper since.
                        self.owned.pop(one.query, None)
                        holders = () if one.machine.latest is None else one.machine.latest.holders
                        self.inheriting.hand_back(one.inherited, one.machine.epoch, holders, self._clock.now())
                        self._arm(self.inheriting.next_wake())
                        self._decide(one)
                case Dismiss(keeper):
                    self._dismiss(keeper, Forget(query=one.query, epoch=one.machine.counted), lambda is_done: None)
                case Depose(epoch, owner):
                    self._register.owners.heard(one.query, Owner(owner.name, owner.boot, epoch))
                    del self.owned[one.query]
                    self.inheriting.former_versions.add(one.machine.confirmed)
                    one.settle(PlacementError(f"{owner.name} owns the query now"))
                    self._successor.owned_elsewhere(one.query)
                    self._decide(one)
        self._show(one)
        self._arm(one.machine.next_wake())

    def _write(self, one: Owned, writes: Iterable[Write]) -> None:
        for action in writes:
            answered = partial(self._written, one, action.record, action.keeper)
            self._messages.request(action.keeper.name, Keep(record=action.record), answered, ANSWER_S)

    def _written(self, one: Owned, written: Record, keeper: Holder, result: Message | SbonError) -> None:
        def take(result: Message | SbonError) -> None:
            if not self._closed and self.owned.get(one.query) is one:
                self._perform(one, one.machine.answered(written, keeper, result, self._clock.now()))

        def asked(said: Message | SbonError) -> None:
            # The keeper may have a version of that owner that never came to count. Only that owner knows.
            if not isinstance(said, Unwanted):
                take(said)
                return
            words = [word for word in said.taken if word.query == one.query]
            gives_way = any(word.owner == self._me or (word.owner == owner and word.epoch <= one.machine.counted) for word in words)
            take(HolderSays(granted=False, epoch=epoch, promised_to=owner) if gives_way else result)

        match result:
            case HolderSays(False, epoch, Holder() as owner) if owner not in (self._me, keeper) and not has_ended(self._members(), owner):
                if is_there(self._members(), self._me, owner):
                    self._messages.request(owner.name, WantedAsk(queries=(one.query,)), asked, ANSWER_S)
                else:
                    asked(LinkError(f"{owner.name}, which {keeper.name} takes for the owner, is not there"))
            case _:
                take(result)

    def _show(self, one: Owned) -> None:
        record = self._register.running.get(one.query)
        if record is not None:
            healing = record.health.healing
            healing.attempted = max(healing.attempted, first_epoch(one.machine.counted))
            healing.holders = one.holders
            healing.keepers = tuple(holder.name for holder in one.machine.keepers)
            healing.ownership = one.machine.says
            healing.is_cut_off = bool(healing.ownership) and one.machine.phase is not owning.Phase.ALONE

    def _dismiss(self, keeper: Holder, message: Forget, done: Callable[[bool], None], tries: int = FORGET_TRIES) -> None:
        def answered(result: Message | SbonError) -> None:
            if isinstance(result, LinkError) and tries > 1 and not self._closed and is_there(self._members(), self._me, keeper):
                self._dismiss(keeper, message, done, tries - 1)
            else:
                done(isinstance(result, Done))

        self._messages.request(keeper.name, message, answered, ANSWER_S)

    # ------------------------------------------------------------------------------------------------------ taking over

    def _inherit(self, actions: Iterable[inheriting.Action]) -> None:
        asks: list[Ask] = []
        for action in actions:
            match action:
                case Ask():
                    asks.append(action)
                case Inherit(record, epoch):
                    one = self.owned[record.query] = Owned(Owning(record.query, self._me, epoch, record), record)
                    self._look(one, None)
        if asks:  # each question implies that this agent has promised the query to itself
            self._succession.reach()
            self._save(partial(self._ask, asks))
        self._arm(self.inheriting.next_wake())

    def _ask(self, asks: Iterable[Ask], problem: str) -> None:
        """Asks holders for their promise, and all agents whether the queries have ended. The promises wait for the other answers."""
        promised: list[Callable[[], None]] | None = []

        def answered(action: Ask, result: Message | SbonError) -> None:
            if promised is None:
                self._promised(action, result)
            else:
                promised.append(partial(self._promised, action, result))

        def told(over: Mapping[QueryId, bool]) -> None:
            nonlocal promised
            ready, promised = promised or [], None
            for query, is_certain in over.items():
                self.inheriting.is_over(query, self._clock.now(), is_certain=is_certain)
            for promise in ready:
                promise()
            self._arm(self.inheriting.next_wake())

        for action in asks:
            if problem:
                answered(action, LinkError(problem))
            else:
                asked = PromiseAsk(query=action.query, epoch=action.epoch, holder=self._me, of=action.holder)
                self._messages.request(action.holder.name, asked, partial(answered, action), ANSWER_S)
        if problem:
            told({})
        else:
            records = self.inheriting.records
            queries = {action.query for action in asks}.intersection(records)
            self.former.over({query: _first_of(records[query]) for query in queries}, told)

    def _promised(self, asked: Ask, result: Message | SbonError) -> None:
        if not self._closed:
            self._inherit(self.inheriting.answered(asked, result, self._clock.now()))

    def _take_over(self, one: Owned, result: QueryRecord | ValueError) -> None:
        if self._closed or self.owned.get(one.query) is not one:
            return
        if isinstance(result, ValueError):
            self.ended(one.query)
        self._successor.inherited(one.query, result)
        self._decide(one)

    def _decide(self, one: Owned) -> None:
        """Carries on with what waits until this agent has taken a query over, or does not do so."""
        ready, one.decided = one.decided, []
        for done in ready:
            self._clock.call_soon(done)

    # ---------------------------------------------------------------------------------------------------------- timing

    def _ended(self, holders: Iterable[Holder]) -> frozenset[Holder]:
        members = self._members()
        return frozenset(holder for holder in holders if holder != self._me and has_ended(members, holder))

    def _arm(self, due_s: float | None) -> None:
        now = self._clock.now()
        if due_s is None or self._closed or now < self._due_s <= due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = max(due_s, now)
        self._timer = self._clock.call_at(self._due_s, self._wake)

    def _wake(self) -> None:
        self._due_s = 0.0
        if not self._closed:
            for one in list(self.owned.values()):
                self._perform(one, one.machine.wake(self._clock.now()))
            self.look_at_all()


def _begun(query: QueryId, me: Holder, former: Former) -> Owned:
    return Owned(Owning(query, me, former.anew.get(query, 0)))


def _first_of(record: Record) -> QueryId:
    """Returns the id under which a query was submitted."""
    try:
        return decode_content(record.content).first or record.query
    except ValueError:
        return record.query
