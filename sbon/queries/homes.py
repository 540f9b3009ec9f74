"""Handles orphaned queries, whose homes are gone (`sbon.supervision.homes`): notes those with operators on this host, and lists and ends
those of all hosts on request.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import structlog

from sbon.errors import LinkError, PlacementError, SbonError
from sbon.execution.instance import Instance
from sbon.execution.operators import Operators
from sbon.membership.gossip import Gossip
from sbon.peers.directory import Directory
from sbon.ports import Clock
from sbon.queries.replication import Replication
from sbon.query.catalog import Entry
from sbon.supervision.former import AskOwners
from sbon.supervision.homes import (
    Doubt,
    HomeState,
    OrphanExpired,
    OrphanFound,
    Orphans,
    decode_rows,
    gone,
    home_state,
    names_sink,
    orphan_operator,
    orphan_rows,
    still_doubted,
)
from sbon.supervision.owners import Owner, Owners
from sbon.types import NodeId, QueryId
from sbon.wire.messages import Message
from sbon.wire.replication import EndOrphan, Orphan, OrphanEnded, Queries, QueriesAsk, Unwanted, WantedAsk

INHERIT_S = 30.0
"""Seconds for which a home that is back as a new process is not asked whether it wants a query, if keepers may take queries over."""
ANSWER_S = 2.0
"""Seconds that other agents may take to list their queries, or to release one."""


class Homes:
    """The homes of queries, as seen by one agent."""

    def __init__(
        self, host: Clock, directory: Directory, gossip: Gossip, operators: Operators, replication: Replication, owners: Owners
    ) -> None:
        self._host = host
        self._directory = directory
        self._gossip = gossip
        self._operators = operators
        self._replication = replication
        self._owners = owners
        self._orphans = Orphans()
        self._log = structlog.get_logger("agent", node=directory.me)

    def state(self, query: QueryId, home: NodeId) -> HomeState:
        """Returns the state of a query's home, as seen by this agent. An agent that has taken the query over is its home."""
        owner, name = self._owners.of(query), self._owners.answering(query, home)
        return home_state(self._gossip.members.get(name), owner.boot if name == owner.name else None)

    def to_ask(self, query: QueryId, told: NodeId, *, inherits: bool) -> NodeId | None:
        """Returns the agent to ask whether a query is over; None: ask nobody now, because keepers may be about to take the query over.

        A home that has restarted does not know the query, and its answer would end it. After `INHERIT_S`, the owner that the query's
        operators were told is asked, because an owner heard of later may never have become the owner.

        Parameters
        ----------
        told : the owner that the query's operators were told
        inherits : whether keepers take queries over
        """
        name, state, now = self._owners.answering(query, told), self.state(query, told), self._host.now()
        if state is HomeState.PRESENT or not inherits:
            return name
        seen = self._orphans.restarted if state is HomeState.RESTARTED else self._orphans.since
        if now - seen.get(query, now) < INHERIT_S:
            return None
        if home_state(self._gossip.members.get(told), None) is HomeState.PRESENT:
            return told
        return None if state is HomeState.FAILED else name

    # ---------------------------------------------------------------------------------------------------- as a host

    def without_owner(self) -> set[QueryId]:
        """Returns the queries with operators here whose owners are not present, or not known.

        An operator that was made again may still have a user that has started again under another id. This host never heard of an ownership
        of the agent that it was told, so it cannot tell which process of that agent owned the query.
        """
        served = {(query, told) for instance in self._operators.instances.values() for query, told in instance.users.items()}
        unknown = {query for query, told in served if told != self._owners.of(query).name and not self._owners.of(query).epoch}
        return unknown | {query for query, told in served if self.state(query, told) is not HomeState.PRESENT}

    def look(self, timeout_s: float) -> None:
        """Notes newly orphaned queries, and releases those that have been orphans for `timeout_s`; 0 keeps them."""
        served = {query: self._owners.of(query) for instance in self._operators.instances.values() for query in instance.users}
        for change in self._orphans.look(served, self._gossip.members, self._host.now(), timeout_s):
            match change:
                case OrphanFound(query, home, state):
                    self._log.warning("query.orphaned", query=query, reason=gone(home, state), advice=f"to end it: sbon drop {query}")
                case OrphanExpired(query, _, seconds):
                    destroyed = self._operators.release(query)
                    self._log.warning("query.released", query=query, reason=f"an orphan for {seconds:.0f} s", operators=destroyed)

    def hosted(self) -> tuple[Orphan, ...]:
        """Returns the orphaned queries that have operators here."""
        found: dict[QueryId, list[Instance]] = {}
        homes: dict[QueryId, NodeId] = {}
        for instance in self._operators.instances.values():
            for query, home in instance.users.items():
                if self.state(query, home) is not HomeState.PRESENT:
                    homes[query] = home
                    found.setdefault(query, []).append(instance)
        now = self._host.now()
        return tuple(
            Orphan(
                query,
                homes[query],
                self.state(query, homes[query]).value,
                now - self._orphans.since.get(query, now),
                tuple(orphan_operator(instance) for instance in instances),
            )
            for query, instances in sorted(found.items())
        )

    def end_hosted(self, query: QueryId, respond: Callable[[Message | SbonError], None], denied: frozenset[NodeId] = frozenset()) -> None:
        """Answers EndOrphan: releases the query, unless its home is present and still wants it.

        Parameters
        ----------
        denied : agents that do not answer, or have said that another agent owns the query
        """
        is_present, homes = self._homes_of(query, denied)
        if not homes:
            respond(self._ended(query))
            return
        home = homes[0]

        def answered(result: Message | SbonError) -> None:
            words = (
                [word for word in result.taken if word.query == query and word.owner.name != home] if isinstance(result, Unwanted) else []
            )
            for word in words:
                self._owners.told(query, Owner(word.owner.name, word.owner.boot, word.epoch), home)
            if isinstance(result, Unwanted) and query in result.queries:
                respond(self._ended(query))
            elif words or (isinstance(result, SbonError) and not is_present):
                self.end_hosted(query, respond, denied | {home})
            elif isinstance(result, SbonError):
                hint = "try again in some seconds"
                respond(PlacementError(f"{home}, the home of {query}, is alive but does not answer {self._directory.me}; {hint}"))
            else:
                respond(PlacementError(f"{home}, the home of {query}, still wants it; drop it there"))

        self._directory.request(home, WantedAsk(queries=(query,)), answered, ANSWER_S)

    def _homes_of(self, query: QueryId, denied: frozenset[NodeId]) -> tuple[bool, list[NodeId]]:
        """Returns the agents to ask whether a query is wanted, and whether they are the processes that own it.

        The agent that wants to end the query may be mistaken about the home, or lie, so the home itself is asked if it can be reached. An
        owner heard of later may never have become the owner: without it, the agents are asked for which the operators here were made.
        """
        told = {told for instance in self._operators.instances.values() for user, told in instance.users.items() if user == query}
        owners, members = {self._owners.answering(query, one) for one in told}, self._gossip.members
        if present := sorted(home for home in owners - denied if self.state(query, home) is HomeState.PRESENT):
            return True, present
        others = sorted((owners | told) - denied)
        living = [home for home in others if home_state(members.get(home), None) is HomeState.PRESENT]
        return False, living or [home for home in others if not denied and self._gossip.address_of(home) is not None]

    def _ended(self, query: QueryId) -> OrphanEnded:
        destroyed = self._operators.release(query)
        self._log.info("query.released", query=query, reason="dropped without its home", operators=destroyed)
        return OrphanEnded(operators=tuple(destroyed))

    # ------------------------------------------------------------------------------------------------ for all agents

    def all_rows(self, ours: list[dict[str, Any]], done: Callable[[list[dict[str, Any]]], None], *, history: bool = False) -> None:
        """Calls `done` with a row for each query of all agents that answer in time: `ours` first, orphans last."""
        me = self._directory.me
        sinks = [entry for entry in self._replication.catalog.living.values() if entry.kind == "sink"]
        found: dict[NodeId, list[dict[str, Any]]] = {me: ours}
        told: dict[NodeId, tuple[Orphan, ...]] = {me: self.hosted()}
        others = [node for node in self._gossip.alive_labels() if node != me]
        waiting = set(others)

        def answered(node: NodeId, result: Message | SbonError) -> None:
            waiting.discard(node)
            if isinstance(result, Queries):
                found[node], told[node] = decode_rows(result.rows), result.orphans
            if not waiting:
                finish()

        def finish() -> None:
            rows = [row for node in [me, *sorted(set(found) - {me})] for row in found[node]]
            homes = {orphan.query: orphan.home for orphans in told.values() for orphan in orphans}
            homes |= {entry.query: entry.owner for entry in sinks if entry.query}
            states = {query: self.state(query, home) for query, home in homes.items()}
            done(rows + orphan_rows(told, {str(row.get("id")) for row in rows}, sinks, states, found))

        if not others:
            finish()
        for node in others:
            self._directory.request(node, QueriesAsk(history=history), partial(answered, node), ANSWER_S)

    def end(self, query: QueryId, done: Callable[[SbonError | None], None], nodes: Collection[NodeId] | None = None) -> None:
        """Asks living hosts to end a query without a home. Once all have answered, `done` gets the first refusal, or None.

        Parameters
        ----------
        nodes : the hosts to ask besides this one; None: all
        """
        alive = self._gossip.alive_labels()
        waiting = {node for node in alive if nodes is None or node in nodes} | {self._directory.me}
        refused: list[SbonError] = []

        def answered(node: NodeId, result: Message | SbonError) -> None:
            waiting.discard(node)
            if isinstance(result, LinkError):
                self._log.warning("query.not_ended", query=query, host=node, reason=str(result))
            elif isinstance(result, SbonError):
                refused.append(result)
            if not waiting:
                done(refused[0] if refused else None)

        for node in sorted(waiting):
            self._directory.request(node, EndOrphan(query=query), partial(answered, node), 2 * ANSWER_S)

    def doubts(self, sql: str, is_ours: Callable[[QueryId], bool], ask: AskOwners, done: Callable[[Mapping[str, Doubt]], None]) -> None:
        """Finds the sinks of the catalogue whose homes are gone, do not answer or do not know them.

        Asks the homes of the sinks named in the text. If such a home is gone, asks all agents whether they own or keep the query.

        Parameters
        ----------
        is_ours : tells whether this agent is the home of a query and knows the query
        """
        doubts: dict[str, Doubt] = {}
        asked: dict[NodeId, list[Entry]] = {}
        for entry in self._replication.catalog.living.values():
            if entry.kind != "sink" or not entry.query:
                continue
            home, state = entry.owner, self.state(entry.query, entry.owner)
            if state is not HomeState.PRESENT:
                doubts[entry.name] = Doubt(entry.query, gone(home, state), gone=True)
            elif home == self._directory.me:
                if not is_ours(entry.query):
                    doubts[entry.name] = Doubt(entry.query, "its query has ended", gone=True)
            elif names_sink(sql, entry.name):
                asked.setdefault(home, []).append(entry)

        def answered(home: NodeId, result: Message | SbonError) -> None:
            entries = asked.pop(home, [])
            known = {row.get("id") for row in decode_rows(result.rows)} if isinstance(result, Queries) else set()
            for entry in entries:
                if entry.query and isinstance(result, SbonError):
                    doubts[entry.name] = Doubt(entry.query, f"its home {home} does not answer", gone=False)
                elif entry.query and entry.query not in known:
                    doubts[entry.name] = Doubt(entry.query, gone(home, HomeState.PRESENT), gone=True)
            if not asked:
                ask_others()

        def ask_others() -> None:
            gone_ones = {doubt.query: doubt for name, doubt in doubts.items() if doubt.gone and names_sink(sql, name)}
            ask(gone_ones, lambda found: done(still_doubted(doubts, found)))

        if not asked:
            ask_others()
        for home in sorted(asked):
            self._directory.request(home, QueriesAsk(), partial(answered, home), ANSWER_S)
