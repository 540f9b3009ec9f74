"""Saves this agent's statements in its data directory, and runs its queries again after a restart (`sbon.supervision.resumption`).

The node starts it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import structlog

from sbon.addresses import format_address, parse_address
from sbon.errors import ConfigError, QueryError, SbonError
from sbon.membership.gossip import Gossip
from sbon.membership.members import MemberStatus
from sbon.peers.directory import Directory
from sbon.ports import SeededExecutor, Timer
from sbon.queries.ports import KeptFile, Reaches
from sbon.queries.replication import Replication
from sbon.query.catalog import Entry
from sbon.query.ids import boot_of
from sbon.supervision.claiming import Outcome
from sbon.supervision.homes import bare_row
from sbon.supervision.kept_record import left_of
from sbon.supervision.ownership import Ownership
from sbon.supervision.record import SERVES_OTHERS, QueryRecord
from sbon.supervision.register import Register
from sbon.supervision.resumption import FORMAT, PEERS_MAX, AskOwners, Kept, KeptQuery, LiveOn, Renamed, Resume, Resumption, Taken, Waiting
from sbon.types import Address, QueryId

HEAR_S = 10.0
"""Longest wait in seconds for another agent's tables after a start, so that names dropped during the restart are known before the queries
run. Tables that come later end a dropped query, too, but only then."""
ASK_PEERS_S = 1.0
"""Pause between attempts to reach the members known before the restart, in seconds."""
LOOK_SOON_S = 0.1
"""Delay in seconds between a change and the next look at the queries, so that members that come alive together are handled together."""

Done = Callable[[Any], None]


class Runner(Protocol):
    """Runs the queries; implemented by `sbon.queries.queries.OwnedQueries`."""

    register: Register
    ownership: Ownership

    def new_id(self) -> QueryId:
        """Returns a new query id of the present process."""

    def run_again(self, query: KeptQuery, done: Callable[[SbonError | None], None]) -> None:
        """Submits a query under its new id."""

    def inherited(self, query: QueryId, result: QueryRecord | ValueError) -> None:
        """Takes over the operators of a former process's query that others use."""

    def kept_queries(self) -> list[KeptQuery]:
        """Returns the running queries, and the finished ones with sinks."""

    def owned_elsewhere(self, query: QueryId) -> None:
        """Gives up a query that another agent owns, or has owned since the restart."""

    def names_changed(self, entries: list[Entry]) -> None:
        """Handles entries of the catalogue that other agents have changed."""


