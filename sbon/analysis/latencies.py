"""Latencies of rows from creation to sink, by query and over time."""

from typing import Any

import polars as pl
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis import plots
from sbon.analysis.findings import Findings, clock, count, figure
from sbon.analysis.page import Plot, Section, Table
from sbon.analysis.quantiles import BIN, COUNT, MILLISECONDS, quantile_of, quantiles_by
from sbon.analysis.workbench import MOMENT, Workbench

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
WORST = 15
JUMP = 1.2


def examine(bench: Workbench) -> Findings:
    """Builds the section on latencies."""
    if not bench.has("latencies"):
        return Findings({}, Section("Latency of answers", "The log has no latencies: no sink took rows, or none in these logs.", ()))
    bench.say("latencies of answers")
    digests = bench.table("latencies").select(MOMENT, "query", "max_ms", F.explode("buckets").alias("b"))
    counts = digests.groupBy(MOMENT, "query", F.col("b.number").cast("int").alias(BIN)).agg(
        F.sum("b.rows").alias(COUNT), F.max("max_ms").alias("max_ms")
    )
    table = bench.keep("latency_by_query", counts).collect()
    if table.is_empty():
        return Findings({}, Section("Latency of answers", "The log has latencies, but no rows in them.", ()))
    by_query = quantiles_by(table, "query", SHARES, MILLISECONDS).join(
        table.group_by("query").agg(pl.col("max_ms").max()), on="query", maintain_order="left"
    )
    # The middle of the last bin may lie beyond the longest latency in it.
    by_query = by_query.with_columns(pl.min_horizontal(name, "max_ms") for name in SHARES)
    longest = float(table["max_ms"].max())  # type: ignore[arg-type]
    numbers: dict[str, Any] = {
        "rows": int(table[COUNT].sum()),
        "queries": by_query.height,
        **{f"{name}_ms": min(quantile_of(table, share, MILLISECONDS) or 0.0, longest) for name, share in SHARES.items()},
        "max_ms": longest,
    }
    text = f"{count(numbers['rows'], 'row')} reached a sink; from their creation half of them took less than "
    text += f"{figure(numbers['p50_ms'], 'ms')}, 99 of 100 less than "
    text += f"{figure(numbers['p99_ms'], 'ms')}. A latency is the time of the sink's clock minus that of the source's; it includes "
    text += "the time that rows wait for the end of their window."
    return Findings(numbers, Section("Latency of answers", text, [_over_time(table), _queries(by_query)]))


def _over_time(table: pl.DataFrame) -> Plot:
    by_moment = quantiles_by(table, MOMENT, SHARES, MILLISECONDS)
    at, medians = by_moment[MOMENT].to_list(), by_moment["p50"].to_list()
    usual = sorted(medians)[len(medians) // 2]
    high = [moment for moment, value in zip(at, medians, strict=True) if value > JUMP * usual]
    top = max(range(len(at)), key=lambda index: by_moment["p99"][index])
    text = f"Over all queries. The median was usually {figure(usual, 'ms')}; "
    text += (
        f"in {count(len(high), 'moment')} it was more than {JUMP:g} times that, the first at {clock(high[0])}. "
        if high
        else f"it never was more than {JUMP:g} times that. "
    )
    text += f"The 99th percentile was highest at {clock(at[top])}: {figure(by_moment['p99'][top], 'ms')}."
    series = [plots.Series(label, at, by_moment[name].to_list()) for name, label in (("p50", "median"), ("p90", "90 %"), ("p99", "99 %"))]
    return Plot("Latency over time", plots.lines(series, "UTC", "ms", log_y=True), text)


def _queries(by_query: pl.DataFrame) -> Table:
    rows = [
        [row["query"], f"{row[COUNT]:,}", figure(row["p50"]), figure(row["p90"]), figure(row["p99"]), figure(row["max_ms"])]
        for row in by_query.sort("p99", "query", descending=[True, False]).head(WORST).iter_rows(named=True)
    ]
    return Table(
        "Slowest queries",
        ("query", "rows", "median, ms", "90 %, ms", "99 %, ms", "most, ms"),
        rows,
        "By their 99th percentile; every query and moment is in tables/latency_by_query.",
    )
