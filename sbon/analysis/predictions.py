"""Compares predicted with measured latency of queries: errors by query, answers later than their bound, and costs by rules of thumb.

A row of telemetry has the predicted latency, and the latency that the sink has measured in the last seconds. If the row has a new
prediction, the measurement belongs to the prediction before and is compared with that one.
"""

from typing import Any

import polars as pl
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis import plots
from sbon.analysis.findings import Findings, count, figure, number, percent
from sbon.analysis.page import Plot, Section, Table
from sbon.analysis.quantiles import BIN, COUNT, RELATIVE_ERROR, binned, quantile_of, quantiles_by
from sbon.analysis.workbench import Workbench

TITLE = "Predicted latency"
SHARES = {"p50": 0.5, "p90": 0.9}
COMPARED = {"worst": ("worst_ms", "measured_max_ms"), "p99": ("p99_ms", "measured_p99_ms"), "mean": ("mean_ms", "measured_mean_ms")}
"""Figures that are compared: columns of the predicted and of the measured value."""
PREDICTED = ("worst_ms", "worst_high_ms", "p99_ms", "mean_ms")
WORST = 15


def examine(bench: Workbench) -> Findings:
    """Builds the section on predictions."""
    if not bench.has("predictions"):
        return Findings({}, Section(TITLE, "The log has no predictions: no query ran for long enough, or none in these logs.", ()))
    bench.say("predictions of latency")
    rows = in_force(bench.table("predictions")).cache()
    errors = {
        name: bench.keep(f"prediction_errors_{name}", binned(rows, ["query"], F.col(f"error_{name}"), RELATIVE_ERROR)).collect()
        for name in COMPARED
    }
    queries = bench.keep("predictions_by_query", _by_query(rows)).collect()
    rows.unpersist()
    compared = int(errors["worst"][COUNT].sum())
    numbers: dict[str, Any] = {
        "queries": queries.height,
        "predictions": int(queries["predictions"].sum()),
        "predicted_anew": int(queries["anew"].sum()),
        "compared": compared,
        **{
            f"{name}_error_{share_name}": quantile_of(found, share, RELATIVE_ERROR) if not found.is_empty() else None
            for name, found in errors.items()
            for share_name, share in SHARES.items()
        },
        "bounded": int(queries["bounded"].sum()),
        "outside_bounds": int(queries["outside"].sum()),
        "outside_share": number(queries, pl.col("outside").sum() / pl.col("bounded").sum()) if queries["bounded"].sum() else None,
        "above_max_latency": int(queries["above_max"].sum()),
        "queries_by_rule": int((queries["by_rule"] > 0).sum()),
    }
    return Findings(numbers, Section(TITLE, _text(numbers), [_errors(errors, compared), _queries(queries, errors["worst"])]))


def in_force(rows: DataFrame) -> DataFrame:
    """Returns rows with the prediction that was in force while their answers were measured, and how far off it was; null if unknown."""
    by_query = Window.partitionBy("agent", "start", "query").orderBy("sequence")
    predicted_of = F.struct(*PREDICTED)
    found = rows.withColumn("was", F.lag(predicted_of).over(by_query))
    is_anew = (F.col("anew_because") != "") & F.col("was").isNotNull() & ~F.col("was").eqNullSafe(predicted_of)
    found = found.withColumn("is_anew", is_anew)
    for name in PREDICTED:
        found = found.withColumn(name, F.when(F.col("is_anew"), F.col(f"was.{name}")).otherwise(F.col(name)))
    has = F.col("measured_rows") > 0
    for name, (predicted, measured) in COMPARED.items():
        off = F.abs(F.col(predicted) - F.col(measured)) / F.col(measured)
        found = found.withColumn(f"error_{name}", F.when(has & (F.col(measured) > 0), off))
    return found.withColumn("has", has)


