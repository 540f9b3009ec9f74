"""`sbon bench engine`: throughput and latency of one agent, and the lag of its event loop and its memory under load.

Each measurement has a real agent process with default settings, which gets SQL over its control socket; its sinks discard their rows.
First a workload's answers are compared with those of a batch run. All figures come from the agent's own counters and from /proc.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sbon.cli.output import count, number, print_note, print_table, say
from sbon.cli.tables import Column
from sbon.digest import quantile
from sbon.errors import UsageError
from sbon.query.limits import INSTANCES_MAX
from sbon_testbed.bench.agent_process import AgentProcess, one_agent
from sbon_testbed.bench.percentiles import SAMPLES_MIN
from sbon_testbed.bench.rows import generated
from sbon_testbed.bench.runs import answers_equal, idle_cores, timed
from sbon_testbed.bench.supply import GENERATED, KINDS, supply
from sbon_testbed.bench.workloads import WORKLOADS, statements
from sbon_testbed.leftovers import run_directory
from sbon_testbed.ranges import check_seconds, chosen

SECONDS_MIN = 0.5
LATENCY_ROWS_PER_S = 100_000
LATENCY_OF = ("W1", "W2")
WARM_ROWS = 2_000_000
"""Rows to process before a measurement: by then libraries are loaded and windows have closed."""
WARM_S = 3.0
"""Seconds to wait before a measurement if rows come by the clock: three windows."""
MEMORY_ROWS = 20_000_000
"""Rows after which the peak of memory is read."""
MEMORY_TIMEOUT_S = 120.0
ROWS = tuple(kind for kind in KINDS if kind != "mqtt")
"""Origins of rows."""
CHECKED_ROWS = 450_000
"""Rows of the run whose answers are compared: a few windows."""
FILE_ROWS = 10_000_000
"""Rows of each timed run that reads files or gets rows from a sender."""
DISCARD = "connector = 'discard'"

Progress = Callable[[str], None]
Buckets = dict[int, int]


def measure(
    workloads: Sequence[str], seconds: float, runs: int, progress: Progress = lambda what: None, *, rows: str = "fresh", instances: int = 1
) -> dict[str, Any]:
    """Measures rows/s, latency and lag. Rates are medians over runs; percentiles are over the rows of all runs.

    Parameters
    ----------
    workloads : names in `WORKLOADS`; all if empty
    seconds : length of each measurement after warming up; measurements with files end after `FILE_ROWS` rows instead
    runs : number of runs of each measurement, each with its own agent
    rows : one of `ROWS`; latency and lag are measured only if the agent generates the rows
    instances : instances of each operator with keys; W1 has no such operator

    Raises
    ------
    UsageError
        An argument is out of range.
    SbonError
        An agent does not start, or an operator fails.
    """
    names = chosen("--workload", workloads, list(WORKLOADS))
    if rows not in ROWS:
        raise UsageError(f"--rows {rows}, expected one of {', '.join(ROWS)}")
    check_seconds("--seconds", seconds, SECONDS_MIN)
    if runs < 1:
        raise UsageError(f"--runs {runs}, expected at least 1")
    if not 1 <= instances <= INSTANCES_MAX:
        raise UsageError(f"--instances {instances}, expected 1 to {INSTANCES_MAX}")
    found: dict[str, list[dict[str, Any]]] = {}
    by_clock = [name for name in names if name in LATENCY_OF] if rows in GENERATED else []
    for run in range(1, runs + 1):
        for name in names:
            progress(f"run {run} of {runs}: {name} at full speed, rows: {rows}")
            found.setdefault(f"workloads.{name}", []).append(_throughput(name, seconds, rows, progress, instances))
        for name in by_clock:
            progress(f"run {run} of {runs}: latency of {name} at {LATENCY_ROWS_PER_S:,} rows/s")
            found.setdefault(f"latency.{name}", []).append(_latency(name, seconds, rows, instances))
        if rows in GENERATED:
            progress(f"run {run} of {runs}: lag of the event loop, all cores saturated")
            found.setdefault("loop_lag", []).append(_lag(names, seconds, rows))
    result: dict[str, Any] = {"rows": rows, "instances": instances, "seconds": seconds, "runs": runs, "cores": os.cpu_count()}
    result |= {"workloads": {}, "latency": {}}
    for path, figures in found.items():
        together = _together(figures)
        group, _, name = path.partition(".")
        if name:
            result[group][name] = together
        else:
            result[group] = together
    return result


def _together(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combines runs: medians, percentiles over the rows of all runs (None if there are too few), and whether all answers were right."""
    found: dict[str, Any] = {}
    for key, first in figures[0].items():
        values = [one[key] for one in figures]
        if key == "buckets":
            found |= percentiles([bucket for one in values for bucket in one.items()])
        else:
            found[key] = all(values) if isinstance(first, bool) else round(median(values), 3)
    return found