class Resuming:
    """Saves one agent's statements, and runs its saved queries again."""

    def __init__(
        self, host: SeededExecutor, directory: Directory, gossip: Gossip, replication: Replication, reaches: Reaches, file: KeptFile
    ) -> None:
        self._host = host
        self._me = directory.me
        self._gossip = gossip
        self._replication = replication
        self._reaches = reaches
        self._file = file
        self._runner: Runner | None = None
        self._machine: Resumption | None = None
        """State machine of the queries that do not run again yet; None if no statements had been saved."""
        self._peers: list[Address] = []
        self._timer: Timer | None = None
        self._peers_timer: Timer | None = None
        self._closed = False
        self._has_tables = False
        """True once another agent has sent its tables."""
        self._saved: Kept | None = None
        self._saving = False
        self._to_be_told: list[Callable[[str], None]] = []
        self._failing = False
        self._log = structlog.get_logger("agent").bind(node=directory.me)

    # --------------------------------------------------------------------------------------------------- life cycle

    def start(self, runner: Runner, joins: bool, inherits: bool) -> None:
        """Enters the saved names in the catalogue, and begins to run the saved queries again.

        Parameters
        ----------
        joins : whether the agent was started with other agents to join
        inherits : whether other agents may take queries over
        """
        self._runner = runner
        self._replication.changed = self._names_changed
        self._replication.heard = self._heard
        kept = self._saved = self._file.load(self._me)
        runner.ownership.inheriting.remembers = self._file.remembers
        if kept is None:
            return
        self._replication.restore(kept.entries)
        for source in kept.declared:
            self._reaches.declared(source)
        for sink in kept.sinks:
            self._reaches.given(sink)
        runner.ownership.inheriting.promises.restore(kept.promises)
        runner.register.owners.restore(kept.promises)
        self._peers = list(filter(None, map(_address, kept.peers[:PEERS_MAX])))
        hear_s = HEAR_S if joins or self._peers else 0.0
        self._machine = Resumption(kept.queries, self._host.now(), hear_s, self._host.rng.spawn(1)[0], inherits=inherits)
        runner.register.undecided = self._machine.undecided
        names = sorted(entry.name for entry in kept.entries if not entry.dropped)
        self._log.info("statements.kept", names=names, queries=[query.id for query in kept.queries])
        self._ask_peers(self._host.now() + hear_s)
        self._look()

    def close(self) -> None:
        """Stops the timers and all saving."""
        self._closed = True
        for timer in (self._timer, self._peers_timer):
            if timer is not None:
                timer.cancel()

    # ------------------------------------------------------------------------------------------------------ keeping

    def then(self, done: Done) -> Done:
        """Returns a callback that saves the present statements, then calls `done` with its argument."""

        def kept(result: Any, problem: str) -> None:
            if problem and isinstance(result, list) and result:
                result[-1]["message"] += f"; a restart of {self._me} would forget it, because saving it failed: {problem}"
            done(result)

        return lambda result: self.keep(partial(kept, result))

    def keep(self, done: Callable[[str], None] = lambda problem: None) -> None:
        """Saves everything needed after a restart. `done` gets "", or the reason why saving failed."""
        if self._file.path is None or self._closed:
            done("")
            return
        self._to_be_told.append(done)
        if not self._saving:
            self._save()

    def _save(self) -> None:
        kept, told = self._snapshot(), self._to_be_told
        self._to_be_told = []
        if kept == self._saved or (self._saved is None and not (kept.entries or kept.declared or kept.queries or kept.promises)):
            for done in told:
                done("")
            return
        self._saving = True
        self._host.execute(lambda: self._file.save(kept), partial(self._written, kept, told), rows=0)

    def _written(self, kept: Kept, told: list[Callable[[str], None]], result: object) -> None:
        self._saving = False
        problem = (str(result) or type(result).__name__) if isinstance(result, BaseException) else ""
        if not problem:
            self._saved = kept
        elif not self._failing:
            self._log.error("statements.not_saved", path=str(self._file.path), reason=problem, doing="going on without")
        self._failing = bool(problem)
        for done in told:
            done(problem)
        if self._to_be_told:
            self._save()

    def _snapshot(self) -> Kept:
        assert self._runner is not None
        boot = self._gossip.machine.own.boot
        queries = [*(waiting.query for waiting in self._waiting()), *self._runner.kept_queries()]
        queries.sort(key=lambda query: (boot_of(query.id) == boot, len(query.id), query.id))
        members = [member for _, member in sorted(self._gossip.members.items()) if member.name != self._me]
        peers = [member.address for member in members if member.status is MemberStatus.ALIVE][:PEERS_MAX] or self._peers
        return Kept(
            FORMAT,
            self._me,
            tuple(entry for entry in self._replication.catalog.entries() if entry.owner == self._me),
            self._reaches.own_words,
            tuple(queries),
            tuple(map(format_address, peers)),
            self._reaches.own_sinks,
            self._runner.ownership.inheriting.promises.all,
        )

    # ----------------------------------------------------------------------------------------------------- resuming

    def find(self, name: str) -> KeptQuery | None:
        """Finds a query that does not run again yet, by its id, its former id or its sink's name."""
        return self._machine.find(name) if self._machine is not None else None

    def find_short(self, name: str) -> KeptQuery | None:
        """Finds a query that does not run again yet, by an unambiguous prefix of its id."""
        return self._machine.find_short(name) if self._machine is not None else None

    def forget(self, query: QueryId) -> bool:
        """Forgets a query that has been dropped, or that another agent owns. Returns False if it was unknown."""
        return self._machine is not None and self._machine.forget(query)

    def runs(self, query: QueryId) -> bool:
        """Notes that a query has been placed. Returns False if it was dropped during the placement; then end it."""
        return self._machine is not None and self._machine.runs(query)

    @property
    def count(self) -> int:
        """Returns the number of queries that do not run again yet."""
        return len(self._waiting())

    def reason_of(self, query: QueryId) -> str:
        """Returns why a query does not run."""
        return next((waiting.reason for waiting in self._waiting() if waiting.query.id == query), "")

    def rows(self) -> list[dict[str, Any]]:
        """Returns rows for the queries that do not run again yet, as `sbon queries` shows them."""
        return [
            bare_row(
                query.id,
                query.sink or query.id,
                "finished" if query.finished else "waiting",
                (f"{SERVES_OTHERS}; " if query.dropped else "")
                + waiting.reason
                + (f"; before the restart of {self._me} it was {query.former}" if query.former else ""),
                self._me,
                query.sql,
                query.former,
            )
            for waiting in self._waiting()
            for query in (waiting.query,)
        ]

    def _waiting(self) -> list[Waiting]:
        return self._machine.queries if self._machine is not None else []

    def _heard(self) -> None:
        self._has_tables = True
        if self._machine is not None:
            self._look_soon()

    def _names_changed(self, entries: list[Entry]) -> None:
        assert self._runner is not None
        self._runner.names_changed(entries)
        self.member_alive()
        self.keep()

    def member_alive(self) -> None:
        """Tries waiting queries sooner: a member has come alive or has restarted, or a name has changed."""
        if self._machine is not None and self._machine.queries:
            self._machine.hurry(self._host.now())
            self._look_soon()

    def _ask_peers(self, until: float) -> None:
        """Exchanges tables with members from before the restart, until one has answered or the time is up."""
        now = self._host.now()
        heard = any(name != self._me for name in self._gossip.members)
        if self._closed or heard or not self._peers or now >= until:
            return
        for address in self._peers:
            self._replication.exchange(address)
        self._peers_timer = self._host.call_at(now + ASK_PEERS_S, partial(self._ask_peers, until))

    def _look_soon(self) -> None:
        self._arm(self._host.now() + LOOK_SOON_S)

    def _arm(self, when: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if when is None or self._closed else self._host.call_at(when, self._look)

    def _look(self) -> None:
        if self._closed or self._machine is None or self._runner is None:
            return
        now = self._host.now()
        if self._has_tables and any(name != self._me for name in self._gossip.members):
            self._machine.heard(now)  # not before other agents are members: only members can be asked who owns a query
        actions = self._machine.look(now, self._gossip.alive_labels(), self._replication.catalog.latest, self._runner.new_id)
        self._arm(self._machine.next_wake(now))
        former = self._runner.ownership.former
        for action in actions:
            match action:
                case Renamed(query, lives_on):
                    former.runs_anew(query, lives_on=lives_on)
                    if query.sink:
                        self._replication.renew(query.sink, query.id)
                case LiveOn(queries, gone):
                    records = {query.id: query.record for query in queries}
                    left = left_of(records, gone, former.anew, self._me, now, self._host.wall())
                    for query_id in sorted(records.keys() - left.keys()):
                        self._runner.ownership.inheriting.ended(query_id)
                    for query_id, found in left.items():
                        self._runner.inherited(query_id, found)
                case Resume(query):
                    self._runner.run_again(query, partial(self._tried, query))
                case AskOwners(queries, firsts):
                    former.claims(queries, firsts, self._decided, self._machine.undecided.__contains__)
                case Taken(query, why):
                    self._log.warning("query.not_resumed", query=query.id, sink=query.sink, reason=why)
        if any(isinstance(action, Renamed | Taken) for action in actions):
            self.keep()

    def _decided(self, found: Mapping[QueryId, Outcome]) -> None:
        assert self._machine is not None
        assert self._runner is not None
        self._machine.decided(found, self._host.now())
        for query, outcome in found.items():
            if outcome is Outcome.ELSEWHERE:
                self._runner.owned_elsewhere(query)
            elif outcome is Outcome.OVER:
                self._log.warning(
                    "query.not_resumed", query=query, reason="another agent knows that it has ended, or runs it under a new id"
                )
                self.keep()
        self._look()

    def _tried(self, query: KeptQuery, problem: SbonError | None) -> None:
        assert self._machine is not None
        if problem is None:
            note = "windows, joins and other states begin empty"
            self._log.info("query.resumed", query=query.id, former=query.former, sink=query.sink, note=note)
        else:
            reason = problem.message if isinstance(problem, QueryError) else str(problem)
            before = self.reason_of(query.id)
            self._machine.failed(query.id, reason, self._host.now())
            if before:
                self._log.warning("query.waits", query=query.id, sink=query.sink, reason=reason)
        self.keep()
        self._look_soon()


def _address(text: str) -> Address | None:
    try:
        return parse_address(text)
    except ConfigError:
        return None
