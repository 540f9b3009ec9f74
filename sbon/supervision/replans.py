"""Gives running queries of this agent other plans: has these placed, and carries out the actions of `sbon.supervision.replanning`.

`Recovering` calls it, because nothing of a query is recovered while its sink may be about to cross.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from sbon.errors import PlacementError, QueryError, SbonError
from sbon.ports import Clock, Timer
from sbon.query.instances import sets_of
from sbon.query.multicast_ids import is_multicast
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import Plan
from sbon.query.plan_exchange import reach_us
from sbon.supervision.deploying import INSTANTIATE_TIMEOUT_S
from sbon.supervision.dropped import feeder_of, give_up, heard_users, is_dropped, left_to_others, used_by_others
from sbon.supervision.forecasting import forecast_again
from sbon.supervision.health import GONE, LOST, Condition
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.replanning import (
    Action,
    Ask,
    Check,
    Leave,
    Note,
    Over,
    Phase,
    Replanning,
    Step,
    Take,
    other_plan,
    renamed,
)
from sbon.types import NodeId, OperatorId, QueryId
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.deployment import User
from sbon.wire.messages import Message
from sbon.wire.reports import OperatorReports, OperatorsAsk
from sbon.wire.requests import Messages

if TYPE_CHECKING:
    from sbon.supervision.recovering import Hosts, Permit, Replace

LOOK_S = 1.0
"""Pause between two questions to the hosts of a plan whose answers the sink does not take yet, in seconds."""

Done = Callable[[dict[str, Any] | SbonError], None]
Planned = Callable[[Plan | SbonError], None]


class Replans:
    """Changes of plans of one agent's queries.

    Parameters
    ----------
    alive : returns the nodes that are alive
    replace : chooses hosts
    permit : writes down that a query is about to be changed
    changed : called with a query once it has another plan, or keeps its own
    """

    def __init__(
        self,
        clock: Clock,
        messages: Messages,
        alive: Callable[[], frozenset[NodeId]],
        replace: "Replace",
        permit: "Permit",
        changed: Callable[[QueryRecord], None],
    ) -> None:
        self._clock = clock
        self._messages = messages
        self._alive = alive
        self._replace = replace
        self._permit = permit
        self._changed = changed
        self._of: dict[QueryId, _One] = {}
        self._log = structlog.get_logger("agent").bind(node=messages.me)

    # ------------------------------------------------------------------------------------------------------- questions

    def holds(self, query: QueryId) -> bool:
        """Tells whether nothing else of a query may change now, because its sink may be about to cross."""
        one = self._of.get(query)
        return one is not None and one.machine.phase not in (Phase.RETIRING, Phase.OVER)

    def changes(self, query: QueryId) -> bool:
        """Tells whether a query is about to get another plan, or operators of a former plan are being ended."""
        return query in self._of

    def check(self, record: QueryRecord) -> None:
        """Checks that a query may get another plan now.

        Raises
        ------
        QueryError, PlacementError
            It may not.
        """
        if self.changes(record.id):
            raise PlacementError(f"{record.name} is about to get another plan, or operators of a former one are being ended; try again")
        if is_dropped(record):
            raise QueryError(f"{record.name} has been dropped; its operators serve other queries, and its plan does not change")
        healing, is_over = record.health.healing, record.state in (QueryState.FINISHED, QueryState.STOPPING)
        if is_over or record.health.is_degraded or record.lost or healing.step or healing.turned:
            raise PlacementError(f"{record.name} is {record.state.value}: {record.reason or 'not all of it runs'}; try again once it runs")
        if any(operator not in record.specs for operator in record.nodes):
            raise QueryError(f"the plan of {record.name} cannot change while it runs: it uses operators of other queries")
        reach_us(record.plan)

    # --------------------------------------------------------------------------------------------------------- changes

    def begin(self, record: QueryRecord, plan: Plan, done: Done, why: str = "") -> None:
        """Gives a query another plan; `done` gets the event time at which its sink crosses, or why the query keeps its plan.

        Parameters
        ----------
        plan : for the same statement, with any ids of operators
        why : reason for the query's history; empty if a person has asked
        """
        try:
            self.check(record)
            reach_us(plan)
            used = [*record.specs, *record.health.healing.plans.retired]
            first = 1 + max(int(text) for operator in used if (text := operator.rpartition(".")[2]).isdecimal())
            try:
                plan = renamed(plan, record.specs, first)
            except ValueError as problem:
                raise QueryError(f"the plan of {record.name} cannot change while it runs: {problem}") from problem
        except SbonError as problem:
            done(problem)
            return
        bounds = {"delay_bound_ms": record.plan.delay_bound_ms, "max_latency_ms": record.plan.max_latency_ms}
        plan = msgspec.structs.replace(plan, sql=record.plan.sql, **bounds)
        settled = frozenset(spec.id for spec in plan.operators if isinstance(spec.params, SourceParams | SinkParams))

        known = (record.plan, record.health.healing.plans.retired)

        def placed(result: "Hosts | SbonError") -> None:
            if isinstance(result, SbonError):
                done(result)
                return
            try:
                self.check(record)
                if known != (record.plan, record.health.healing.plans.retired):  # another change has used the new ids since
                    raise PlacementError(f"another change of the plan of {record.name} came first; try again")
            except SbonError as problem:
                done(problem)
                return
            made = {operator: node for operator, node in result.items() if operator not in settled}
            record.health.healing.plans.other = other_plan(plan, first, record.nodes, made)
            machine = Replanning(self._user(record), record.health.healing.plans.other, record.nodes)
            one = self._of[record.id] = _One(self, record, machine, done, why)
            one.do(machine.begin())

        self._replace(plan, frozenset(), settled, placed)

    def resume(self, record: QueryRecord) -> None:
        """Ends a change of plan that a former owner of a query has begun; without one, ends the operators that the query has given up."""
        if record.health.healing.plans.other is not None:
            machine = Replanning(self._user(record), record.health.healing.plans.other, record.nodes)
            one = self._of[record.id] = _One(self, record, machine, _ignored)
            one.do(machine.resume())
        elif record.health.healing.plans.retiring:
            machine = Replanning(self._user(record), None, record.nodes)
            one = self._of[record.id] = _One(self, record, machine, _ignored)
            one.retire(record.health.healing.plans.retiring)

    def leave(self, record: QueryRecord) -> None:
        """Ends the operators that a query has left to others, because nobody uses them any more; not while its plan changes."""
        if not self.changes(record.id):
            left = left_to_others(record)
            give_up(record, {operator: node for operator, node in record.nodes.items() if feeder_of(operator) in left})
            self.resume(record)
            self._changed(record)

    def look(self, record: QueryRecord) -> None:
        """Calls off the change of a query's plan if a host or an operator of either plan is lost."""
        if record.id in self._of:
            self._of[record.id].look()

    def call_off(self, query: QueryId) -> None:
        """Lets a query keep its plan, unless its sink has crossed."""
        if query in self._of:
            self._of[query].call_off("called off")

    def forget(self, query: QueryId) -> None:
        """Ends the change of a query that has ended, or that another agent owns."""
        one = self._of.pop(query, None)
        if one is not None:
            one.close()

    def close(self) -> None:
        """Stops all timers."""
        for query in list(self._of):
            self.forget(query)

    def _user(self, record: QueryRecord) -> User:
        slack_ms = record.bounds.told_ms if record.plan.delay_bound_ms is not None else None
        return User(record.id, self._messages.me, slack_ms, record.plan.max_latency_ms)

    def over(self, record: QueryRecord) -> None:
        """Notes that all operators that a query has given up have ended."""
        record.health.healing.plans.retiring = {}
        self.forget(record.id)
        self._changed(record)


