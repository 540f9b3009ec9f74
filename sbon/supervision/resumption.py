"""State that an agent keeps over restarts, and the machine that runs its queries again. No I/O.

After a start each kept query is in one of these states:

    hearing   the agent has not exchanged tables with another one yet: somebody may have dropped the query meanwhile
    undecided  another agent may have taken it over, or be about to. All agents are asked, and those that may have its record must promise
              not to take it over any more (docs/recovery.md, Ownership)
    waiting   it has its new id; it is submitted as soon as the nodes that it used are alive, or `MISSING_S` later, and again after a pause
              if it could not be placed
    trying    it has been submitted
    finished  it had ended before the restart: only its name and its row are kept

A query leaves the machine when it runs, or when it is dropped, here or by another agent (`Taken`). A query that had been dropped before,
and lives on because others use its operators, does not start again: it leaves the machine once its owner is decided.

Invariants: a query is submitted only after `heard`, or `hear_s` after the start, and only if no other agent owns or keeps it, or ever will.
It is not submitted if its name belongs to another query, or if its tombstone is known. At most `TOGETHER_MAX` queries are tried at once.
The pause of a query that fails grows to `RETRY_S_MAX`.

See docs/restarts.md.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

import msgspec
import numpy as np

from sbon.query.catalog import Entry
from sbon.query.ids import is_short_for
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import UNCHANGED, Changed, Plan, Sizing
from sbon.supervision.claiming import Outcome
from sbon.supervision.promises import Promise
from sbon.types import NodeId, QueryId
from sbon.wire.ownership import Holder

FORMAT = 1
KEPT_BYTES_MAX = 32 * 2**20
"""Most bytes kept: the names of one agent take 4 MiB at most, the rest is queries."""
PEERS_MAX = 8
"""Most addresses of other agents that are kept, to learn from these agents after a restart."""
TOGETHER_MAX = 4
"""Queries that are submitted at once; the others follow in the order in which they were first submitted."""
MISSING_S = 60.0
"""Longest wait for the nodes that a query used, in seconds, from when other agents' tables are known. Without these nodes the query would
have fewer sources."""
RETRY_S_MIN = 1.0
RETRY_S_MAX = 60.0
"""Longest pause before a query that could not be placed is submitted again; pauses double up to it."""

ASK_OWNERS_S = 2.0
"""Pause before other agents are asked again whether they own a query, as long as some of them keep it."""


class KeptQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query that an agent keeps over its restart."""

    id: QueryId
    """Id under which other agents last knew it."""
    sql: str
    sink: str = ""
    """The sink's name; empty: a plain query."""
    nodes: tuple[NodeId, ...] = ()
    """Nodes to which its operators were pinned."""
    former: QueryId = ""
    """Id that it had before the restart."""
    finished: bool = False
    holders: tuple[tuple[Holder, ...], ...] = ()
    """Sets of holders of its record, including this agent; empty if no other agent ever had the record (docs/recovery.md, Ownership)."""
    dropped: bool = False
    """True if it had only operators left that other queries use. It does not start again; a keeper of its record takes it over."""
    changed: Changed = UNCHANGED
    """Choices that were made for its plan."""
    sizings: tuple[Sizing, ...] = ()
    """The numbers of instances that the planner had chosen for it, and the figures that they rest on."""
    record: bytes = b""
    """Its record, if others used its operators. If no agent keeps the query, these operators live on under its id."""
    first: QueryId = ""
    """Id under which it was submitted, if it has started again since."""

    @property
    def first_id(self) -> QueryId:
        """Returns the id under which it was submitted."""
        return self.first or self.id


