"""`sbon bench engine`: what one agent computes, how soon, and what becomes of its event loop and its memory meanwhile.

A real agent process for each measurement, fed by SQL over its control socket. Its sources make rows in memory and its sinks forget them.
All figures come from the agent's own counters and from /proc; the agent has its default settings.
"""

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from sbon.cli.output import count, number, print_note, print_table, say
from sbon.cli.tables import Column
from sbon.errors import UsageError
from sbon.telemetry.digest import quantile
from sbon_testbed.bench.agent_process import AgentProcess, one_agent
from sbon_testbed.bench.engine_workloads import WORKLOADS, statements
from sbon_testbed.ranges import check_seconds

SECONDS_MIN = 0.5
LATENCY_ROWS_PER_S = 100_000
LATENCY_OF = ("W1", "W2")
WARM_ROWS = 2_000_000
"""Rows that go before a measurement: by then libraries are loaded and windows have closed."""
WARM_S = 3.0
"""Likewise in seconds, where rows come by the clock: three windows."""
MEMORY_ROWS = 20_000_000
"""Rows after which the peak of memory counts."""
MEMORY_TIMEOUT_S = 120.0

Progress = Callable[[str], None]
Buckets = dict[int, int]


def measure(workloads: Sequence[str], seconds: float, runs: int, progress: Progress = lambda what: None) -> dict[str, Any]:
    """Rows/s, latency, lag; medians over runs.

    Parameters
    ----------
    workloads : names in `WORKLOADS`; all where empty
    seconds : how long each measurement takes, after its warming up
    runs : of each measurement, each with an agent of its own

    Raises
    ------
    UsageError
        An argument is out of range.
    SbonError
        An agent does not start, or an operator fails.
    """
    chosen = list(dict.fromkeys(workloads)) or list(WORKLOADS)
    unknown = [name for name in chosen if name not in WORKLOADS]
    if unknown:
        raise UsageError(f"--workload {unknown[0]}, expected one of {', '.join(WORKLOADS)}")
    check_seconds("--seconds", seconds, SECONDS_MIN)
    if runs < 1:
        raise UsageError(f"--runs {runs}, expected at least 1")
    found: dict[str, list[dict[str, float]]] = {}
    for run in range(1, runs + 1):
        for name in chosen:
            progress(f"run {run} of {runs}: {name} at full speed")
            found.setdefault(f"workloads.{name}", []).append(_throughput(name, seconds))
        for name in chosen:
            if name in LATENCY_OF:
                progress(f"run {run} of {runs}: latency of {name} at {LATENCY_ROWS_PER_S:,} rows/s")
                found.setdefault(f"latency.{name}", []).append(_latency(name, seconds))
        progress(f"run {run} of {runs}: lag of the event loop, all cores saturated")
        found.setdefault("loop_lag", []).append(_lag(chosen, seconds))
    result: dict[str, Any] = {"seconds": seconds, "runs": runs, "cores": os.cpu_count(), "workloads": {}, "latency": {}}
    for path, figures in found.items():
        medians = {key: round(median(one[key] for one in figures), 3) for key in figures[0]}
        group, _, name = path.partition(".")
        if name:
            result[group][name] = medians
        else:
            result[group] = medians
    return result


def show(result: dict[str, Any]) -> None:
    """The result as tables for people."""
    columns = (
        Column("workload"),
        *(Column(title, right=True) for title in ("rows/s", "rows/s/core", "cores used", "peak MB", "longest quantum ms")),
    )
    rows = [
        [
            name,
            count(one["rows_per_s"]),
            count(one["rows_per_s_per_core"]),
            number(one["cores_used"], 2),
            count(one["peak_memory_mb"]),
            number(one["longest_quantum_ms"], 1),
        ]
        for name, one in result["workloads"].items()
    ]
    print_table(columns, rows, title=f"at full speed, median of {result['runs']}")
    for name, one in result["workloads"].items():
        parts = [(key.removesuffix("_ns_per_row"), value) for key, value in one.items() if key.endswith("_ns_per_row")]
        print_note(f"{name}: processor time of a row: " + ", ".join(f"{kind} {value:.1f} ns" for kind, value in parts))
    say()
    columns = (Column("latency, lag"), *(Column(title, right=True) for title in ("median ms", "p99 ms", "cores used")))
    timed = [(f"{name}, {LATENCY_ROWS_PER_S:,} rows/s", one) for name, one in result["latency"].items()]
    timed.append(("event loop, saturated", result["loop_lag"]))
    rows = [[title, number(one["p50_ms"], 2), number(one["p99_ms"], 2), number(one["cores_used"], 2)] for title, one in timed]
    print_table(columns, rows)


