"""The result of a run as plain values, with the same keys for every world.

In the virtual world the result depends on the scenario and the seed alone: it has no wall times and no paths, so that two runs write
identical files.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from sbon.errors import SbonError
from sbon_testbed import report
from sbon_testbed.backend import Backend
from sbon_testbed.director import Asked, Director
from sbon_testbed.scenario import Scenario

RESULT_VERSION = 1


def result_of(director: Director, backend_name: str, seed: int) -> dict[str, Any]:
    """Returns all measurements as plain values in a fixed order; `problems` is empty if all went as expected."""
    backend, scenario = director.backend, director.scenario
    overlay = report.running(backend)
    queries = _queries(backend, director.asked)
    seen = report.members(backend)
    coordinates = report.coordinate_errors(backend)
    statements = [_statement_result(asked, queries, scenario.expect.sums.get(asked.name, {})) for asked in director.asked]
    migrations = sum(operator.migrations for operator in overlay.operators.values())
    # A scenario's expectations hold for its whole length only.
    whole = director.duration_s >= scenario.duration_s
    problems = director.problems + (_unmet(scenario, seen, coordinates, statements, migrations) if whole else [])
    return {
        "version": RESULT_VERSION,
        "scenario": scenario.name,
        "backend": backend_name,
        "seed": seed,
        "duration_s": director.duration_s,
        "nodes": len(backend.topology.nodes),
        "topology": {"kind": backend.topology.kind, "median_rtt_ms": float(np.median(backend.topology.rtt_ms))},
        "events": director.happened,
        "skipped": director.skipped,
        "members": seen,
        "coordinates": coordinates | {"median_relative_error_over_time": director.curve},
        "statements": statements,
        "placements": {operator.id: operator.node for operator in overlay.operators.values()},
        "migrations": {
            "total": migrations,
            "by_operator": {operator.id: operator.migrations for operator in overlay.operators.values() if operator.migrations},
        },
        "network_usage_bytes": report.network_usage(backend, overlay),
        "links": {link.id: {"sent": link.sent, "received": link.received} for link in overlay.links.values()},
        "counters": {"agents": report.summed_counters(backend), "world": backend.counters()},
        "expectations_checked": whole,
        "problems": problems,
    }


def _queries(backend: Backend, asked: list[Asked]) -> dict[str, dict[str, Any]]:
    """Returns the queries by id, as reported by the agents that took them."""
    found: dict[str, dict[str, Any]] = {}
    for agent in sorted({one.agent for one in asked if one.query}):
        # An agent also lists queries of other owners, but its knowledge of them is older than the owner's.
        with suppress(SbonError):
            found.update({row["id"]: row for row in backend.ask(agent, "queries") if row.get("owner", agent) == agent})
    return found


def _statement_result(asked: Asked, queries: Mapping[str, Mapping[str, Any]], summed: Iterable[str]) -> dict[str, Any]:
    query = queries.get(asked.query, {})
    tail = asked.tail
    return {
        "name": asked.name,
        "agent": asked.agent,
        "at_s": asked.at_s,
        "query": asked.query,
        "state": query.get("state"),
        "reason": query.get("reason"),
        "error": asked.error,
        "operators": [
            {key: operator.get(key) for key in ("id", "kind", "node", "reused", "lost")} for operator in query.get("operators", ())
        ],
        "rows": len(tail.rows) if tail else None,
        "rows_sha256": report.rows_digest(tail) if tail else None,
        "sums": {column: report.column_sum(tail, column) for column in summed} if tail else {},
        "late_rows": query.get("late_rows"),
    }


def _unmet(
    scenario: Scenario, seen: Mapping[str, Any], coordinates: Mapping[str, Any], statements: list[dict[str, Any]], migrations: int
) -> list[str]:
    """Returns the expectations that do not hold, as sentences."""
    expect, found = scenario.expect, {statement["name"]: statement for statement in statements}
    unmet = []
    error = coordinates["median_relative_error"]
    if expect.coordinate_error_median_max is not None and (error is None or error > expect.coordinate_error_median_max):
        unmet.append(f"median relative error of the coordinates is {error}, expected at most {expect.coordinate_error_median_max}")
    if expect.members_agree and not seen["agree"]:
        unmet.append("the living agents do not agree on who is alive")
    if expect.migrations_min is not None and migrations < expect.migrations_min:
        unmet.append(f"{migrations} migrations, expected at least {expect.migrations_min}")
    for name, least in expect.rows_min.items():
        rows = found.get(name, {}).get("rows") or 0
        if rows < least:
            unmet.append(f"statement {name} gave {rows} rows, expected at least {least}")
    for name, count in expect.rows.items():
        if (rows := found.get(name, {}).get("rows") or 0) != count:
            unmet.append(f"statement {name} gave {rows} rows, expected exactly {count}")
    for name, sums in expect.sums.items():
        for column, total in sums.items():
            if (got := found.get(name, {}).get("sums", {}).get(column)) != total:
                unmet.append(f"statement {name} gave rows whose {column} adds up to {got}, expected {total}")
    for name, state in expect.states.items():
        if found.get(name, {}).get("state") != state:
            unmet.append(f"the query of statement {name} is {found.get(name, {}).get('state')}, expected {state}")
    return unmet
