"""`sbon bench input`: rows/s of one agent for each source, workload and sink, beside the least cost of reading the same bytes.

Each source and workload has a real agent process with default settings. First its answers are compared, as the sink has written them (with
`discard`, a Parquet file instead). Then all rows are processed. Rates are by wall-clock time and by the processor time of the agent alone,
less its use at rest. Files have just been written, and are in the page cache.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from sbon.cli.output import count, number, print_note, print_table
from sbon.cli.tables import Column
from sbon.errors import UsageError
from sbon_testbed.bench.agent_process import AgentProcess, one_agent
from sbon_testbed.bench.broker import broker, mosquitto
from sbon_testbed.bench.input_limits import Limit, cat, polars_thread
from sbon_testbed.bench.rows import check_rows
from sbon_testbed.bench.runs import SUFFIXES, Cost, answers_equal, idle_cores, timed
from sbon_testbed.bench.supply import KINDS, SENT, Supply, supply
from sbon_testbed.bench.workloads import WORKLOADS
from sbon_testbed.leftovers import run_directory
from sbon_testbed.ranges import chosen

SOURCES = tuple(kind for kind in KINDS if kind != "pool")
SINKS = ("discard", *SUFFIXES)
CHECKED_ROWS = 300_000
CPU_S_MIN = 0.01
"""The system counts processor time in this unit; smaller results are rounded up to it."""

Progress = Callable[[str], None]


def measure(
    sources: Sequence[str] = (),
    workloads: Sequence[str] = (),
    sinks: Sequence[str] = (),
    rows: int = 4_000_000,
    runs: int = 1,
    progress: Progress = lambda what: None,
) -> dict[str, Any]:
    """Returns rows/s by wall-clock and processor time, and the limits; medians over runs.

    Parameters
    ----------
    sources, workloads, sinks : chosen names; all if empty
    rows : rows of each run, over all sources of a workload
    runs : runs of each combination, all in one agent

    Raises
    ------
    UsageError
        An argument is out of range.
    SbonError
        An agent does not start, or an operator fails.
    """
    kinds = chosen("--source", sources, SOURCES)
    if not sources and mosquitto() is None:
        progress("mqtt is left out: there is no mosquitto on this machine")
        kinds.remove("mqtt")
    works = chosen("--workload", workloads, list(WORKLOADS))
    ends = chosen("--sink", sinks, SINKS)
    check_rows(rows)
    if runs < 1:
        raise UsageError(f"--runs {runs}, expected at least 1")
    figures = []
    for kind in kinds:
        for work in works:
            figures += _measured(kind, work, ends, rows, runs, progress)
    return {"rows": rows, "runs": runs, "cores": os.cpu_count(), "figures": figures}


def _measured(kind: str, work: str, sinks: Sequence[str], rows: int, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Measures one source and workload with each sink, in one agent."""
    found = []
    with run_directory() as directory, _broker(kind, directory) as port, one_agent() as agent:
        # Made after the agent has bound its ports, so that the sources get other ports.
        progress(f"{kind}, {work}: making {rows:,} rows")
        checked = supply(kind, work, CHECKED_ROWS, directory / "checked", broker_port=port)
        given = supply(kind, work, rows, directory / "timed", broker_port=port)
        for sink in sinks:
            progress(f"{kind}, {work}, {sink}: {given.rows:,} rows, {runs} run{'s' if runs > 1 else ''}")
            found.append({"source": kind, "workload": work, "sink": sink, **_run(agent, work, checked, given, sink, runs)})
    return found


def _broker(kind: str, directory: Path) -> AbstractContextManager[int]:
    """Runs a broker if the source needs one, and yields its port; else yields 0."""
    return broker(directory / "broker") if kind == "mqtt" else nullcontext(0)


def _run(agent: AgentProcess, work: str, checked: Supply, given: Supply, sink: str, runs: int) -> dict[str, Any]:
    """Measures the agent and the limits in turn."""
    right = answers_equal(agent, work, checked, sink)
    idle = idle_cores(agent)
    costs, limits = [], []
    for _ in range(runs):
        costs.append(timed(agent, work, given, sink, idle))
        if given.files:
            form = SENT.get(given.kind, given.kind)
            limits.append((polars_thread(form, given.files, given.rows), cat(given.files)))
    figures = {
        "rows": given.rows,
        "bytes": given.size_bytes,
        "rows_per_s": round(median(cost.rows / cost.wall_s for cost in costs)),
        "rows_per_cpu_s": round(median(cost.rows / max(cost.cpu_s, CPU_S_MIN) for cost in costs)),
        "cores_used": round(median(cost.cpu_s / cost.wall_s for cost in costs), 2),
        "idle_cores": round(idle, 3),
        "answers_equal": right,
    }
    return figures | (_beside(costs, limits) if limits else {})


def _beside(costs: Sequence[Cost], limits: Sequence[tuple[Limit, Limit]]) -> dict[str, Any]:
    """Returns the limits, and the median over runs of the agent's processor time divided by that of polars."""
    read, copied = zip(*limits, strict=True)
    rows = costs[0].rows
    return {
        "polars_rows_per_s": round(median(rows / one.wall_s for one in read)),
        "polars_rows_per_cpu_s": round(median(rows / max(one.cpu_s, CPU_S_MIN) for one in read)),
        "cat_rows_per_s": round(median(rows / one.wall_s for one in copied)),
        "cpu_by_polars": round(median(cost.cpu_s / max(one.cpu_s, CPU_S_MIN) for cost, one in zip(costs, read, strict=True)), 2),
    }


def show(result: dict[str, Any]) -> None:
    """Prints the result as a table."""
    titles = ("rows/s", "rows/core s", "cores")
    columns = (
        *(Column(title) for title in ("source", "workload", "sink")),
        *(Column(title, right=True) for title in titles),
        Column("answers", keep=True),
        Column("polars rows/core s", right=True),
        Column("cat rows/s", right=True),
    )
    rows = [
        [
            *(one[key] for key in ("source", "workload", "sink")),
            count(one["rows_per_s"]),
            count(one["rows_per_cpu_s"]),
            number(one["cores_used"], 2),
            "right" if one["answers_equal"] else "WRONG",
            count(one["polars_rows_per_cpu_s"]) if "cat_rows_per_s" in one else "-",
            count(one["cat_rows_per_s"]) if "cat_rows_per_s" in one else "-",
        ]
        for one in result["figures"]
    ]
    print_table(columns, rows, title=f"{result['rows']:,} rows into one agent, median of {result['runs']}")
    print_note(
        "core s: seconds of processor time; the agent's use at rest is subtracted. polars, cat: one thread of each reads the same bytes."
    )
