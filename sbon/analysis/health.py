"""Health of the overlay: crashes and how soon they were noticed, suspicions, links that stalled or sent batches again, load."""

from datetime import timedelta
from typing import Any

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis import plots
from sbon.analysis.findings import Findings, clock, count, figure, number, percent, some
from sbon.analysis.page import Plot, Section, Table
from sbon.analysis.workbench import MOMENT, Workbench, kept

WORST = 15
SLOT_S = 10
"""Length of a time slot in seconds. Reports of one failure by several agents fall into a few adjacent slots."""
NOTICE = timedelta(seconds=120)
"""Longest time after an agent's last row in which a reported failure counts as its crash."""
SLACK = timedelta(seconds=2)
"""Assumed largest difference between two agents' clocks."""
BUSY = 0.9


def examine(bench: Workbench, runs: pl.DataFrame) -> Findings:
    """Builds the section on health."""
    bench.say("health: members, links, load")
    members = bench.keep("member_changes", _changes(bench.table("members"))).collect()
    stops = bench.table("agents").where(F.col("event") == "stopped").select("start").distinct()
    stopped = {row["start"] for row in stops.toLocalIterator()} if bench.has("agents") else set()
    load = bench.keep("load_by_moment", _load(bench.table("load"))).collect().sort(MOMENT, "agent")
    crashes = detections(runs, members, stopped)
    links = kept(bench.tables / "links_by_moment").collect() if bench.has("links") else None
    numbers: dict[str, Any] = {
        **_membership(members, crashes, runs),
        **_link_numbers(links),
        "mean_cpu": number(load, (pl.col("cpu") * pl.col("samples")).sum() / pl.col("samples").sum()),
        "max_cpu": number(load, pl.col("cpu_max").max()),
        "mean_cpu_waiting": number(
            load.drop_nulls("cpu_waiting"), (pl.col("cpu_waiting") * pl.col("samples")).sum() / pl.col("samples").sum()
        ),
        "busy_agents": load.filter(pl.col("cpu") > BUSY)["agent"].n_unique(),
        "records_dropped": int(load.group_by("agent", "start").agg(pl.col("records_dropped").max())["records_dropped"].sum()),
    }
    parts: list[Plot | Table] = [_crashes(crashes), _suspicions(members)]
    if links is not None:
        parts.append(_links(links))
    if load.height:
        parts += [_load_plot(load), _busiest(load)]
    return Findings(numbers, Section("Health", _text(numbers), parts))


def _changes(members: DataFrame) -> DataFrame:
    slot = F.floor(F.unix_micros("time") / (SLOT_S * 1_000_000))
    return (
        members.withColumn("slot", slot)
        .groupBy(MOMENT, "slot", "member", "before", "after")
        .agg(F.count("*").alias("words"), F.min("time").alias("first"), F.max("time").alias("last"))
    )


def _load(load: DataFrame) -> DataFrame:
    used = F.least("cpu", F.lit(1.0))  # older versions of the agent added the share of time in which work waited
    return load.groupBy(MOMENT, "agent", "start").agg(
        F.count("*").alias("samples"),
        F.avg(used).alias("cpu"),
        F.max(used).alias("cpu_max"),
        F.avg("cpu_waiting").alias("cpu_waiting"),
        F.avg("memory").alias("memory"),
        F.avg("load_ms").alias("load_ms"),
        F.max("operators").alias("operators"),
        F.max("records_dropped").alias("records_dropped"),
    )


