"""The queries whose home is this agent: has them placed and deployed, keeps their states and ends them.

`sbon.queries.submitting` carries out statements, `sbon.supervision.watching` asks the hosts for the queries' state. The control socket
calls this module, and so does `sbon_agent.dispatch` for other agents.
"""

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Protocol

import msgspec
import structlog

from sbon.cost.store import CostStore
from sbon.errors import LatencyBoundError, PlacementError, QueryError, SbonError
from sbon.execution.settings import EngineConfig
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.placed import Placed
from sbon.planning.selecting import Sized, size, with_any_number
from sbon.queries.adapting import Adapting
from sbon.queries.dropping import Dropping
from sbon.queries.parts import QueryParts
from sbon.queries.submitting import Submitting, understand
from sbon.query.catalog import Entry
from sbon.query.ids import query_id
from sbon.query.instances import resting_on
from sbon.query.params.source import SinkParams
from sbon.query.plan import Plan
from sbon.supervision.deploying import Deploying
from sbon.supervision.deployment import Deployed
from sbon.supervision.dropped import is_dropped, is_unused, used_by_others
from sbon.supervision.forecasting import Forecasting, forecast_of
from sbon.supervision.history import Happening
from sbon.supervision.owners import Owners
from sbon.supervision.ownership import Ownership
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.recovering import Reached, Recovering
from sbon.supervision.recovery import Recovered
from sbon.supervision.recovery_picture import Rules
from sbon.supervision.register import Register, kept_of
from sbon.supervision.resumption import KeptQuery, given_sink, taken, taking_up
from sbon.supervision.statements import Prepared, prepare
from sbon.supervision.watching import Watching
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.deployment import Release
from sbon.wire.ownership import Holder

Done = Callable[[Any], None]
"""Called with a result, or with the SbonError that prevented it."""


class QueryEvents(Protocol):
    """Callbacks of the queries; the node implements them."""

    def query_changed(self, record: QueryRecord) -> None:
        """Reports that a query has begun, has become degraded or healthy again, or has ended."""

    def predicted(self, record: QueryRecord) -> None:
        """Reports that the latency of a query has been predicted."""

    def placed(self, plan: Plan, placed: Placed, deployed: Deployed) -> None:
        """Reports that a placement has been deployed."""

    def recovered(self, record: QueryRecord, done: Recovered, happening: Happening, reached: Reached) -> None:
        """Reports that operators of a query that were lost with their hosts run again."""


