"""Rare events of a synthetic overlay: starts, members, queries and their placements, migrations, recoveries."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from sbon.telemetry.schema import TABLES
from sbon_testbed.telemetry.story import BEGIN, DOWN_S, Move, Query, Story, usage_at

NOTICED_S = 4.0
"""Seconds from a crash until the first agent declares the crashed agent failed; others follow."""
SUSPICIONS_PER_HOUR = 3
QUERY_PAUSE_S = 2.0
"""Seconds between the first queries."""


def events_of_hour(story: Story, begin_s: float, end_s: float) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yields the tables of an hour for kinds of rare rows."""
    rng = np.random.default_rng([int(begin_s), story.seed, 1])
    found: dict[str, list[dict[str, Any]]] = {
        "agents": _starts(story),
        "members": _members(story, begin_s, end_s, rng),
        "queries": [_query(story, number, query) for number, query in enumerate(story.queries)],
        "placements": [_placement(story, number, query) for number, query in enumerate(story.queries)],
        "recoveries": [_recovery(story, node, query) for node in story.down_s for query in story.queries if _lost(story, node, query)],
        "migrations": [_migration(story, move, rng) for move in story.moves if begin_s <= move.at_s < end_s],
    }
    for kind, rows in found.items():
        schema = {name: kind_of for name, kind_of in TABLES[kind].polars_schema().items() if rows and name in rows[0]}
        yield (
            kind,
            pl.DataFrame([row for row in rows if begin_s <= row["at_s"] < end_s], schema={"at_s": pl.Float64, "node": pl.Int64, **schema}),
        )


def _starts(story: Story) -> list[dict[str, Any]]:
    again = {node: at_s + DOWN_S for node, at_s in story.down_s.items()}
    return [
        {
            "at_s": at_s,
            "node": node,
            "event": "started",
            "address": f"10.0.{node // 250}.{node % 250 + 1}:7946",
            "labels": [{"key": key, "value": value} for key, value in sorted(story.topology.labels[node].items())],
            "release": "0.1.0",
        }
        for starts in (dict.fromkeys(range(len(story.topology.nodes)), 0.0), again)
        for node, at_s in starts.items()
    ]