def detections(runs: pl.DataFrame, members: pl.DataFrame, stopped: set[str]) -> pl.DataFrame:
    """Returns the runs that ended without notice and were declared failed by others.

    Columns: agent, start, at (the last row), noticed_s (from then to the first report of failure), all_noticed_s (to the last).
    """
    ends = runs.group_by("agent", "start").agg(pl.col("last").max().alias("at")).filter(~pl.col("start").is_in(list(stopped)))
    calls = members.filter(pl.col("after") == "failed").select(pl.col("member").alias("agent"), "first", pl.col("last").alias("latest"))
    found = ends.join(calls, on="agent").filter((pl.col("first") >= pl.col("at") - SLACK) & (pl.col("first") <= pl.col("at") + NOTICE))
    noticed = found.group_by("agent", "start", "at").agg(pl.col("first").min(), pl.col("latest").max())
    seconds = [
        ((pl.col(name) - pl.col("at")).dt.total_microseconds() / 1e6).alias(alias)
        for name, alias in (("first", "noticed_s"), ("latest", "all_noticed_s"))
    ]
    return noticed.select("agent", "start", "at", *seconds).sort("at", "agent")


def _membership(members: pl.DataFrame, crashes: pl.DataFrame, runs: pl.DataFrame) -> dict[str, Any]:
    suspected = members.filter(pl.col("after") == "suspect")["words"].sum()
    refuted = members.filter((pl.col("before") == "suspect") & (pl.col("after") == "alive"))["words"].sum()
    alive = runs.group_by("agent", "start").agg(pl.col("first").min().alias("from"), pl.col("last").max().alias("to"))
    calls = members.filter(pl.col("after") == "failed").select(pl.col("member").alias("agent"), "first", "words")
    wrong = calls.join(alive, on="agent").filter((pl.col("first") > pl.col("from")) & (pl.col("first") < pl.col("to") - SLACK))
    return {
        "crashes": crashes.height,
        "median_detection_s": number(crashes, pl.col("noticed_s").median()),
        "max_detection_s": number(crashes, pl.col("noticed_s").max()),
        "median_all_noticed_s": number(crashes, pl.col("all_noticed_s").median()),
        "suspicions": int(suspected),
        "suspicions_refuted": int(refuted),
        "failed_while_alive": int(wrong["words"].sum()),
    }


def _link_numbers(links: pl.DataFrame | None) -> dict[str, Any]:
    if links is None:
        return {"batches_resent": 0, "stalled_share": None}
    resent = links.group_by("link", "source_node", "start").agg(pl.col("resent").max())["resent"].sum()
    return {"batches_resent": int(resent), "stalled_share": number(links, pl.col("stalled").sum() / pl.col("samples").sum())}


def _text(numbers: dict[str, Any]) -> str:
    text = f"{count(numbers['crashes'], 'crash', 'crashes')} of agents noticed by others"
    if numbers["crashes"]:
        text += f", {figure(numbers['median_detection_s'], 's')} after the last row of the agent (median; "
        text += f"{figure(numbers['max_detection_s'], 's')} at most)"
    text += f"; {count(numbers['failed_while_alive'], 'report')} that an agent had failed while it wrote rows. "
    text += f"{count(numbers['suspicions'], 'suspicion')}, {numbers['suspicions_refuted']:,} refuted. "
    text += f"Links sent {count(numbers['batches_resent'], 'batch', 'batches')} again and were without credit "
    text += f"{percent(numbers['stalled_share'], 2)} of the time. "
    text += f"Agents used {percent(numbers['mean_cpu'])} of their processors on average; {count(numbers['busy_agents'], 'agent')} had a "
    text += f"moment above {percent(BUSY, 0)}. "
    if numbers["mean_cpu_waiting"] is not None:
        text += f"Work waited for a processor {percent(numbers['mean_cpu_waiting'])} of the time. "
    return text + f"{count(numbers['records_dropped'], 'row')} of telemetry were lost by the agents' own account."


def _crashes(crashes: pl.DataFrame) -> Table:
    rows = [
        [row["agent"], clock(row["at"]), figure(row["noticed_s"]), figure(row["all_noticed_s"])]
        for row in crashes.sort("noticed_s", descending=True).head(WORST).iter_rows(named=True)
    ]
    text = "Slowest first. The time of a crash is that of the agent's last row, which may be some seconds early: rows that were not "
    text += "written yet are lost."
    return Table("Crashes", ("agent", "last row", "called failed by the first after, s", "by the last, s"), rows, text)


