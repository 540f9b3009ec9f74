"""Carries out submitted statements: has them parsed, places and begins queries, enters and removes names.

The control socket calls it. Work that needs the SQL parser or takes long runs on an executor thread (`sbon.supervision.statements`), so
that probes stay on time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

from sbon.errors import PlacementError, QueryError, SbonError
from sbon.optimiser.placed import Placed
from sbon.optimiser.unsettled import unsettled
from sbon.planning.samples import ask_samples, with_known_shares
from sbon.planning.selecting import Sized, exchanged_note, select, size
from sbon.ports import Executor
from sbon.queries.dry_run import dry_run
from sbon.queries.parts import QueryParts
from sbon.query.instances import auto_notes, sets_of
from sbon.query.limits import INSTANCES_MAX
from sbon.query.listing import Listing, listing_of_queries
from sbon.query.places import located
from sbon.query.plan import Plan
from sbon.supervision.homes import Doubt
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.register import home_and_id
from sbon.supervision.statements import Effect, Prepared, as_refusal, prepare
from sbon.types import QueryId

if TYPE_CHECKING:
    from sbon.cost.placed_query import PlacedQuery
    from sbon.planning.reordering import Reordered
    from sbon.queries.queries import OwnedQueries

QUERIES_MAX = 1000
"""Most queries that one agent takes."""

Done = Callable[[Any], None]
"""Called with a result, or with the SbonError that prevented it."""


class Submitting:
    """Carries out the statements submitted to one agent.

    Parameters
    ----------
    as_it_runs : returns a query with its present measurements; None while too little has been measured
    """

    def __init__(self, owned: OwnedQueries, parts: QueryParts, as_it_runs: Callable[[QueryRecord], PlacedQuery | None]) -> None:
        self._owned, self._parts, self._as_it_runs = owned, parts, as_it_runs
        self._host, self._directory, self._gossip = parts.host, parts.directory, parts.gossip
        self._placing, self._replication, self._homes = parts.placing, parts.replication, parts.homes
        self._connectors, self._reaches, self._resuming = parts.connectors, parts.reaches, parts.resuming

    def submit(self, sql: str, done: Done) -> None:
        """Carries out all statements of a text in order, up to the first that fails; `done` gets their results.

        Statements before the failed one stay done, and the error gives their number. When `done` is called, the effects have been saved for
        a restart.
        """
        done = self._resuming.then(done)
        self._prepare(sql, lambda prepared: self._carry_out(prepared, [], done), done)

    def explain(self, sql: str, done: Done) -> None:
        """Explains what `submit` would do with the last query of a text; nothing is created or run.

        If no placement carries the query's profile, or none keeps `max_latency`, the query is placed without that requirement, and the
        answer says why it would be refused.
        """

        def work(plan: Plan, placed: Placed, query: PlacedQuery) -> dict[str, Any]:
            from sbon.cost.prediction import predict
            from sbon.planning.healing import expected

            gossip, alive = self._gossip, self._gossip.alive_labels()
            self._connectors.check_sinks(plan, placed.nodes)
            return {
                **placed.explained(plan),
                "notes": unsettled(plan, alive, gossip.coordinates()),
                "prediction": predict(query).explained(),
                "recovery": expected(
                    plan, placed.nodes, gossip.name, gossip.machine.config, len(alive), self._owned.engine, gossip.latency_ms
                ),
            }

        self._prepare(sql, lambda prepared: dry_run(self._parts, prepared, work, done, carry=True), done)

    def ask(self, sql: str, question: str, options: Mapping[str, Any], done: Done) -> None:
        """Answers a question about the last query of a text (`sbon.planning`); nothing is created or run."""

        def work(plan: Plan, placed: Placed, query: PlacedQuery) -> dict[str, Any]:
            from sbon.planning.questions import answer

            return {"query": plan.query, "sql": plan.sql, **answer(question, query, options)}

        self._prepare(sql, lambda prepared: dry_run(self._parts, prepared, work, done, carry=False), done)

    def replan(self, name: str, options: Mapping[str, Any], done: Done) -> None:
        """Gives a running query a plan with other numbers of instances, or in another order.

        Parameters
        ----------
        options : `instances`: the number for each operator with keys; None: the planner's present choice, for operators whose number it
            has chosen. Or `order`: True for the best order of operators, if it is better by present measurements
        done : gets the point where the sink changes to the new plan
        """
        instances, order = options.get("instances"), options.get("order") is True
        if order and instances is not None:
            raise QueryError("order and instances cannot change together", hint="change one after the other")
        if instances is not None and (not isinstance(instances, int) or isinstance(instances, bool) or not 1 <= instances <= INSTANCES_MAX):
            raise QueryError(f"instances = {instances!r}, expected 1 to {INSTANCES_MAX}")
        record = self._owned.find(name)
        if record is None or record.id not in self._owned.records:
            owner, _ = home_and_id(name, self._replication.catalog, self._owned.register.owners)
            where = f"; ask {owner}, its owner" if owner and owner != self._directory.me else "; `sbon queries` lists those that do"
            raise QueryError(f"{self._directory.me} runs no query {name}{where}")
        if order:
            self._reorder(record, done)
        else:
            self.resize(record, done, instances)

    def _reorder(self, record: QueryRecord, done: Done) -> None:
        """Searches for a better order of a query's operators, and changes the query to it."""
        from sbon.planning.reordering import reordered

        replans = self._owned.recovering.replans
        replans.check(record)
        query = self._as_it_runs(record)
        if query is None:
            raise PlacementError(f"cannot compare orders of {record.name}: too little has been measured of it and its nodes")

        def found(result: Reordered | BaseException) -> None:
            if isinstance(result, BaseException):
                done(as_refusal(result, {}))
            elif result.plan is None:
                done({"query": record.id, "name": record.name, "crosses_at": None, "text": f"it keeps its order: {result.text}"})
            else:
                text = result.text
                replans.begin(record, result.plan, lambda told: done(told if isinstance(told, SbonError) else {**told, "text": text}), text)

        self._host.execute(lambda: reordered(query), found, rows=0)

    def resize(self, record: QueryRecord, done: Done, instances: int | None = None, *, why: str = "") -> None:
        """Gives a running query of this agent other numbers of instances (`replan`).

        Parameters
        ----------
        why : reason for the query's history; empty if a person asked for it
        """
        replans = self._owned.recovering.replans
        replans.check(record)
        wanted = record.forecast.resizing if record.forecast is not None else None
        if instances is None and wanted is None:
            raise QueryError(f"the planner has not chosen the instances of {record.name}", hint="give the number of instances")
        entries = [entry for entry in self._replication.catalog.entries() if entry.name != record.name]
        nodes, now_us = self._gossip.alive_labels(), int(self._host.wall() * 1e6)

        changed = record.plan.changed if instances is None else structs.replace(record.plan.changed, instances=instances)

        def work() -> list[Prepared]:
            ids = iter([record.id])
            return prepare(record.plan.sql, entries, nodes, record.sink_node, ids, now_us, self._connectors, {}, changed)

        def prepared(effects: list[Prepared]) -> None:
            plan = effects[0].plan if len(effects) == 1 else None
            build = effects[0].build if plan is not None else None
            if plan is None or build is None:
                done(QueryError(f"the kept statement of {record.name} is not a query"))
                return
            if instances is None and wanted is not None:
                plan = wanted.as_planned(build(wanted.wanted))
            if [len(one.operators) for one in sets_of(plan)] == [len(one.operators) for one in sets_of(record.plan)]:
                done(QueryError(f"{record.name} has these numbers of instances already"))
                return
            replans.begin(record, plan, done, why)

        understand(self._host, work, prepared, done)

    def _prepare(self, sql: str, then: Callable[[list[Prepared]], None], done: Done) -> None:
        me, wall_s = self._directory.me, self._host.wall()
        ids = (self._owned.new_id() for _ in range(QUERIES_MAX))
        nodes = self._gossip.alive_labels()

        def known(doubts: Mapping[str, Doubt]) -> None:
            entries = self._replication.catalog.entries()
            now_us = int(wall_s * 1e6)
            understand(self._host, lambda: prepare(sql, entries, nodes, me, ids, now_us, self._connectors, doubts), then, done)

        self._homes.doubts(sql, self._knows, self._owned.ownership.former.ask, known)

    def _knows(self, query: QueryId) -> bool:
        """Tells whether this agent has taken a query and has not forgotten it."""
        return self._owned.register.knows(query) or self._resuming.find(query) is not None

    def _carry_out(self, waiting: list[Prepared], results: list[dict[str, Any]], done: Done) -> None:
        if not waiting:
            done(results)
            return
        effect, rest = waiting[0], waiting[1:]

        def next_one(result: dict[str, Any] | SbonError) -> None:
            if isinstance(result, SbonError):
                result = located(result, effect.places)
            if isinstance(result, QueryError):
                before = f" ({len(results)} before it {'is' if len(results) == 1 else 'are'} done)" if results else ""
                done(QueryError(result.message + before, line=result.line, column=result.column, hint=result.hint))
            elif isinstance(result, SbonError):
                done(result)
            else:
                self._carry_out(rest, [*results, result], done)

        try:
            self._carry_out_one(effect, next_one)
        except SbonError as problem:
            next_one(problem)

    def _carry_out_one(self, effect: Prepared, done: Done) -> None:
        stamp = int(self._host.wall() * 1e6)
        row: dict[str, Any] = {"statement": effect.kind, "name": effect.name, "query": None, "operators": [], "message": effect.message}
        match effect.effect:
            case Effect.NOTHING:
                if effect.source is not None:
                    self._reaches.declared(effect.source.params)
                done(row)
            case Effect.ENTER:
                self._replication.put(effect.kind, effect.name, sql=effect.sql, stamp=stamp, source=effect.source)
                if effect.source is not None:
                    self._reaches.declared(effect.source.params)
                done(row)
            case Effect.FORGET:
                self._replication.drop(effect.kind, effect.name, stamp=stamp)
                if effect.kind == "source":
                    self._reaches.dropped(effect.name)
                done(row)
            case Effect.END:
                self._end_by_name(effect, row, done)
            case Effect.RUN:
                self._begin(effect, row, done)
            case Effect.TELL if effect.listing is None:
                self._owned.all_rows(lambda rows: done(row | _told(listing_of_queries(rows))))
            case Effect.TELL:
                done(row | _told(effect.listing))

    def _begin(self, effect: Prepared, row: dict[str, Any], done: Done) -> None:
        plan = effect.plan
        assert plan is not None
        if (count := len(self._owned.records) + self._resuming.count) >= QUERIES_MAX:
            raise PlacementError(f"{self._directory.me} has {count} queries and takes no more; drop some, or ask another agent")
        self._owned.register.begin(plan.query)
        row["message"] = "; ".join([effect.message, *unsettled(plan, self._gossip.alive_labels(), self._gossip.coordinates())])

        def known(expected: Plan) -> None:
            self._run(effect, expected, row, done)

        cost_store, now = self._placing.cost_store, self._host.now
        if plan.max_latency_ms is not None or plan.profile or plan.sizings:
            ask_samples(plan, cost_store, self._directory, now, known)
        else:
            known(with_known_shares(plan, cost_store, now()))

    def _run(self, effect: Prepared, plan: Plan, row: dict[str, Any], done: Done) -> None:
        """Chooses the numbers of instances and the order of operators, then deploys the query."""

        def sized(found: Sized | SbonError) -> None:
            if isinstance(found, SbonError):
                begun(found)
                return

            def selected(plan: Plan, note: str) -> None:
                row["message"] = "; ".join(filter(None, (row["message"], found.note, note)))
                self._owned.deploy(plan, begun, larger=found.larger)

            select(found.plan, self._placing, self._host.execute, selected)

        def begun(result: QueryRecord | SbonError) -> None:
            self._owned.register.begun(plan.query, runs=not isinstance(result, SbonError))
            if isinstance(result, SbonError):
                done(result)
                return
            if effect.kind == "sink":
                stamp = int(self._host.wall() * 1e6)
                try:
                    self._replication.put("sink", effect.name, sql=effect.sql, stamp=stamp, query=plan.query)
                except QueryError as problem:
                    self._owned.end(result, QueryState.STOPPING)
                    done(problem)
                    return
                self._owned.ownership.look(result)
            said = (row["message"], result.bounds.note, exchanged_note(plan, result.plan), *auto_notes(result.plan))
            row["message"] = "; ".join(filter(None, said))
            row["query"] = plan.query
            row["operators"] = [
                {"id": operator, "node": node, "kind": result.kind_of(operator), "reused": operator not in result.specs}
                for operator, node in result.nodes.items()
            ]
            done(row)

        def ended(problem: SbonError | None) -> None:
            if problem is not None:
                begun(problem)
                return
            self._owned.dropping.forget_sink(effect.name, effect.replaces)
            size(plan, effect.build, self._placing, self._host.execute, sized)

        if effect.replaces:
            self._homes.end(effect.replaces, ended)
        else:
            size(plan, effect.build, self._placing, self._host.execute, sized)

    def _end_by_name(self, effect: Prepared, row: dict[str, Any], done: Done) -> None:
        def ended(problem: SbonError | None) -> None:
            if effect.if_exists and isinstance(problem, QueryError):
                done({**row, "message": f"there is no query {effect.name}"})
            else:
                done(problem or row)

        self._owned.dropping.drop(effect.name, ended)


def understand(host: Executor, work: Callable[[], list[Prepared]], then: Callable[[list[Prepared]], None], done: Done) -> None:
    """Prepares statements on an executor thread; `then` gets them, or `done` the error."""

    def prepared(result: list[Prepared] | BaseException) -> None:
        if isinstance(result, BaseException):
            done(as_refusal(result, {}))
        else:
            then(result)

    host.execute(work, prepared, rows=0)


def _told(listing: Listing) -> dict[str, Any]:
    return {"columns": list(listing.columns), "rows": listing.as_objects()}
