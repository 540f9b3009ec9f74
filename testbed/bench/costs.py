"""`sbon bench costs`: how well the costs of operators are known; all predictions rest on these costs.

law : the processor time of a batch of each operator, predicted and measured (`sbon_testbed.bench.operators`)
process : processor time of an agent by purpose, as the agent reports it, compared with the system's figure for the process
accounting : processor time of a row of W1 with and without the laws of costs, in turn
flow : time to compute the flow through a graph of operators
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from sbon.cli.output import count, number, print_note, print_table
from sbon.cli.tables import Column
from sbon.cost.arrivals import Series
from sbon.cost.flow import Flow, FlowGraph, FlowLink, JoinFlow, OperatorFlow, PortFlow, WindowFlow
from sbon.cost.waiting import WaitRecorder
from sbon.errors import UsageError
from sbon.execution.port_costs import PortCosts
from sbon_testbed.bench import operators
from sbon_testbed.bench.agent_process import AgentProcess, one_agent
from sbon_testbed.bench.agents import agents
from sbon_testbed.bench.engine import endless
from sbon_testbed.bench.workloads import WORKLOADS
from sbon_testbed.ranges import check_seconds, chosen

PARTS = ("law", "process", "accounting", "flow")
LAW_SIZES = (100, 1_000, 8_192, 65_536)
SECONDS_MIN = 0.1
WARM_ROWS = 2_000_000
SETTINGS = """
telemetry = { parquet = false }
optimiser = { enabled = false }
log = { level = "warning" }
"""
NETWORK_ROWS_PER_S = 200_000
NETWORK = f"""
CREATE SOURCE readings (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = 'a', rows_per_second = {NETWORK_ROWS_PER_S}, fields.key.min = 0, fields.key.max = 999);
CREATE SINK sums AS SELECT window_end, key, count(*) AS n, sum(value) AS total FROM TUMBLE(readings, ts, INTERVAL '1 second')
GROUP BY window_end, key WITH (connector = 'discard', node = 'b');
CREATE SINK passed FROM (SELECT ts, key, value FROM readings WHERE value > 0.1) WITH (connector = 'discard', node = 'b');
"""
KINDS = ("operators", "event_loop", "threads", "other")
"""Purposes of an agent's processor time (`processor_s` of `sbon status`)."""
UNACCOUNTED = "sbon_testbed.bench.unaccounted"
FLOW_OPERATORS = 40
FLOW_INTERVALS = 100


