"""Coverage of the log: its time span, its agents, and missing or duplicate rows."""

from datetime import datetime
from typing import Any

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis.findings import Findings, clock, count, percent, size
from sbon.analysis.log_files import Problem
from sbon.analysis.page import Section, Table
from sbon.analysis.workbench import FILE, Workbench
from sbon.errors import SbonError


def look(bench: Workbench) -> pl.DataFrame:
    """Returns the runs of agents, by kind: first and last row, rows, numbers. Sets the bench's span, and whether it removes duplicates.

    Raises
    ------
    SbonError
        No row lies between since and until.
    """
    runs = bench.keep("runs", _runs(bench.all_rows())).collect().sort("agent", "start", "kind")
    if runs.is_empty():
        raise SbonError("the log has no rows between --since and --until")
    bench.distinct = bool(_numbered(runs).select((pl.col("rows") > pl.col("numbers")).any()).item())
    first, last = runs["first"].min(), runs["last"].max()
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    bench.span(first, last)
    return runs


def _runs(rows: DataFrame) -> DataFrame:
    """Returns runs, reduced by file first: a file's kind is in its path, and reading it from every row would take longer than all else."""
    by_file = rows.groupBy(FILE, "agent", "start").agg(
        F.min("time").alias("first"),
        F.max("time").alias("last"),
        F.count("*").alias("rows"),
        F.min("sequence").alias("first_number"),
        F.max("sequence").alias("last_number"),
    )
    return (
        by_file.withColumn("kind", F.regexp_extract(FILE, "kind=([a-z_]+)/", 1))
        .groupBy("agent", "start", "kind")
        .agg(
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.sum("rows").alias("rows"),
            F.min("first_number").alias("first_number"),
            F.max("last_number").alias("last_number"),
        )
    )


def _numbered(runs: pl.DataFrame) -> pl.DataFrame:
    """Returns per run the number of rows, and the number of rows expected between the first and the last sequence number."""
    return runs.group_by("agent", "start").agg(
        pl.col("rows").sum(), (pl.col("last_number").max() - pl.col("first_number").min() + 1).alias("numbers"), pl.col("last").max()
    )


def examine(bench: Workbench, runs: pl.DataFrame) -> Findings:
    """Builds the section on the log itself."""
    numbered = _numbered(runs)
    missing = int((numbered["numbers"] - numbered["rows"]).clip(lower_bound=0).sum())
    twice = int((numbered["rows"] - numbered["numbers"]).clip(lower_bound=0).sum())
    rows = int(runs["rows"].sum())
    numbers: dict[str, Any] = {
        "first": bench.first.isoformat(),
        "last": bench.last.isoformat(),
        "seconds": (bench.last - bench.first).total_seconds(),
        "moment_s": bench.width_s,
        "agents": runs["agent"].n_unique(),
        "runs": numbered.height,
        "rows": rows,
        "rows_twice_min": twice,
        "rows_missing": missing,
        "files": len(bench.log.files),
        "bytes": bench.log.size_bytes,
        "problems": len(bench.log.problems),
        "rows_by_kind": {kind: int(total) for kind, total in runs.group_by("kind").agg(pl.col("rows").sum()).sort("kind").iter_rows()},
    }
    text = f"{count(rows, 'row')} of {count(numbers['agents'], 'agent')} in {count(numbered.height, 'run')}, {clock(bench.first)} to "
    text += f"{clock(bench.last)} UTC, in {count(numbers['files'], 'file')} ({size(numbers['bytes'])}). "
    text += f"Time is shown in moments of {bench.width_s} s. "
    if twice:
        text += f"At least {count(twice, 'row')} occur twice (the same log given twice?) and count once. "
    if missing:
        text += f"By their numbers {count(missing, 'row')} ({percent(missing / (missing + rows), 2)}) are missing: lost in a crash or on a "
        text += "full disk, or outside the requested times."
    else:
        text += "By their numbers no rows are missing."
    return Findings(numbers, Section("The log", text, [_kinds(bench, runs), _problems(bench.log.problems)]))


def _kinds(bench: Workbench, runs: pl.DataFrame) -> Table:
    by_kind = (
        runs.group_by("kind")
        .agg(pl.col("rows").sum(), pl.col("agent").n_unique(), pl.col("first").min(), pl.col("last").max())
        .sort("kind")
    )
    rows = [
        [
            kind,
            f"{total:,}",
            f"{agents:,}",
            clock(first),
            clock(last),
            size(sum(file.size_bytes for file in bench.log.files if file.kind == kind)),
        ]
        for kind, total, agents, first, last in by_kind.iter_rows()
    ]
    return Table("Rows by kind", ("kind", "rows", "agents", "first", "last", "in files of"), rows)


def _problems(problems: tuple[Problem, ...]) -> Table:
    most = 50
    rows = [[problem.where, problem.what] for problem in problems[:most]]
    text = f"{len(problems) - most} more are in report.json." if len(problems) > most else ""
    return Table("Problems found in the log", ("where", "what"), rows, text)