def _members(story: Story, begin_s: float, end_s: float, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Returns crashes as seen by all other agents, and refuted suspicions."""
    agents = len(story.topology.nodes)
    changes: list[tuple[float, int, int, str, str]] = []
    for node, at_s in story.down_s.items():
        for observer in range(agents):
            if observer != node:
                noticed = at_s + NOTICED_S + rng.exponential(1.0)
                changes += [(noticed - 3.0, observer, node, "alive", "suspect"), (noticed, observer, node, "suspect", "failed")]
                changes.append((at_s + DOWN_S + 1.0 + rng.exponential(1.0), observer, node, "failed", "alive"))
    for _ in range(SUSPICIONS_PER_HOUR):
        at_s, observer = float(rng.uniform(begin_s, end_s - 5)), int(rng.integers(agents))
        member = (observer + 1) % agents
        changes += [(at_s, observer, member, "alive", "suspect"), (at_s + 2.0, observer, member, "suspect", "alive")]
    if begin_s == 0:
        changes += [(1.0 + rng.exponential(0.5), observer, member, "", "alive") for observer in range(agents) for member in range(agents)]
    return [
        {
            "at_s": at_s,
            "node": observer,
            "member": story.topology.nodes[member],
            "before": before or None,
            "after": after,
            "incarnation": 1,
        }
        for at_s, observer, member, before, after in changes
        if observer != member
    ]


def _asked_s(number: int) -> float:
    return 30.0 + QUERY_PAUSE_S * number % 1200


def _query(story: Story, number: int, query: Query) -> dict[str, Any]:
    return {
        "at_s": _asked_s(number),
        "node": query.consumer,
        "query": query.name,
        "name": query.name,
        "state": "running",
        "reason": "",
        "sink_node": story.topology.nodes[query.consumer],
        "operators": [
            {"operator": story.operators.name[operator], "node": _first_host(story, operator), "reused": operator == query.shared}
            for operator in _with_shared(query)
        ],
    }


def _placement(story: Story, number: int, query: Query) -> dict[str, Any]:
    mine = set(_with_shared(query))
    links = [link for link in story.links if link[1] in query.operators]
    operators = story.operators
    return {
        "at_s": _asked_s(number),
        "node": query.consumer,
        "query": query.name,
        "sql": f"SELECT window_start, COUNT(*) FROM TUMBLE(s{number}, ts, INTERVAL '5 seconds') GROUP BY window_start",
        "usage_bytes": usage_at(links, {operator: operators.moves[operator][0][1] for operator in mine}, story.quiet_ms),
        "usage_producer_bytes": None,
        "usage_consumer_bytes": None,
        "delay_ms": 100.0,
        "delay_bound_ms": None,
        "candidates_asked": 10,
        "rtts_measured": 50,
        "operators": [
            {
                "operator": operators.name[operator],
                "operator_kind": operators.kind[operator],
                "text": operators.kind[operator],
                "node": _first_host(story, operator),
                "pinned": operators.kind[operator] in ("source", "sink"),
                "reused": operators.name[operator] if operator == query.shared else None,
                "candidates": [],
            }
            for operator in _with_shared(query)
        ],
        "links": [
            {
                "link": f"{operators.name[source]}>{operators.name[target]}",
                "source": operators.name[source],
                "target": operators.name[target],
                "source_node": _first_host(story, source),
                "target_node": _first_host(story, target),
                "rows_per_s": operators.rate_out[source],
                "bytes_per_s": rate,
                "latency_ms": 10.0,
                "measured": True,
            }
            for source, target, rate in links
        ],
        "dropped": [],
    }


def _lost(story: Story, node: int, query: Query) -> list[int]:
    """Returns the operators of a query that a crash ends; none if the query's home crashes, because then no agent records the recovery."""
    at_s = np.array([story.down_s[node]])
    return [] if query.consumer == node else [one for one in query.operators if int(story.hosts(one, at_s)[0]) == node]


def _recovery(story: Story, node: int, query: Query) -> dict[str, Any]:
    """Returns the recovery of a query: its operators run again on their former host once that is back."""
    lost, name = _lost(story, node, query), story.topology.nodes[node]
    lost_s = story.down_s[node] + NOTICED_S
    begun_s = story.down_s[node] + DOWN_S + 1.0 + 0.01 * len(query.operators)
    done_s = begun_s + 0.3 * len(lost)
    kinds = story.operators.kind
    return {
        "at_s": done_s,
        "node": query.consumer,
        "query": query.name,
        "operators": [
            {
                "operator": story.operators.name[one],
                "operator_kind": kinds[one],
                "from_node": name,
                "to_node": name,
                "state_lost": kinds[one] == "window",
                "rows_lost": int(story.operators.rate_out[one]),
                "windows_lost": 2 if kinds[one] == "window" else 0,
            }
            for one in lost
        ],
        "epoch": 65_536,
        "attempts": len(lost),
        "lost_at": _at(lost_s),
        "placing_at": _at(begun_s),
        "fencing_at": _at(begun_s + 0.05),
        "making_at": _at(begun_s + 0.1),
        "beginning_at": None,
        "recovered_at": _at(done_s),
        "duration_ms": (done_s - lost_s) * 1000,
        "rows_lost": sum(int(story.operators.rate_out[one]) for one in lost),
        "rows_exact": all(kinds[one] == "map" for one in lost),
        "windows_lost": 2 if "window" in [kinds[one] for one in lost] else 0,
    }


def _migration(story: Story, move: Move, rng: np.random.Generator) -> dict[str, Any]:
    phases = move.at_s + np.cumsum(rng.exponential(0.05, 5))
    saving = 1 - move.after / move.before if move.before else 0.0
    there = story.topology.nodes[move.target]
    operator = story.operators.name[move.operator]
    return {
        # Recorded at the end of the migration, by the host that the operator leaves.
        "at_s": float(phases[4]),
        "node": move.source,
        "operator": operator,
        "queries": [story.queries[user].name for user in sorted(story.operators.users[move.operator])],
        "from_node": story.topology.nodes[move.source],
        "to_node": there,
        "committed": True,
        "reason": f"{there} saves {saving:.0%} of the cost of {move.before:.2g} bytes in transit, seen in 3 reviews; 10% required",
        "outcome": "",
        "asked_at": _at(move.at_s),
        "locked_at": _at(phases[0]),
        "prepared_at": _at(phases[1]),
        "paused_at": _at(phases[2]),
        "moved_at": _at(phases[3]),
        "ended_at": _at(phases[4]),
        "pause_ms": float(phases[4] - phases[2]) * 1000,
        "duration_ms": float(phases[4] - move.at_s) * 1000,
        "state_bytes": int(rng.integers(1000, 200_000)),
        "usage_before_bytes": move.before,
        "usage_after_bytes": move.after,
        "copied_at": _at(phases[2] - 0.1 * (phases[2] - phases[1])),
        "rounds": 1,
    }


def _at(at_s: float) -> datetime:
    return BEGIN + timedelta(seconds=float(at_s))


def _with_shared(query: Query) -> Sequence[int]:
    return query.operators if query.shared is None else (query.shared, *query.operators)


def _first_host(story: Story, operator: int) -> str:
    return story.topology.nodes[story.operators.moves[operator][0][1]]
