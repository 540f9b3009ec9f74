"""The queries that this agent has taken, and is the home of: it carries out statements, places and deploys queries, watches them and ends
them. The control socket, and `sbon_agent.dispatch` for other agents, call it.

Whatever needs the SQL parser or takes long runs on an executor thread (`sbon.supervision.statements`), so that probes stay on time.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any, Protocol

import msgspec
import structlog

from sbon.connectors.tails import Tail
from sbon.errors import LinkError, PlacementError, QueryError, SbonError
from sbon.links.places import Whereabouts
from sbon.query.catalog import Entry, did_you_mean, no_query
from sbon.query.ids import home_of, is_short_for, query_id
from sbon.query.listing import Listing, listing_of_queries
from sbon.query.places import Places, located
from sbon.query.plan import Plan
from sbon.supervision.delay_bounds import DelayBounds
from sbon.supervision.deployment import Deployed
from sbon.supervision.homes import Doubt, HomeState
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.resumption import KeptQuery, taken
from sbon.supervision.statements import Effect, Prepared, prepare
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.deployment import InputLost, Release
from sbon.wire.messages import Message
from sbon.wire.replication import Drop
from sbon.wire.reports import OperatorReports, OperatorsAsk
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.checking import InstalledConnectors
from sbon_agent.connectors.reaches import Reaches
from sbon_agent.directory import Directory
from sbon_agent.gossip import Gossip
from sbon_agent.host import Host
from sbon_agent.queries.deploying import Deploying
from sbon_agent.queries.homes import Homes
from sbon_agent.queries.placing import Placed, Placing, unsettled
from sbon_agent.queries.refeeding import Refeeding
from sbon_agent.queries.replication import Replication
from sbon_agent.queries.resuming import Resuming, taking_up

REPORT_TIMEOUT_S = 5.0
ASKED_AT_ONCE = 64
"""Number of queries whose hosts are asked for reports at the same time."""
ASK_PAUSE_S = 0.1
"""Pause before the next such group, in seconds."""
ENDED_MAX = 200
"""Most ended queries that are still shown."""
ENDED_ROWS_BYTES_MAX = 32 * 2**20
"""Memory for the rows of ended queries, for `sbon tail`. More: rows of more ended queries can still be read."""
QUERIES_MAX = 1000
"""Most queries that one agent takes."""

Done = Callable[[Any], None]
"""Called with a result, or with the SbonError that prevented it."""


class QueryEvents(Protocol):
    """Callbacks of the queries; the node implements them."""

    def query_changed(self, record: QueryRecord) -> None:
        """A query has begun, has become degraded or healthy again, or has ended."""

    def placed(self, plan: Plan, placed: Placed, deployed: Deployed) -> None:
        """A placement has been deployed."""


class OwnedQueries:
    """All queries of one agent."""

    def __init__(
        self,
        host: Host,
        directory: Directory,
        gossip: Gossip,
        placing: Placing,
        replication: Replication,
        homes: Homes,
        events: QueryEvents,
        context: ConnectorContext,
        reaches: Reaches,
        resuming: Resuming,
    ) -> None:
        self.records: dict[QueryId, QueryRecord] = {}
        self.tails: dict[QueryId, Tail] = {}
        self._ended: OrderedDict[QueryId, QueryRecord] = OrderedDict()
        self._beginning: set[QueryId] = set()
        self._host = host
        self._directory = directory
        self._gossip = gossip
        self._placing = placing
        self._replication = replication
        self._homes = homes
        self._events = events
        self._connectors = InstalledConnectors(context)
        self._reaches = reaches
        self._resuming = resuming
        self._bounds = DelayBounds()
        self._refeeding = Refeeding(directory)
        self._numbers = count(1)
        self._log = structlog.get_logger("agent").bind(node=directory.me)

    # --------------------------------------------------------------------------------------------------- statements

    def submit(self, sql: str, done: Done) -> None:
        """Carries out all statements of a text, in order; `done` gets their results. The first one that fails ends it.

        Statements before the failed one stay done, and the error says how many there are. What was done has been saved for a restart when
        `done` is called.
        """
        done = self._resuming.then(done)
        self._prepare(sql, lambda prepared: self._carry_out(prepared, [], done), done)

    def explain(self, sql: str, done: Done) -> None:
        """Explains what `submit` would do with the last query of a text; nothing is created or run."""

        def prepared(effects: list[Prepared]) -> None:
            queries = [effect for effect in effects if effect.plan is not None]
            if not queries:
                done(QueryError("there is no query to explain", hint="give a SELECT or a CREATE SINK"))
                return
            self._explain(queries[-1], done)

        self._prepare(sql, prepared, done)

    def _explain(self, effect: Prepared, done: Done) -> None:
        plan = effect.plan
        assert plan is not None
        notes = [*effect.notes, *unsettled(plan, self._gossip)]

        def placed(result: Placed | SbonError) -> None:
            if isinstance(result, SbonError):
                done(located(result, effect.places))
                return
            explained = {**result.explained(plan), "notes": notes}

            def checked(problem: BaseException | None) -> None:
                done(explained if problem is None else _as_refusal(problem, effect.places))

            self._host.execute(lambda: self._connectors.check_sinks(plan, result.nodes), checked, rows=0)

        self._placing.place(plan, placed, reserve=False)

    def _prepare(self, sql: str, then: Callable[[list[Prepared]], None], done: Done) -> None:
        me, wall_s = self._directory.me, self._host.wall()
        ids = (self.new_id() for _ in range(QUERIES_MAX))
        nodes = self._gossip.alive_labels()

        def known(doubts: Mapping[str, Doubt]) -> None:
            entries = self._replication.catalog.entries()
            now_us = int(wall_s * 1e6)
            self._understand(lambda: prepare(sql, entries, nodes, me, ids, now_us, self._connectors, doubts), then, done)

        self._homes.doubts(sql, self._knows, known)

    def _understand(self, work: Callable[[], list[Prepared]], then: Callable[[list[Prepared]], None], done: Done) -> None:
        def prepared(result: list[Prepared] | BaseException) -> None:
            if isinstance(result, BaseException):
                done(_as_refusal(result, {}))
            else:
                then(result)

        self._host.execute(work, prepared, rows=0)

    def _knows(self, query: QueryId) -> bool:
        """Tells whether this agent has taken a query and has not forgotten it."""
        return query in self.records or query in self._ended or query in self._beginning or self._resuming.find(query) is not None

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
                self.all_rows(lambda rows: done(row | _told(listing_of_queries(rows))))
            case Effect.TELL:
                done(row | _told(effect.listing))

    def _begin(self, effect: Prepared, row: dict[str, Any], done: Done) -> None:
        plan = effect.plan
        assert plan is not None
        if (count := len(self.records) + self._resuming.count) >= QUERIES_MAX:
            raise PlacementError(f"{self._directory.me} has {count} queries and takes no more; drop some, or ask another agent")
        self._beginning.add(plan.query)
        row["message"] = "; ".join([effect.message, *unsettled(plan, self._gossip)])

        def begun(result: QueryRecord | SbonError) -> None:
            self._beginning.discard(plan.query)
            if isinstance(result, SbonError):
                self.tails.pop(plan.query, None)
                done(result)
                return
            if effect.kind == "sink":
                stamp = int(self._host.wall() * 1e6)
                try:
                    self._replication.put("sink", effect.name, sql=effect.sql, stamp=stamp, query=plan.query)
                except QueryError as problem:
                    self._end(result, QueryState.STOPPING)
                    done(problem)
                    return
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
            self._forget_sink(effect.name, effect.replaces)
            self._deploy(plan, begun)

        if effect.replaces:
            self._homes.end(effect.replaces, ended)
        else:
            self._deploy(plan, begun)

    def _deploy(self, plan: Plan, done: Done) -> None:
        def deployed(result: tuple[Placed, Deployed] | SbonError) -> None:
            if isinstance(result, SbonError):
                done(result)
                return
            chosen, running = result
            record = QueryRecord(plan, running, self._directory.me, self._host.wall(), chosen.decision.delay_ms)
            self.records[plan.query] = record
            self._events.placed(plan, chosen, running)
            self._events.query_changed(record)
            done(record)

        Deploying(plan, self._directory, self._placing, deployed).begin()

    def new_id(self) -> QueryId:
        """Returns an id that no query has had. Called on executor threads, perhaps on two at once."""
        return query_id(self._directory.me, self._gossip.machine.own.boot, next(self._numbers))

    # -------------------------------------------------------------------------------------------------- after a restart

    def run_again(self, query: KeptQuery, done: Callable[[SbonError | None], None]) -> None:
        """Submits a query that a former process of this agent had taken, under its new id; `done` gets None once it runs."""
        me, nodes = self._directory.me, self._gossip.alive_labels()
        entries = [entry for entry in self._replication.catalog.entries() if entry.name != query.sink]
        now_us = int(self._host.wall() * 1e6)
        self._beginning.add(query.id)

        def placed(result: QueryRecord | SbonError) -> None:
            self._beginning.discard(query.id)
            if isinstance(result, SbonError):
                self.tails.pop(query.id, None)
                done(result)
                return
            result.former = query.former
            if not self._resuming.runs(query.id):
                self._end(result, QueryState.STOPPING)
            done(None)

        def prepared(effects: list[Prepared]) -> None:
            plan = effects[0].plan if len(effects) == 1 else None
            if plan is None:
                placed(QueryError("what is kept of it is no query", hint=f"drop {query.id}"))
                return

            def ended(problem: SbonError | None) -> None:
                try:
                    if problem is not None:
                        raise problem
                    self._deploy(taking_up(plan), placed)
                except SbonError as refusal:
                    placed(refusal)

            # Its other hosts release the former query by themselves; here it must be certain that no sink takes rows of both.
            self._homes.end(query.former, ended, query.nodes)

        self._understand(lambda: prepare(query.sql, entries, nodes, me, iter([query.id]), now_us, self._connectors, {}), prepared, placed)

    def kept_queries(self) -> list[KeptQuery]:
        """Returns the queries to run again after a restart, and finished sinks, whose names stay taken."""
        running = [_kept(record) for record in self.records.values() if record.state is not QueryState.FINISHED]
        finished = [record for record in [*self.records.values(), *self._ended.values()] if record.state is QueryState.FINISHED]
        return running + [_kept(record) for record in finished if record.name != record.id]

    def names_changed(self, entries: Iterable[Entry]) -> None:
        """Ends queries that other agents have dropped or replaced while this agent could not be reached."""
        ours: dict[str, list[QueryRecord]] = {}
        for record in [*self.records.values(), *self._ended.values()]:
            for name in [record.name] if record.name != record.id else filter(None, (record.id, record.former)):
                ours.setdefault(name, []).append(record)
        for entry in entries:
            for record in ours.get(entry.name, ()):
                if not (why := taken(_kept(record), {entry.name: entry}.get)):
                    continue
                self._log.warning("query.dropped_elsewhere", query=record.id, name=record.name, reason=why)
                self._ended.pop(record.id, None)
                if record.id in self.records:
                    self._end(record, QueryState.STOPPING)

    # ------------------------------------------------------------------------------------------------------- health

    def watch(self) -> None:
        """Asks the hosts for reports on all operators; called every `engine.report_interval_s`.

        The queries are asked about in groups: a host takes a limited number of requests at a time (`peers.requests_max`), and would never
        report on the last ones.
        """
        records = list(self.records.values())
        for number, first in enumerate(range(0, len(records), ASKED_AT_ONCE)):
            watch = partial(self._watch, records[first : first + ASKED_AT_ONCE])
            if number:
                self._host.call_at(self._host.now() + number * ASK_PAUSE_S, watch)
            else:
                watch()

    def _watch(self, records: list[QueryRecord]) -> None:
        for record in records:
            if record.id in self.records:
                self._ask_hosts(record, lambda record: self._tell(self._bounds.reported(record)))

    def _ask_hosts(self, record: QueryRecord, then: Callable[[QueryRecord], None]) -> None:
        by_node: dict[NodeId, list[OperatorId]] = {}
        for operator, node in record.nodes.items():
            by_node.setdefault(node, []).append(operator)
        waiting = set(by_node)

        def answered(node: NodeId, result: Message | SbonError) -> None:
            waiting.discard(node)
            if isinstance(result, OperatorReports):
                for report in result.reports:
                    if record.nodes.get(report.id) == node:
                        record.reported(report)
                self._settle(record)
            if not waiting:
                self._tell_of_lost_inputs(record)
                record.losses.look(record.links, record.reports)
                self._refeeding.look(record)
                then(record)

        for node, operators in sorted(by_node.items()):
            self._directory.request(
                node, OperatorsAsk(operators=tuple(operators), query=record.id), partial(answered, node), REPORT_TIMEOUT_S
            )

    def _tell(self, messages: Iterable[tuple[NodeId, Message]]) -> None:
        for node, message in messages:
            self._directory.tell(node, message)

    def _tell_of_lost_inputs(self, record: QueryRecord) -> None:
        """Tells operators about inputs whose sources are gone for good (failed, or forgotten by a host that has restarted)."""
        for link in record.lost_links():
            self._directory.tell(record.nodes[link.target], InputLost(operator=link.target, link=link.id))

    def node_failed(self, node: NodeId, *, left: bool) -> None:
        """Handles a host that has been declared failed, or has left in good order."""
        for record in self.records.values():
            record.node_failed(node, left=left)
            self._settle(record)

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """Returns where an operator of these queries is, as far as is known."""
        known = [record for record in self.records.values() if operator in record.nodes]
        return [Whereabouts(record.nodes[operator], record.epochs.get(operator, 0)) for record in known]

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> None:
        """Notes that an operator of these queries has a new host."""
        for record in self.records.values():
            if record.moved(operator, node, epoch):
                record.migrations += 1
                self._tell(self._bounds.moved(record))

    def finished(self, operator: OperatorId) -> None:
        """Handles an operator on this host that has finished. If it is the sink of a query of this agent, the query has ended."""
        for record in list(self.records.values()):
            if record.sink == operator:
                self._finish(record)

    def _settle(self, record: QueryRecord) -> None:
        before = record.state
        record.settle()
        if record.state is not before:
            self._events.query_changed(record)
        sink = record.reports.get(record.sink)
        if sink is not None and sink.state == "finished" and record.id in self.records:
            self._finish(record)

    def _finish(self, record: QueryRecord) -> None:
        """Takes the last figures of a query that has ended, then releases it."""
        if record.state in (QueryState.FINISHED, QueryState.STOPPING):
            return
        record.state = QueryState.FINISHED
        if record.id in self.tails:
            self.tails[record.id].end()
        self._ask_hosts(record, self._end_finished)

    def _end_finished(self, record: QueryRecord) -> None:
        if record.id in self.records:  # it may have been dropped while its hosts were asked
            self._end(record, QueryState.FINISHED)

    # -------------------------------------------------------------------------------------------------------- ending

    def drop(self, name: str, done: Callable[[SbonError | None], None]) -> None:
        """Ends a query by id or name, wherever its home is."""
        record, waiting = self.find(name), self._resuming.find(name)
        if record is None and waiting is None and self._replication.catalog.get(name) is None:
            waiting = self._resuming.find_short(name)
        if waiting is not None:
            self._resuming.forget(waiting.id)
            self._forget_sink(waiting.sink, waiting.id)
            self._resuming.keep(lambda _: done(None))
            return
        if record is not None:
            if record.id in self.records:
                self._end(record, QueryState.STOPPING)
            else:
                self._ended.pop(record.id, None)
            self._forget_sink(record.name, record.id)
            self._resuming.keep(lambda _: done(None))
            return
        home, query = self._home_of(name)
        # A home that has restarted also knows its queries by their former ids.
        if home == self._directory.me or self._homes.state(query, home) not in (HomeState.PRESENT, HomeState.RESTARTED):
            self._drop_orphan(name, done)
            return

        def answered(result: Message | SbonError) -> None:
            if isinstance(result, QueryError):
                self._drop_orphan(name, done)
            elif isinstance(result, LinkError):
                hint = f"drop it again once `sbon members` shows whether {home} has failed"
                done(LinkError(f"{home}, the home of {name}, does not answer ({result}); {hint}"))
            else:
                done(result if isinstance(result, SbonError) else None)

        self._directory.request(home, Drop(query=query), answered)

    def _drop_orphan(self, name: str, done: Callable[[SbonError | None], None]) -> None:
        """Ends a query without a home. If none has the name, the error says what the name belongs to."""

        def told(rows: list[dict[str, Any]]) -> None:
            orphans = [row for row in rows if row["state"] == "orphaned"]
            found = [row for row in orphans if name in (row["id"], row["name"])]
            found = found or [row for row in orphans if is_short_for(name, row["id"])]
            if len(found) == 1:
                query = found[0]["id"]
                self._homes.end(query, lambda problem: ended(query, problem))
            elif self._forget_sink(name, ""):
                done(None)
            else:
                done(self._no_query(name, [text for row in rows for text in (row["id"], row["name"])]))

        def ended(query: QueryId, problem: SbonError | None) -> None:
            if problem is None:
                sinks = [entry.name for entry in self._replication.catalog.entries() if entry.query == query]
                for sink in sinks:
                    self._forget_sink(sink, query)
                if not sinks:
                    self._replication.bury(query, stamp=int(self._host.wall() * 1e6))
            self._resuming.keep(lambda _: done(problem))

        self.all_rows(told)

    def _no_query(self, name: str, known: Iterable[str]) -> QueryError:
        if kind := self._replication.catalog.kind_of(name):
            return no_query(name, kind, "nothing ends it" if kind == "system stream" else f"write DROP {kind.upper()} {name}")
        return QueryError(f"there is no query {name}", hint=did_you_mean(name, known) or "`sbon queries` lists them")

    def _end_by_name(self, effect: Prepared, row: dict[str, Any], done: Done) -> None:
        def ended(problem: SbonError | None) -> None:
            if effect.if_exists and isinstance(problem, QueryError):
                done({**row, "message": f"there is no query {effect.name}"})
            else:
                done(problem or row)

        self.drop(effect.name, ended)

    def find(self, name: str) -> QueryRecord | None:
        """Finds a query of this agent by id, name, or an unambiguous prefix of its id that is not a name."""
        everything = {**self._ended, **self.records}
        if name in everything:
            return everything[name]
        named = [record for record in everything.values() if name in (record.name, record.former)]
        if named:
            return named[-1]
        if self._replication.catalog.get(name) is not None:
            return None
        begun = [record for query, record in everything.items() if is_short_for(name, query)]
        return begun[0] if len(begun) == 1 else None

    def _home_of(self, name: str) -> tuple[NodeId, QueryId]:
        """Returns the home and the id of the query with this sink name or id."""
        entry = self._replication.catalog.get(name)
        if entry is not None and entry.query:
            return entry.owner, entry.query
        return home_of(name), name

    def _end(self, record: QueryRecord, state: QueryState) -> None:
        record.state = state
        self.records.pop(record.id, None)
        self._refeeding.forget(record.id)
        for node in sorted(set(record.nodes.values())):
            self._directory.tell(node, Release(query=record.id))
        tail = self.tails.pop(record.id, None)
        if tail is not None:
            tail.end()
            if state is QueryState.FINISHED:
                self.tails[record.id] = tail
        if state is QueryState.FINISHED:
            self._ended[record.id] = record
            self._forget_old_ends()
            self._resuming.keep()
        self._events.query_changed(record)

    def _forget_old_ends(self) -> None:
        """Keeps the latest ended queries, and the rows of the latest of those."""
        while len(self._ended) > ENDED_MAX:
            query, record = self._ended.popitem(last=False)
            self.tails.pop(query, None)
            self._forget_sink(record.name, query)
        kept_bytes = 0
        for query in reversed(self._ended):
            tail = self.tails.get(query)
            kept_bytes += tail.kept_bytes if tail is not None else 0
            if kept_bytes > ENDED_ROWS_BYTES_MAX:
                self.tails.pop(query, None)

    def _forget_sink(self, name: str, query: QueryId) -> bool:
        """Removes a sink's name if it belongs to the query, or with "" to a query that nobody knows.

        Returns False if there is no such name.
        """
        entry = self._replication.catalog.get(name)
        if entry is None or entry.kind != "sink" or (query or entry.query) != entry.query:
            return False
        self._replication.drop("sink", name, stamp=int(self._host.wall() * 1e6))
        return True

    def unwanted(self, queries: tuple[QueryId, ...]) -> tuple[QueryId, ...]:
        """Returns those of these queries that have ended, or are unknown because this agent has restarted."""
        return tuple(query for query in queries if query not in self.records and query not in self._beginning)

    # ------------------------------------------------------------------------------------------------------- showing

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each query of this agent, ended ones last."""
        running = [record.row(self.network_usage(record)) for record in self.records.values()]
        return running + self._resuming.rows() + [record.row(0.0) for record in self._ended.values()]

    def network_usage(self, record: QueryRecord) -> float | None:
        """Returns what the query costs, by measured rates and estimated latencies (SBON, equation 1); None while a coordinate is
        unknown.
        """
        return self._placing.cost_of([(record.nodes[source], record.nodes[target], rate) for source, target, rate in record.link_rates()])

    def encoded_rows(self) -> bytes:
        """Returns `rows`, encoded for another agent."""
        return msgspec.msgpack.encode(self.rows())

    def all_rows(self, done: Callable[[list[dict[str, Any]]], None]) -> None:
        """Gives `done` the queries of all agents that answer in time: ours first, those without a home last."""
        self._homes.all_rows(self.rows(), done)


def _told(listing: Listing) -> dict[str, Any]:
    return {"columns": list(listing.columns), "rows": listing.as_objects()}


def _kept(record: QueryRecord) -> KeptQuery:
    nodes = sorted({spec.pinned for spec in record.plan.operators if spec.pinned is not None})
    sink = record.name if record.name != record.id else ""
    return KeptQuery(record.id, record.plan.sql, sink, tuple(nodes), record.former, record.state is QueryState.FINISHED)


def _as_refusal(problem: BaseException, places: Places) -> SbonError:
    if isinstance(problem, SbonError):
        return located(problem, places)
    return QueryError(f"the statement broke the planner ({type(problem).__name__}: {problem})", hint="please report it")
