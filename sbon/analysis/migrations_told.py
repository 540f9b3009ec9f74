"""Writes the section on migrations: plots, tables, and notes on unusual values."""

from typing import Any

import polars as pl

from sbon.analysis import plots
from sbon.analysis.findings import Findings, clock, count, figure, number, percent, size
from sbon.analysis.page import Plot, Section, Table

WORST = 15
POINTS_MAX = 3000
"""Most points in a plot; more would make the page large without showing more."""
CHANGE_SHOWN = 1.5
"""Largest relative increase in cost that is drawn; larger ones are listed in the text."""
REASON = r"-?[0-9][0-9.,e+\-]*"


def tell(numbers: dict[str, Any], moves: pl.DataFrame, compared: pl.DataFrame) -> Findings:
    """Builds all parts from the tables of `migrations.examine`."""
    done = moves.filter("committed")
    reviews = sum(numbers["reviews"].values())
    text = f"{count(numbers['committed'], 'migration')} of {count(numbers['operators_moved'], 'operator')} committed, "
    text += f"{numbers['abandoned']:,} abandoned; "
    text += f"{count(reviews, 'review')} looked for a reason to move" + (f" ({_verdicts(numbers['reviews'])})" if reviews else "") + ". "
    text += f"{count(numbers['flaps'], 'migration')} took an operator back to where it had come from within half an hour" + (
        ": it should have stayed." if numbers["flaps"] else "."
    )
    parts: list[Plot | Table] = []
    if compared.height:
        parts.append(_figure12(numbers, compared))
    if done.height:
        parts += [_benefit(numbers, done), _pauses(numbers, done), _phases(done)]
    parts += [_reasons(moves), _dearest(done)]
    return Findings(numbers, Section("Migrations", text, parts))


def _verdicts(reviews: dict[str, int]) -> str:
    return ", ".join(f"{verdict} {times:,}" for verdict, times in sorted(reviews.items(), key=lambda one: -one[1]))


def _figure12(numbers: dict[str, Any], compared: pl.DataFrame) -> Plot:
    changes = compared["change"].to_list()
    shares = [(index + 1) / len(changes) for index in range(len(changes))]
    text = (
        "Mean network usage of each query that had a migration, compared with the same query if nothing had moved since its first row in "
        "the log, with the same rates and latencies. "
        f"Of {count(numbers['queries_moved'], 'such query', 'such queries')} migration made "
        f"{percent(numbers['queries_better'])} cheaper (the paper: 75 %); "
        "together they used "
        f"{_change(numbers['usage_change'])} (16.9 % less there), and their longest paths were "
        f"{_change(numbers['delay_change'], 'shorter', 'longer')} (10.5 % shorter there), with "
        f"{figure(numbers['migrations_per_query'])} migrations each on average (3.5 there). "
    )
    worst = compared.row(-1, named=True)
    if worst["change"] > 0.05:
        text += f"{worst['query']} has suffered most: {percent(worst['change'])} more."
    beyond = sum(change > CHANGE_SHOWN for change in changes)
    text += f" {count(beyond, 'query', 'queries')} beyond +{percent(CHANGE_SHOWN)} are outside the plot." if beyond else ""
    shown = len(changes) - beyond
    series = plots.Series("queries", [100 * change for change in changes[:shown]], shares[:shown])
    return Plot(
        "What migration has changed", plots.lines([series], "change of mean network usage, %", "share of queries", percent=True), text
    )


def _change(value: float | None, less: str = "less", more: str = "more") -> str:
    return "unknown" if value is None else f"{percent(abs(value))} {less if value <= 0 else more}"


def _benefit(numbers: dict[str, Any], done: pl.DataFrame) -> Plot:
    known = done.drop_nulls(["usage_measured_before", "usage_measured_after"]).filter(
        (pl.col("usage_measured_before") > 0) & (pl.col("usage_measured_after") > 0)
    )
    if not numbers["measured"]:
        text = "No migration has usage of its operator's links in the half minute before and after it: the links are not in the log, were "
        text += "new, carried nothing, or had no known latency."
        return Plot("Before and after each migration", plots.points([], [], "before, bytes in transit", "after"), text)
    text = "Network usage of the moved operator's links in the half minute before and after each of "
    text += f"{count(numbers['measured'], 'migration')}, by the rates and latencies that "
    text += f"agents measured; below the line it fell. {percent(numbers['share_that_saved'])} saved; the median saving was "
    text += f"{percent(numbers['median_saving_measured'])}, "
    text += f"where the decisions had promised {percent(numbers['median_saving_predicted'])}."
    bad = known.filter(pl.col("usage_measured_after") > 1.2 * pl.col("usage_measured_before")).height
    text += f" {count(bad, 'migration')} made things worse by a fifth or more." if bad else ""
    latency = done.drop_nulls(["latency_ms_before", "latency_ms_after"]).filter(pl.col("latency_ms_before") > 0)
    if latency.height:
        ratio = number(latency, (pl.col("latency_ms_after") / pl.col("latency_ms_before") - 1).median())
        text += f" Median latency of the queries' answers changed by {percent(ratio)} (median over {count(latency.height, 'migration')})."
    shown = known.sample(POINTS_MAX, seed=0) if known.height > POINTS_MAX else known
    xs, ys = shown["usage_measured_before"].to_list(), shown["usage_measured_after"].to_list()
    return Plot("Before and after each migration", plots.points(xs, ys, "before, bytes in transit", "after", diagonal=True, log=True), text)