def measure(parts: Sequence[str], seconds: float, runs: int, tell: Callable[[str], None], only: str = "") -> dict[str, Any]:
    """Returns the figures of the chosen parts; all parts if none is chosen.

    Parameters
    ----------
    seconds : how long each measurement takes
    runs : pairs of runs of `accounting`
    only : part `law` measures only operators with this text in their names

    Raises
    ------
    UsageError
        An argument is out of range.
    SbonError
        An agent does not start, or an operator fails.
    """
    wanted = chosen("--part", parts, PARTS)
    check_seconds("--seconds", seconds, SECONDS_MIN)
    if not any(only in name for name in operators.WORKLOADS):
        raise UsageError(f"--only {only}: there are {', '.join(operators.WORKLOADS)}")
    result: dict[str, Any] = {"seconds": seconds, "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    if "flow" in wanted:
        tell("flow: a walk of a graph")
        least_s, _ = walk(repeats=500)
        result["flow"] = {"operators": FLOW_OPERATORS, "intervals": FLOW_INTERVALS, "microseconds": round(least_s * 1e6, 1)}
    if "law" in wanted:
        result["law"] = law(seconds, [name for name in operators.WORKLOADS if only in name], tell)
    if "process" in wanted:
        result["process"] = process(seconds, tell)
    if "accounting" in wanted:
        result["accounting"] = accounting(seconds, runs, tell)
    return result | {"load_after": os.getloadavg()[0]}


def show(result: dict[str, Any]) -> None:
    """Prints the figures as tables."""
    if "flow" in result:
        flow = result["flow"]
        print_note(f"flow: a walk of {flow['operators']} operators over {flow['intervals']} intervals takes {flow['microseconds']:.0f} us")
    if "law" in result:
        rows = [
            [
                name,
                *(f"{100 * one['error'][size]:+.1f}" for size in one["error"]),
                f"{100 * one['p50']:.1f}",
                f"{100 * one['repeat_p50']:.1f}",
            ]
            for name, one in result["law"]["operators"].items()
        ]
        sizes = list(next(iter(result["law"]["operators"].values()))["error"])
        titles = (*(f"{int(size):,}" for size in sizes), "median", "two halves")
        print_table((Column("% off, by rows"), *(Column(title, right=True) for title in titles)), rows, title="CPU of a batch, predicted")
    if "process" in result:
        titles = ("CPU s", "operators", "loop", "threads", "off")
        rows = [
            [name, number(one["process_s"], 2), *(f"{100 * one[kind]:.1f}" for kind in KINDS[:-1]), f"{100 * one['error']:+.1f}"]
            for name, one in result["process"].items()
        ]
        print_table((Column("process"), *(Column(title, right=True) for title in titles)), rows, title="processor time of agents, %")
    if "accounting" in result:
        one = result["accounting"]
        print_note(
            f"accounting: {count(one['with_ns_per_row'])} ns a row with, {count(one['without_ns_per_row'])} without: "
            f"{100 * one['share']:+.1f} % (median of {one['pairs']} pairs, "
            f"middle half {100 * one['share_p25']:+.1f} to {100 * one['share_p75']:+.1f} %); "
            f"the calls alone take {100 * one['share_of_calls']:.2f} %"
        )


# -------------------------------------------------------------------------------------------------------------------- law


def law(seconds: float, names: Sequence[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Returns the relative error of the predicted processor time of a batch, for each operator by batch size, and the medians."""
    found = operators.measure(LAW_SIZES, seconds, names, tell)
    by_name = {}
    for name, errors in found["prediction_error"].items():
        ordered = {size: errors[size] for size in sorted(errors, key=int)}
        repeats = found["repeat_error"][name]
        by_name[name] = {
            "error": ordered,
            "p50": median(map(abs, ordered.values())),
            "repeat": repeats,
            "repeat_p50": median(map(abs, repeats.values())),
        }
    medians = [one["p50"] for one in by_name.values()]
    return {"operators": by_name, "p50": found["prediction_error_p50"], "max": found["prediction_error_max"], "worst_p50": max(medians)}


# ---------------------------------------------------------------------------------------------------------------- process


def process(seconds: float, tell: Callable[[str], None]) -> dict[str, Any]:
    """Returns agents' processor time by purpose, as shares of the system's figure: for W1 to W3, and a query over two agents."""
    found = {}
    for name in WORKLOADS:
        tell(f"process: {name} at full speed")
        with one_agent() as agent:
            agent.submit(endless(name, 0, "fresh"))
            agent.wait_until(lambda agent=agent: agent.rows_taken() > 0 and agent.rows_made() >= WARM_ROWS, f"{name} warms up")  # type: ignore[misc]
            found[name] = _shares(agent, seconds)
    tell(f"process: two agents, {NETWORK_ROWS_PER_S:,} rows/s over a link")
    with agents(["a", "b"], SETTINGS) as both:
        asked = {name: AgentProcess(one.process.pid, one.client, one.directory) for name, one in both.items()}
        asked["b"].submit(NETWORK)
        asked["b"].wait_until(lambda: asked["b"].rows_taken() >= 2 * NETWORK_ROWS_PER_S, "the query over two agents warms up")
        found["network, sender"] = _shares(asked["a"], seconds)
        found["network, receiver"] = _shares(asked["b"], seconds)
    return found


def _shares(agent: AgentProcess, seconds: float) -> dict[str, float]:
    """Returns the processor time that the agent reports for `seconds`, by purpose, as shares of the system's figure."""
    before, used = agent.processor_s(), agent.cpu_s()
    time.sleep(seconds)
    after, used = agent.processor_s(), agent.cpu_s() - used
    spent = {kind: after[kind] - before[kind] for kind in KINDS}
    known_s = sum(spent[kind] for kind in KINDS if kind != "other")
    return {"process_s": used, "error": known_s / used - 1, **{kind: spent[kind] / used for kind in KINDS}}


# ------------------------------------------------------------------------------------------------------------- accounting


def accounting(seconds: float, runs: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Returns the processor time of a row of W1 with and without laws of costs, of two agents that run in turn.

    The difference between the agents is smaller than the machine's noise, so the calls are also timed by themselves (`share_of_calls`).
    """
    ratios, by_agent = [], {name: list[float]() for name in ("with", "without")}
    with one_agent() as fitting, one_agent(module=UNACCOUNTED) as plain:
        both = {"with": fitting, "without": plain}
        for agent in both.values():
            agent.submit(endless("W1", 0, "fresh"))
            agent.wait_until(lambda agent=agent: agent.rows_taken() > 0 and agent.rows_made() >= WARM_ROWS, "W1 warms up")  # type: ignore[misc]
            os.kill(agent.pid, signal.SIGSTOP)
        for run in range(runs):
            tell(f"accounting: pair {run + 1} of {runs}")
            for name in sorted(both, reverse=run % 2 == 1):
                by_agent[name].append(_ns_per_row(both[name], seconds))
            ratios.append(by_agent["with"][-1] / by_agent["without"][-1] - 1)
        for agent in both.values():
            os.kill(agent.pid, signal.SIGCONT)
        rows_per_step = _rows_per_step(fitting)
    low, middle, high = (float(value) for value in np.percentile(ratios, [25, 50, 75]))
    medians = {f"{name}_ns_per_row": median(values) for name, values in by_agent.items()}
    share = step_ns() / rows_per_step / medians["with_ns_per_row"]
    return {"share": middle, "share_p25": low, "share_p75": high, "pairs": runs, **medians, "share_of_calls": share}


def _rows_per_step(agent: AgentProcess) -> float:
    """Returns the rows that the agent's sources have made for each step of its operators; each step is accounted once."""
    return agent.rows_made() / sum(int(operator["quanta"]) for operator in agent.operators())


def step_ns(repeats: int = 8192) -> float:
    """Returns the processor time that it takes to account for one step of an operator and for the wait of its task."""
    rng = np.random.default_rng(1)
    rows, ns = rng.integers(60_000, 66_000, repeats).tolist(), rng.integers(100_000, 900_000, repeats).tolist()
    found = []
    for _ in range(3):
        port_costs, waits = PortCosts(), WaitRecorder()
        began = time.thread_time_ns()
        for one, cost_ns in zip(rows, ns, strict=True):
            port_costs.took(0, one, one // 8, cost_ns)
            waits.waited(1e-5)
        waits.fold()
        found.append((time.thread_time_ns() - began) / repeats)
    return min(found)


def _ns_per_row(agent: AgentProcess, seconds: float) -> float:
    """Resumes a stopped agent for `seconds`; returns the processor time that it used for each row."""
    os.kill(agent.pid, signal.SIGCONT)
    rows, used = agent.rows_made(), agent.processor_s()["process"]
    time.sleep(seconds)
    rows, used = agent.rows_made() - rows, agent.processor_s()["process"] - used
    os.kill(agent.pid, signal.SIGSTOP)
    return used * 1e9 / rows


# ------------------------------------------------------------------------------------------------------------------- flow


def walk(intervals: int = FLOW_INTERVALS, repeats: int = 200, seed: int = 1) -> tuple[float, Flow]:
    """Returns the least time to compute the flow through a graph of 40 operators, with two joins and two windows, and the flow."""
    rng = np.random.default_rng(seed)
    chosen_operators = [
        OperatorFlow(id=f"o{place}", ports=(PortFlow(per_row_ns=9.0, per_batch_ns=1e4),)) for place in range(FLOW_OPERATORS)
    ]
    for place in (20, 30):
        chosen_operators[place] = OperatorFlow(
            id=f"o{place}", ports=(PortFlow(selectivity=0.0),) * 2, join=JoinFlow(selectivity=1e-3, before_s=5.5, after_s=5.5)
        )
    for place in (25, 35):
        chosen_operators[place] = OperatorFlow(
            id=f"o{place}", ports=(PortFlow(selectivity=0.0),), window=WindowFlow(size_s=10.0, slide_s=2.0, groups=9.0)
        )
    links = [FlowLink(f"{place}", f"o{max(0, place - 4)}", f"o{place}") for place in range(4, FLOW_OPERATORS)]
    links += [FlowLink(f"{place}:1", f"o{place - 3}", f"o{place}", 1) for place in (20, 30)]
    graph = FlowGraph(chosen_operators, links)
    sources = {}
    for name in graph.sources:
        rows = rng.poisson(1000.0, intervals).astype(np.float64)
        sources[name] = Series(0.0, 1.0, rows, np.ones(intervals), 8.0 * rows)
    least_s = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        flow = graph.series(sources)
        least_s = min(least_s, time.perf_counter() - begin)
    return least_s, flow