class OwnedQueries:
    """All queries of one agent.

    Parameters
    ----------
    optimiser : returns the optimiser's settings, which say which plans may change without a person
    """

    def __init__(
        self,
        parts: QueryParts,
        events: QueryEvents,
        cost_store: CostStore,
        owners: Owners,
        engine: EngineConfig,
        optimiser: Callable[[], OptimiserConfig],
    ) -> None:
        host, directory, gossip = self._host, self._directory, self._gossip = parts.host, parts.directory, parts.gossip
        self.register = Register(directory.me, owners)
        self.records = self.register.running
        self._placing, self._replication, self._homes = parts.placing, parts.replication, parts.homes
        self._connectors, self._reaches, self._resuming = parts.connectors, parts.reaches, parts.resuming
        self._events = events
        self.engine = engine
        me = Holder(directory.me, gossip.machine.own.boot)
        self.ownership = Ownership(
            host,
            host.wall,
            directory,
            me,
            lambda: gossip.members,
            self.register,
            self,
            engine,
            self._resuming.keep,
            self._replication.catalog.get,
        )
        alive, permit = lambda: frozenset(gossip.alive_labels()), self.ownership.permit

        def changed(record: QueryRecord) -> None:
            self._shown(record)
            self._resuming.keep()  # the query may have another plan

        self.recovering = Recovering(host, directory, alive, self._placing.replace, permit, self._recovered, changed)
        forecasting = Forecasting(
            host, gossip.estimated_rtt_ms, cost_store, events.predicted, lambda record: adapting.look(record), optimiser
        )
        self.statements = Submitting(self, parts, forecasting.as_it_runs)
        adapting = Adapting(host, directory.me, optimiser, self.recovering.replans, self.statements.resize)
        self.watching = Watching(
            host, directory, self.records, self._settle, cost_store, forecasting, self.register.owner_of, gossip.departure_of
        )

        def shared(record: QueryRecord) -> None:
            events.query_changed(record)
            self.recovering.replans.resume(record)
            self._settle(record)

        self.dropping = Dropping(self, parts, shared)
        self._numbers = count(1)
        self._log = structlog.get_logger("agent").bind(node=directory.me)

    # ----------------------------------------------------------------------------------------------------- running

    def deploy(self, plan: Plan, done: Done, kept: KeptQuery | None = None, larger: Plan | None = None) -> None:
        """Places a query and makes its operators; `done` gets its record.

        Parameters
        ----------
        kept : the query as it was kept over a restart of this agent
        larger : the same query with more instances, tried if the latency of `plan` would exceed its bound
        """

        def deployed(result: tuple[Placed, Deployed] | SbonError) -> None:
            if isinstance(result, LatencyBoundError) and larger is not None:
                problem = result
                self.deploy(larger, lambda second: done(with_any_number(problem) if isinstance(second, SbonError) else second), kept)
                return
            if isinstance(result, SbonError):
                self._reaches.ended(plan.query)
                done(result)
                return
            chosen, running = result
            bounded = msgspec.structs.replace(chosen.plan, delay_bound_ms=chosen.decision.delay_bound_ms)
            record = QueryRecord(bounded, running, self._directory.me, self._host.wall(), chosen.decision.delay_ms)
            record.bounds.note = chosen.note
            record.forecast = forecast_of(bounded, chosen, self._host.now())
            healing, engine = record.health.healing, self.engine
            healing.is_on, healing.rules, healing.began_s = engine.heal, Rules.of(engine), self._host.now()
            record.history.placed(record.nodes, self._host.wall())
            for report in running.sinks:
                record.reported(report)
            if kept is not None:
                record.former, record.history.first = kept.former, kept.first
                record.history.restarted(kept.former, self._host.wall())
            self.register.enter(record)
            self.ownership.look(record)
            self._events.placed(chosen.plan, chosen, running)
            self._events.query_changed(record)
            done(record)

        if isinstance(sink := plan.operators[-1].params, SinkParams):
            self._reaches.given(given_sink(plan.query, sink))
        Deploying(plan, self._directory, self._placing, deployed).begin()

    def new_id(self) -> QueryId:
        """Returns a new, unique query id. Called on executor threads, perhaps on two at once."""
        return query_id(self._directory.me, self._gossip.machine.own.boot, next(self._numbers))

    # -------------------------------------------------------------------------------------------------- after a restart

    def run_again(self, query: KeptQuery, done: Callable[[SbonError | None], None]) -> None:
        """Submits a query of a former process of this agent under its new id; `done` gets None once the query runs."""
        me, nodes = self._directory.me, self._gossip.alive_labels()
        entries = [entry for entry in self._replication.catalog.entries() if entry.name != query.sink]
        now_us = int(self._host.wall() * 1e6)
        self.register.begin(query.id)

        def placed(result: QueryRecord | SbonError) -> None:
            self.register.begun(query.id, runs=not isinstance(result, SbonError))
            if isinstance(result, SbonError):
                done(result)
                return
            self._reaches.ended(query.former)
            if not self._resuming.runs(query.id):
                self.end(result, QueryState.STOPPING)
            elif why := taken(query, self._replication.catalog.latest):  # the name was dropped at this moment
                self._log.warning("query.dropped_elsewhere", query=query.id, name=result.name, reason=why)
                self.dropping.drop_own(result)
            done(None)

        def prepared(effects: list[Prepared]) -> None:
            plan = effects[0].plan if len(effects) == 1 else None
            if plan is None:
                placed(QueryError("the kept statement is not a query", hint=f"drop {query.id}"))
                return
            build = effects[0].build

            def ended(problem: SbonError | None) -> None:
                try:
                    if problem is not None:
                        raise problem
                    if build is not None and 0 < len(plan.sizings) == len(query.sizings):
                        numbers, turns = [len(one.operators) for one in query.sizings], [one.turn_us for one in query.sizings]
                        same = resting_on(build(numbers, turns), query.sizings)
                        self.deploy(taking_up(same), as_kept, query)
                    else:
                        choose()
                except SbonError as refusal:
                    placed(refusal)

            def as_kept(result: QueryRecord | SbonError) -> None:
                """Chooses the numbers of instances again if the nodes have no room for the former numbers."""
                try:
                    choose() if isinstance(result, PlacementError) else placed(result)
                except SbonError as refusal:
                    placed(refusal)

            def choose() -> None:
                size(plan, build, self._placing, self._host.execute, sized)

            def sized(found: Sized | SbonError) -> None:
                try:
                    if isinstance(found, SbonError):
                        raise found
                    larger = None if found.larger is None else taking_up(found.larger)
                    self.deploy(taking_up(found.plan), placed, query, larger)
                except SbonError as refusal:
                    placed(refusal)

            # The hosts release the former query by themselves, but no sink may take rows of both queries: end it first.
            if (left := self.records.get(query.former)) is None:
                self._homes.end(query.former, ended, query.nodes)
            else:
                ended(PlacementError("unused operators of the former query have not ended") if left.health.healing.plans.retiring else None)

        def work() -> list[Prepared]:
            return prepare(query.sql, entries, nodes, me, iter([query.id]), now_us, self._connectors, {}, query.changed)

        understand(self._host, work, prepared, placed)

    # ---------------------------------------------------------------------------------------------------- ownership

    def inherited(self, query: QueryId, result: QueryRecord | ValueError) -> None:
        """Takes over a query whose owner is gone, or the remaining operators of a former process's query. Ends the query if it has been
        dropped since.
        """
        if isinstance(result, ValueError):
            self._log.error("query.not_inherited", query=query, reason=str(result))
            return
        result.health.healing.rules = Rules.of(self.engine)
        self.register.enter(result)
        if named := result.health.healing.named:
            self._replication.told("sink", result.name, result.plan.sql, named, query)
        if why := taken(kept_of(result), self._replication.catalog.latest):
            self._log.warning("query.dropped_elsewhere", query=query, name=result.name, reason=why)
            self.dropping.drop_own(result)
            return
        if result.name != query:
            self._replication.renew(result.name, query)
        self._log.warning("query.inherited", query=query, name=result.name, keepers=result.health.healing.keepers)
        for node in set(result.nodes.values()) - self._gossip.alive_labels().keys():
            result.node_failed(node, left=False)
        self._events.query_changed(result)
        self.recovering.replans.resume(result)
        self._settle(result)
        self.ownership.look(result)  # now, so that the same version of the record includes an attempt of a recovery
        self.watching.ask(result, self._settle)
        self._resuming.keep()

    def owned_elsewhere(self, query: QueryId) -> None:
        """Gives up a query that another agent has taken over; its operators run on."""
        if self.register.give_up(query) or self._resuming.forget(query):
            self.watching.forget(query)
            self.recovering.forget(query)
            self._log.warning("query.owned_elsewhere", query=query, owner=self.register.owner_of(query))
            self._resuming.keep()

    def kept_queries(self) -> list[KeptQuery]:
        """Returns the queries to run again after a restart, and finished sinks, whose names stay taken."""
        return self.register.kept() + [kept for one in self.ownership.owned.values() if (kept := one.coming) is not None]

    def names_changed(self, entries: Iterable[Entry]) -> None:
        """Ends queries that other agents have dropped or replaced while this agent could not be reached."""
        for record, why in self.register.dropped_elsewhere(entries):
            self._log.warning("query.dropped_elsewhere", query=record.id, name=record.name, reason=why)
            if record.id in self.records:
                self.dropping.drop_own(record)

    # ------------------------------------------------------------------------------------------------------- health

    def node_failed(self, node: NodeId, *, left: bool) -> None:
        """Handles a host that has been declared failed, or has left in good order."""
        self.ownership.members_changed()
        for record in list(self.records.values()):
            record.node_failed(node, left=left)
            self.recovering.hurry(record)
            self._settle(record)

    def node_alive(self, node: NodeId) -> None:
        """Handles a host that is back, perhaps as a new process: asks it at once which operators it still runs."""
        self.ownership.members_changed()
        for record in self.records.values():
            if node in record.nodes.values():
                self.recovering.hurry(record)
                self.watching.ask(record, self._settle)

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> None:
        """Notes that an operator has a new host."""
        for record in self.records.values():
            if record.moved(operator, node, epoch):
                record.history.look(record.nodes, self._host.wall())
                self.watching.moved(record)

    def finished(self, operator: OperatorId) -> None:
        """Handles an operator on this host that has finished. If it is the sink of a query of this agent, the query has ended."""
        for record in list(self.records.values()):
            if record.sink == operator:
                self._finish(record)

    def _recovered(self, record: QueryRecord, done: Recovered, reached: Reached) -> None:
        self._events.recovered(record, done, record.history.recovered(done, record.nodes, self._host.wall()), reached)

    def _settle(self, record: QueryRecord) -> None:
        record.history.look(record.nodes, self._host.wall())
        if record.id in self.records and record.state is not QueryState.STOPPING:
            self.recovering.look(record)
        self._shown(record)
        if record.id in self.records and record.health.healing.shared != (used := used_by_others(record)):
            record.health.healing.shared = used
            self._resuming.keep()
        sink = record.reports.get(record.sink)
        if sink is not None and sink.state == "finished" and record.id in self.records:
            self._finish(record)
        if record.id in self.records and record.state is not QueryState.STOPPING and is_unused(record):
            if is_dropped(record):
                self.end(record, QueryState.STOPPING)
            else:
                self.recovering.replans.leave(record)

    def _shown(self, record: QueryRecord) -> None:
        """Updates a query's state after a recovery step, and reports a change."""
        before = record.state
        self.ownership.look(record)
        record.settle()
        if record.state is not before:
            if record.state is QueryState.RECOVERING:
                record.history.recovering(record.lost, record.health.healing.step, self._host.wall())
            self._events.query_changed(record)

    def _finish(self, record: QueryRecord) -> None:
        """Collects the last figures of a query whose sink has finished, then ends the query."""
        if record.state in (QueryState.FINISHED, QueryState.STOPPING) or is_dropped(record):
            return
        self.recovering.look(record)
        if record.sink in record.health.healing.turned:
            return  # the sink is made again in a rerun, and finishes once more
        record.state = QueryState.FINISHED
        if (tail := self.register.tails.get(record.id)) is not None:
            tail.end()

        def asked(record: QueryRecord) -> None:
            self.ownership.permit(record, permitted)

        def permitted(problem: SbonError | None) -> None:
            if record.id not in self.records:  # it has been dropped, or another agent owns it
                return
            if problem is None:
                self.end(record, QueryState.FINISHED)
            elif record.id in self.ownership.owned:  # a keeper that has not heard of the end would recover it; the next report tries again
                record.state = QueryState.RUNNING

        self.watching.ask(record, asked)

    # -------------------------------------------------------------------------------------------------------- ending

    def find(self, name: str) -> QueryRecord | None:
        """Finds a query of this agent by id, name, or an unambiguous prefix of its id that is not a name."""
        return self.register.find(name, lambda name: self._replication.catalog.get(name) is not None)

    def end(self, record: QueryRecord, state: QueryState) -> None:
        """Ends a running query, and releases it on all its hosts."""
        record.state = state
        record.history.ended("finished" if state is QueryState.FINISHED else "dropped", self._host.wall())
        self.records.pop(record.id, None)
        self.watching.forget(record.id)
        self.recovering.forget(record.id)
        self.ownership.ended(record.id)
        self._reaches.ended(record.id)
        plans = record.health.healing.plans
        others = () if plans.other is None else plans.other.nodes.values()
        for node in sorted({*record.nodes.values(), *others, *plans.retiring.values()}):
            self._directory.tell(node, Release(query=record.id))
        for old in self.register.end(record):
            self.dropping.forget_sink(old.name, old.id)
        if state is QueryState.FINISHED:
            self._resuming.keep()
        self._events.query_changed(record)

    # ------------------------------------------------------------------------------------------------------- showing

    def rows(self, *, history: bool = False) -> list[dict[str, Any]]:
        """Returns a row for each query of this agent, ended queries last. `history` adds the history of each."""
        running = [record.row(self.network_usage(record)) for record in self.records.values()]
        rows = running + self._resuming.rows() + [record.row(0.0) for record in self.register.ended.values()]
        return self.register.with_histories(rows) if history else rows

    def network_usage(self, record: QueryRecord) -> float | None:
        """Returns a query's network usage by measured rates and estimated latencies (SBON, equation 1); None if a coordinate is unknown."""
        return self._placing.cost_of([(record.nodes[source], record.nodes[target], rate) for source, target, rate in record.link_rates()])

    def all_rows(self, done: Callable[[list[dict[str, Any]]], None], *, history: bool = False) -> None:
        """Calls `done` with the queries of all agents that answer in time: ours first, those without a home last."""
        self._homes.all_rows(self.rows(history=history), done, history=history)