def _by_query(rows: DataFrame) -> DataFrame:
    def times(condition: Any) -> Any:
        return F.sum(F.coalesce(condition, F.lit(False)).cast("int"))

    bounded = F.col("has") & F.col("worst_high_ms").isNotNull()
    return rows.groupBy("query").agg(
        F.count("*").alias("predictions"),
        times(F.col("is_anew")).alias("anew"),
        times(bounded).alias("bounded"),
        times(bounded & (F.col("measured_max_ms") > F.col("worst_high_ms"))).alias("outside"),
        times(F.col("has") & (F.col("measured_max_ms") > F.col("max_latency_ms"))).alias("above_max"),
        times(F.col("rests_on_rules")).alias("by_rule"),
        F.avg("worst_ms").alias("worst_ms"),
        F.avg("worst_high_ms").alias("worst_high_ms"),
        F.max("measured_max_ms").alias("measured_max_ms"),
        F.max("max_latency_ms").alias("max_latency_ms"),
    )


def _text(numbers: dict[str, Any]) -> str:
    text = f"{count(numbers['predictions'], 'prediction')} of {count(numbers['queries'], 'query', 'queries')}, "
    text += f"{numbers['predicted_anew']:,} of them new because the measured latency differed from the last one. "
    if not numbers["compared"]:
        return text + "No sink has measured latencies to compare them with."
    text += f"The worst case was off by less than {percent(numbers['worst_error_p50'])} in half of the comparisons and "
    text += f"{percent(numbers['worst_error_p90'])} in nine of ten; the 99th percentile by {percent(numbers['p99_error_p50'])} and "
    text += (
        f"{percent(numbers['p99_error_p90'])}, the mean by {percent(numbers['mean_error_p50'])} and {percent(numbers['mean_error_p90'])}. "
    )
    text += f"Of {numbers['bounded']:,} with an upper bound, answers were later in {numbers['outside_bounds']:,} "
    text += f"({percent(numbers['outside_share'])}); {numbers['above_max_latency']:,} times they were later than the query accepts. "
    return text + f"{count(numbers['queries_by_rule'], 'query', 'queries')} had costs that are a rule of thumb."


def _errors(errors: dict[str, pl.DataFrame], compared: int) -> Plot:
    series = []
    for name, found in errors.items():
        by_bin = found.group_by(BIN).agg(pl.col(COUNT).sum()).sort(BIN)
        total = by_bin[COUNT].sum()
        if total:
            shares = (by_bin[COUNT].cum_sum() / total).to_list()
            series.append(plots.Series(name, [(place + 0.5) * RELATIVE_ERROR.width for place in by_bin[BIN].to_list()], shares))
    text = f"The share of {count(compared, 'comparison')} in which a prediction had at most this error."
    return Plot("Errors of predicted latency", plots.lines(series, "relative error", "share of comparisons", percent=True), text)


def _queries(queries: pl.DataFrame, errors: pl.DataFrame) -> Table:
    by_query = quantiles_by(errors, "query", SHARES, RELATIVE_ERROR).drop(COUNT)
    each = queries.join(by_query, on="query", how="left").sort("p50", "query", descending=[True, False], nulls_last=True)
    rows = [
        [
            row["query"],
            f"{row['predictions']:,}",
            figure(row["worst_ms"]),
            figure(row["worst_high_ms"]),
            figure(row["measured_max_ms"]),
            figure(row["max_latency_ms"]),
            percent(row["p50"]) if row["p50"] is not None else "-",
            percent(row["p90"]) if row["p90"] is not None else "-",
            f"{row['outside']:,}",
        ]
        for row in each.head(WORST).iter_rows(named=True)
    ]
    columns = (
        "query",
        "predictions",
        "worst, ms",
        "bound, ms",
        "measured, ms",
        "accepted, ms",
        "error, median",
        "error, 90 %",
        "above bound",
    )
    return Table(
        "Predictions furthest off", columns, rows, "By the median error of the worst case; all are in tables/predictions_by_query."
    )
