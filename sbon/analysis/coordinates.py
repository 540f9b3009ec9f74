"""Accuracy and stability of the coordinates (SBON, section 3.1.1, figures 3 to 5)."""

import math
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis.coordinates_told import tell
from sbon.analysis.findings import Findings, number
from sbon.analysis.page import Section
from sbon.analysis.quantiles import BIN, COUNT, RELATIVE_ERROR, binned, quantile_of, quantiles_by
from sbon.analysis.workbench import MOMENT, Workbench
from sbon.types import FloatArray

JOIN_S = 1800.0
"""Seconds after its start for which an agent counts as joining."""
AGES_S = (10, 20, 30, 45, 60, 90, 120, 180, 300, 450, 600, 900, 1200, 1800)
"""Ends of the time steps in which convergence is shown."""
SETTLED = 1.2
"""Factor of the whole log's median error up to which an agent counts as settled."""
TRIANGLE_NODES_MAX = 400
"""Most nodes, the first by name, examined for detours, whose cost is cubic in the nodes."""


def relative_error() -> Any:
    """Returns the error of a prediction relative to the measured RTT; null without one."""
    return F.when(F.col("rtt_ms") > 0, F.abs(F.col("predicted_ms") - F.col("rtt_ms")) / F.col("rtt_ms"))


def examine(bench: Workbench) -> Findings:
    """Builds the section on coordinates."""
    probes = bench.table("probes")
    bench.say("coordinates: round trips between pairs")
    pairs = bench.keep("rtt_by_pair", _by_pair(probes))
    positions = bench.keep("coordinates_by_moment", _positions(bench)).collect()
    if not bench.has("probes"):
        return Findings({}, Section("Coordinates", "The log has no probes, so errors are unknown.", ()))
    bench.say("coordinates: errors of predictions")
    errors = bench.keep("probe_errors", binned(probes, [MOMENT], relative_error(), RELATIVE_ERROR)).collect()
    joins = bench.keep("convergence", _convergence(bench, probes)).collect()
    overall = errors.group_by(BIN).agg(pl.col(COUNT).sum())
    worst = _worst_pairs(pairs)
    detours = triangle_violations(mean_rtt(pairs))
    stability = _stability(positions)
    converged = _converged(joins, quantile_of(overall, 0.5, RELATIVE_ERROR))
    numbers = {
        "probes": int(errors[COUNT].sum()),
        "median_relative_error": quantile_of(overall, 0.5, RELATIVE_ERROR),
        "p90_relative_error": quantile_of(overall, 0.9, RELATIVE_ERROR),
        "drift_ms_per_s": number(stability, pl.col("moved_ms").sum() / pl.col("seconds").sum()),
        "converged_s": converged,
        "pairs": worst.height,
        **detours,
    }
    return tell(numbers, errors, joins, positions, stability, worst)


def _by_pair(probes: DataFrame) -> DataFrame:
    """Returns the least RTT of each pair in each moment, without the delay of queues (SBON filters for the same, section 3.1.1)."""
    a, b = F.least("agent", "peer"), F.greatest("agent", "peer")
    return (
        probes.where(F.col("rtt_ms") >= 0)
        .select(MOMENT, a.alias("a"), b.alias("b"), "rtt_ms", relative_error().alias("error"))
        .groupBy(MOMENT, "a", "b")
        .agg(F.min("rtt_ms").alias("rtt_ms"), F.count("*").alias(COUNT), F.sum("error").alias("error_sum"))
    )


def _convergence(bench: Workbench, probes: DataFrame) -> DataFrame:
    """Returns errors by time since the agent's start, for runs whose start is in the log."""
    starts = bench.table("agents").where(F.col("event") == "started").groupBy("start").agg(F.min("time").alias("started"))
    age = (F.unix_micros("time") - F.unix_micros("started")) / 1e6
    step = F.lit(None).cast("int")
    for end in reversed(AGES_S):
        step = F.when(F.col("age_s") < end, end).otherwise(step)
    aged = probes.join(F.broadcast(starts), "start").withColumn("age_s", age).where((F.col("age_s") >= 0) & (F.col("age_s") < JOIN_S))
    return binned(aged.withColumn("until_s", step), ["until_s"], relative_error(), RELATIVE_ERROR)


