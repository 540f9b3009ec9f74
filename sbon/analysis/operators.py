"""Rates and selectivities of operators against the estimates of their plans, and late rows."""

import math
from typing import Any

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis import plots
from sbon.analysis.findings import Findings, count, figure, number, percent
from sbon.analysis.page import Plot, Section, Table
from sbon.analysis.workbench import MOMENT, Workbench

WORST = 15
NEAR = 2.0
"""Factor within which an estimate counts as near."""


def examine(bench: Workbench) -> Findings:
    """Builds the section on operators."""
    if not bench.has("operators"):
        return Findings({}, Section("Operators", "The log has no operators: no query ran, or none in these logs.", ()))
    bench.say("operators: rates and selectivities")
    moments = bench.keep("operators_by_moment", _by_moment(bench.table("operators")))
    each = by_operator(moments)
    late = moments.group_by("operator").agg(pl.col("late_rows").max(), pl.col("dropped_rows").max()).collect()
    off = _off(each, "rate_ratio")
    selectivity = _off(each, "selectivity_ratio")
    numbers: dict[str, Any] = {
        "operators": each.height,
        "late_rows": int(late["late_rows"].sum()),
        "dropped_rows": int(late["dropped_rows"].sum()),
        "operators_with_late_rows": int((late["late_rows"] > 0).sum()),
        "operators_failed": int((each["failed"] > 0).sum()),
        "blocked_share": number(each, pl.col("blocked").sum() / pl.col("samples").sum()),
        "rates_compared": off.height,
        "rates_near": number(off, (pl.col("off") <= math.log(NEAR)).mean()),
        "median_rate_ratio": number(off, pl.col("rate_ratio").median()),
        "selectivities_compared": selectivity.height,
        "selectivities_near": number(selectivity, (pl.col("off") <= math.log(NEAR)).mean()),
        "median_selectivity_ratio": number(selectivity, pl.col("selectivity_ratio").median()),
    }
    parts: list[Plot | Table] = [_ratios(off, selectivity, numbers), _worst(each), _late(each.join(late, on="operator"))]
    return Findings(numbers, Section("Operators", _text(numbers), parts))


def _by_moment(rows: DataFrame) -> DataFrame:
    return rows.groupBy(MOMENT, "operator", "operator_kind", "agent").agg(
        F.count("*").alias("samples"),
        F.avg("rows_per_s_in").alias("rows_per_s_in"),
        F.avg("rows_per_s_out").alias("rows_per_s_out"),
        F.avg("estimated_rows_per_s_in").alias("expected_in"),
        F.avg("estimated_rows_per_s_out").alias("expected_out"),
        F.avg("selectivity_estimated").alias("expected_selectivity"),
        F.max("late_rows").alias("late_rows"),
        F.max("dropped_rows").alias("dropped_rows"),
        F.avg("queue_batches").alias("queue_batches"),
        F.sum((F.col("state") == "blocked").cast("int")).alias("blocked"),
        F.sum((F.col("state") == "failed").cast("int")).alias("failed"),
    )


def by_operator(moments: pl.LazyFrame) -> pl.DataFrame:
    """Returns means over all samples per operator; ratios are measured over expected, null if either is 0 or unknown."""
    weighted = {
        # Without a single value the mean is 0 / 0, NaN: unknown.
        name: ((pl.col(name) * pl.col("samples")).sum() / pl.col("samples").filter(pl.col(name).is_not_null()).sum()).fill_nan(None)
        for name in _MEANS
    }
    each = moments.group_by("operator", "operator_kind").agg(
        *(mean.alias(name) for name, mean in weighted.items()), pl.col("samples", "blocked", "failed").sum()
    )
    inner = ~pl.col("operator_kind").is_in(["source", "sink"]) & (pl.col("rows_per_s_in") > 0)
    measured = pl.when(inner).then(pl.col("rows_per_s_out") / pl.col("rows_per_s_in")).alias("selectivity")
    known = pl.col("expected_out") > 0
    ratios = (
        pl.when(known).then(pl.col("rows_per_s_out") / pl.col("expected_out")).alias("rate_ratio"),
        pl.when(pl.col("expected_selectivity") > 0).then(pl.col("selectivity") / pl.col("expected_selectivity")).alias("selectivity_ratio"),
    )
    return each.with_columns(measured).with_columns(ratios).sort("operator").collect()