class GivenSink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sink that was named by a statement given over the agent's control socket."""

    query: QueryId
    connector: str
    options: tuple[tuple[str, str], ...] = ()
    """All options but the mode."""


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that an agent keeps."""

    format: int
    agent: NodeId
    """Name of the agent; to an agent of another name the rest is meaningless."""
    entries: tuple[Entry, ...] = ()
    """Catalogue entries made by this agent, tombstones included."""
    declared: tuple[SourceParams, ...] = ()
    """Sources whose definitions were given over its control socket."""
    queries: tuple[KeptQuery, ...] = ()
    """Queries in the order in which they were submitted."""
    peers: tuple[str, ...] = ()
    """HOST:PORT of some members."""
    sinks: tuple[GivenSink, ...] = ()
    """Sinks of queries that were given over its control socket."""
    promises: tuple[Promise, ...] = ()
    """Ownership epochs of queries that it has promised."""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Kept)


def encode_kept(kept: Kept) -> bytes:
    """Returns the bytes of a file.

    Raises
    ------
    ValueError
        The file would exceed KEPT_BYTES_MAX.
    """
    data = _ENCODER.encode(kept) + b"\n"
    if len(data) > KEPT_BYTES_MAX:
        raise ValueError(f"it would have {len(data)} bytes, expected at most {KEPT_BYTES_MAX}; drop queries and names that are not used")
    return data


def decode_kept(data: bytes) -> Kept:
    """Decodes the bytes of `encode_kept`.

    Raises
    ------
    ValueError
        The bytes are something else, or were written by a later release.
    """
    try:
        kept = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise ValueError(f"it does not decode: {problem}") from problem
    if kept.format != FORMAT:
        raise ValueError(f"it has format {kept.format}, expected {FORMAT}")
    return kept


class Renamed(msgspec.Struct, frozen=True):
    """A query has a new id, of the present process."""

    query: KeptQuery
    lives_on: bool = False
    """True if operators may live on under its former id, because other queries use them."""


class Resume(msgspec.Struct, frozen=True):
    """Submit a query; call `failed` or `runs` afterwards."""

    query: KeptQuery


class LiveOn(msgspec.Struct, frozen=True):
    """Take up the operators of these queries that others used: no agent owns or keeps the queries."""

    queries: tuple[KeptQuery, ...]
    ended: frozenset[QueryId]
    """Former queries of this agent that nobody runs any more and nobody used; they no longer count as users of operators."""


class AskOwners(msgspec.Struct, frozen=True):
    """Ask all agents which of these queries they own or keep, and for their promises; call `decided` afterwards."""

    queries: Mapping[QueryId, tuple[tuple[Holder, ...], ...]]
    """The holders of each query's record."""
    firsts: Mapping[QueryId, QueryId]
    """The ids under which the queries were submitted that are to start again."""


class Taken(msgspec.Struct, frozen=True):
    """A query is not run again, because another agent has dropped or replaced it."""

    query: KeptQuery
    why: str


Action: TypeAlias = Renamed | Resume | LiveOn | AskOwners | Taken


class Waiting(msgspec.Struct):
    """A kept query that does not run yet."""

    query: KeptQuery
    reason: str
    due_s: float
    tries: int = 0
    trying: bool = False
    is_renamed: bool = False
    lacks_nodes: bool = False
    """True if some nodes that it used were not alive at the last look, or if its name was not known."""


