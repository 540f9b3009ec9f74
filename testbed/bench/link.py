"""`sbon bench link`: what a link between two agents carries, and how soon.

Two real agents in processes of their own, sealed TCP on loopback. *Flood*: rows of (int64, int64, float64) made in memory on one agent
without a pause, counted by the sink on the other. *Steady*: the same way at 100,000 rows/s, each row with when it was made, which
the sink compares with its clock. *Lone*: one message after the other comes to the first agent over TCP, with the instant at which it was
written, and goes on to the sink. All settings but the optimiser's and the telemetry's, which are off, are the defaults.
"""

import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from sbon.cli.output import Column, count, number, print_table
from sbon.errors import ConfigError, SbonError
from sbon.telemetry.digest import quantile
from testbed.bench.agents import BenchAgent, agents
from testbed.processes.local import free_ports

NAMES = ("a", "b")
ROW_BYTES = 24
SETTINGS = """
telemetry = { parquet = false }
optimiser = { enabled = false }
log = { level = "warning" }
"""
STEADY_ROWS_PER_S = 100_000
LONE_ROWS_PER_S = 50
LONE_SECONDS_MIN = 10.0
"""Five hundred messages, so that there is a 99th percentile."""
BATCH_ROWS = 131_072
"""Of the flood: 3 MiB, as much as a quantum takes (`engine.quantum_rows`)."""
FIRST_ROWS_TIMEOUT_S = 60.0
WARM_S = 1.0
"""Left out before each measurement: loading of libraries, the first batches, the buffers' growth."""
SECONDS_MIN = 0.5
_LOOK_S = 0.02

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
LONE = """
CREATE SOURCE lone (ts TIMESTAMP, key BIGINT) WITH (connector = 'tcp', nodes = 'a', port = {port});
CREATE SINK arrived FROM (SELECT ts, key FROM lone) WITH (connector = 'discard', node = 'b', latency_column = 'ts');
"""