_MEANS = ("rows_per_s_in", "rows_per_s_out", "expected_in", "expected_out", "expected_selectivity", "queue_batches")


def _off(each: pl.DataFrame, ratio: str) -> pl.DataFrame:
    """Returns the rows with a ratio, and the absolute logarithm of the ratio."""
    return each.filter(pl.col(ratio) > 0).with_columns(pl.col(ratio).log().abs().alias("off"))


def _text(numbers: dict[str, Any]) -> str:
    text = f"{count(numbers['operators'], 'operator')}. Of {numbers['rates_compared']:,} with an expected output rate "
    text += f"{percent(numbers['rates_near'])} were within a factor of {NEAR:g} of it; "
    text += f"of {numbers['selectivities_compared']:,} measured selectivities {percent(numbers['selectivities_near'])}. "
    text += f"{count(numbers['late_rows'], 'row')} came too late for their windows, at "
    text += f"{count(numbers['operators_with_late_rows'], 'operator')}; {count(numbers['dropped_rows'], 'row')} were dropped. "
    return text + f"{count(numbers['operators_failed'], 'operator')} failed."


def _ratios(off: pl.DataFrame, selectivity: pl.DataFrame, numbers: dict[str, Any]) -> Plot:
    series = []
    for label, frame, column in (("output rate", off, "rate_ratio"), ("selectivity", selectivity, "selectivity_ratio")):
        values = frame[column].sort().to_list()
        if values:
            series.append(plots.Series(label, values, [(index + 1) / len(values) for index in range(len(values))]))
    text = "Measured over expected, mean of each operator. At 1 the plan was right; left of it operators carry less than planned, "
    text += "right of it more. "
    ratio = numbers["median_rate_ratio"]
    if ratio is not None:
        bent = abs(math.log(ratio)) > math.log(1.5)
        text += f"The median rate is {figure(ratio)} times the expected: " + (
            "plans are wrong in one direction." if bent else "plans are not wrong in one direction."
        )
    return Plot(
        "Estimated against measured values",
        plots.lines(series, "measured / expected", "share of operators", log_x=True, percent=True),
        text,
    )


def _worst(each: pl.DataFrame) -> Table:
    worst = _off(each, "rate_ratio").sort("off", "operator", descending=[True, False]).head(WORST)
    rows = [
        [
            row["operator"],
            row["operator_kind"],
            figure(row["expected_out"]),
            figure(row["rows_per_s_out"]),
            figure(row["rate_ratio"]),
            figure(row["expected_selectivity"]),
            figure(row["selectivity"]),
        ]
        for row in worst.iter_rows(named=True)
    ]
    columns = ("operator", "kind", "expected rows/s", "measured rows/s", "ratio", "expected selectivity", "measured selectivity")
    return Table("Estimates furthest off", columns, rows, "By output rate.")


def _late(each: pl.DataFrame) -> Table:
    worst = each.filter((pl.col("late_rows") > 0) | (pl.col("dropped_rows") > 0) | (pl.col("failed") > 0)).sort(
        "late_rows", "operator", descending=[True, False]
    )
    rows = [
        [
            row["operator"],
            row["operator_kind"],
            f"{row['late_rows']:,}",
            f"{row['dropped_rows']:,}",
            percent(row["blocked"] / row["samples"]),
            "yes" if row["failed"] else "no",
        ]
        for row in worst.head(WORST).iter_rows(named=True)
    ]
    return Table(
        "Operators with late or dropped rows", ("operator", "kind", "late rows", "dropped rows", "of the time blocked", "failed"), rows
    )