class Resumption:
    """The kept queries of one agent, from its start until they run.

    Parameters
    ----------
    queries : in the order in which they are submitted
    now : time of the start
    hear_s : longest wait for other agents' tables; 0: there are no other agents
    inherits : whether other agents take queries over; if so, they are asked before a query runs
    """

    def __init__(
        self, queries: Iterable[KeptQuery], now: float, hear_s: float, rng: np.random.Generator, *, inherits: bool = False
    ) -> None:
        self._rng = rng
        self._waiting = {
            query.id: Waiting(query, "waits to hear from other agents what has been dropped meanwhile", now)
            for query in queries
            if inherits or query.record or not query.dropped
        }
        asked = [waiting.query for waiting in self._waiting.values() if (inherits or waiting.query.record) and not waiting.query.finished]
        self.undecided = {query.id: "" if query.dropped else query.first_id for query in asked}
        """Queries of the former process that another agent may own, with the ids under which they were submitted. Empty: the query has been
        dropped and does not start again."""
        self._left: list[KeptQuery] = []
        """Queries whose operators others used, and that nobody keeps."""
        self._ended = {query for query, waiting in self._waiting.items() if not waiting.query.record} - self.undecided.keys()
        self._asking = False
        self._ask_due_s = now
        self._hear_until = now + hear_s
        self._has_heard = False
        self._missing_until = 0.0

    @property
    def queries(self) -> list[Waiting]:
        """Returns all queries that do not run yet, in order."""
        return list(self._waiting.values())

    def find(self, name: str) -> KeptQuery | None:
        """Returns a query by its id, its former id or its sink's name."""
        queries = [waiting.query for waiting in self._waiting.values()]
        return next((query for query in queries if name and name in (query.id, query.former, query.sink)), None)

    def find_short(self, name: str) -> KeptQuery | None:
        """Returns a query by an unambiguous prefix of its id."""
        found = [waiting.query for waiting in self._waiting.values() if is_short_for(name, waiting.query.id)]
        return found[0] if len(found) == 1 else None

    def forget(self, query: QueryId) -> bool:
        """Removes a query that a person has dropped, or that another agent owns. Returns whether it was known."""
        self.undecided.pop(query, None)
        return self._waiting.pop(query, None) is not None

    def decided(self, found: Mapping[QueryId, Outcome], now: float) -> None:
        """Takes the outcomes of claims: queries that nobody else owns or keeps may run, the others go on waiting."""
        self._asking, self._ask_due_s = False, now + ASK_OWNERS_S
        for query, outcome in found.items():
            waiting = self._waiting.get(query)
            if outcome is Outcome.FREE:
                self.undecided.pop(query, None)
                if waiting is not None and waiting.query.record:
                    self._left.append(waiting.query)
                else:
                    self._ended.add(query)
                if waiting is not None and waiting.query.dropped:
                    self.forget(query)
            elif outcome is Outcome.OVER:
                self._ended.add(query)
                self.forget(query)
            elif waiting is not None and outcome is Outcome.KEPT:
                waiting.reason = "agents that keep its record are about to take it over"
            elif waiting is not None:
                names = sorted({holder.name for holders in waiting.query.holders for holder in holders})
                waiting.reason = f"too few of {', '.join(names)} answer, who may have its record: it may run elsewhere"

    def runs(self, query: QueryId) -> bool:
        """Records that a submitted query runs. Returns False if it was dropped meanwhile and must be ended."""
        return self._waiting.pop(query, None) is not None

    def failed(self, query: QueryId, reason: str, now: float) -> None:
        """Records that a submitted query could not be placed."""
        waiting = self._waiting.get(query)
        if waiting is None:
            return
        waiting.trying = False
        pause_s = min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(waiting.tries, 10))
        waiting.tries += 1
        waiting.due_s = now + pause_s * float(self._rng.uniform(0.5, 1.0))
        waiting.reason = f"could not be placed again yet: {reason}"

    def hurry(self, now: float) -> None:
        """Ends pauses, because something has changed that a query may wait for: a member is alive, or a name is known."""
        for waiting in self._waiting.values():
            waiting.due_s = min(waiting.due_s, now)

    def heard(self, now: float) -> None:
        """Records that another agent's tables are known."""
        self._hear_until = min(self._hear_until, now)

    def look(
        self, now: float, alive: Collection[NodeId], latest: Callable[[str], Entry | None], new_id: Callable[[], QueryId]
    ) -> list[Action]:
        """Returns the actions that are due.

        Parameters
        ----------
        latest : the catalogue's entry of a name, living or tombstone
        new_id : makes an id of the present process
        """
        out: list[Action] = [LiveOn(tuple(self._left), frozenset(self._ended))] if self._left else []
        self._left.clear()
        # The name of a query that was taken over was entered by its former owner: this agent may not have heard of it yet.
        hears = not self._has_heard or now < self._missing_until
        unheard = {
            query
            for query, waiting in self._waiting.items()
            if waiting.query.sink and latest(waiting.query.sink) is None and (query in self.undecided or hears)
        }
        for query, waiting in list(self._waiting.items()):
            if query in unheard and query not in self.undecided:
                waiting.reason, waiting.lacks_nodes = f"waits to hear of the name {waiting.query.sink}", True
            elif query not in unheard and (why := taken(waiting.query, latest)):
                self.forget(query)
                out.append(Taken(waiting.query, why))
        if now < self._hear_until:
            return out
        if not self._has_heard:
            self._has_heard, self._missing_until = True, now + MISSING_S
        if self.undecided and not self._asking and self._ask_due_s <= now:
            self._asking = True
            asked = [self._waiting[query].query for query in sorted(self.undecided)]
            out.append(
                AskOwners({query.id: query.holders for query in asked}, {query: first for query, first in self.undecided.items() if first})
            )
        out += self._rename(new_id, unheard)
        room = TOGETHER_MAX - sum(waiting.trying for waiting in self._waiting.values())
        for waiting in self._waiting.values():
            if waiting.trying or waiting.query.finished or not waiting.is_renamed:
                continue
            missing = [node for node in waiting.query.nodes if node not in alive]
            waiting.lacks_nodes = bool(missing) and now < self._missing_until
            if waiting.lacks_nodes:
                waiting.reason = f"waits for {', '.join(missing)}, where it had operators: not alive"
            elif room > 0 and waiting.due_s <= now:
                room -= 1
                waiting.trying, waiting.reason = True, "is being placed again"
                out.append(Resume(waiting.query))
        return out

    def next_wake(self, now: float) -> float | None:
        """Returns when `look` is to be called again at the latest; None: not before something has changed."""
        if self._has_heard and self.undecided and not self._asking:
            return self._ask_due_s
        pending = [
            waiting
            for query, waiting in self._waiting.items()
            if not waiting.trying and not waiting.query.finished and query not in self.undecided
        ]
        if not pending:
            return None if self._has_heard or not self._waiting else self._hear_until
        if not self._has_heard:
            return self._hear_until
        instants = [self._missing_until if waiting.lacks_nodes else waiting.due_s for waiting in pending]
        return min((instant for instant in instants if instant > now), default=None)  # the others wait for those that are being tried

    def _rename(self, new_id: Callable[[], QueryId], unheard: Collection[QueryId]) -> list[Action]:
        before, self._waiting = self._waiting, {}
        out: list[Action] = []
        for query, waiting in before.items():
            if waiting.is_renamed or query in self.undecided or query in unheard:
                self._waiting[query] = waiting
                continue
            waiting.is_renamed = True
            old, fresh = waiting.query, new_id()
            waiting.query = msgspec.structs.replace(old, id=fresh, former=old.id, first=old.first_id, holders=(), record=b"")
            waiting.reason = "had finished before its home restarted" if old.finished else "waits for its turn"
            self._waiting[fresh] = waiting
            out.append(Renamed(waiting.query, lives_on=bool(old.record)))
        return out


