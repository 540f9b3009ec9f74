"""The queries that an agent has taken: those that begin, those that run, and the latest that have ended. A machine without I/O.

    unknown --begin--> beginning --enter--> running --end--> ended (finished) --too many after it--> unknown
                           '--begun--> unknown (refused)       '--> unknown (stopped)

The `Tail` of a query without CREATE SINK has its rows, as long as there is memory for them.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from sbon.connectors.tails import Tail
from sbon.errors import QueryError
from sbon.links.places import Whereabouts
from sbon.query.catalog import Catalog, Entry, did_you_mean, no_query
from sbon.query.ids import is_short_for
from sbon.query.plan import Plan
from sbon.supervision.dropped import is_dropped, used_by_others
from sbon.supervision.generations import generation
from sbon.supervision.kept_record import encode_content
from sbon.supervision.owners import Owners
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.resumption import KeptQuery, taken
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.authority import query_of
from sbon.wire.ownership import Anew, Holder
from sbon.wire.reports import OperatorReport

ENDED_MAX = 200
"""Most ended queries that are still shown."""
ANEW_MAX = 10_000
"""Most operators of ended queries whose last hosts are remembered."""
HAPPENINGS_TOLD_MAX = 4_000
"""Most happenings in one answer, shared evenly by all queries."""
RECORDS_BYTES_MAX = 8 * 2**20
"""Most bytes that the records kept over a restart may have in all."""
ENDED_ROWS_BYTES_MAX = 32 * 2**20
"""Memory for the rows of ended queries, for `sbon tail`. With more memory, rows of more ended queries can still be read."""


class Register:
    """Queries of one agent, by their ids."""

    def __init__(self, me: NodeId = "", owners: Owners | None = None) -> None:
        self.owners = Owners() if owners is None else owners
        self.undecided: Mapping[QueryId, QueryId] = {}
        """Queries of a former process of this agent that another agent may own, with the ids under which they were submitted
        (`sbon.supervision.resumption.Resumption`)."""
        self.me = me
        self.running: dict[QueryId, QueryRecord] = {}
        self.ended: OrderedDict[QueryId, QueryRecord] = OrderedDict()
        self.tails: dict[QueryId, Tail] = {}
        self._beginning: set[QueryId] = set()
        self._anew: OrderedDict[OperatorId, tuple[NodeId, int]] = OrderedDict()
        """Last known hosts of operators of ended queries that had been made again: other queries may still use them."""

    def begin(self, query: QueryId) -> None:
        """Notes that a query is being placed."""
        self._beginning.add(query)

    def begun(self, query: QueryId, *, runs: bool) -> None:
        """Notes that placing a query is over; `runs` is False if it was refused."""
        self._beginning.discard(query)
        if not runs:
            self.tails.pop(query, None)

    def enter(self, record: QueryRecord) -> None:
        """Adds a query that runs."""
        self.running[record.id] = record

    def knows(self, query: QueryId) -> bool:
        """Tells whether a query has been taken and has not been forgotten."""
        return query in self.running or query in self.ended or query in self._beginning

    def unwanted(self, queries: Iterable[QueryId]) -> tuple[QueryId, ...]:
        """Returns the queries that have ended, or are unknown because this agent has restarted. Leaves out queries of other owners."""
        ours = [query for query in queries if self.owners.of(query).name == self.me]
        return tuple(query for query in ours if not any(query in known for known in (self.running, self._beginning, self.undecided)))

    def as_known(self, report: OperatorReport) -> OperatorReport:
        """Completes a report that an operator is missing here, if the operator was made for a query taken here.

        - The operator has been made again elsewhere: the report says `moved`. Other queries that use the operator ask for it.
        - It is the sink of a query that has finished: the last report, so that an agent that took the query over while this one was cut off
          does not make the sink again.
        - It is another operator of a finished query: `over`, on its last host. It is not made again, either.
        """
        if report.state != "missing":
            return report
        query = query_of(report.id)
        ended = self.ended.get(query)
        if ended is not None and report.id in ended.specs and ended.state is QueryState.FINISHED:
            last = ended.reports.get(report.id, report)
            if report.id == ended.sink:
                return last
            node, epoch = ended.nodes.get(report.id, report.node), ended.epochs.get(report.id, 0)
            return msgspec.structs.replace(last, state="over", node=node, epoch=epoch)
        record = self.running.get(query)
        if record is not None and report.id in record.specs:
            node, epoch = record.nodes[report.id], record.epochs.get(report.id, 0)
        else:
            node, epoch = self._anew.get(report.id, (report.node, 0))
        return report if node == report.node else OperatorReport(report.id, "moved", node, epoch=epoch)

    def outlived(self, operators: Iterable[tuple[OperatorId, int]]) -> tuple[tuple[OperatorId, int], ...]:
        """Returns the copies of operators, given with their epochs, that a copy of a higher generation has replaced."""
        known = {operator: epoch for operator, (_, epoch) in self._anew.items()}
        known |= {operator: epoch for record in self.running.values() for operator, epoch in record.epochs.items()}
        return tuple((operator, epoch) for operator, epoch in operators if generation(epoch) < generation(known.get(operator, 0)))

    def given_up(self, operators: Iterable[OperatorId]) -> tuple[OperatorId, ...]:
        """Returns those of these operators that running queries have given up for another plan."""
        gone = {one for record in self.running.values() for one in record.health.healing.plans.retired}
        return tuple(gone.intersection(operators)) if gone else ()

    def owner_of(self, query: QueryId) -> NodeId:
        """Returns the agent that owns a query, as far as is known here."""
        return self.owners.of(query).name

    def ownership_of(self, query: QueryId) -> int:
        """Returns the highest ownership epoch of a query that has been heard of here."""
        return self.owners.of(query).epoch

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """Returns the known hosts of an operator of running queries."""
        known = [record for record in self.running.values() if operator in record.nodes]
        return [Whereabouts(record.nodes[operator], record.epochs.get(operator, 0)) for record in known]

    def anew(self, first: QueryId) -> Iterator[Anew]:
        """Yields the queries that were submitted under this id and run here, and those that have started again under another one, and of
        which this agent does not know yet whether another agent owns them."""
        for record in self.running.values():
            if (record.history.first or record.id) == first and not is_dropped(record):
                yield Anew(first, record.id, is_decided=True)
        for query, submitted in self.undecided.items():
            if submitted == first != query:
                yield Anew(first, query, is_decided=False)

    def forget(self, query: QueryId) -> None:
        """Forgets a query that has ended, and its rows."""
        if self.ended.pop(query, None) is not None:
            self.tails.pop(query, None)

    def give_up(self, query: QueryId) -> bool:
        """Forgets a running query that another agent owns now. Returns False if it does not run here."""
        return self.running.pop(query, None) is not None

    def find(self, name: str, is_name: Callable[[str], bool]) -> QueryRecord | None:
        """Finds a query by id, name, or an unambiguous prefix of its id for which `is_name` is False."""
        everything = {**self.ended, **self.running}
        if name in everything and not (is_dropped(everything[name]) and any(one.former == name for one in everything.values())):
            return everything[name]
        named = [record for record in everything.values() if name in (record.name, record.former)]
        if named:
            return named[-1]
        if is_name(name):
            return None
        begun = [record for query, record in everything.items() if is_short_for(name, query)]
        return begun[0] if len(begun) == 1 else None

    def tail_of(self, name: str) -> QueryId:
        """Finds a query of another owner whose rows are kept here, by an id or an unambiguous prefix. Returns its id, or an empty one."""
        found = [query for query in self.tails if name == query] or [query for query in self.tails if is_short_for(name, query)]
        return found[0] if len(found) == 1 else ""

    def operator_gone(self, operator: OperatorId) -> None:
        """Ends the tail of another owner's query if the operator that was removed is its sink. Other operators may have moved on."""
        query = query_of(operator)
        tail = self.tails.get(query)
        if tail is not None and tail.sink == operator and not self.knows(query):
            del self.tails[query]
            tail.end()

    def with_histories(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns rows of `sbon queries` with the latest happenings of each query."""
        known = {**self.ended, **self.running}
        each = max(1, HAPPENINGS_TOLD_MAX // max(1, len(known)))
        told = {query: record.history.told(record.text_of, each) for query, record in known.items()}
        return [{**row, "history": told.get(row["id"], [])} for row in rows]

    def kept(self) -> list[KeptQuery]:
        """Returns the queries to run again after a restart, and finished sinks, whose names stay taken."""
        running, room = list[KeptQuery](), RECORDS_BYTES_MAX
        for record in self.running.values():
            if record.state is not QueryState.FINISHED:
                running.append(with_record(record, room))
                room -= len(running[-1].record)
        finished = [record for record in [*self.running.values(), *self.ended.values()] if record.state is QueryState.FINISHED]
        return running + [kept_of(record) for record in finished if record.name != record.id]

    def dropped_elsewhere(self, entries: Iterable[Entry]) -> Iterator[tuple[QueryRecord, str]]:
        """Yields the queries that other agents have dropped or replaced, by changed entries of the catalogue, each with the reason.

        Ended queries among them are forgotten.
        """
        ours: dict[str, list[QueryRecord]] = {}
        for record in [*self.running.values(), *self.ended.values()]:
            for name in [record.name] if record.name != record.id else filter(None, (record.id, record.former)):
                ours.setdefault(name, []).append(record)
        for entry in entries:
            for record in ours.get(entry.name, ()):
                if why := taken(kept_of(record), {entry.name: entry}.get):
                    self.forget(record.id)
                    yield record, why

    def end(self, record: QueryRecord) -> list[QueryRecord]:
        """Ends a query in its present state. A finished query is remembered with its rows.

        Returns the ended queries that are forgotten to make room.
        """
        self.running.pop(record.id, None)
        self._anew.update(
            (one, (record.nodes[one], epoch)) for one, epoch in record.epochs.items() if generation(epoch) and one in record.specs
        )
        while len(self._anew) > ANEW_MAX:
            self._anew.popitem(last=False)
        tail = self.tails.pop(record.id, None)
        if tail is not None:
            tail.end()
        if record.state is not QueryState.FINISHED:
            return []
        if tail is not None:
            self.tails[record.id] = tail
        self.ended[record.id] = record
        forgotten = []
        while len(self.ended) > ENDED_MAX:
            forgotten.append(next(iter(self.ended.values())))
            self.forget(forgotten[-1].id)
        kept_bytes = 0
        for query in reversed(self.ended):
            kept_bytes += self.tails[query].kept_bytes if query in self.tails else 0
            if kept_bytes > ENDED_ROWS_BYTES_MAX:
                self.tails.pop(query, None)
        return forgotten


def kept_of(record: QueryRecord) -> KeptQuery:
    """Returns the part of a query that is kept over a restart."""
    is_finished = record.state is QueryState.FINISHED
    former = record.history.first, record.former
    return kept_plan(record.plan, record.specs, former, record.health.healing.holders, is_finished=is_finished)


def with_record(record: QueryRecord, room: int = RECORDS_BYTES_MAX) -> KeptQuery:
    """Returns the part of a running query that is kept over a restart, with its record if it heals and others use its operators.

    Parameters
    ----------
    room : most bytes of the record
    """
    kept = kept_of(record)
    if not record.health.healing.is_on or not used_by_others(record):
        return kept
    try:
        content = encode_content(record)
    except ValueError:  # the record is too large to be kept anywhere, and the query says so
        return kept
    return msgspec.structs.replace(kept, record=content) if len(content) <= room else kept


def kept_plan(
    plan: Plan,
    operators: Collection[OperatorId],
    former: tuple[QueryId, QueryId],
    holders: tuple[tuple[Holder, ...], ...],
    *,
    is_finished: bool = False,
) -> KeptQuery:
    """Returns the part of a query that is kept over a restart.

    Parameters
    ----------
    operators : operators made for the query
    former : the id under which it was submitted, and the one that it had before its home restarted; empty if it has not started again
    holders : the holders of its record
    """
    nodes = sorted({spec.pinned for spec in plan.operators if spec.pinned is not None})
    sink = plan.name if plan.name != plan.query else ""
    is_dropped = plan.operators[-1].id not in operators
    return KeptQuery(
        plan.query,
        plan.sql,
        sink,
        tuple(nodes),
        former[1],
        is_finished,
        holders,
        is_dropped,
        plan.changed,
        plan.sizings,
        first=former[0],
    )


def nothing_to_drop(name: str, catalog: Catalog, known: Iterable[str]) -> QueryError:
    """Returns the error that there is no query of this name to end; `known` are the ids and names of queries."""
    if kind := catalog.kind_of(name):
        return no_query(name, kind, "nothing ends it" if kind == "system stream" else f"write DROP {kind.upper()} {name}")
    return QueryError(f"there is no query {name}", hint=did_you_mean(name, known) or "`sbon queries` lists them")


def home_and_id(name: str, catalog: Catalog, owners: Owners) -> tuple[NodeId, QueryId]:
    """Returns the owner and the id of the query with this sink name or id."""
    entry = catalog.get(name)
    query = entry.query if entry is not None and entry.query else name
    owner = owners.of(query)
    return (entry.owner if entry is not None and entry.query and not owner.epoch else owner.name), query