def _suspicions(members: pl.DataFrame) -> Plot:
    by_moment = members.group_by(MOMENT).agg(
        *(pl.col("words").filter(pl.col("after") == state).sum().alias(state) for state in ("suspect", "failed")),
    )
    by_moment = by_moment.sort(MOMENT)
    at = by_moment[MOMENT].to_list()
    series = [
        plots.Series(label, at, by_moment[name].to_list()) for name, label in (("suspect", "suspicions"), ("failed", "reports of failure"))
    ]
    if not by_moment["suspect"].sum() and not by_moment["failed"].sum():
        return Plot("Suspicions and failures", plots.lines(series, "UTC", "reports of agents"), "No agent was suspected.")
    top = by_moment.sort("suspect").row(-1, named=True)
    share = top["suspect"] / max(1, by_moment["suspect"].sum())
    text = f"Each agent's report counts: one crash in an overlay of n gives up to n - 1 reports. Most suspicions, {top['suspect']:,} "
    text += f"({percent(share, 0)}), fell into the moment of {clock(top[MOMENT])}."
    return Plot("Suspicions and failures", plots.lines(series, "UTC", "reports of agents"), text)


def _links(links: pl.DataFrame) -> Table:
    per_run = links.group_by("link", "source_node", "target_node", "start").agg(pl.col("resent").max(), pl.col("stalled", "samples").sum())
    per_link = per_run.group_by("link").agg(
        pl.col("source_node").last(), pl.col("target_node").last(), pl.col("resent", "stalled", "samples").sum()
    )
    worst = per_link.filter((pl.col("resent") > 0) | (pl.col("stalled") > 0)).with_columns(
        (pl.col("stalled") / pl.col("samples")).alias("share")
    )
    rows = [
        [row["link"], f"{row['source_node']} - {row['target_node']}", percent(row["share"], 2), f"{row['resent']:,}"]
        for row in worst.sort("share", "resent", "link", descending=[True, True, False]).head(WORST).iter_rows(named=True)
    ]
    return Table("Links that stalled or sent again", ("link", "nodes at last", "of the time without credit", "batches sent again"), rows)


def _load_plot(load: pl.DataFrame) -> Plot:
    by_moment = (
        load.group_by(MOMENT)
        .agg(pl.col("cpu").median().alias("half"), pl.col("cpu").quantile(0.9).alias("high"), pl.col("cpu").max().alias("most"))
        .sort(MOMENT)
    )
    at = by_moment[MOMENT].to_list()
    series = [
        plots.Series(label, at, by_moment[name].to_list(), name == "most")
        for name, label in (("half", "median agent"), ("high", "90 %"), ("most", "busiest"))
    ]
    top = by_moment.sort("half").row(-1, named=True)
    text = f"Share of processors in use. The median agent was busiest at {clock(top[MOMENT])}: "
    text += f"{percent(top['half'])}. "
    busy = load.filter(pl.col("cpu") > BUSY)["agent"].unique().sort().to_list()
    text += (
        f"Above {percent(BUSY, 0)} for a whole moment: {some(busy)}."
        if busy
        else f"No agent was above {percent(BUSY, 0)} for a whole moment."
    )
    return Plot("Load", plots.lines(series, "UTC", "processors in use", percent=True), text)


def _busiest(load: pl.DataFrame) -> Table:
    each = load.group_by("agent").agg(
        pl.col("cpu").mean(), pl.col("cpu_max").max(), pl.col("load_ms", "memory").mean(), pl.col("operators").max()
    )
    rows = [
        [
            row["agent"],
            percent(row["cpu"]),
            percent(row["cpu_max"]),
            figure(row["load_ms"]),
            percent(row["memory"]),
            f"{row['operators']:,}",
        ]
        for row in each.sort("cpu", "agent", descending=[True, False]).head(WORST).iter_rows(named=True)
    ]
    return Table("Busiest agents", ("agent", "processors, mean", "at most", "load, ms", "memory", "operators at most"), rows)