def taken(query: KeptQuery, latest: Callable[[str], Entry | None]) -> str:
    """Describes who has dropped or replaced a query, according to the catalogue; empty if nobody has, or if it only serves others."""
    if query.dropped:
        return ""
    if not query.sink:
        graves = [entry for entry in (latest(query.id), latest(query.former)) if entry is not None and entry.dropped]
        return f"{graves[0].owner} has dropped it" if graves else ""
    entry = latest(query.sink)
    if entry is None:
        return f"the name {query.sink} has been forgotten everywhere"
    if entry.dropped:
        return f"{entry.owner} has dropped {query.sink}"
    return f"{entry.owner} has made another {entry.kind} {query.sink}" if entry.query != query.id else ""


def taking_up(plan: Plan) -> Plan:
    """Returns the plan with file sinks that continue the files of a former process of the agent, instead of replacing them."""
    operators = []
    for spec in plan.operators:
        params = spec.params
        if isinstance(params, SinkParams) and params.connector == "file" and ("mode", "replace") in params.options:
            options = tuple(("mode", "resume") if option == ("mode", "replace") else option for option in params.options)
            spec = msgspec.structs.replace(spec, params=msgspec.structs.replace(params, options=options))
        operators.append(spec)
    return msgspec.structs.replace(plan, operators=tuple(operators))


def given_sink(query: QueryId, params: SinkParams) -> GivenSink:
    """Returns a sink as it is remembered. The mode is left out, because a sink that goes on after a crash has another one."""
    return GivenSink(query, params.connector, tuple(option for option in params.options if option[0] != "mode"))
