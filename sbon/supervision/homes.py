"""Homes of queries: whether a query's home answers for it, as one agent sees it, and how orphans are reported.

The home of a query is the agent that took it: it watches the query, shows it and ends it. A host that runs operators of a query sees its
home in one of these states:

    present    a member that is alive or only suspected, and the process that took the query
    restarted  alive, but another process: it does not know the query
    failed     declared failed; during a partition it may be alive
    left       has left in good order
    unknown    not a member, or not any more

A query whose home is not present is an *orphan*. Its operators run on, since a partition looks like a crash. They end when

- any agent is asked to drop the query: every host checks, in its own table or by asking the home, that nobody answers for it;
- the home is back as another process, and answers that it does not want the query;
- `engine.orphan_timeout_s` has passed, where it is set.

See docs/queries-without-a-home.md.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from sbon.execution.instance import Instance
from sbon.membership.members import Member, MemberStatus
from sbon.query.catalog import Entry
from sbon.query.text import describe
from sbon.supervision.owners import Owner
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire.ownership import Claims
from sbon.wire.replication import Orphan, OrphanOperator


class Doubt(msgspec.Struct, frozen=True):
    """A sink in the catalogue whose query has no home that answers at present."""

    query: QueryId
    why: str
    gone: bool
    """True if no home will ever answer: the name is free again. Otherwise the home may only be slow, or have crashed just now."""


class HomeState(Enum):
    """The state of a query's home."""

    PRESENT = "present"
    RESTARTED = "restarted"
    FAILED = "failed"
    LEFT = "left"
    UNKNOWN = "unknown"


def home_state(home: Member | None, boot: int | None) -> HomeState:
    """Returns the state of a query's home.

    Parameters
    ----------
    home : its row in the table of members; None if there is none
    boot : the process that took the query, or has taken it over; None: any
    """
    if home is None:
        return HomeState.UNKNOWN
    if home.status is MemberStatus.LEFT:
        return HomeState.LEFT
    if home.status is MemberStatus.FAILED:
        return HomeState.FAILED
    return HomeState.PRESENT if boot in (None, home.boot) else HomeState.RESTARTED


class OrphanFound(msgspec.Struct, frozen=True):
    """The home of a query that is served here has gone."""

    query: QueryId
    home: NodeId
    state: HomeState


class OrphanExpired(msgspec.Struct, frozen=True):
    """The home has been gone for so long that the query is to be ended."""

    query: QueryId
    home: NodeId
    seconds: float


class Orphans:
    """The orphans among the queries that one host serves.

    Invariants: `since` has exactly the orphans of the last `look`; `restarted` has those whose homes were back as other processes.
    """

    def __init__(self) -> None:
        self.since: dict[QueryId, float] = {}
        """Time at which the home of an orphan went, by this host's clock."""
        self.restarted: dict[QueryId, float] = {}
        """Time at which this host saw the home of an orphan back as another process."""

    def look(
        self, served: Mapping[QueryId, Owner], members: Mapping[NodeId, Member], now: float, timeout_s: float
    ) -> list[OrphanFound | OrphanExpired]:
        """Records which homes have gone or come back; returns what to report.

        Parameters
        ----------
        served : the owners of all queries that this host runs operators for
        timeout_s : time after which an orphan is ended; 0: never
        """
        out: list[OrphanFound | OrphanExpired] = []
        before, self.since = self.since, {}
        seen, self.restarted = self.restarted, {}
        for query, owner in served.items():
            home, member = owner.name, members.get(owner.name)
            state = home_state(member, owner.boot)
            if state is HomeState.PRESENT:
                continue
            if state is HomeState.RESTARTED:
                self.restarted[query] = seen.get(query, now)
            # The row of a failed member is dropped after a while, so the time that was seen first counts.
            went = member.since_s if member is not None and state is not HomeState.RESTARTED else now
            since = self.since[query] = before.get(query, went)
            if query not in before:
                out.append(OrphanFound(query, home, state))
            if 0 < timeout_s <= now - since:
                out.append(OrphanExpired(query, home, now - since))
        return out


def orphan_operator(instance: Instance) -> OrphanOperator:
    """Returns a host's description of an operator of an orphan."""
    kind = str(instance.spec.params.__struct_config__.tag)
    pinned = instance.spec.pinned is not None
    return OrphanOperator(OperatorId(instance.id), kind, describe(instance.spec.params), pinned, instance.figures.rows_in)


def orphan_rows(
    told: Mapping[NodeId, Iterable[Orphan]],
    known: Collection[QueryId],
    sinks: Iterable[Entry],
    states: Mapping[QueryId, HomeState],
    answered: Collection[NodeId],
) -> list[dict[str, Any]]:
    """Returns the rows of `sbon queries` for orphans: first those that hosts serve, then sinks that have only their names left.

    Parameters
    ----------
    told : orphans that each host serves
    known : the queries that have homes that answer
    sinks : catalogue entries of sinks, as they were when the homes were asked
    states : state of the home of each query of `told` and `sinks`, as this agent sees it; missing ones are unknown
    answered : the agents that were asked and have answered
    """
    names = {entry.query: entry for entry in sinks if entry.query}
    served: dict[QueryId, dict[NodeId, Orphan]] = {}
    for host, orphans in told.items():
        for orphan in orphans:
            served.setdefault(orphan.query, {})[host] = orphan
    rows = []
    for query in [*sorted(served), *sorted(set(names) - set(served))]:
        state, hosts = states.get(query, HomeState.UNKNOWN), served.get(query, {})
        home = next((orphan.home for orphan in hosts.values()), "") or names[query].owner
        if query in known or (state is HomeState.PRESENT and bool(hosts) == (home in answered)):
            # Left out where the home is present: queries that hosts serve although the home has answered, as they begin or end at this
            # moment, and bare names whose home has not answered.
            continue
        rows.append(_row(query, home, state, names.get(query), hosts))
    return rows


