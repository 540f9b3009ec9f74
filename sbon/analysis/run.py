"""Runs the whole analysis: finds files, starts Spark, runs the jobs one after another, and writes the report."""

import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sbon.analysis import coordinates, coverage, health, latencies, migrations, operators, predictions, pricing, recoveries, savings, usage
from sbon.analysis.findings import Findings
from sbon.analysis.headlines import headlines, summary_lines
from sbon.analysis.log_files import Log, Problem, read_log
from sbon.analysis.page import page
from sbon.analysis.session import LOCAL, open_session
from sbon.analysis.workbench import Workbench
from sbon.errors import SbonError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_NAME, NUMBERS_NAME, TABLES_NAME, SPARK_LOG_NAME = "report.html", "report.json", "tables", "spark.log"
SMALL_ROWS = 2_000_000
"""Number of rows below which compiling the queries would take longer than it saves."""
UNREADABLE_MAX = 20
"""Most files that may turn out to be damaged while they are read; with more, the analysis fails."""
_FILE = re.compile(r"file:(?://)?(/[^\s]+?\.parquet)")

Say = Callable[[str], None]


class Report(NamedTuple):
    """The result of an analysis."""

    path: Path
    numbers: dict[str, Any]
    summary: list[str]
    """Lines for people."""
    problems: tuple[Problem, ...]


def analyse_logs(
    directories: Sequence[Path],
    out: Path,
    *,
    master: str = LOCAL,
    since: datetime | None = None,
    until: datetime | None = None,
    progress: Say | None = None,
    spark: "SparkSession | None" = None,
) -> Report:
    """Reads the logs below these directories and writes report and tables to `out`.

    Parameters
    ----------
    spark : a session to use; None opens one and ends it

    Raises
    ------
    SbonError
        A directory is missing or has nothing to read, Spark cannot run, or `out` cannot be written.
    """
    say = progress or (lambda _: None)
    begun = time.monotonic()
    say("looking for files")
    log = read_log(directories, since, until)
    say(f"{len(log.files):,} files with {log.rows():,} rows, {len(log.problems)} problems")
    try:
        (out / TABLES_NAME).mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise SbonError(f"cannot write to {out}: {problem.strerror}; choose another folder with --out") from problem
    say("starting Spark")
    session = spark if spark is not None else open_session(master, out / SPARK_LOG_NAME, small=log.rows() < SMALL_ROWS)
    try:
        bench, findings = _read(session, log, out, since, until, say)
    finally:
        if spark is None:
            session.stop()
    numbers: dict[str, Any] = {name: one.numbers for name, one in findings.items()}
    numbers["seconds"] = round(time.monotonic() - begun, 1)
    problems = bench.log.problems
    _write(out, numbers, findings, bench, directories)
    say("done")
    return Report(out / REPORT_NAME, numbers, summary_lines(numbers), problems)


def _read(
    session: "SparkSession", log: Log, out: Path, since: datetime | None, until: datetime | None, say: Say
) -> tuple[Workbench, dict[str, Findings]]:
    """Runs all jobs. A file that turns out to be damaged is left out and reported, and the jobs start again."""
    for _ in range(UNREADABLE_MAX):
        bench = Workbench(session, log, out / TABLES_NAME, since=since, until=until, say=say)
        try:
            return bench, _jobs(bench)
        except (PySparkException, Py4JError) as problem:
            damaged = _damaged_file(str(problem), log)
            if damaged is None:
                raise SbonError(f"Spark failed: {_first_line(problem)}; see {out / SPARK_LOG_NAME}") from problem
            say(f"{damaged} is damaged inside; starting again without it")
            log = log.without(damaged, "is damaged inside: its rows cannot be read")
    raise SbonError(f"more than {UNREADABLE_MAX} files are damaged inside, the last {log.problems[-1].where}; is the disk failing?")


def _jobs(bench: Workbench) -> dict[str, Findings]:
    bench.say("what the log holds")
    runs = coverage.look(bench)
    found = {"coordinates": coordinates.examine(bench)}
    priced = pricing.price(bench)
    found["network_usage"] = usage.examine(priced)
    found["migrations"] = migrations.examine(bench, priced)
    found["recoveries"] = recoveries.examine(bench)
    found["sharing"] = savings.examine(bench, priced)
    found["latencies"] = latencies.examine(bench)
    found["predictions"] = predictions.examine(bench)
    found["operators"] = operators.examine(bench)
    found["health"] = health.examine(bench, runs)
    # Last, with everything that the jobs have learnt about the files.
    return {"log": coverage.examine(bench, runs), **found}


def _damaged_file(message: str, log: Log) -> Path | None:
    """Returns the file of the log that a Spark error names."""
    known = {str(file.path.resolve()): file.path for file in log.files}
    for found in _FILE.finditer(message):
        for name in (found[1], unquote(found[1])):  # Spark sometimes writes it as a URL
            if name in known:
                return known[name]
    return None


def _write(out: Path, numbers: dict[str, Any], findings: dict[str, Findings], bench: Workbench, directories: Sequence[Path]) -> None:
    problems = [problem._asdict() for problem in bench.log.problems]
    places = ", ".join(str(directory) for directory in directories)
    lead = f"An overlay's telemetry, read from {places}. All times are UTC."
    html = page("What the log says", lead, headlines(numbers), [one.section for one in findings.values()])
    try:
        (out / NUMBERS_NAME).write_text(json.dumps({**numbers, "problems": problems}, indent=2) + "\n", encoding="utf-8")
        (out / REPORT_NAME).write_text(html, encoding="utf-8")
    except OSError as problem:
        raise SbonError(f"cannot write to {out}: {problem.strerror}; choose another folder with --out") from problem


def _first_line(problem: BaseException) -> str:
    """Returns the cause of an error; py4j puts an uninformative call number first."""
    lines = [line.strip(": \t") for line in str(problem).splitlines()]
    return next((line for line in lines if line and not line.startswith("An error occurred while calling")), type(problem).__name__)
