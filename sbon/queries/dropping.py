"""Ends dropped queries: those of this agent, those whose home is another agent, and those without a home."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sbon.errors import LinkError, QueryError, SbonError
from sbon.queries.parts import QueryParts
from sbon.query.ids import is_short_for
from sbon.supervision.dropped import drop_all_but, is_dropped, used_by_others
from sbon.supervision.homes import HomeState
from sbon.supervision.record import QueryRecord, QueryState
from sbon.supervision.register import home_and_id, nothing_to_drop
from sbon.types import OperatorId, QueryId
from sbon.wire.deployment import Use, User
from sbon.wire.messages import Message
from sbon.wire.replication import Drop

if TYPE_CHECKING:
    from sbon.queries.queries import OwnedQueries

Dropped = Callable[[SbonError | None], None]
"""Called with None once a query has been dropped, or with the error that prevented it."""


def ignored(result: object) -> None:
    """Ignores a result: nobody waits for it."""


class Dropping:
    """Drops queries at the request of one agent's users.

    Parameters
    ----------
    shared : called with a dropped query of this agent whose operators other queries use
    """

    def __init__(self, owned: OwnedQueries, parts: QueryParts, shared: Callable[[QueryRecord], None]) -> None:
        self._owned, self._shared = owned, shared
        self._host, self._directory = parts.host, parts.directory
        self._replication, self._homes, self._reaches, self._resuming = parts.replication, parts.homes, parts.reaches, parts.resuming

    def drop(self, name: str, done: Dropped, *, is_asked: bool = False) -> None:
        """Ends a query by id or name, wherever its home is.

        Parameters
        ----------
        is_asked : another agent asks for it, because it takes this one for the home
        """
        record, waiting = self._owned.find(name), self._resuming.find(name)
        if record is None and waiting is None and self._replication.catalog.get(name) is None:
            waiting = self._resuming.find_short(name)
        if waiting is not None:
            self._resuming.forget(waiting.id)
            if not self.forget_sink(waiting.sink, waiting.id):  # an agent that takes the query over learns by this that it was dropped
                self._bury(waiting.id)
            self._remember_end(waiting.id)
            self._resuming.keep(lambda _: done(None))
            return
        if record is not None:
            self.drop_own(record, done)
            return
        home, query = home_and_id(name, self._replication.catalog, self._owned.register.owners)
        if self._owned.ownership.when_decided(query, lambda: self.drop(name, done, is_asked=is_asked)):  # it is being taken over here
            return
        # A home that has restarted also knows its queries by their former ids.
        if home == self._directory.me or self._homes.state(query, home) not in (HomeState.PRESENT, HomeState.RESTARTED):
            self._drop_elsewhere(name, done, is_asked=is_asked)
            return

        def answered(result: Message | SbonError) -> None:
            if isinstance(result, QueryError):
                self._drop_elsewhere(name, done, is_asked=is_asked)
            elif isinstance(result, LinkError):
                hint = f"drop it again once `sbon members` shows whether {home} has failed"
                done(LinkError(f"{home}, the home of {name}, does not answer ({result}) and may still drop it; {hint}"))
            else:
                done(result if isinstance(result, SbonError) else None)

        self._directory.request(home, Drop(query=query), answered)

    def drop_own(self, record: QueryRecord, done: Dropped = ignored) -> None:
        """Ends a query of this agent, except operators that other queries use (docs/recovery.md, Who recovers what)."""

        def asked(record: QueryRecord) -> None:
            if self._runs(record) and is_dropped(record):  # it has been dropped twice
                done(None)
            elif self._runs(record) and (kept := used_by_others(record)):
                self._leave_to_others(record, kept, done)
            else:
                self._end(record, done)

        is_going_on = self._runs(record) and not is_dropped(record) and record.state is not QueryState.FINISHED
        if is_going_on and record.health.healing.is_on and used_by_others(record):
            self._owned.recovering.forget(record.id)
            record.state = QueryState.STOPPING
            self._owned.watching.ask(record, asked)
        else:
            self._end(record, done)

    def _leave_to_others(self, record: QueryRecord, kept: frozenset[OperatorId], done: Dropped) -> None:
        """Ends a query except the operators that others use. If too few keepers can be told, all of it ends."""
        others = self._owned.ownership.had_other_owners(record.id)
        name, is_bound = record.name, record.plan.delay_bound_ms is not None or record.plan.max_latency_ms is not None
        self.forget_sink(name, record.id)  # first, so that an agent that takes the query over learns that it was dropped
        self._reaches.ended(record.id)
        if (tail := self._owned.register.tails.pop(record.id, None)) is not None:
            tail.end()
        drop_all_but(record, kept)
        record.state = QueryState.SHARED
        record.history.ended("dropped; other queries use some of its operators", self._host.wall())

        def written(problem: SbonError | None) -> None:
            if problem is not None and self._runs(record):
                self._end(record, done)
                return
            if problem is not None or others:
                self._bury(record.id)
            if problem is None and self._runs(record):
                self._shared(record)
                for operator in record.specs if is_bound else ():
                    user = User(record.id, self._directory.me)
                    self._directory.request(record.nodes[operator], Use(operator=operator, user=user), ignored)
            self._resuming.keep(lambda _: done(None))

        self._owned.ownership.permit(record, written)

    def _end(self, record: QueryRecord, done: Dropped) -> None:
        """Ends all of a query of this agent. A tombstone tells agents that take the query over although no keeper has heard of its end, and
        former owners that come back while nobody is there who remembers it.
        """
        others = self._owned.ownership.had_other_owners(record.id) and not is_dropped(record)

        def told(kept: bool) -> None:
            if self._runs(record):
                self._owned.end(record, QueryState.STOPPING)
            self._owned.register.forget(record.id)
            if not self.forget_sink(record.name, record.id) and (others or not kept):
                self._bury(record.id)
            self._resuming.keep(lambda _: done(None))

        self._owned.recovering.forget(record.id)
        self._owned.ownership.ended(record.id, told)

    def _drop_elsewhere(self, name: str, done: Dropped, *, is_asked: bool) -> None:
        """Ends a query without a home, or one that only another agent knows: its owner has restarted, and keepers may take it over.

        If there is no such query, the error says to what the name belongs. A request of another agent is not passed on once more: otherwise
        two agents might ask each other for ever.
        """

        def told(rows: list[dict[str, Any]]) -> None:
            orphans = [row for row in rows if row["state"] == "orphaned"]
            waiting = [
                row for row in rows if row["state"] == "waiting" and row["owner"] != self._directory.me and name in (row["id"], row["name"])
            ]
            if len(waiting) == 1 and not is_asked:
                self._directory.request(waiting[0]["owner"], Drop(query=waiting[0]["id"]), answered)
                return
            found = [row for row in orphans if name in (row["id"], row["name"])]
            found = found or [row for row in orphans if is_short_for(name, row["id"])]
            if len(found) == 1:
                query = found[0]["id"]
                self._homes.end(query, lambda problem: ended(query, problem))
            elif self.forget_sink(name, ""):
                done(None)
            else:
                done(nothing_to_drop(name, self._replication.catalog, [text for row in rows for text in (row["id"], row["name"])]))

        def answered(result: Message | SbonError) -> None:
            done(result if isinstance(result, SbonError) else None)

        def ended(query: QueryId, problem: SbonError | None) -> None:
            if problem is None:
                sinks = [entry.name for entry in self._replication.catalog.entries() if entry.query == query]
                for sink in sinks:
                    self.forget_sink(sink, query)
                if not sinks:
                    self._bury(query)
                self._remember_end(query)
            self._resuming.keep(lambda _: done(problem))

        self._owned.all_rows(told)

    def forget_sink(self, name: str, query: QueryId) -> bool:
        """Removes a sink's name if it belongs to the query, or, with "", whatever query it belongs to.

        Returns False if there is no such name.
        """
        entry = self._replication.catalog.get(name)
        if entry is None or entry.kind != "sink" or (query or entry.query) != entry.query:
            return False
        self._replication.drop("sink", name, stamp=self._stamp())
        return True

    def _bury(self, query: QueryId) -> None:
        self._replication.bury(query, stamp=self._stamp())

    def _remember_end(self, query: QueryId) -> None:
        """Remembers that a query has ended which no keeper of its record, if there is one, has heard of. Hosts ask all agents for that: the
        record of another query may name it as a user of operators that are made again.
        """
        self._owned.ownership.inheriting.ended(query)

    def _stamp(self) -> int:
        return int(self._host.wall() * 1e6)

    def _runs(self, record: QueryRecord) -> bool:
        return record.id in self._owned.records
