"""Recoveries: how often operators were lost with their hosts and made again, how long that took, and what it cost."""

from typing import Any

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis import plots
from sbon.analysis.findings import Findings, clock, count, figure, number, percent
from sbon.analysis.page import Plot, Section, Table
from sbon.analysis.workbench import Workbench

TITLE = "Recoveries"
WORST = 15
STEPS = (("placing_at", "placing"), ("fencing_at", "fencing"), ("making_at", "making"), ("beginning_at", "beginning"))
"""Columns of the phases of the last attempt, with their names, in order."""


def examine(bench: Workbench) -> Findings:
    """Builds the section on recoveries."""
    if not bench.has("recoveries"):
        numbers: dict[str, Any] = {"recoveries": 0, "operators": 0, "rows_lost": 0, "windows_lost": 0}
        return Findings(numbers, Section(TITLE, "Nothing was lost with a host and made again.", ()))
    bench.say("recoveries: how long they took, and what they cost")
    each = bench.table("recoveries").drop("version")
    done = bench.keep("recoveries", each).collect().sort("recovered_at", "query")
    if done.is_empty():  # all rows are outside the time that was asked for
        return Findings(
            {"recoveries": 0, "operators": 0, "rows_lost": 0, "windows_lost": 0},
            Section(TITLE, "Nothing was lost with a host and made again in this time.", ()),
        )
    operators = bench.keep("recovered_operators", _operators(each)).collect()
    seconds = pl.col("duration_ms") / 1000
    numbers = {
        "recoveries": done.height,
        "queries": done["query"].n_unique(),
        "operators": operators.height,
        "again": int((done["attempts"] > 1).sum()),
        "median_s": number(done, seconds.median()),
        "p90_s": number(done, seconds.quantile(0.9, "nearest")),
        "max_s": number(done, seconds.max()),
        **{f"median_{name}_s": number(steps, pl.col(name).median()) for steps in [_steps(done)] for _, name in STEPS},
        "rows_lost": int(done["rows_lost"].sum()),
        "inexact": int((~done["rows_exact"]).sum()),
        "windows_lost": int(done["windows_lost"].sum()),
        "windows_unknown": int(done["windows_lost"].is_null().sum()),
        "states_lost": int(operators["state_lost"].sum()),
        "moved_share": number(operators, (pl.col("from_node") != pl.col("to_node")).mean()),
    }
    parts: list[Plot | Table] = [
        _durations(numbers, done),
        _grouped("By kind of operator", "operator_kind", operators),
        _grouped("By host that was lost", "from_node", operators),
        _slowest(done),
    ]
    return Findings(numbers, Section(TITLE, _text(numbers), parts))


def _operators(each: DataFrame) -> DataFrame:
    """Returns a row for each operator that was made again."""
    return each.select("query", "recovered_at", "duration_ms", F.explode("operators").alias("operator")).select(
        "query", "recovered_at", "duration_ms", "operator.*"
    )


def _steps(done: pl.DataFrame) -> pl.DataFrame:
    """Returns the seconds of each phase; a phase that took no time is 0."""
    reached = [pl.coalesce(*(pl.col(later) for later, _ in STEPS[index:]), pl.col("recovered_at")) for index in range(len(STEPS))]
    ends = [*reached[1:], pl.col("recovered_at")]
    return done.select(
        ((end - begin).dt.total_microseconds() / 1e6).alias(name) for (_, name), begin, end in zip(STEPS, reached, ends, strict=True)
    )


def _text(numbers: dict[str, Any]) -> str:
    text = f"{count(numbers['recoveries'], 'recovery', 'recoveries')} of {count(numbers['queries'], 'query', 'queries')} made "
    text += f"{count(numbers['operators'], 'operator')} again, {percent(numbers['moved_share'], 0)} of them on another host; "
    text += (
        f"{numbers['again']:,} took more than one attempt. From the moment at which the home of a query learnt of the loss until all ran "
    )
    text += f"it took {figure(numbers['median_s'], 's')} (median), {figure(numbers['p90_s'], 's')} (90 %) and "
    text += f"{figure(numbers['max_s'], 's')} at most; operators that are bound to a node wait for it. "
    text += f"{count(numbers['rows_lost'], 'row')} that had been made did not arrive"
    text += f", at least: {count(numbers['inexact'], 'recovery', 'recoveries')} could not tell exactly. " if numbers["inexact"] else ". "
    text += f"{count(numbers['states_lost'], 'operator')} began empty, and {count(numbers['windows_lost'], 'window')} were left out"
    return text + (
        f"; of {count(numbers['windows_unknown'], 'recovery', 'recoveries')} it is not known how many."
        if numbers["windows_unknown"]
        else "."
    )


def _durations(numbers: dict[str, Any], done: pl.DataFrame) -> Plot:
    seconds = (done["duration_ms"] / 1000).sort().to_list()
    shares = [(index + 1) / len(seconds) for index in range(len(seconds))]
    slow = {name: numbers[f"median_{name}_s"] or 0.0 for _, name in STEPS}
    most = max(slow, key=lambda name: slow[name])
    text = (
        f"Half of {count(len(seconds), 'recovery', 'recoveries')} took less than {figure(numbers['median_s'], 's')}, without the time in "
    )
    text += "which the crash was noticed (see Health). Of the phases of the last attempt, "
    text += f"{most} took longest: {figure(slow[most], 's')} (median). The rest of the time is waiting: for a node, "
    text += "or between attempts."
    series = plots.Series("recoveries", seconds, shares)
    return Plot("From loss to recovered", plots.lines([series], "s", "share of recoveries", log_x=True, percent=True), text)


def _grouped(title: str, column: str, operators: pl.DataFrame) -> Table:
    groups = operators.group_by(column).agg(
        pl.len().alias("times"),
        (pl.col("duration_ms").median() / 1000).alias("median"),
        (pl.col("duration_ms").max() / 1000).alias("most"),
        pl.col("rows_lost").sum().alias("rows"),
        pl.col("windows_lost").sum().alias("windows"),
        pl.col("state_lost").sum().alias("states"),
    )
    rows = [
        [
            row[column] or "unknown",
            f"{row['times']:,}",
            figure(row["median"]),
            figure(row["most"]),
            f"{row['rows']:,}",
            f"{row['states']:,}",
            f"{row['windows']:,}",
        ]
        for row in groups.sort("times", column, descending=[True, False]).head(WORST).iter_rows(named=True)
    ]
    name = "kind" if column == "operator_kind" else "host"
    return Table(title, (name, "operators made again", "s, median", "s, at most", "rows lost", "began empty", "windows left out"), rows)


def _slowest(done: pl.DataFrame) -> Table:
    rows = [
        [
            row["query"],
            clock(row["recovered_at"]),
            figure(row["duration_ms"] / 1000),
            f"{row['attempts']:,}",
            f"{row['rows_lost']:,}{'' if row['rows_exact'] else '+'}",
            "unknown" if row["windows_lost"] is None else f"{row['windows_lost']:,}",
        ]
        for row in done.sort("duration_ms", "query", descending=[True, False]).head(WORST).iter_rows(named=True)
    ]
    return Table("Slowest recoveries", ("query", "recovered", "s", "attempts", "rows lost", "windows left out"), rows)
