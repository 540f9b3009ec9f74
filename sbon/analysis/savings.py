"""Savings of shared operators, where one stream replaces several (SBON, section 4.2.2)."""

from typing import Any

import polars as pl

from sbon.analysis import plots
from sbon.analysis.findings import Findings, count, number, percent, size
from sbon.analysis.page import Plot, Section, Table
from sbon.analysis.pricing import Priced
from sbon.analysis.workbench import MOMENT, Workbench, kept

MOST = 12


def examine(bench: Workbench, priced: Priced | None) -> Findings:
    """Builds the section on sharing."""
    if priced is None or priced.links.is_empty():
        return Findings({}, Section("Sharing", "The log has no links, so sharing is unknown.", ()))
    links = priced.links.with_columns(
        (pl.col("queries").list.len().clip(lower_bound=1) - 1).alias("spared"), (pl.col("bytes_per_s") * pl.col("share")).alias("rate")
    )
    across = pl.col("source_node") != pl.col("target_node")
    moments = links.group_by(MOMENT).agg(
        pl.col("rate").filter(across).sum().alias("carried"),
        (pl.col("rate") * pl.col("spared")).filter(across).sum().alias("spared"),
        pl.col("usage").sum(),
        (pl.col("usage") * pl.col("spared")).sum().alias("usage_spared"),
    )
    moments = moments.sort(MOMENT)
    placed = kept(bench.tables / "placed").collect()
    reused = placed.filter(pl.col("reused").is_not_null())
    multicasts: dict[str, int] = dict(bench.table("multicasts").groupBy("event").count().collect()) if bench.has("multicasts") else {}
    numbers: dict[str, Any] = {
        "carried_bytes_per_s": number(moments, pl.col("carried").mean()),
        "saved_bytes_per_s": number(moments, pl.col("spared").mean()),
        "saved_share": number(moments, pl.col("spared").sum() / (pl.col("carried").sum() + pl.col("spared").sum())),
        "saved_usage_bytes": number(moments, pl.col("usage_spared").mean()),
        "shared_links": links.filter(pl.col("spared") > 0)["link"].n_unique(),
        "queries_placed": placed["query"].n_unique(),
        "queries_with_reuse": reused["query"].n_unique(),
        "multicasts_made": int(multicasts.get("made", 0)),
        "multicasts_folded": int(multicasts.get("folded", 0)),
    }
    return Findings(numbers, Section("Sharing", _text(numbers), [_over_time(moments, numbers), _operators(links)]))


def _text(numbers: dict[str, Any]) -> str:
    text = f"{count(numbers['queries_with_reuse'], 'query', 'queries')} of {numbers['queries_placed']:,} that were placed within the "
    text += "log found a running operator to use. "
    text += f"{count(numbers['shared_links'], 'link')} served more than one query; {count(numbers['multicasts_made'], 'multicast')} "
    text += "were put beside operators, and "
    text += f"{numbers['multicasts_folded']:,} were removed again. A link that n queries use counts as n - 1 links saved; links within a "
    text += "node carry nothing over the network."
    return text


def _over_time(moments: pl.DataFrame, numbers: dict[str, Any]) -> Plot:
    at = moments[MOMENT].to_list()
    series = [
        plots.Series("carried between nodes", at, moments["carried"].to_list()),
        plots.Series("saved by sharing", at, moments["spared"].to_list()),
    ]
    text = f"Between nodes {size(numbers['carried_bytes_per_s'], 'B/s')} were carried on average; without sharing it would have been "
    text += f"{size(numbers['saved_bytes_per_s'], 'B/s')} more ({percent(numbers['saved_share'])} of the sum), and "
    text += f"{size(numbers['saved_usage_bytes'])} more in transit. "
    shares = (moments["spared"] / (moments["carried"] + moments["spared"])).drop_nans().drop_nulls()
    if not numbers["shared_links"]:
        text += "No operator was shared."
    elif len(shares):
        text += f"The share saved went from {percent(float(shares.min() or 0.0))} to {percent(float(shares.max() or 0.0))}."  # type: ignore[arg-type]
    return Plot("Traffic, and what sharing saved", plots.lines(series, "UTC", "bytes in a second"), text)


def _operators(links: pl.DataFrame) -> Table:
    moments = links[MOMENT].n_unique()
    by_target = (
        links.filter(pl.col("spared") > 0)
        .group_by("target")
        .agg(
            (pl.col("rate") * pl.col("spared")).sum().truediv(moments).alias("saved"),
            pl.col("queries").list.len().max().alias("users"),
            pl.col("usage").sum().truediv(moments),
        )
        .sort("saved", "target", descending=[True, False])
    )
    rows = [
        [row["target"], f"{row['users']:,}", size(row["saved"], "B/s"), size(row["usage"])]
        for row in by_target.head(MOST).iter_rows(named=True)
    ]
    return Table(
        "Shared operators",
        ("operator", "queries at most", "input saved", "in transit to it"),
        rows,
        "By the input that the other queries did not need, within a node or between nodes.",
    )
