"""`sbon bench migrate`: for how long nothing arrives at a sink while an operator moves to another agent with its state.

Four agents run in separate processes, connected by sealed TCP on loopback; all round trips are those of `--rtt`. One agent has the sources,
two take turns as host of a join, and one has the sink, which writes to this process by TCP. The join pairs the rows of two streams,
together 10,000 rows/s. Its state is rows of the far future, which it holds; a third, slow stream asks for some of them again and again, so
that the moved state must give answers. The result is the longest gap between two arrivals here during the migration, less the median gap
in the seconds before it. Optimiser and telemetry are off; all other settings are the defaults. Every answer must arrive once with the right
values, and held rows must give answers after each migration (`sbon_testbed.bench.pairs`).
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sbon.cli.client import ControlClient
from sbon.cli.output import count, number, print_table
from sbon.cli.tables import Column
from sbon.control import SOCKET_NAME
from sbon.errors import SbonError, UsageError
from sbon_testbed.bench.agents import BenchAgent, agents
from sbon_testbed.bench.pairs import Arrivals, Held, problem_of

HOSTS = ("here", "there")
NAMES = ("sources", *HOSTS, "sink")
SETTINGS = """
telemetry = { parquet = false }
optimiser = { enabled = false }
log = { level = "warning" }
"""
ROWS_PER_S = 10_000
"""Rows per second of both streams together."""
ROW_BYTES = 24
"""Bytes of a held row: its time, key and value."""
STEADY_S = 2.0
"""Seconds to measure before and after each migration."""
TIMEOUT_S = 120.0
RTT_MS_MAX = 5_000
UNITS = {"B": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}

ASKED_PER_S = 50
"""Held rows that are asked for per second."""
SETTLE_S = 10.0
"""Seconds to wait for missing answers, which others may have overtaken."""

SQL = """
CREATE SOURCE later (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'sources',
  rows = {rows}, rows_per_second = 'max', event_rows_per_second = 1000000000, start = '2100-01-01T00:00:00',
  fields.key.kind = 'sequence', fields.key.start = -1, fields.key.step = -1,
  fields.value.kind = 'sequence', fields.value.start = -1, fields.value.step = -1);
CREATE SOURCE asks (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'sources',
  rows_per_second = {asked}, event_rows_per_second = 1000000000, start = '2100-01-01T00:00:00',
  fields.key.kind = 'sequence', fields.key.start = -1, fields.key.step = -{step}, fields.key.modulo = {cycle},
  fields.value.kind = 'sequence');
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'sources',
  rows_per_second = {rate}, start = '2026-01-01T00:00:00', fields.key.kind = 'sequence', fields.value.kind = 'sequence');
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'sources',
  rows_per_second = {rate}, start = '2026-01-01T00:00:00', fields.key.kind = 'sequence', fields.value.kind = 'sequence');
CREATE VIEW waiting AS SELECT ts, key, value FROM later UNION ALL SELECT ts, key, value FROM l;
CREATE VIEW asking AS SELECT ts, key, value FROM asks UNION ALL SELECT ts, key, value FROM r;
CREATE SINK pairs FROM (
  SELECT asking.key AS k, waiting.value AS v, asking.value AS n FROM waiting JOIN asking ON waiting.key = asking.key
    AND asking.ts BETWEEN waiting.ts - INTERVAL '10 milliseconds' AND waiting.ts + INTERVAL '10 milliseconds'
) WITH (connector = 'tcp', node = 'sink', mode = 'connect', host = '127.0.0.1', port = '{port}');
"""
"""Rows of the year 2100 are a nanosecond apart, so all of them are within the join's interval."""


