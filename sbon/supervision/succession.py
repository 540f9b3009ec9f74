"""Tells all agents that a query has a new owner, and learns from hosts which operators they run for it (docs/recovery.md, Ownership)."""

from collections.abc import Callable, Mapping
from functools import partial

from sbon.errors import SbonError
from sbon.membership.members import Member
from sbon.ports import Clock
from sbon.supervision.kept_record import Content, decode_content, may_run_on, record_from
from sbon.supervision.owners import Owner
from sbon.supervision.owning import Owning, Phase
from sbon.supervision.record import QueryRecord
from sbon.supervision.register import Register, kept_plan
from sbon.supervision.resumption import KeptQuery
from sbon.types import NodeId, QueryId
from sbon.wire.messages import Message
from sbon.wire.ownership import Holder, Own, Record
from sbon.wire.reports import OperatorReport, OperatorReports, OperatorsAsk
from sbon.wire.requests import Messages

ANSWER_S = 2.0
"""Time that an agent has to answer, in seconds."""
HOSTS_ANSWER_S = 5.0
"""Time that hosts have to report the operators that they run for a query with a new owner, in seconds."""

Finished = Callable[[SbonError | None], None]


class Owned:
    """One query that this agent owns."""

    def __init__(self, machine: Owning, inherited: Record | None = None) -> None:
        self.machine = machine
        self.query = machine.query
        self.inherited = inherited
        """The former owner's record, as long as the query is being taken over."""
        self.is_known = inherited is None
        """True once a majority knows who owns the query."""
        self.is_announced = inherited is None
        """True once other agents are told who owns the query."""
        self.told: set[Holder] = set()
        """Processes that know the owner of a query that was taken over."""
        self.asked: set[Holder] = set()
        self.holders: tuple[tuple[Holder, ...], ...] = ()
        """The holders that may have the record, as they are on disk."""
        self.waiting: list[tuple[int, Finished]] = []
        """Changes that wait until a version counts."""
        self.decided: list[Callable[[], None]] = []
        """Called once this agent has taken the query over, or does not do so."""

    @property
    def coming(self) -> KeptQuery | None:
        """The query as kept over a restart of this agent, as long as it is being taken over: the other holders may crash, too."""
        content = self.content
        if content is None or not (self.holders or self.machine.phase is Phase.ALONE):
            return None
        return kept_plan(content.plan, [spec.id for spec in content.operators], (content.first, content.former), self.holders)

    @property
    def first(self) -> QueryId:
        """The id under which the query was submitted, as long as it is being taken over; empty if it has been dropped."""
        coming = self.coming
        return "" if coming is None or coming.dropped else coming.first_id

    @property
    def content(self) -> Content | None:
        """The content of the former owner's record, as long as the query is being taken over; None also if it cannot be read."""
        try:
            return None if self.inherited is None else decode_content(self.inherited.content)
        except ValueError:
            return None

    def settle(self, problem: SbonError | None, version: int | None = None) -> None:
        """Gives the result to changes that wait for this version or an earlier one; without a version, to all."""
        ready = [done for wanted, done in self.waiting if version is None or wanted <= version]
        self.waiting = [] if version is None else [(wanted, done) for wanted, done in self.waiting if wanted > version]
        for done in ready:
            done(problem)


class Succession:
    """Announces the queries that one agent has taken over.

    Parameters
    ----------
    wall : returns seconds since 1970
    taken_over : called with a query and its record, or why the record cannot be read
    """

    def __init__(
        self,
        clock: Clock,
        wall: Callable[[], float],
        messages: Messages,
        me: Holder,
        members: Callable[[], Mapping[NodeId, Member]],
        register: Register,
        taken_over: Callable[[Owned, QueryRecord | ValueError], None],
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._messages = messages
        self._me = me
        self._members = members
        self._register = register
        self._taken_over = taken_over

    def announce(self, one: Owned) -> None:
        """Tells all living agents, including this one, who owns the query. Takes it over once they have reported its operators.

        Does not wait for agents that cannot run operators of the query, which often saves the wait for the farthest agent.
        """
        query, content = one.query, one.content
        self._register.owners.heard(query, Owner(self._me.name, self._me.boot, one.machine.counted))
        self._register.begin(query)
        reports: list[OperatorReport] = []
        waiting, answered = self._living() | {self._me}, set[NodeId]()

        def told(holder: Holder, result: Message | SbonError) -> None:
            waiting.discard(holder)
            if isinstance(result, OperatorReports):
                one.told.add(holder)
                answered.add(holder.name)
                reports.extend(result.reports)
            silent = {other.name for other in waiting}
            if one.inherited is None or (silent and (content is None or may_run_on(content, reports, silent))):
                return
            self._register.begun(query, runs=True)
            self._take_over(one, reports, answered)

        for holder in sorted(waiting):
            self._messages.request(holder.name, self._own(one), partial(told, holder), HOSTS_ANSWER_S)

    def reach(self) -> None:
        """Opens connections to all living agents: they will hear of a new owner soon, which may have to wait for the farthest of them."""
        for holder in sorted(self._living() - {self._me}):
            self._messages.tell(holder.name, OperatorsAsk(operators=()))

    def tell_new(self, one: Owned) -> None:
        """Tells agents that do not know it yet who owns the query."""

        def told(holder: Holder, result: Message | SbonError) -> None:
            one.asked.discard(holder)
            if not isinstance(result, SbonError):
                one.told.add(holder)

        living = self._living()
        one.told &= living
        for holder in sorted(living - one.told - one.asked - {self._me}):
            one.asked.add(holder)
            self._messages.request(holder.name, self._own(one), partial(told, holder), ANSWER_S)

    def _take_over(self, one: Owned, reports: list[OperatorReport], answered: set[NodeId]) -> None:
        before, one.inherited = one.inherited, None
        if before is None:
            return
        try:
            known = decode_content(before.content)
        except ValueError as problem:
            self._taken_over(one, problem)
            return
        now, wall_s, epoch = self._clock.now(), self._wall(), one.machine.counted
        record, found = record_from(known, before.owner.name, reports, self._me.name, now, wall_s, epoch), {report.id for report in reports}
        for spec in record.specs.values():
            if spec.pinned in answered and spec.id not in found:  # a pinned operator cannot have moved
                record.reported(OperatorReport(spec.id, "missing", spec.pinned))
        self._taken_over(one, record)

    def _living(self) -> set[Holder]:
        return {Holder(member.name, member.boot) for member in self._members().values() if member.reachable}

    def _own(self, one: Owned) -> Own:
        return Own(query=one.query, epoch=one.machine.counted, owner=self._me)