def _throughput(name: str, seconds: float) -> dict[str, float]:
    """One workload alone, as fast as it goes."""
    with one_agent() as agent:
        agent.submit(statements(name))
        agent.wait_until(lambda: agent.rows_taken() > 0 and agent.rows_made() >= WARM_ROWS, f"{name} warms up")
        before, used, began = _work(agent), agent.cpu_s(), time.monotonic()
        time.sleep(seconds)
        after, used, took_s = _work(agent), agent.cpu_s() - used, time.monotonic() - began
        rows = after["rows"] - before["rows"]
        by_kind = {kind: after[kind] - before[kind] for kind in after if kind != "rows"}
        agent.wait_until(lambda: agent.rows_made() >= MEMORY_ROWS, f"{MEMORY_ROWS:,} rows of {name}", MEMORY_TIMEOUT_S)
        return {
            "rows_per_s": round(rows / took_s),
            "rows_per_s_per_core": round(rows / used),
            "cores_used": used / took_s,
            "peak_memory_mb": agent.memory_mb("VmHWM"),
            "memory_after_rows": agent.rows_made(),
            "longest_quantum_ms": _longest_quantum_ms(agent),
            **{f"{kind}_ns_per_row": cpu_ns / rows for kind, cpu_ns in by_kind.items()},
            "rest_ns_per_row": (used * 1e9 - sum(by_kind.values())) / rows,
        }


def _longest_quantum_ms(agent: AgentProcess) -> float:
    """How long an operator has kept a thread at most, from its first batch on. Not sources: the first question makes their rows."""
    return float(max(operator["longest_quantum_ms"] for operator in agent.operators() if operator["kind"] != "source"))


def _work(agent: AgentProcess) -> dict[str, int]:
    """Rows that the sources have made, and the processor time of the operators by kind, in ns."""
    found = {"rows": 0}
    for operator in agent.operators():
        found[operator["kind"]] = found.get(operator["kind"], 0) + operator["cpu_ns"]
        if operator["kind"] == "source":
            found["rows"] += operator["rows_out"]
    return found


def _latency(name: str, seconds: float) -> dict[str, float]:
    """Age of the answers when the sink takes them, rows coming by the clock, and what of a core that takes."""
    with one_agent() as agent:
        agent.submit(statements(name, rows_per_s=LATENCY_ROWS_PER_S, measured=True))
        agent.wait_until(lambda: agent.rows_made() >= WARM_S * LATENCY_ROWS_PER_S, f"{name} warms up")
        before, used, began = _ages(agent), agent.cpu_s(), time.monotonic()
        time.sleep(seconds)
        after, used, took_s = _ages(agent), agent.cpu_s() - used, time.monotonic() - began
        return {**_quantiles(after, before), "cores_used": used / took_s}


def _lag(names: Sequence[str], seconds: float) -> dict[str, float]:
    """How late timers of the event loop are while every core has queries at full speed."""
    with one_agent() as agent:
        for copy in range(os.cpu_count() or 1):
            for name in names:
                agent.submit(statements(name, copy=copy))
        agent.wait_until(lambda: all(sink["rows_in"] > 0 for sink in agent.operators("sink")), "all queries run")
        before, used, began = _looks(agent), agent.cpu_s(), time.monotonic()
        time.sleep(seconds)
        after, used, took_s = _looks(agent), agent.cpu_s() - used, time.monotonic() - began
        return {**_quantiles(after, before), "cores_used": used / took_s}


def _ages(agent: AgentProcess) -> Buckets:
    """What the sinks have measured so far."""
    return {number: rows for sink in agent.operators("sink") for number, rows in sink["latency"]["buckets"]}


def _looks(agent: AgentProcess) -> Buckets:
    """How late the event loop has been so far."""
    return dict(agent.client.ask("status")["loop_lag"]["buckets"])


def _quantiles(after: Buckets, before: Buckets) -> dict[str, float]:
    between = {number: rows - before.get(number, 0) for number, rows in after.items()}
    return {"p50_ms": quantile(between, 0.5), "p99_ms": quantile(between, 0.99), "rows": sum(between.values())}