def measure(states: Sequence[str], rtts: Sequence[str], runs: int, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Returns medians over the runs, for each size of state and each round trip.

    Raises
    ------
    UsageError
        A size or a round trip is invalid, or `runs` is below 1.
    SbonError
        An agent does not start, a migration fails, or rows are lost.
    """
    sizes = {name.strip(): size_of(name) for name in states}
    if runs < 1:
        raise UsageError(f"--runs {runs}, expected at least 1")
    rtts_ms = [_rtt_of(text) for text in rtts]
    result: dict[str, Any] = {"rows_per_s": ROWS_PER_S, "runs": runs, "machine_cores": os.cpu_count()}
    for rtt_ms in rtts_ms:
        found = {}
        for name, size in sizes.items():
            progress(f"{name} of state, round trips of {rtt_ms:g} ms")
            found[name] = _measure_one(size, rtt_ms, runs)
        if rtt_ms:
            result[f"rtt_{rtt_ms:g}ms"] = {"states": found}
        else:
            result["states"] = found
    return result


def size_of(text: str) -> int:
    """Returns the number of bytes in a text such as `1KB`.

    Raises
    ------
    UsageError
        The text is no size.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([KMG]?B)\s*", text, re.IGNORECASE)
    if match is None or not 1 <= int(match[1]) * UNITS[match[2].upper()] <= 10**10:
        raise UsageError(f"--states {text!r}, expected sizes such as 1KB,1MB,100MB")
    return int(match[1]) * UNITS[match[2].upper()]


def _rtt_of(text: str) -> float:
    try:
        rtt_ms = float(text)
    except ValueError:
        rtt_ms = -1.0
    if not 0 <= rtt_ms <= RTT_MS_MAX:
        raise UsageError(f"--rtt {text!r}, expected milliseconds such as 0,100, at most {RTT_MS_MAX}")
    return rtt_ms


def show(result: dict[str, Any], *, wide: bool = False) -> None:
    """Prints the result as a table."""
    columns = (
        Column("RTT ms", right=True),
        Column("state"),
        *(Column(title, right=True) for title in ("sent MB", "copied in s", "pause ms", "steady gap ms")),
        *(Column(title, right=True, wide=True) for title in ("as told ms", "rounds")),
    )
    rows = []
    for key, found in [("rtt_0ms", result)] + [(key, result[key]) for key in result if key.startswith("rtt_")]:
        for name, one in found.get("states", {}).items():
            rows.append(
                [
                    key.removeprefix("rtt_").removesuffix("ms"),
                    name,
                    number(one["state_bytes"] / 1e6, 2),
                    number(one["copy_s"], 2),
                    number(one["pause_ms"]),
                    number(one["steady_gap_ms"]),
                    number(one["told_pause_ms"]),
                    count(one["rounds"]),
                ]
            )
    print_table(columns, rows, wide=wide)


@contextmanager
def _arrivals() -> Iterator[Arrivals]:
    arrivals = Arrivals()
    try:
        yield arrivals
    finally:
        arrivals.close()


def _measure_one(size: int, rtt_ms: float, runs: int) -> dict[str, float]:
    with _arrivals() as arrivals, agents(NAMES, SETTINGS, rtt_ms=rtt_ms) as found:
        rows = max(1, size // ROW_BYTES)
        held = Held(rows)
        sql = SQL.format(rows=rows, asked=ASKED_PER_S, step=held.step, cycle=held.cycle, rate=ROWS_PER_S // 2, port=arrivals.port)
        found["sources"].client.ask("submit", sql=sql)
        host, join = _find(found, rows)
        if host not in HOSTS:
            _migrate(found, host, join, HOSTS[0])
            host = HOSTS[0]
        measured = []
        for _ in range(runs):
            there = HOSTS[1 - HOSTS.index(host)]
            measured.append(_move(found, arrivals, host, join, there))
            host = there
        _check(arrivals, held)
    return {name: round(float(np.median([one[name] for one in measured])), 3) for name in measured[0]}


def _check(arrivals: Arrivals, held: Held) -> None:
    """Checks that every answer up to now has arrived exactly once; waits up to `SETTLE_S` for missing ones.

    Raises
    ------
    SbonError
        An answer is missing, came twice, or is wrong.
    """
    seen = arrivals.answers()
    last = {held_one: max((n for k, _, n in seen if (k < 0) is held_one), default=-1.0) for held_one in (False, True)}
    deadline = time.monotonic() + SETTLE_S
    while problem := problem_of([answer for answer in arrivals.answers() if answer[2] <= last[answer[0] < 0]], held):
        if time.monotonic() > deadline:
            raise SbonError(problem)
        time.sleep(0.2)


def _find(found: dict[str, BenchAgent], rows: int) -> tuple[str, str]:
    """Returns host and id of the join, once it holds `rows` rows."""
    deadline = time.monotonic() + TIMEOUT_S
    held = 0
    while time.monotonic() < deadline:
        for name, agent in found.items():
            for operator in agent.client.ask("operators"):
                if operator["state"] == "failed":
                    raise SbonError(f"operator {operator['id']} has failed: {operator['reason']}")
                if "join" in operator["kind"]:
                    held = operator["state_rows"]
                    if held >= rows:
                        return name, str(operator["id"])
        time.sleep(0.1)
    raise SbonError(f"the join holds {held} rows after {TIMEOUT_S:g} s, expected {rows}")


def _migrate(found: dict[str, BenchAgent], host: str, join: str, there: str) -> dict[str, Any]:
    with ControlClient(found[host].directory / SOCKET_NAME, TIMEOUT_S) as client:
        record: dict[str, Any] = client.ask("migrate", operator=join, node=there)
    if not record["committed"]:
        raise SbonError(f"the join has not moved from {host} to {there}: {record['outcome']}")
    return record


def _move(found: dict[str, BenchAgent], arrivals: Arrivals, host: str, join: str, there: str) -> dict[str, float]:
    """Makes one migration, and returns the gaps around it."""
    begin = time.monotonic()
    time.sleep(STEADY_S)
    asked = time.monotonic()
    record = _migrate(found, host, join, there)
    answered = len(arrivals.answers())
    time.sleep(STEADY_S)
    steady = np.diff(arrivals.times(begin, asked))
    # From the last arrival before the request to the first one after the end.
    during = np.diff(arrivals.times(asked - STEADY_S / 10, asked + record["seconds"] + STEADY_S / 2))
    if not len(steady) or not len(during):
        raise SbonError("nothing arrives at the sink")
    if not [k for k, _, _ in arrivals.answers()[answered:] if k < 0]:
        raise SbonError("no row in the join's moved state has given an answer since the migration")
    return {
        "pause_ms": max(0.0, float(during.max() - np.median(steady)) * 1000),
        "longest_gap_ms": float(during.max()) * 1000,
        "told_pause_ms": record["pause_s"] * 1000,
        "steady_gap_ms": float(np.median(steady)) * 1000,
        "steady_longest_gap_ms": float(steady.max()) * 1000,
        "state_bytes": record["state_bytes"],
        "copy_s": record["copy_s"],
        "rounds": record["rounds"],
        "seconds": record["seconds"],
    }
