"""Recoveries of all queries of one agent: keeps the machine of each query (`sbon.supervision.recovery`), shows it what is known, and
carries out its actions. `sbon.queries` calls it whenever something has changed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from sbon.errors import PlacementError, SbonError
from sbon.links.link_names import first_name
from sbon.ports import Clock, Timer
from sbon.query.multicast_ids import is_multicast
from sbon.query.plan import LinkSpec, Plan
from sbon.schema import Schema
from sbon.supervision.deployment import schemas_of
from sbon.supervision.dropped import finished_with_host
from sbon.supervision.health import GONE, WITH_HOST, Condition
from sbon.supervision.losses import Losses
from sbon.supervision.record import QueryRecord
from sbon.supervision.recovery import Action, Ask, Lose, Phase, Place, Recovered, Recovery
from sbon.supervision.recovery_attempt import Step
from sbon.supervision.recovery_picture import Picture
from sbon.supervision.replacing import plan_of
from sbon.supervision.replans import Replans
from sbon.supervision.rerun import can_rerun_now
from sbon.supervision.unmade import unmade
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.deployment import User
from sbon.wire.messages import Message
from sbon.wire.reports import FilePosition
from sbon.wire.requests import Messages

TIMEOUT_S = 10.0
"""Time for one step, in seconds: a host that makes its first operator has to load libraries."""

Hosts = Mapping[OperatorId, NodeId]
Reached = Mapping[Phase, float]
"""When each phase of an attempt was reached, in monotonic seconds. Phases that took no time are missing."""


class Replace(Protocol):
    """Chooses hosts for the operators of a plan; those in `settled` stay and need no room. `done` gets the hosts, or why there are none."""

    def __call__(
        self, plan: Plan, excluded: frozenset[NodeId], settled: frozenset[OperatorId], done: Callable[[Hosts | SbonError], None]
    ) -> None: ...


class Permit(Protocol):
    """Writes down that a query is about to be changed. `done` gets None once that counts, or why the query may not be changed."""

    def __call__(self, record: QueryRecord, done: Callable[[SbonError | None], None]) -> None: ...


class Recovering:
    """Recoveries of one agent's queries.

    Parameters
    ----------
    alive : returns the nodes that are alive
    recovered : called with a query when lost operators of it run again, and when each phase of the last attempt was reached
    changed : called with a query when a recovery has begun, or is over
    """

    def __init__(
        self,
        clock: Clock,
        messages: Messages,
        alive: Callable[[], frozenset[NodeId]],
        replace: Replace,
        permit: Permit,
        recovered: Callable[[QueryRecord, Recovered, Reached], None],
        changed: Callable[[QueryRecord], None],
    ) -> None:
        self.clock = clock
        self.messages = messages
        self.alive = alive
        self.replace = replace
        self.permit = permit
        self.recovered = recovered
        self.changed = changed
        self.replans = Replans(clock, messages, alive, replace, permit, changed)
        self._of: dict[QueryId, _One] = {}

    def look(self, record: QueryRecord) -> None:
        """Makes lost operators of a query again, if they can be made; not while its sink may be about to take another plan."""
        self.replans.look(record)
        if self.replans.holds(record.id):
            return
        one, healing = self._of.get(record.id), record.health.healing
        if not healing.account.is_exact and healing.is_on and can_rerun_now(picture_of(record, self.alive(), self.clock.now())):
            healing.turned |= record.specs.keys()
        if one is None:
            if not healing.is_on or not (record.lost or healing.turned):
                return
            slack_ms = record.bounds.told_ms if record.plan.delay_bound_ms is not None else None
            user = User(record.id, self.messages.me, slack_ms, record.plan.max_latency_ms)
            machine = Recovery(record.id, user, healing.turned)
            one = self._of[record.id] = _One(self, record, machine)
        one.machine.must_make(healing.turned - one.machine.operators)
        one.look()

    def hurry(self, record: QueryRecord) -> None:
        """Ends a pause: a node has come back, or has gone."""
        if record.id in self._of:
            self._of[record.id].machine.hurry(self.clock.now())

    def forget(self, query: QueryId) -> None:
        """Ends the recovery of a query that has ended."""
        self.replans.forget(query)
        one = self._of.pop(query, None)
        if one is not None:
            one.close()

    def close(self) -> None:
        """Stops all timers."""
        self.replans.close()
        for query in list(self._of):
            self.forget(query)


def picture_of(record: QueryRecord, alive: frozenset[NodeId], now: float) -> Picture:
    """Returns what a recovery needs to know of a query."""
    taken = {first_name(link): rows for report in record.reports.values() for link, rows in report.received}
    carried = {
        first_name(link): operator
        for link, operator in record.multicasts.carriers(record.links, record.reports).items()
        if is_multicast(operator) and record.health.of(operator) not in GONE | WITH_HOST
    }
    over = (record.health.healing.over & record.specs.keys()) | finished_with_host(record)
    return Picture(
        specs=record.specs,
        links=record.links,
        nodes=dict(record.nodes),
        epochs=dict(record.epochs),
        lost=record.lost | over_beside(record.links, record.lost, over),
        away=frozenset(one for one in record.lost if record.health.of(one) is Condition.AWAY),
        alive=alive,
        schemas=_schemas(record),
        carriers=carried,
        given_up=given_up(record),
        taken=taken,
        missing=record.health.healing.account.missing,
        lacking=record.health.healing.account.lacking,
        begun_at=record.health.healing.begun_at,
        matching=record.health.healing.account.matching,
        late=_late(record),
        joined=record.health.healing.plans.joined,
        users=record.health.healing.others,
        seconds=now - record.health.healing.began_s,
        attempted=record.health.healing.attempted,
        positions=_positions(record),
        is_exact=record.health.healing.account.is_exact,
        first_begun_at=record.health.healing.account.first_begun_at,
        is_replanned=record.health.healing.plans.is_replanned,
        rerun_in_vain=record.health.healing.account.rerun_in_vain,
        rules=record.health.healing.rules,
    )


def _late(record: QueryRecord) -> frozenset[OperatorId]:
    """Returns the operators that have left out late rows, other than rows without an event time, and rows that have come again."""
    late = frozenset(operator for operator, report in record.reports.items() if report.late_rows > (report.untimed_rows or 0))
    return late - record.health.healing.account.resumed


def _positions(record: QueryRecord) -> dict[OperatorId, FilePosition]:
    """Returns the positions of missing sources; none if the query has lost rows before, because row numbers cannot be compared then."""
    account = record.health.healing.account
    return {} if record.losses.any or account.rows or not account.is_exact else dict(record.health.healing.positions)


def _schemas(record: QueryRecord) -> dict[LinkId, Schema]:
    """Returns the columns of each link's rows. Operators left to other queries are not in the query's plan."""
    own = {first_name(link.id): record.specs[link.source].schema for link in record.links if link.source in record.specs}
    return own | schemas_of(record.plan, [link for link in record.links if link.source not in record.specs])


def over_beside(links: Iterable[LinkSpec], lost: Iterable[OperatorId], over: Collection[OperatorId]) -> frozenset[OperatorId]:
    """Returns operators next to lost ones that were not made again before, as their consumers had had everything. They count as lost, too.

    Otherwise a lost operator that fed one of them would have nobody to feed, and a lost operator that was fed by it would have no feeder.
    """
    found, beside = frozenset[OperatorId](), frozenset(lost)
    while beside:
        ends = frozenset(end for link in links for end in (link.source, link.target) if {link.source, link.target} & beside)
        beside = (ends & frozenset(over)) - found
        found |= beside
    return found


def given_up(record: QueryRecord) -> frozenset[LinkId]:
    """Returns the first names of links that their sources report not to have, and that no living multicast has or may have. Includes the
    links from operators that are not made again."""
    carrier, gone = record.multicasts.carriers(record.links, record.reports), unmade(record)
    carried = {first_name(link) for link, operator in carrier.items() if record.health.of(operator) not in GONE | WITH_HOST}
    return frozenset(
        name
        for link in record.links
        if (source := record.reports.get(link.source)) is not None
        and source.node == record.nodes.get(link.source)
        and (name := first_name(link.id)) not in carried
        and not _may_be_carried(record, link.source)
    ).union(first_name(link.id) for link in record.links if link.source in gone)


def _may_be_carried(record: QueryRecord, operator: OperatorId) -> bool:
    """Tells whether an operator feeds a living multicast that has not said what it sends."""
    return any(
        name not in record.reports or _may_be_carried(record, name)
        for name in record.multicasts.fed_by(operator)
        if record.health.of(name) not in GONE | WITH_HOST
    )


def take_over(record: QueryRecord, done: Recovered) -> Recovered:
    """Enters the new hosts and links of operators that were lost and run again. Returns the losses of all attempts together."""
    renewed = {first_name(link.id): link.id for link in done.links}
    record.links = tuple(
        msgspec.structs.replace(link, id=renewed[name], handed=0) if (name := first_name(link.id)) in renewed else link
        for link in record.links
    )
    for operator, node in done.nodes.items():
        if record.epochs.get(operator, 0) < done.epoch:  # it may have moved on already, while others were being made
            record.nodes[operator], record.epochs[operator] = node, done.epoch
        record.health.forget(operator)
        record.reports.pop(operator, None)
    for operator in done.over:
        record.health.forget(operator)
        record.reports.pop(operator, None)
    record.health.healing.over = record.health.healing.over - done.nodes.keys() | done.over
    cost = record.health.healing.account.add(done) or done
    if done.is_rerun:
        record.losses = Losses()
    record.nodes.update((operator, node) for operator, node in cost.nodes.items() if operator in done.over)
    return cost


class _One:
    """The recovery of one query."""

    def __init__(self, parent: Recovering, record: QueryRecord, machine: Recovery) -> None:
        self.machine = machine
        self._parent = parent
        self._record = record
        self._timer: Timer | None = None
        self._closed = False
        self._reached: dict[Phase, float] = {}

    def look(self) -> None:
        if not self._closed:
            self._do(self.machine.look(self._picture(), self._parent.clock.now()))

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _picture(self) -> Picture:
        return picture_of(self._record, self._parent.alive(), self._parent.clock.now())

    def _do(self, actions: list[Action]) -> None:
        if any(isinstance(action, Place) for action in actions):
            self._reached = {}
        self._reached.setdefault(self.machine.phase, self._parent.clock.now())
        self._record.health.healing.turned = self.machine.operators
        if actions and isinstance(actions[0], Lose):
            self._record.health.healing.begun(actions[0].found)
            self._parent.permit(self._record, partial(self._lost, actions[0].attempt, actions[1:]))
        else:
            for action in actions:
                self._perform(action)
        before, healing = self._record.health.healing.step, self._record.health.healing
        healing.step = self.machine.reason if self.machine.is_active else ""
        healing.waits_for = "" if self.machine.is_active else self.machine.reason
        if (healing.step == "") != (before == ""):
            self._parent.changed(self._record)
        if self._timer is not None:
            self._timer.cancel()
        due_s = None if self._closed else self.machine.next_wake()
        self._timer = None if due_s is None else self._parent.clock.call_at(due_s, self.look)

    def _perform(self, action: Action) -> None:
        parent, record = self._parent, self._record
        match action:
            case Place():
                record.health.healing.attempted = self.machine.epoch
                parent.permit(record, partial(self._permitted, action))
            case Ask(step):
                parent.messages.request(step.node, step.message, partial(self._answered, step), TIMEOUT_S)
            case Recovered():
                parent.recovered(record, take_over(record, action), self._reached)

    def _permitted(self, action: Place, problem: SbonError | None) -> None:
        """Chooses hosts, once the keepers of the query's record know of the attempt."""
        parent, record, operators = self._parent, self._record, action.operators
        placed = partial(self._placed, action.attempt)
        if problem is not None or self._closed:
            parent.clock.call_soon(partial(placed, problem or PlacementError("the query has ended")))
            return
        pinned = {operator: node for operator in operators if (node := record.specs[operator].pinned) is not None}
        if len(pinned) == len(operators):
            parent.clock.call_soon(partial(placed, pinned))
        else:
            plan = plan_of(record.plan, self._picture(), operators)
            parent.replace(plan, action.excluded, frozenset(spec.id for spec in plan.operators) - operators, placed)

    def _lost(self, attempt: int, actions: list[Action], problem: SbonError | None) -> None:
        """Goes on with an attempt, once the keepers of the query's record know what it loses."""
        if problem is not None:
            self._parent.clock.call_soon(lambda: self._heard(lambda now: self.machine.denied(attempt, problem, now)))
        elif not self._closed and self.machine.is_at(attempt):
            for action in actions:
                self._perform(action)

    def _placed(self, attempt: int, result: Hosts | SbonError) -> None:
        self._heard(lambda now: self.machine.placed(attempt, result, now))

    def _answered(self, step: Step, result: Message | SbonError) -> None:
        self._heard(lambda now: self.machine.answered(step, result, now))

    def _heard(self, event: Callable[[float], list[Action]]) -> None:
        if self._closed:
            return
        self._do(event(self._parent.clock.now()))
        if not self.machine.is_under_way:
            self.look()  # more may have been lost meanwhile