class _One:
    """The change of one query."""

    def __init__(self, parent: Replans, record: QueryRecord, machine: Replanning, done: Done, why: str = "") -> None:
        self.machine = machine
        self._parent = parent
        self._record = record
        self._done: Done = done
        self._why = why
        self._timer: Timer | None = None
        self._is_closed = False
        self._looked_s = parent._clock.now()

    def close(self) -> None:
        self._is_closed = True
        self._record.health.healing.plans.step = ""
        if self._timer is not None:
            self._timer.cancel()
        self._tell(PlacementError(f"{self._record.name} has ended, or has another owner"))

    def look(self) -> None:
        record, other = self._record, self._record.health.healing.plans.other
        if self._is_closed or other is None:
            return
        gone = set(other.nodes.values()) - self._parent._alive()
        if record.health.of(record.sink) in GONE | {Condition.LEFT}:
            self.do(self.machine.sink_is_gone())
        elif gone:
            self.do(self.machine.trouble(f"{', '.join(sorted(gone))} is gone"))
        elif lost := record.health.those(LOST):
            self.do(self.machine.trouble(f"{lost[0]} is lost"))

    def call_off(self, reason: str) -> None:
        self.do(self.machine.trouble(reason))

    def retire(self, operators: "Hosts") -> None:
        record = self._record
        self.do(self.machine.retire(operators, record.nodes.values(), () if is_dropped(record) else left_to_others(record)))

    def do(self, actions: list[Action]) -> None:
        parent, record = self._parent, self._record
        for action in actions:
            match action:
                case Note():
                    parent._permit(record, lambda problem: parent._clock.call_soon(partial(self._noted, problem)))
                case Ask(step):
                    parent._messages.request(step.node, step.message, partial(self._answered, step), INSTANTIATE_TIMEOUT_S)
                case Check():
                    self._check()
                case Take():
                    old = take_other(record)
                    record.history.replanned(record.nodes, self._why, parent._clock.wall())
                    record.forecast = forecast_again(record, parent._clock.now())
                    told = {"query": record.id, "name": record.name, "instances": _instances(record.plan)}
                    parent._log.info("query.replanned", **told, why=self._why)
                    parent._changed(record)
                    self._tell(self._told())
                    self.retire(old)
                    return
                case Leave(reason):
                    old = leave_other(record)
                    parent._log.warning("query.not_replanned", query=record.id, name=record.name, reason=reason)
                    self._tell(PlacementError(f"{record.name} keeps its plan: {reason}"))
                    parent._changed(record)
                    self.retire(old)
                    return
                case Over():
                    parent.over(record)
                    return
        if self._is_closed:
            return
        if self.machine.at_us is not None and self.machine.phase is Phase.CROSSING:
            self._tell(self._told())
        record.health.healing.plans.step = self._text()
        if self._timer is not None:
            self._timer.cancel()
        due_s = self.machine.next_wake()
        self._timer = None if due_s is None else parent._clock.call_at(due_s, self._wake)

    def _check(self) -> None:
        """Asks all hosts whether every operator of both plans is there."""
        record, parent = self._record, self._parent
        assert record.health.healing.plans.other is not None
        by_node: dict[NodeId, list[OperatorId]] = {}
        for operator, node in {**record.nodes, **record.health.healing.plans.other.nodes}.items():
            if not is_multicast(operator):
                by_node.setdefault(node, []).append(operator)
        waiting, problems = set(by_node), list[str]()

        def answered(node: NodeId, result: Message | SbonError) -> None:
            waiting.discard(node)
            if isinstance(result, OperatorReports):
                there = {report.id for report in result.reports if report.state not in ("missing", "failed", "moved")}
                problems.extend(f"{operator} is not on {node}" for operator in by_node[node] if operator not in there)
                self._hear(result)
            else:
                problems.append(f"{node} does not answer")
            if not waiting and not self._is_closed:
                self.do(self.machine.checked(problems[0] if problems else "", parent._clock.now()))

        for node, operators in sorted(by_node.items()):
            ask = OperatorsAsk(operators=tuple(operators), query=record.id)
            parent._messages.request(node, ask, partial(answered, node), INSTANTIATE_TIMEOUT_S)

    def _hear(self, result: OperatorReports) -> None:
        """Takes new hosts of operators of either plan, and the other queries that use them."""
        for report in result.reports:
            if report.state == "moved":
                self._record.moved(report.id, report.node, report.epoch)
            elif report.state != "missing":
                heard_users(self._record, report)

    def _wake(self) -> None:
        now = self._parent._clock.now()
        self.do(self.machine.wake(now, self._parent._alive().union(self._record.nodes.values())))
        if not self._is_closed and self._record.health.healing.plans.other is not None and now - self._looked_s >= LOOK_S:
            self._looked_s = now
            self._ask_hosts(self._record.health.healing.plans.other.nodes)

    def _ask_hosts(self, nodes: "Hosts") -> None:
        """Asks whether the operators of the other plan are still there."""
        by_node: dict[NodeId, list[OperatorId]] = {}
        for operator, node in nodes.items():
            by_node.setdefault(node, []).append(operator)
        for node, operators in sorted(by_node.items()):
            ask = OperatorsAsk(operators=tuple(operators), query=self._record.id)
            self._parent._messages.request(node, ask, partial(self._reported, node), INSTANTIATE_TIMEOUT_S)

    def _reported(self, node: NodeId, result: Message | SbonError) -> None:
        other = self._record.health.healing.plans.other
        if self._is_closed or other is None or not isinstance(result, OperatorReports) or self.machine.phase is not Phase.CROSSING:
            return
        for report in result.reports:
            if report.state == "moved":
                other.moved(report.id, report.node, report.epoch)
            elif report.state in ("missing", "failed") and other.nodes.get(report.id) == node:
                self.do(self.machine.trouble(f"{report.id} is {report.state} on {node}"))
                return

    def _noted(self, problem: SbonError | None) -> None:
        if not self._is_closed:
            self.do(self.machine.noted(problem, self._parent._clock.now()))

    def _answered(self, step: Step, result: Message | SbonError) -> None:
        if not self._is_closed:
            self.do(self.machine.answered(step, result, self._parent._clock.now()))

    def _tell(self, result: dict[str, Any] | SbonError) -> None:
        done, self._done = self._done, _ignored
        done(result)

    def _told(self) -> dict[str, Any]:
        record = self._record
        plan = record.plan if record.health.healing.plans.other is None else record.health.healing.plans.other.plan
        return {"query": record.id, "name": record.name, "instances": _instances(plan), "crosses_at": _instant(self.machine.at_us)}

    def _text(self) -> str:
        match self.machine.phase:
            case Phase.CROSSING | Phase.CHECKING:
                when = f" where windows end behind event time {_instant(self.machine.at_us)}" if self.machine.at_us is not None else ""
                return f"another plan takes over{when}"
            case Phase.UNDOING:
                return f"it keeps its plan: {self.machine.reason}"
            case Phase.RETIRING | Phase.OVER:
                return "operators that it does not use any more are ended"
            case _:
                return "the operators of another plan are made"