def percentiles(buckets: Sequence[tuple[int, int]]) -> dict[str, float | None]:
    """Returns median, 99th percentile and number of samples, given as pairs of bucket and samples in it.

    The percentiles are None if there are fewer than `SAMPLES_MIN` samples.
    """
    all_of: Buckets = {}
    for bucket, samples in buckets:
        all_of[bucket] = all_of.get(bucket, 0) + samples
    samples = sum(all_of.values())
    enough = samples >= SAMPLES_MIN
    return {f"p{share}_ms": round(quantile(all_of, share / 100), 3) if enough else None for share in (50, 99)} | {"samples": samples}


def show(result: dict[str, Any]) -> None:
    """Prints the result as tables."""
    titles = ("rows/s", "rows/s/core", "cores used", "peak MB", "quantum ms", "answers")
    columns = (Column("workload"), *(Column(title, right=True) for title in titles))
    rows = [
        [
            name,
            count(one["rows_per_s"]),
            count(one["rows_per_s_per_core"]),
            number(one["cores_used"], 2),
            count(one["peak_memory_mb"]),
            number(one["longest_quantum_ms"], 1) if "longest_quantum_ms" in one else "-",
            "right" if one["answers_equal"] else "WRONG",
        ]
        for name, one in result["workloads"].items()
    ]
    print_table(columns, rows, title=f"at full speed, rows: {result['rows']}; median of {result['runs']}")
    if result["instances"] != 1:
        print_note(f"instances of each operator with keys: {result['instances']}")
    for name, one in result["workloads"].items():
        parts = [(key.removesuffix("_ns_per_row"), value) for key, value in one.items() if key.endswith("_ns_per_row")]
        if parts:
            print_note(f"{name}: processor time of a row: " + ", ".join(f"{kind} {value:.1f} ns" for kind, value in parts))
    if "loop_lag" not in result:
        return
    say()
    columns = (Column("latency, lag"), *(Column(title, right=True) for title in ("median ms", "p99 ms", "samples", "cores used")))
    aged = [(f"{name}, {LATENCY_ROWS_PER_S:,} rows/s", one) for name, one in result["latency"].items()]
    aged.append(("event loop, saturated", result["loop_lag"]))
    rows = [[title, _ms(one["p50_ms"]), _ms(one["p99_ms"]), count(one["samples"]), number(one["cores_used"], 2)] for title, one in aged]
    print_table(columns, rows)


def _ms(value: float | None) -> str:
    return "too few" if value is None else number(value, 2)


def _throughput(name: str, seconds: float, rows: str, progress: Progress, instances: int) -> dict[str, Any]:
    """Checks the answers of one workload, then measures it alone at full speed."""
    with run_directory() as directory, one_agent() as agent:  # before `supply`, which then finds other ports
        right = answers_equal(agent, name, supply(rows, name, CHECKED_ROWS, directory), "discard", instances)
        if not right:
            progress(f"{name}: WRONG: its answers are not those of a batch run over the same rows")
        figures = (
            _steady(agent, name, seconds, rows, instances) if rows in GENERATED else _of_files(agent, name, rows, directory, instances)
        )
        return {**figures, "answers_equal": right}


def _of_files(agent: AgentProcess, name: str, rows: str, directory: Path, instances: int) -> dict[str, Any]:
    """Measures a workload over rows that are read from files or sent."""
    cost = timed(agent, name, supply(rows, name, FILE_ROWS, directory), "discard", idle_cores(agent), instances)
    return {
        "rows_per_s": round(cost.rows / cost.wall_s),
        "rows_per_s_per_core": round(cost.rows / cost.cpu_s),
        "cores_used": cost.cpu_s / cost.wall_s,
        "peak_memory_mb": agent.memory_mb("VmHWM"),
        "memory_after_rows": cost.rows,
    }