def measure(seconds: float, runs: int, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Medians over the runs.

    Raises
    ------
    ConfigError
        Too little time, or no runs.
    SbonError
        An agent does not start, or dies.
    """
    if not seconds >= SECONDS_MIN:
        raise ConfigError(f"--seconds {seconds:g}, expected at least {SECONDS_MIN:g}")
    if runs < 1:
        raise ConfigError(f"--runs {runs}, expected at least 1")
    found = []
    for run in range(1, runs + 1):
        progress(f"run {run} of {runs}")
        found.append(_run(seconds))
    medians = {name: round(float(np.median([one[name] for one in found])), 3) for name in found[0]}
    return {"seconds": seconds, "runs": runs, "machine_cores": os.cpu_count(), **medians}


def show(result: dict[str, Any]) -> None:
    """The result as a table for people."""
    columns = (Column("way"), *(Column(title, right=True) for title in ("rows/s", "MiB/s", "CPU cores", "p50 ms", "p99 ms")))
    flood = ["flood", count(result["rows_per_s"]), number(result["mib_per_s"], 0), number(result["cores"], 2), "", ""]
    rows = [flood]
    for title, rate, name in (("steady", STEADY_ROWS_PER_S, "latency"), ("lone", LONE_ROWS_PER_S, "lone")):
        rows.append([title, count(rate), "", "", number(result[f"{name}_p50_ms"], 2), number(result[f"{name}_p99_ms"], 2)])
    print_table(columns, rows)


def _run(seconds: float) -> dict[str, float]:
    with agents(NAMES, SETTINGS) as pair:
        flood = _flood(pair, seconds)
    with agents(NAMES, SETTINGS) as pair:
        steady = _latency(pair, STEADY_ROWS_PER_S, seconds)
    with agents(NAMES, SETTINGS) as pair:
        lone = _lone(pair, max(seconds, LONE_SECONDS_MIN))
    return {
        **flood,
        "latency_p50_ms": steady[0],
        "latency_p99_ms": steady[1],
        "lone_p50_ms": lone[0],
        "lone_p99_ms": lone[1],
    }


def _flood(pair: dict[str, BenchAgent], seconds: float) -> dict[str, float]:
    pair["a"].client.ask("submit", sql=FLOOD.format(batch_rows=BATCH_ROWS))
    _wait_for_rows(pair["b"], 1)
    time.sleep(WARM_S)
    used, rows, began = sum(agent.cpu_s() for agent in pair.values()), _rows(pair["b"]), time.monotonic()
    time.sleep(seconds)
    rows, took_s = _rows(pair["b"]) - rows, time.monotonic() - began
    used = sum(agent.cpu_s() for agent in pair.values()) - used
    return {"rows_per_s": rows / took_s, "mib_per_s": rows / took_s * ROW_BYTES / 2**20, "cores": used / took_s}


def _latency(pair: dict[str, BenchAgent], rate: int, seconds: float) -> tuple[float, float]:
    """Median and 99th percentile from creation to the sink, in ms."""
    pair["a"].client.ask("submit", sql=TIMED.format(rate=rate))
    _wait_for_rows(pair["b"], max(1, round(rate * WARM_S)))
    before = _ages(pair["b"])
    time.sleep(seconds)
    return _quantiles(before, _ages(pair["b"]), seconds)


def _lone(pair: dict[str, BenchAgent], seconds: float) -> tuple[float, float]:
    """The same for messages that come one by one from outside."""
    port = free_ports(1)[0]
    pair["a"].client.ask("submit", sql=LONE.format(port=port))
    with _connected(port) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _write(line, WARM_S)
        _wait_for_rows(pair["b"], 1)
        before = _ages(pair["b"])
        _write(line, seconds)
        _wait_for_rows(pair["b"], round(WARM_S * LONE_ROWS_PER_S) + round(seconds * LONE_ROWS_PER_S))
    return _quantiles(before, _ages(pair["b"]), seconds)


def _connected(port: int) -> socket.socket:
    deadline = time.monotonic() + FIRST_ROWS_TIMEOUT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=FIRST_ROWS_TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise SbonError(f"the source does not listen on port {port} within {FIRST_ROWS_TIMEOUT_S:g} s") from None
            time.sleep(_LOOK_S)


def _write(line: socket.socket, seconds: float) -> None:
    """A row now and then, each with the instant of its writing."""
    for key in range(round(seconds * LONE_ROWS_PER_S)):
        time.sleep(1 / LONE_ROWS_PER_S)
        ts = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
        line.sendall(f'{{"ts": "{ts}", "key": {key}}}\n'.encode())


def _quantiles(before: dict[int, int], after: dict[int, int], seconds: float) -> tuple[float, float]:
    fresh = {bucket: rows - before.get(bucket, 0) for bucket, rows in after.items()}
    if not any(fresh.values()):
        raise SbonError(f"no row has come over the link within {seconds:g} s")
    return quantile(fresh, 0.5), quantile(fresh, 0.99)


def _ages(agent: BenchAgent) -> dict[int, int]:
    """What the sinks have measured so far."""
    sinks = (operator for operator in agent.client.ask("operators") if operator["kind"] == "sink")
    return {number: rows for sink in sinks for number, rows in sink["latency"]["buckets"]}


def _wait_for_rows(agent: BenchAgent, rows: int) -> None:
    deadline = time.monotonic() + FIRST_ROWS_TIMEOUT_S
    while _rows(agent) < rows:
        if time.monotonic() > deadline:
            raise SbonError(f"no row has come over the link within {FIRST_ROWS_TIMEOUT_S:g} s")
        time.sleep(_LOOK_S)


def _rows(agent: BenchAgent) -> int:
    """Rows that the agent's sinks have taken."""
    return sum(operator["rows_in"] for operator in agent.client.ask("operators") if operator["kind"] == "sink")
