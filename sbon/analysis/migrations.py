"""Benefits and costs of moving operators (SBON, section 4.2.1, figures 10 to 12)."""

from datetime import timedelta
from typing import Any, cast

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis.findings import Findings, number
from sbon.analysis.migrations_told import tell
from sbon.analysis.page import Section
from sbon.analysis.pricing import Priced
from sbon.analysis.workbench import Workbench
from sbon.cost.network_usage import NetworkUsage

AROUND_S = 30
"""Seconds before and after a migration in which its links are compared; with more, the cause of the migration would affect both sides."""
ANSWERS_S = 150
"""Seconds before and after a migration in which latencies of answers are compared; these are recorded once a minute."""
CALM_S = 15
"""Seconds after a migration for which rates are means that include time before it."""
FLAP = timedelta(minutes=30)
"""Time within which an operator that returns to its former host has flapped."""
KEY = "migration"


def examine(bench: Workbench, priced: Priced | None) -> Findings:
    """Builds the section on migrations."""
    verdicts: dict[str, int] = dict(bench.table("reviews").groupBy("verdict").count().collect()) if bench.has("reviews") else {}
    if not bench.has("migrations"):
        section = Section("Migrations", f"No operator has moved. {sum(verdicts.values()):,} reviews found no reason to.", ())
        return Findings({"committed": 0, "abandoned": 0, "reviews": verdicts}, section)
    bench.say("migrations: before and after")
    every = bench.table("migrations").withColumn(KEY, F.concat_ws("/", "agent", "start", "sequence"))
    committed = every.where("committed")
    moves = bench.keep("migrations", _measured(bench, every, committed)).collect().sort("ended_at", "operator")
    done = moves.filter("committed")
    changed = done.filter(pl.col("usage_measured_before") > 0).drop_nulls(["usage_measured_after"])
    change = changed["usage_measured_after"] / changed["usage_measured_before"] - 1
    compared = _compared(done, priced)
    aggregate = _aggregate(compared)
    numbers: dict[str, Any] = {
        "committed": done.height,
        "abandoned": moves.height - done.height,
        "operators_moved": done["operator"].n_unique(),
        "flaps": int(flapped(done).sum()),
        "median_pause_ms": number(done, pl.col("pause_ms").median()),
        "p90_pause_ms": number(done, pl.col("pause_ms").quantile(0.9, "nearest")),
        "max_pause_ms": number(done, pl.col("pause_ms").max()),
        "median_duration_ms": number(done, pl.col("duration_ms").median()),
        "median_state_bytes": number(done, pl.col("state_bytes").median()),
        "median_saving_predicted": number(
            done, (1 - pl.col("usage_after_bytes") / pl.col("usage_before_bytes")).filter(pl.col("usage_before_bytes") > 0).median()
        ),
        "measured": changed.height,
        "median_saving_measured": None if change.is_empty() else -float(change.median()),  # type: ignore[arg-type]
        "share_that_saved": float((change < 0).mean()) if len(change) else None,  # type: ignore[arg-type]
        **aggregate,
        "reviews": {str(verdict): int(times) for verdict, times in sorted(verdicts.items())},
    }
    return tell(numbers, moves, compared)


def _measured(bench: Workbench, every: DataFrame, committed: DataFrame) -> DataFrame:
    """Returns migrations with the measured network usage of the operator's links and the median latency of its queries' answers."""
    around = committed.select(KEY, "operator", "queries", "asked_at", "ended_at")
    usage = (
        _sides(_links(bench), around.drop("queries"), "operator", AROUND_S)
        .groupBy(KEY, "after", "link")
        .agg(_usage(F.avg("bytes_per_s"), F.avg("latency_ms")).alias("usage"))
    )
    usage = usage.groupBy(KEY).agg(*_both(F.sum, "usage", "usage_measured"))
    answers = bench.table("latencies").select(F.col("query").alias("operator"), "time", "rows", "p50_ms")
    by_query = around.select(KEY, F.explode("queries").alias("operator"), "asked_at", "ended_at")
    weighted = (
        _sides(answers, by_query, "operator", ANSWERS_S)
        .groupBy(KEY, "after")
        .agg((F.sum(F.col("p50_ms") * F.col("rows")) / F.sum("rows")).alias("p50_ms"))
    )
    latency = weighted.groupBy(KEY).agg(*_both(F.max, "p50_ms", "latency_ms"))
    return every.drop("version", "moment").join(usage, KEY, "left").join(latency, KEY, "left")