def _pauses(numbers: dict[str, Any], done: pl.DataFrame) -> Plot:
    pauses = done["pause_ms"].sort().to_list()
    shares = [(index + 1) / len(pauses) for index in range(len(pauses))]
    text = f"Pauses of the moved operators: {figure(numbers['median_pause_ms'], 'ms')} (median), "
    text += f"{figure(numbers['p90_pause_ms'], 'ms')} (90 %), "
    text += f"{figure(numbers['max_pause_ms'], 'ms')} at most; state of {size(numbers['median_state_bytes'])} (median). "
    longest = done.sort("pause_ms", descending=True).row(0, named=True)
    if longest["pause_ms"] > 10 * max(numbers["median_pause_ms"], 1e-9):
        text += f"The longest, of {longest['operator']} at {clock(longest['ended_at'])}, is unusually long."
    return Plot(
        "Pauses",
        plots.lines([plots.Series("migrations", pauses, shares)], "pause, ms", "share of migrations", log_x=True, percent=True),
        text,
    )


def _phases(done: pl.DataFrame) -> Table:
    steps = [
        ("asked - locked", "neighbours agree to keep still", "asked_at", "locked_at"),
        ("locked - prepared", "the new host gets ready", "locked_at", "prepared_at"),
        ("prepared - paused", "its state is copied while it runs; it finishes its batch", "prepared_at", "paused_at"),
        ("paused - moved", "the rest of its state is copied", "paused_at", "moved_at"),
        ("moved - ended", "neighbours are told", "moved_at", "ended_at"),
    ]
    rows = []
    for name, meaning, begin, end in steps:
        took = ((done[end] - done[begin]).dt.total_microseconds() / 1000).drop_nulls()
        high = took.quantile(0.9, "nearest")
        rows.append([name, meaning, figure(float(took.median()) if len(took) else None), figure(high), f"{len(took):,}"])  # type: ignore[arg-type]
    return Table("Phases of committed migrations", ("phase", "what happens", "median, ms", "90 %, ms", "migrations"), rows)


def _reasons(moves: pl.DataFrame) -> Table:
    """Returns the reasons of migrations, without nodes' names and numbers."""
    plain = pl.when("committed").then("reason").otherwise(pl.concat_str(pl.lit("abandoned: "), "outcome"))
    plain = plain.str.replace_many(["{", "}"], ["(", ")"])
    named = moves.with_columns(plain.alias("plain")).with_columns(
        pl.struct("plain", "from_node", "to_node", "operator")
        .map_elements(
            lambda row: (
                row["plain"].replace(row["operator"], "OPERATOR").replace(row["to_node"], "THERE").replace(row["from_node"], "HERE")
            ),
            return_dtype=pl.String,
        )
        .str.replace_all(REASON, "N")
        .alias("plain")
    )
    totals = (
        named.group_by("plain").agg(pl.len().alias("times"), pl.col("pause_ms").median()).sort("times", "plain", descending=[True, False])
    )
    rows = [[row["plain"], f"{row['times']:,}", figure(row["pause_ms"])] for row in totals.head(WORST).iter_rows(named=True)]
    return Table("Reasons", ("reason (N: numbers)", "times", "median pause, ms"), rows)


def _dearest(done: pl.DataFrame) -> Table:
    per_operator = done.group_by("operator").agg(
        pl.len().alias("times"), pl.col("to_node").alias("path"), pl.col("from_node").first(), pl.col("pause_ms").sum()
    )
    rows = [
        [row["operator"], f"{row['times']:,}", " > ".join([row["from_node"], *row["path"]][:8]), figure(row["pause_ms"])]
        for row in per_operator.sort("times", "operator", descending=[True, False]).head(WORST).iter_rows(named=True)
    ]
    return Table("Operators that moved most", ("operator", "migrations", "way", "paused in all, ms"), rows)