def take_other(record: QueryRecord) -> dict[OperatorId, NodeId]:
    """Gives a query the plan that was about to come. Operators of the former plan that others use stay in the record. Returns the operators
    that nobody uses any more, with their hosts."""
    plans = record.health.healing.plans
    other, used = plans.other, used_by_others(record)
    assert other is not None
    specs = {spec.id: spec for spec in other.plan.operators}
    left = {operator: spec for operator, spec in record.specs.items() if operator in used and operator not in specs}
    old = {operator: node for operator, node in record.nodes.items() if operator not in specs and feeder_of(operator) not in left}
    give_up(record, old)
    record.plan, record.specs = other.plan, specs | left
    record.links = (*other.links, *(link for link in record.links if link.target in left))
    record.nodes.update(other.nodes)
    record.epochs.update(other.epochs)
    plans.joined.update(other.before)
    plans.is_replanned = True
    record.health.healing.begun_at.pop(record.sink, None)
    return old


def leave_other(record: QueryRecord) -> dict[OperatorId, NodeId]:
    """Lets a query keep its plan; returns the operators of the other plan, with their hosts."""
    other = record.health.healing.plans.other
    assert other is not None
    give_up(record, other.nodes)
    return dict(other.nodes)


def _instances(plan: Plan) -> list[int]:
    return [len(one.operators) for one in sets_of(plan)]


def _instant(us: int | None) -> str | None:
    if us is None or us <= WATERMARK_MIN:
        return None
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return str(us)


def _ignored(result: object) -> None:
    """Ignores the result, because nobody waits for it."""
