"""Reads from a benchmark's agents how many rows their sinks have taken, and how old these were."""

import time

from sbon.errors import SbonError
from sbon_testbed.bench.agents import BenchAgent

FIRST_ROWS_TIMEOUT_S = 60.0
LOOK_S = 0.02


def came(before: dict[int, int], after: dict[int, int], seconds: float) -> dict[int, int]:
    """Returns the rows that have come between two results of `ages`, `seconds` apart, by bucket of their age.

    Raises
    ------
    SbonError
        No row has come.
    """
    fresh = {bucket: rows - before.get(bucket, 0) for bucket, rows in after.items()}
    if not any(fresh.values()):
        raise SbonError(f"no row has come over the link within {seconds:g} s")
    return fresh


def ages(agent: BenchAgent) -> dict[int, int]:
    """Returns the rows that the agent's sinks have taken so far, by bucket of their age."""
    sinks = (operator for operator in agent.client.ask("operators") if operator["kind"] == "sink")
    return {number: rows for sink in sinks for number, rows in sink["latency"]["buckets"]}


def wait_for_rows(agent: BenchAgent, rows: int) -> None:
    """Waits until the agent's sinks have taken `rows` rows.

    Raises
    ------
    SbonError
        They have not after a minute.
    """
    deadline = time.monotonic() + FIRST_ROWS_TIMEOUT_S
    while rows_taken(agent) < rows:
        if time.monotonic() > deadline:
            raise SbonError(f"the sinks have taken {rows_taken(agent):,} of {rows:,} rows after {FIRST_ROWS_TIMEOUT_S:g} s")
        time.sleep(LOOK_S)


def rows_taken(agent: BenchAgent) -> int:
    """Returns the number of rows that the agent's sinks have taken."""
    return sum(operator["rows_in"] for operator in agent.client.ask("operators") if operator["kind"] == "sink")
