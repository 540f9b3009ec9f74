"""`sbon bench link`: throughput and latency of a link between two agents.

Two real agents in separate processes are connected by sealed TCP on loopback. *Flood*: one agent makes rows of (int64, int64, float64) in
memory without a pause, and the sink on the other agent counts them. *Steady*: the same link at 100,000 rows/s; each row has its creation
time, which the sink compares with its clock. *Lone*: one message after the other (`sbon_testbed.bench.lone`). Optimiser and telemetry are
off; all other settings are the defaults.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sbon.cli.output import count, number, print_table
from sbon.cli.tables import Column
from sbon.errors import UsageError
from sbon_testbed.bench import lone
from sbon_testbed.bench.agents import BenchAgent, agents
from sbon_testbed.bench.percentiles import Buckets, pooled
from sbon_testbed.bench.sinks import ages, came, rows_taken, wait_for_rows
from sbon_testbed.ranges import check_seconds

NAMES = ("a", "b")
ROW_BYTES = 24
SETTINGS = """
telemetry = { parquet = false }
optimiser = { enabled = false }
log = { level = "warning" }
"""
STEADY_ROWS_PER_S = 100_000
BATCH_ROWS = 131_072
"""Rows of a batch of the flood: 3 MiB, the most that a quantum processes (`engine.quantum_rows`)."""
WARM_S = 1.0
"""Seconds to skip before each measurement, in which libraries load, first batches pass and buffers grow."""
SECONDS_MIN = 0.5

FLOOD = """
CREATE SOURCE flood (key BIGINT, number BIGINT, value DOUBLE) WITH (connector = 'datagen', nodes = 'a', rows_per_second = 'max',
  fields.key.kind = 'zipf', fields.key.count = 1000, fields.number.kind = 'sequence', pool_rows = 1048576, batch_rows_max = {batch_rows});
CREATE SINK drain FROM (SELECT key, number, value FROM flood) WITH (connector = 'discard', node = 'b');
"""
TIMED = """
CREATE SOURCE timed (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = 'a', rows_per_second = {rate});
CREATE SINK arrived FROM (SELECT ts, key, value FROM timed) WITH (connector = 'discard', node = 'b', latency_column = 'ts');
"""


def measure(seconds: float, runs: int, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Returns medians over the runs; percentiles are over the rows of all runs.

    Raises
    ------
    UsageError
        Too little time, or no runs.
    SbonError
        An agent does not start, or dies.
    """
    check_seconds("--seconds", seconds, SECONDS_MIN)
    if runs < 1:
        raise UsageError(f"--runs {runs}, expected at least 1")
    found = [_run(seconds, progress, f"run {run} of {runs}") for run in range(1, runs + 1)]
    flood, times = zip(*found, strict=True)
    result = {"seconds": seconds, "runs": runs, "machine_cores": os.cpu_count()}
    result |= {name: round(float(np.median([one[name] for one in flood])), 3) for name in flood[0]}
    for name in times[0]:
        middle, far = pooled([one[name] for one in times])
        result |= {f"{name}_p50_ms": round(middle, 3), f"{name}_p99_ms": None if far is None else round(far, 3)}
    return result


def show(result: dict[str, Any]) -> None:
    """Prints the result as a table."""
    columns = (Column("way"), *(Column(title, right=True) for title in ("rows/s", "MiB/s", "CPU cores", "p50 ms", "p99 ms")))
    flood = ["flood", count(result["rows_per_s"]), number(result["mib_per_s"], 0), number(result["cores"], 2), "", ""]
    rows = [flood]
    alone = [(title.replace("_", ", "), rate, title) for title, rate in lone.PACES.items()]
    read = [(f"{title}, to a program", rate, f"{name}_tcp") for title, rate, name in alone if name in lone.TCP_PACES]
    bare = [(f"{title}, bare line", rate, f"{name}_bare") for title, rate, name in alone]
    for title, rate, name in [("steady", STEADY_ROWS_PER_S, "latency"), *alone, *read, *bare]:
        rows.append([title, count(rate), "", "", number(result[f"{name}_p50_ms"], 2), number(result[f"{name}_p99_ms"], 2)])
    print_table(columns, rows)


def _run(seconds: float, progress: Callable[[str], None], run: str) -> tuple[dict[str, float], dict[str, Buckets | list[float]]]:
    """Returns the figures of the flood, and the latencies of rows in the other measurements."""
    progress(f"{run}: flood")
    with agents(NAMES, SETTINGS) as pair:
        flood = _flood(pair, seconds)
    progress(f"{run}: {STEADY_ROWS_PER_S:,} rows/s")
    with agents(NAMES, SETTINGS) as pair:
        steady = _latency(pair, STEADY_ROWS_PER_S, seconds)
    progress(f"{run}: messages one after the other, which takes half a minute or more")
    with agents(NAMES, SETTINGS) as pair:
        alone = lone.measure(pair, seconds)
    return flood, {"latency": steady, **alone}


def _flood(pair: dict[str, BenchAgent], seconds: float) -> dict[str, float]:
    pair["a"].client.ask("submit", sql=FLOOD.format(batch_rows=BATCH_ROWS))
    wait_for_rows(pair["b"], 1)
    time.sleep(WARM_S)
    used, rows, began = sum(agent.cpu_s() for agent in pair.values()), rows_taken(pair["b"]), time.monotonic()
    time.sleep(seconds)
    rows, took_s = rows_taken(pair["b"]) - rows, time.monotonic() - began
    used = sum(agent.cpu_s() for agent in pair.values()) - used
    return {"rows_per_s": rows / took_s, "mib_per_s": rows / took_s * ROW_BYTES / 2**20, "cores": used / took_s}


def _latency(pair: dict[str, BenchAgent], rate: int, seconds: float) -> Buckets:
    """Returns the latencies of rows from creation to the sink, as buckets."""
    pair["a"].client.ask("submit", sql=TIMED.format(rate=rate))
    wait_for_rows(pair["b"], max(1, round(rate * WARM_S)))
    before = ages(pair["b"])
    time.sleep(seconds)
    return came(before, ages(pair["b"]), seconds)
