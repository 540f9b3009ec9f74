"""`sbon bench calm`: what recovery costs while nothing fails.

Bytes are counted in virtual time, where two runs differ in nothing else: all messages between five agents, with recovery and keepers of
records on and off, without queries and with queries that give hardly any rows. Throughput is measured on real agents: two overlays of three
processes on loopback, one with recovery and one without, process the same number of rows in turn. A run is measured while rows flow, so
the start and the end of a query do not count.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from sbon.cli.output import number, print_table
from sbon.cli.tables import Column
from sbon.errors import SbonError, UsageError
from sbon_testbed.bench.agents import BenchAgent, agents
from sbon_testbed.bench.sinks import LOOK_S, rows_taken, wait_for_rows
from sbon_testbed.leftovers import run_directory
from sbon_testbed.simulator.harness import World

QUERIES = 5
VIRTUAL_S = 120.0
"""Virtual seconds in which bytes are counted, after `SETTLE_S`."""
SETTLE_S = 30.0
ROWS_MIN = 1_000_000
TIMEOUT_S = 600.0
BYTES_PER_S_MAX, COST_MAX = 200.0, 0.01
"""Goals: bytes a second for each query, and the share of the throughput that recovery costs."""
NAMES = ("near", "far", "third")
SETTINGS = """
telemetry = {{ parquet = false }}
optimiser = {{ enabled = false }}
log = {{ level = "warning" }}
engine = {{ heal = {heal}, take_over = {heal} }}
"""
SQL = """
CREATE SOURCE s{run} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'near',
  rows_per_second = 1000000000, fields.key.max = 100, pool_rows = 1048576);
CREATE SINK k{run} AS SELECT ts, key, value FROM s{run} WHERE key < 50 WITH (connector = 'discard', node = 'far');
"""
WARM = 10
"""A run is measured from when its sink has taken `rows // WARM` rows."""


def measure(rows: int, runs: int, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measures bytes a second and throughput, with recovery and without it.

    Raises
    ------
    UsageError
        A number is out of range.
    SbonError
        An agent does not start, or rows are missing after ten minutes.
    """
    if rows < ROWS_MIN:
        raise UsageError(f"--rows {rows}, expected at least {ROWS_MIN}")
    if runs < 1:
        raise UsageError(f"--runs {runs}, expected at least 1")
    progress("counting bytes in virtual time")
    told = {(heal, queries): bytes_per_s(heal, queries) for heal in (False, True) for queries in (0, QUERIES)}
    idle = told[True, 0] - told[False, 0]
    seconds = throughput(rows, runs, progress)
    return {
        "calm": {
            "idle_bytes_per_s": round(idle, 1),
            "query_bytes_per_s": round((told[True, QUERIES] - told[False, QUERIES] - idle) / QUERIES, 1),
            "rows": rows,
            "runs": runs,
            **summary(seconds[False], seconds[True], rows),
        }
    }


def summary(without: Sequence[tuple[float, float]], healed: Sequence[tuple[float, float]], rows: int) -> dict[str, Any]:
    """Returns the figures of paired runs without recovery and with it; each run is (wall-clock seconds, processor seconds)."""
    ratios = [[one / other for one, other in zip(pair, twin, strict=True)] for pair, twin in zip(healed, without, strict=True)]
    wall, cpu = (float(np.median([ratio[place] for ratio in ratios])) for place in (0, 1))
    return {
        "rows_per_s_without": round(rows / float(np.median([wall for wall, _ in without]))),
        "rows_per_s": round(rows / float(np.median([wall for wall, _ in healed]))),
        "throughput_ratio": round(1 / wall, 4),
        "cpu_ratio": round(cpu, 4),
    }


def bytes_per_s(heal: bool, queries: int) -> float:
    """Returns the bytes a second that five agents send, in virtual time."""
    settings = {"optimiser": {"enabled": False}, "engine": {"heal": heal, "take_over": heal}, "telemetry": {"enabled": False}}
    with run_directory() as folder:
        world = World(5, seed=7, data_dir=folder, settings=settings)
        try:
            world.start_all()
            world.settle()
            source = f"connector = 'datagen', nodes = '{world.nodes[1]}', rows_per_second = 1"
            world.submit(f"CREATE SOURCE r (ts TIMESTAMP, v BIGINT) WITH ({source})")
            for query in range(queries):
                world.submit(f"SELECT v FROM r WHERE v < -{query}")
            world.run(SETTLE_S)
            before = _sent(world)
            world.run(VIRTUAL_S)
            return (_sent(world) - before) / VIRTUAL_S
        finally:
            world.close()


def throughput(rows: int, runs: int, progress: Callable[[str], None]) -> dict[bool, list[tuple[float, float]]]:
    """Returns (wall-clock seconds, processor seconds) of each run, by whether recovery is on."""
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with ExitStack() as stack:
        overlays = {heal: stack.enter_context(agents(NAMES, SETTINGS.format(heal=str(heal).lower()))) for heal in (False, True)}
        for run in range(-1, runs):  # the first one loads libraries
            for heal in (False, True) if run % 2 else (True, False):
                progress(f"run {run + 1} of {runs}, recovery {'on' if heal else 'off'}")
                took = _timed(overlays[heal], run + 1, rows)
                found[heal] += [took] if run >= 0 else []
    return found


def _timed(overlay: dict[str, BenchAgent], run: int, rows: int) -> tuple[float, float]:
    """Returns the wall-clock and processor seconds that a running query takes for `rows` rows at its sink."""
    home, sink = overlay["near"].client, overlay["far"]
    home.ask("submit", sql=SQL.format(run=run))
    wait_for_rows(sink, rows // WARM)
    before, used, began = rows_taken(sink), _cpu_s(overlay), time.monotonic()
    while (taken := rows_taken(sink) - before) < rows:
        if time.monotonic() > began + TIMEOUT_S:
            raise SbonError(f"{rows} rows have not arrived within {TIMEOUT_S:g} s")
        time.sleep(LOOK_S)
    took_s, used_s = time.monotonic() - began, _cpu_s(overlay) - used
    home.ask("drop", query=f"k{run}")
    return took_s * rows / taken, used_s * rows / taken


def _cpu_s(overlay: dict[str, BenchAgent]) -> float:
    return sum(agent.cpu_s() for agent in overlay.values())


def _sent(world: World) -> int:
    counters = world.counters()
    return counters["datagram_bytes"] + counters["stream_bytes"]


def show(result: dict[str, Any], *, wide: bool = False) -> None:
    """Prints the result as a table."""
    one = result["calm"]
    cells = [
        ["an idle overlay of five agents", f"{one['idle_bytes_per_s']:.0f} bytes/s", ""],
        ["a calm query", f"{one['query_bytes_per_s']:.0f} bytes/s", f"{BYTES_PER_S_MAX:.0f}"],
        ["throughput with recovery / without", number(one["throughput_ratio"], 3), f"{1 - COST_MAX:.2f}"],
        ["processor time of a row with / without", number(one["cpu_ratio"], 3), f"{1 + COST_MAX:.2f}"],
    ]
    print_table([Column("what recovery costs"), Column("measured", right=True), Column("goal", right=True)], cells, wide=wide)
    print(f"{one['rows_per_s']:,} rows/s with recovery, {one['rows_per_s_without']:,} without")
    print(f"{one['runs']} runs of {one['rows']:,} rows each, in turn")