def _positions(bench: Workbench) -> DataFrame:
    """Returns each agent's coordinate in each moment, and how far it had moved."""
    before = Window.partitionBy("agent", "start").orderBy("time")
    squares = F.zip_with("vector_ms", F.lag("vector_ms").over(before), lambda x, y: (x - y) * (x - y))
    moved = F.sqrt(F.aggregate(squares, F.lit(0.0), lambda total, x: total + x)) + F.abs(
        F.col("height_ms") - F.lag("height_ms").over(before)
    )
    since = (F.unix_micros("time") - F.unix_micros(F.lag("time").over(before))) / 1e6
    return (
        bench.table("coordinates")
        .select(MOMENT, "agent", "start", "time", "vector_ms", "height_ms", "error", moved.alias("moved_ms"), since.alias("since_s"))
        .groupBy(MOMENT, "agent")
        .agg(
            F.max_by("vector_ms", "time").alias("vector_ms"),
            F.max_by("height_ms", "time").alias("height_ms"),
            F.avg("error").alias("error"),
            F.sum("moved_ms").alias("moved_ms"),
            F.sum("since_s").alias("seconds"),
            F.count("*").alias("samples"),
        )
    )


def mean_rtt(pairs: pl.LazyFrame) -> pl.DataFrame:
    """Returns (a, b, rtt_ms): the mean over moments of each pair's RTT."""
    return pairs.group_by("a", "b").agg(pl.col("rtt_ms").mean()).sort("a", "b").collect()


def _worst_pairs(pairs: pl.LazyFrame) -> pl.DataFrame:
    totals = pairs.group_by("a", "b").agg(pl.col(COUNT).sum(), pl.col("error_sum").sum(), pl.col("rtt_ms").mean())
    return (
        totals.with_columns((pl.col("error_sum") / pl.col(COUNT)).alias("error"))
        .sort("error", "a", "b", descending=[True, False, False])
        .collect()
    )


def triangle_violations(pairs: pl.DataFrame) -> dict[str, Any]:
    """Returns how many pairs of nodes have a shorter path over a third node, which no coordinates can represent.

    Returns
    -------
    dict
        `triangle_pairs`: pairs examined; `triangle_violations`: share of them with a shorter detour; `detour_saving`: median share of the
        RTT that the best detour saves for these pairs.
    """
    names = sorted({*pairs["a"], *pairs["b"]})[:TRIANGLE_NODES_MAX]
    rtt = rtt_matrix(pairs, names)
    best = np.full_like(rtt, np.inf)
    for middle in range(len(names)):
        np.minimum(best, rtt[:, middle, None] + rtt[None, middle, :], out=best)
    upper = np.triu(np.isfinite(rtt) & (rtt > 0), 1)
    saving = 1 - best[upper] / rtt[upper]
    violated = saving[saving > 1e-9]
    return {
        "triangle_pairs": int(upper.sum()),
        "triangle_violations": float(len(violated) / upper.sum()) if upper.any() else None,
        "detour_saving": float(np.median(violated)) if len(violated) else None,
    }


def rtt_matrix(pairs: pl.DataFrame, names: list[str]) -> FloatArray:
    """Returns RTTs in ms, (names, names): 0 within a node, infinite if nothing was measured."""
    rtt = np.full((len(names), len(names)), np.inf)
    known = pairs.filter(pl.col("a").is_in(names) & pl.col("b").is_in(names))
    row = {name: index for index, name in enumerate(names)}
    a, b = known["a"].replace_strict(row, return_dtype=pl.Int64), known["b"].replace_strict(row, return_dtype=pl.Int64)
    rtt[a, b] = rtt[b, a] = known["rtt_ms"].to_numpy()
    np.fill_diagonal(rtt, 0.0)
    return rtt


def _stability(positions: pl.DataFrame) -> pl.DataFrame:
    """Returns for each agent the length of its coordinate's path, and the distance between its ends."""
    if positions.is_empty():
        return pl.DataFrame(
            schema={"agent": pl.String, "moved_ms": pl.Float64, "seconds": pl.Float64, "net_ms": pl.Float64, "error": pl.Float64}
        )
    ends = (
        positions.sort(MOMENT)
        .group_by("agent")
        .agg(
            pl.col("moved_ms").sum(),
            pl.col("seconds").sum(),
            pl.col("error").last(),
            pl.col("vector_ms").first().alias("from"),
            pl.col("vector_ms").last().alias("to"),
        )
    )
    net = [math.dist(a, b) if len(a) == len(b) else float("nan") for a, b in zip(ends["from"], ends["to"], strict=True)]
    return (
        ends.with_columns(pl.Series("net_ms", net, dtype=pl.Float64)).drop("from", "to").sort("moved_ms", "agent", descending=[True, False])
    )


def _converged(joins: pl.DataFrame, settled: float | None) -> int | None:
    """Returns the seconds after a start from which the median error stays near that of the whole log; None without starts, or if it
    never does."""
    steps = quantiles_by(joins, "until_s", {"p50": 0.5}, RELATIVE_ERROR)
    reached = None
    for until_s, median in steps.select("until_s", "p50").iter_rows():
        near = settled is not None and median <= SETTLED * settled
        reached = reached if near and reached is not None else int(until_s) if near else None
    return reached