def _steady(agent: AgentProcess, name: str, seconds: float, rows: str, instances: int) -> dict[str, Any]:
    """Measures a workload over endless rows that the agent generates."""
    agent.submit(endless(name, 0, rows, instances=instances))
    agent.wait_until(lambda: agent.rows_taken() > 0 and agent.rows_made() >= WARM_ROWS, f"{name} warms up")
    before, used, began = _work(agent), agent.cpu_s(), time.monotonic()
    time.sleep(seconds)
    after, used, took_s = _work(agent), agent.cpu_s() - used, time.monotonic() - began
    made = after["rows"] - before["rows"]
    by_kind = {kind: after[kind] - before[kind] for kind in after if kind != "rows"}
    agent.wait_until(lambda: agent.rows_made() >= MEMORY_ROWS, f"{MEMORY_ROWS:,} rows of {name}", MEMORY_TIMEOUT_S)
    return {
        "rows_per_s": round(made / took_s),
        "rows_per_s_per_core": round(made / used),
        "cores_used": used / took_s,
        "peak_memory_mb": agent.memory_mb("VmHWM"),
        "memory_after_rows": agent.rows_made(),
        "longest_quantum_ms": _longest_quantum_ms(agent),
        **{f"{kind}_ns_per_row": cpu_ns / made for kind, cpu_ns in by_kind.items()},
        "rest_ns_per_row": (used * 1e9 - sum(by_kind.values())) / made,
    }


def _longest_quantum_ms(agent: AgentProcess) -> float:
    """Returns the longest time that an operator has kept a thread. Sources are left out, as their first poll makes the pool of rows."""
    return float(max(operator["longest_quantum_ms"] for operator in agent.operators() if operator["kind"] != "source"))


def _work(agent: AgentProcess) -> dict[str, int]:
    """Returns the rows that the sources have made, and the processor time of the operators in ns, by kind."""
    found = {"rows": 0}
    for operator in agent.operators():
        found[operator["kind"]] = found.get(operator["kind"], 0) + operator["cpu_ns"]
        if operator["kind"] == "source":
            found["rows"] += operator["rows_out"]
    return found


def endless(name: str, copy: int, rows: str, rows_per_s: int = 0, instances: int = 1) -> str:
    """Returns the SQL of a workload over endless generated rows; if they come by the clock (`rows_per_s`), the sink notes their age."""
    sides = range(WORKLOADS[name].sources)
    pool = rows == "pool"
    sources = [[generated(name, side, pool=pool, copy=copy, rows_per_s=rows_per_s)] for side in sides]
    sink = f"{DISCARD}, latency_column = '{WORKLOADS[name].age_column}'" if rows_per_s else DISCARD
    return statements(name, str(copy), sources, sink, aged=bool(rows_per_s), instances=instances)


def _latency(name: str, seconds: float, rows: str, instances: int) -> dict[str, Any]:
    """Measures the age of answers when the sink takes them, with rows that come by the clock, and the processor cores used."""
    with one_agent() as agent:
        agent.submit(endless(name, 0, rows, LATENCY_ROWS_PER_S, instances))
        agent.wait_until(lambda: agent.rows_made() >= WARM_S * LATENCY_ROWS_PER_S, f"{name} warms up")
        before, used, began = _ages(agent), agent.cpu_s(), time.monotonic()
        time.sleep(seconds)
        after, used, took_s = _ages(agent), agent.cpu_s() - used, time.monotonic() - began
        return {"buckets": _between(after, before), "cores_used": used / took_s}


def _lag(names: Sequence[str], seconds: float, rows: str) -> dict[str, Any]:
    """Measures how late timers of the event loop are while queries at full speed saturate every core."""
    with one_agent() as agent:
        for copy in range(os.cpu_count() or 1):
            for name in names:
                agent.submit(endless(name, copy, rows))
        agent.wait_until(lambda: all(sink["rows_in"] > 0 for sink in agent.operators("sink")), "all queries run")
        before, used, began = _looks(agent), agent.cpu_s(), time.monotonic()
        time.sleep(seconds)
        after, used, took_s = _looks(agent), agent.cpu_s() - used, time.monotonic() - began
        return {"buckets": _between(after, before), "cores_used": used / took_s}


def _ages(agent: AgentProcess) -> Buckets:
    """Returns the histogram of ages that the sinks have measured so far."""
    return {number: rows for sink in agent.operators("sink") for number, rows in sink["latency"]["buckets"]}


def _looks(agent: AgentProcess) -> Buckets:
    """Returns the histogram of the event loop's lags so far."""
    return dict(agent.client.ask("status")["loop_lag"]["buckets"])


def _between(after: Buckets, before: Buckets) -> Buckets:
    return {number: rows - before.get(number, 0) for number, rows in after.items()}
