"""`sbon bench peers`: sbon and Flink SQL in turn, with the same queries, on the same CSV files and on rows that each engine generates.

Both run as installed, in processes that stay for all runs: one agent with default settings, and one JVM (`flink_job`). First the answers of
both are compared with those of a batch run. Each run processes a small and a large number of rows; only the difference counts, so that the
time to start a query or a job is left out.

From CSV, both engines read the same files: two for each source, each with every second row in order, as each reader of Flink takes whole
files. Generated rows have the same distributions in both engines, but not the same values: sbon uses `datagen`, Flink arithmetic on the
row's number. Keys of generated rows are uniform, in W2 too.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from sbon.cli.output import count, number, print_note, print_table
from sbon.cli.tables import Column
from sbon.errors import SbonError, UsageError
from sbon_testbed.answers import equal
from sbon_testbed.bench.agent_process import AgentProcess, one_agent
from sbon_testbed.bench.flink import Flink, answers, check, computed, flink
from sbon_testbed.bench.rows import check_rows, table
from sbon_testbed.bench.runs import answers_equal, timed
from sbon_testbed.bench.supply import Supply, supply
from sbon_testbed.bench.workloads import WORKLOADS, Keys, expected
from sbon_testbed.leftovers import run_directory
from sbon_testbed.ranges import chosen

SOURCES = ("csv", "generated")
ENGINES = ("sbon", "flink")
FILES = 2
SMALL = 8
"""The small number of rows is the large one divided by this."""
CHECKED_ROWS = 400_000
ATTEMPTS = 3
MORE = {("generated", "W1"): 8, ("generated", "W2"): 2}
"""Factors for the number of rows where a run would be too short."""
UNIFORM = {"W2": Keys("uniform", 1_000)}
"""Keys of generated rows, where they differ from those in files."""

Progress = Callable[[str], None]


class Took(NamedTuple):
    """Rows and seconds of a run, or those by which a large run exceeds a small one."""

    rows: int
    wall_s: float
    cpu_s: float


def measure(
    python: str,
    workloads: Sequence[str] = (),
    sources: Sequence[str] = (),
    rows: int = 8_000_000,
    runs: int = 3,
    progress: Progress = lambda what: None,
) -> dict[str, Any]:
    """Returns rows/s and cores of both engines, and the ratio; medians over runs.

    Parameters
    ----------
    python : path of a Python that has `apache-flink`
    workloads, sources : chosen names; all if empty
    rows : rows of the large run, over all sources of a workload
    runs : runs of each engine

    Raises
    ------
    UsageError
        An argument is out of range, or there is no Flink.
    SbonError
        An engine fails.
    """
    works = chosen("--workload", workloads, list(WORKLOADS))
    kinds = chosen("--source", sources, SOURCES)
    check_rows(rows)
    if runs < 1:
        raise UsageError(f"--runs {runs}, expected at least 1")
    check(python)
    parts = [(work, kind) for work in works for kind in kinds]
    with run_directory() as directory, one_agent() as agent:
        progress("starting Flink")
        with flink(python, directory) as peer:
            found = [_compared(agent, peer, work, kind, rows, runs, directory, progress) for work, kind in parts]
            version = peer.version
    return {"flink": version, "rows": rows, "runs": runs, "cores": os.cpu_count(), "figures": found}


def _compared(
    agent: AgentProcess, peer: Flink, work: str, kind: str, rows: int, runs: int, directory: Path, progress: Progress
) -> dict[str, Any]:
    """Measures both engines for one workload and source."""
    progress(f"{work}, {kind}: answers over {CHECKED_ROWS:,} rows")
    right = {"sbon": _sbon_right(agent, work, kind, directory), "flink": _flink_right(peer, work, kind, directory)}
    large = rows * MORE.get((kind, work), 1)
    supplies = {size: _supply(work, kind, size, directory / str(size)) for size in (large // SMALL, large)}
    runners: dict[str, Callable[[Supply], Took]] = {
        "sbon": lambda given: _sbon(agent, work, given),
        "flink": lambda given: _flink(peer, work, given),
    }
    for engine in ENGINES:
        progress(f"{work}, {kind}: {engine} warms up")
        runners[engine](supplies[large // SMALL])
    took: dict[str, list[Took]] = {engine: [] for engine in ENGINES}
    for run in range(1, runs + 1):
        for engine in ENGINES:
            progress(f"{work}, {kind}: {engine}, {large:,} rows, run {run} of {runs}")
            took[engine].append(_difference(engine, runners[engine], supplies[large // SMALL], supplies[large]))
    for size in supplies:
        shutil.rmtree(directory / str(size), ignore_errors=True)
    return {"workload": work, "source": kind, "rows": large, **_figures(took), "answers_equal": right}


def _difference(engine: str, runner: Callable[[Supply], Took], few: Supply, many: Supply) -> Took:
    """Returns the rows and seconds by which a large run exceeds a small one.

    Repeats both runs if the small one took longer because of other work on the machine."""
    for _ in range(ATTEMPTS):
        first, second = runner(few), runner(many)
        found = Took(second.rows - first.rows, second.wall_s - first.wall_s, second.cpu_s - first.cpu_s)
        if found.wall_s > 0 and found.cpu_s > 0:
            return found
    raise SbonError(
        f"{engine}: {few.rows:,} rows took longer than {many.rows:,}, {ATTEMPTS} times: "
        "use more rows (--rows), or wait until the machine is less busy"
    )


def _figures(took: dict[str, list[Took]]) -> dict[str, Any]:
    """Returns medians over runs, and the median of the runs' ratios of speed, sbon to Flink."""
    figures: dict[str, Any] = {
        engine: {
            "rows_per_s": round(median(one.rows / one.wall_s for one in all_of)),
            "rows_per_cpu_s": round(median(one.rows / one.cpu_s for one in all_of)),
            "cores_used": round(median(one.cpu_s / one.wall_s for one in all_of), 2),
        }
        for engine, all_of in took.items()
    }
    pairs = list(zip(took["sbon"], took["flink"], strict=True))
    return {
        **figures,
        "ratio": round(median(theirs.wall_s / ours.wall_s * ours.rows / theirs.rows for ours, theirs in pairs), 2),
        "ratio_per_cpu_s": round(median(theirs.cpu_s / ours.cpu_s * ours.rows / theirs.rows for ours, theirs in pairs), 2),
    }


