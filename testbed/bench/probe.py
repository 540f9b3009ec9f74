"""`sbon bench probe`: how a busy agent distorts the round trips that it measures, and so all coordinates.

Two real agents in separate processes probe each other on loopback. The samples are those that update their coordinates: each probe goes
through sockets, sealing and the membership machine, before any filter. First both agents are idle; then both run a generator without a
pause into a windowed aggregate, which keeps every operator thread busy and the interpreter's lock in demand.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sbon.cli.client import ControlClient
from sbon.cli.output import count, number, print_note, print_table
from sbon.cli.tables import Column
from sbon.errors import SbonError
from sbon.telemetry.rows import Probe
from sbon_agent.telemetry.spool import spooled
from sbon_testbed.bench.agents import BenchAgent, agents
from sbon_testbed.bench.percentiles import p99
from sbon_testbed.ranges import check_seconds

NAMES = ("a", "b")
INTERVAL_S = 0.04
"""Pause between probes of each agent: gives enough samples for a 99th percentile within seconds, for a hundredth of a core."""
WARM_S = 2.0
"""Seconds to skip before each phase, in which agents join, libraries load and the first batches pass."""
SECONDS_MIN = 2.0
RATIO_TARGET, MARGIN_TARGET_MS = 1.2, 0.05
"""The saturated median should be at most `RATIO_TARGET` times the idle median plus `MARGIN_TARGET_MS`."""

SETTINGS = f"""
membership = {{ interval_s = {INTERVAL_S} }}
telemetry = {{ flush_interval_s = 0.25, parquet = false }}
optimiser = {{ enabled = false }}
log = {{ level = "warning" }}
"""

LOAD = """
CREATE SOURCE load_{name} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{name}', rows_per_second = 'max', fields.key.min = 0, fields.key.max = 99);
CREATE SINK saturate_{name} FROM (
  SELECT window_end, key, avg(value) AS mean, count(*) AS n FROM TUMBLE(load_{name}, ts, INTERVAL '1 second') GROUP BY window_end, key
) WITH (connector = 'discard');
"""


def measure(seconds: float, progress: Callable[[str], None] = lambda text: None, *, sealed: bool = True) -> dict[str, Any]:
    """Measures both phases, each for half of the time.

    Raises
    ------
    SbonError
        The time is too short, or an agent does not start or dies.
    """
    check_seconds("--seconds", seconds, SECONDS_MIN)
    with agents(NAMES, SETTINGS, sealed=sealed) as pair:
        progress("idle agents")
        idle = _phase(pair, seconds / 2)
        for name in NAMES:
            pair[name].client.ask("submit", sql=LOAD.format(name=name))
        progress("agents with all operator threads busy")
        saturated = _phase(pair, seconds / 2)
    allowed_ms = RATIO_TARGET * idle["median_ms"] + MARGIN_TARGET_MS
    return {
        "seconds": seconds,
        "sealed": sealed,
        "cores": os.cpu_count(),
        "idle": idle,
        "saturated": saturated,
        "ratio": round(saturated["median_ms"] / idle["median_ms"], 3),
        "allowed_saturated_median_ms": round(allowed_ms, 4),
        "within_target": saturated["median_ms"] <= allowed_ms,
    }


def show(result: dict[str, Any]) -> None:
    """Prints the result as a table."""
    columns = (Column("agents"), *(Column(title, right=True) for title in ("median ms", "p99 ms", "probes", "CPU", "rows/s")))
    rows = []
    for name in ("idle", "saturated"):
        phase = result[name]
        rows.append(
            [
                name,
                number(phase["median_ms"], 3),
                number(phase["p99_ms"], 3),
                count(phase["samples"]),
                f"{100 * phase['cpu']:.0f} %",
                count(phase["rows_per_s"]),
            ]
        )
    print_table(columns, rows)
    verdict = "within" if result["within_target"] else "beyond"
    print_note(f"saturated / idle: {result['ratio']:.2f}; {verdict} the target of {result['allowed_saturated_median_ms']:.3f} ms")


def _phase(pair: dict[str, BenchAgent], seconds: float) -> dict[str, Any]:
    """Measures probes, processor use and rows of the agents for `seconds`."""
    time.sleep(WARM_S)
    before = {name: _row_count(agent.client) for name, agent in pair.items()}
    used = _cpu_s()
    began_s, began = time.time(), time.monotonic()
    time.sleep(seconds)
    ended_s, took_s = time.time(), time.monotonic() - began
    cpu = (_cpu_s() - used) / took_s / (os.cpu_count() or 1)
    rows = sum(_row_count(agent.client) - before[name] for name, agent in pair.items())
    time.sleep(1.0)  # the last samples reach their files
    rtts = np.array([rtt for name in NAMES for at_s, rtt in _samples(pair[name].directory) if began_s <= at_s < ended_s])
    if not rtts.size:
        raise SbonError("no probe was answered: this machine is too busy; measure again when it is quiet")
    far = p99(list(rtts))
    return {
        "median_ms": round(float(np.median(rtts)), 4),
        "p99_ms": None if far is None else round(far, 4),
        "samples": int(rtts.size),
        "cpu": round(cpu, 3),
        "rows_per_s": round(rows / took_s),
    }


def _row_count(client: ControlClient) -> int:
    """Returns the number of rows that the agent's sources have made."""
    return sum(operator["rows_out"] for operator in client.ask("operators") if operator["kind"] == "source")


def _cpu_s() -> float:
    """Returns the processor seconds that all programs on this machine have used."""
    import psutil

    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def _samples(data_dir: Path) -> Iterator[tuple[float, float]]:
    """Yields wall-clock time and round trip of each probe that an agent has logged."""
    for line in spooled(data_dir / "telemetry"):
        if isinstance(line.row, Probe):
            yield line.time_us / 1e6, line.row.rtt_ms