def _row(query: QueryId, home: NodeId, state: HomeState, entry: Entry | None, hosts: Mapping[NodeId, Orphan]) -> dict[str, Any]:
    operators = [(host, operator) for host, orphan in sorted(hosts.items()) for operator in orphan.operators]
    sink = next(((host, operator) for host, operator in operators if operator.kind == "sink"), None)
    seconds = max((orphan.seconds for orphan in hosts.values()), default=None)
    if state is HomeState.PRESENT and hosts:
        state = HomeState(next(iter(hosts.values())).state)  # its hosts do not hear from it, and this agent got no answer either
    name, sql = (entry.name, entry.sql) if entry is not None else (query, "")
    reason = reason_for(query, home, state, seconds, sorted(hosts), entry.name if entry is not None else "")
    return {
        **bare_row(query, name, "orphaned", reason, home, sql),
        "sink_node": sink[0] if sink is not None else None,
        "operators": [
            {
                "id": operator.id,
                "kind": operator.kind,
                "text": operator.text,
                "node": host,
                "pinned": operator.pinned,
                "reused": False,
                "lost": False,
            }
            for host, operator in operators
        ],
        "rows_out": sink[1].rows_in if sink is not None else 0,
    }


def still_doubted(doubts: Mapping[str, Doubt], found: Claims) -> dict[str, Doubt]:
    """Returns the doubts that remain, given the queries that agents own or keep. An owned query is in no doubt; a kept one is about to be
    taken over."""
    still = {name: doubt for name, doubt in doubts.items() if doubt.query not in found.owned}
    why = "agents that keep its record are about to take it over"
    kept = {name: Doubt(doubt.query, f"{doubt.why}, and {why}", gone=False) for name, doubt in still.items() if doubt.query in found.kept}
    return {**still, **kept}


def bare_row(query: QueryId, name: str, state: str, reason: str, home: NodeId, sql: str, former: QueryId = "") -> dict[str, Any]:
    """Returns the row of `sbon queries` for a query that is not known to run."""
    return {
        "id": query,
        "name": name,
        "former": former or None,
        "state": state,
        "reason": reason,
        "owner": home,
        "keepers": [],
        "ownership": None,
        "sql": sql,
        "sink_node": None,
        "operators": [],
        "rows_out": 0,
        "late_rows": 0,
        "lost_rows": 0,
        "dropped_rows": 0,
        "misfits": [],
        "network_usage": None,
        "delay_ms": None,
        "delay_bound_ms": None,
        "max_latency_ms": None,
        "after_crash": None,
        "prediction": None,
        "migrations": 0,
        "started_wall_s": None,
    }


def gone(home: NodeId, state: HomeState, seconds: float | None = None) -> str:
    """Describes what has become of a home.

    Examples
    --------
    >>> gone("ams", HomeState.FAILED, 45.2), gone("ams", HomeState.RESTARTED)
    ('its home ams failed 45 s ago', 'its home ams has restarted and does not know it')
    """
    ago = "" if seconds is None else f" {seconds:.0f} s ago"
    return {
        HomeState.PRESENT: f"its home {home} does not know it",
        HomeState.RESTARTED: f"its home {home} has restarted and does not know it",
        HomeState.FAILED: f"its home {home} failed{ago}" if ago else f"its home {home} has failed",
        HomeState.LEFT: f"its home {home} left{ago}" if ago else f"its home {home} has left",
        HomeState.UNKNOWN: f"its home {home} is no member any more",
    }[state]


def reason_for(query: QueryId, home: NodeId, state: HomeState, seconds: float | None, hosts: list[NodeId], sink: str) -> str:
    """Explains why a query is an orphan, and what to do about it.

    Examples
    --------
    >>> reason_for("ams.1t95lbp.01", "ams", HomeState.LEFT, 45.2, ["fra", "nyc"], "")
    'its home ams left 45 s ago; its operators on fra, nyc run on, and nobody watches them: `sbon drop ams.1t95lbp.01` ends them'
    >>> reason_for("ams.1t95lbp.01", "ams", HomeState.RESTARTED, None, [], "k")
    'its home ams has restarted and does not know it; nothing of it runs: CREATE SINK k makes it again, DROP SINK k forgets the name'
    """
    why = gone(home, state, seconds)
    if state is HomeState.FAILED:
        why += " and takes it up again when it is back"
    if not hosts:
        return f"{why}; nothing of it runs: CREATE SINK {sink} makes it again, DROP SINK {sink} forgets the name"
    remedy = f"DROP SINK {sink} ends them, CREATE SINK {sink} makes it again" if sink else f"`sbon drop {query}` ends them"
    return f"{why}; its operators on {', '.join(hosts)} run on, and nobody watches them: {remedy}"


def decode_rows(data: bytes) -> list[dict[str, Any]]:
    """Returns another agent's rows of `sbon queries`; none if they cannot be decoded."""
    try:
        return msgspec.msgpack.decode(data, type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def names_sink(sql: str, name: str) -> bool:
    """Tells whether a text seems to create or drop the sink. If this misses a name, the name is refused later as taken."""
    return re.search(rf'\bsink\s+(if\s+not\s+exists\s+)?"?{re.escape(name)}"?(?![\w$])', sql, re.IGNORECASE) is not None