def _supply(work: str, kind: str, rows: int, directory: Path) -> Supply:
    if kind == "csv":
        return supply("csv", work, rows, directory, parts=FILES)
    return supply("fresh", work, rows, directory, keys=UNIFORM.get(work))


def _sbon(agent: AgentProcess, work: str, given: Supply) -> Took:
    cost = timed(agent, work, given, "discard")
    return Took(cost.rows, cost.wall_s, cost.cpu_s)


def _flink(peer: Flink, work: str, given: Supply) -> Took:
    used, began = peer.cpu_s(), time.monotonic()
    peer.run(work, paths=_folders(given), rows=given.rows // WORKLOADS[work].sources)
    return Took(given.rows, time.monotonic() - began, peer.cpu_s() - used)


def _folders(given: Supply) -> list[Path]:
    """Returns the folder with the files of each source, in order."""
    return list(dict.fromkeys(path.parent for path in given.files))


def _sbon_right(agent: AgentProcess, work: str, kind: str, directory: Path) -> bool:
    return answers_equal(agent, work, _supply(work, kind, CHECKED_ROWS, directory / "checked"), "discard")


def _flink_right(peer: Flink, work: str, kind: str, directory: Path) -> bool:
    """Tells whether Flink's answers equal those of a batch run over the same rows."""
    given = _supply(work, kind, CHECKED_ROWS, directory / "checked")
    each = given.rows // WORKLOADS[work].sources
    tables = [table(work, side, each) for side in range(WORKLOADS[work].sources)] if kind == "csv" else computed(work, each)
    right = expected(work, tables)
    sink = directory / f"flink-{work}-{kind}"
    peer.run(work, paths=_folders(given), rows=each, sink=sink)
    return equal(answers(sink, right.schema), right)


def show(result: dict[str, Any]) -> None:
    """Prints the result as a table."""
    titles = ("sbon rows/s", "cores", "Flink rows/s", "cores", "ratio")
    columns = (
        *(Column(title) for title in ("workload", "source")),
        *(Column(title, right=True) for title in titles),
        Column("answers", keep=True),
        Column("ratio a core s", right=True),
    )
    rows = []
    for one in result["figures"]:
        figures = [text for engine in ENGINES for text in (count(one[engine]["rows_per_s"]), number(one[engine]["cores_used"], 2))]
        wrong = [engine for engine, right in one["answers_equal"].items() if not right]
        verdict = f"WRONG: {', '.join(wrong)}" if wrong else "right"
        rows.append([one["workload"], one["source"], *figures, number(one["ratio"], 2), verdict, number(one["ratio_per_cpu_s"], 2)])
    print_table(columns, rows, title=f"sbon beside Flink {result['flink']}, median of {result['runs']} runs in turn")
    print_note("ratio: rows/s of sbon divided by those of Flink; a core s: the same for rows a second of processor time. Without start-up.")