def _usage(bytes_per_s: Column, latency_ms: Column) -> Column:
    """Returns the network usage of links as a column: the model's formula is written with operators that Spark's columns have, too."""
    return cast(Column, NetworkUsage().of_links(cast(Any, bytes_per_s), cast(Any, latency_ms)))


def _links(bench: Workbench) -> DataFrame:
    """Returns samples of links, once under each end's operator."""
    links = bench.table("links").select(
        "time", "link", "bytes_per_s", "latency_ms", F.explode(F.array("source", "target")).alias("operator")
    )
    return links.where(F.col("latency_ms").isNotNull())


def _sides(samples: DataFrame, around: DataFrame, key: str, seconds: int) -> DataFrame:
    """Returns samples shortly before and after each migration, marked by `after`."""
    time, asked, ended = F.unix_micros("time"), F.unix_micros("asked_at"), F.unix_micros("ended_at")
    before = (time >= asked - seconds * 1_000_000) & (time < asked)
    after = (time >= ended + CALM_S * 1_000_000) & (time < ended + (CALM_S + seconds) * 1_000_000)
    return (
        samples.join(F.broadcast(around), key)
        .withColumn("after", F.when(before, False).when(after, True))
        .where(F.col("after").isNotNull())
    )


def _both(how: Any, value: str, name: str) -> list[Any]:
    return [
        how(F.when(F.col("after") == side, F.col(value))).alias(f"{name}_{label}") for side, label in ((False, "before"), (True, "after"))
    ]


def flapped(done: pl.DataFrame) -> pl.Series:
    """Tells for each migration whether it took its operator back to its recent former host; in the order of the rows."""
    last = pl.col("from_node", "ended_at").shift(1).over("operator", order_by="ended_at")
    before = done.select(last).rename({"from_node": "came_from", "ended_at": "came_at"})
    return (done["to_node"] == before["came_from"]).fill_null(False) & ((done["ended_at"] - before["came_at"]) <= FLAP).fill_null(False)


def _compared(done: pl.DataFrame, priced: Priced | None) -> pl.DataFrame:
    """Returns for each query with a migration the mean usage and delay, and their values without any move (as figure 12)."""
    moved = done.select(pl.col("queries").alias("query")).explode("query").drop_nulls().group_by("query").agg(pl.len().alias("migrations"))
    if priced is None:
        return moved.with_columns(
            pl.lit(None, dtype=pl.Float64).alias(name) for name in ("usage", "unmoved", "delay_ms", "delay_unmoved_ms", "change")
        ).clear()
    known = priced.queries.drop_nulls(["usage", "unmoved", "delay_ms", "delay_unmoved_ms"])
    means = known.group_by("query").agg(pl.col("usage", "unmoved", "delay_ms", "delay_unmoved_ms").mean())
    together = moved.join(means, on="query").filter(pl.col("unmoved") > 0)
    return together.with_columns((pl.col("usage") / pl.col("unmoved") - 1).alias("change")).sort("change", "query")


def _aggregate(compared: pl.DataFrame) -> dict[str, Any]:
    return {
        "queries_moved": compared.height,
        "migrations_per_query": number(compared, pl.col("migrations").mean()),
        "queries_better": number(compared, (pl.col("change") < 0).mean()),
        "usage_change": number(compared, pl.col("usage").sum() / pl.col("unmoved").sum() - 1),
        "delay_change": number(compared, pl.col("delay_ms").sum() / pl.col("delay_unmoved_ms").sum() - 1),
    }
