"""Network usage of queries, compared with that of other placements (SBON, section 4, figures 8 to 10)."""

from typing import Any

import polars as pl

from sbon.analysis import plots
from sbon.analysis.findings import Findings, clock, count, figure, number, percent, size
from sbon.analysis.page import Plot, Section, Table
from sbon.analysis.pricing import Priced
from sbon.analysis.workbench import MOMENT

WORST = 15
ALTERNATIVES = ("unmoved", "producer", "consumer", "optimal")
MEANING = {
    "usage": "as it was",
    "unmoved": "had nothing moved",
    "producer": "all at a producer",
    "consumer": "all at the consumer",
    "optimal": "best in hindsight",
}


def examine(priced: Priced | None) -> Findings:
    """Builds the section on network usage."""
    if priced is None or priced.links.is_empty():
        return Findings(
            {}, Section("Network usage", "The log has no links, or no latencies for them: no query ran, or none in these logs.", ())
        )
    total = priced.links.group_by(MOMENT).agg(pl.col("usage").sum()).sort(MOMENT)
    full = compared(priced.queries)
    sums = full.group_by(MOMENT).agg(pl.col("usage", *ALTERNATIVES).sum()).sort(MOMENT)
    by_query = _by_query(full)
    pairs = sum(priced.pairs.values())
    numbers: dict[str, Any] = {
        "queries": priced.queries["query"].n_unique(),
        "links": priced.links["link"].n_unique(),
        "mean_usage_bytes": number(total, pl.col("usage").mean()),
        "mean_usage_alone_bytes": number(sums, pl.col("usage").mean()),
        **{f"mean_{name}_bytes": number(sums, pl.col(name).mean()) for name in ALTERNATIVES},
        **{f"over_{name}": _ratio(number(sums, pl.col("usage").sum()), number(sums, pl.col(name).sum())) for name in ALTERNATIVES},
        "query_moments": priced.queries.height,
        "query_moments_left_out": priced.queries.height - full.height,
        "latencies_measured": priced.pairs["measured"] / pairs if pairs else None,
        "latencies_remembered": priced.pairs["remembered"] / pairs if pairs else None,
        "latencies_predicted": priced.pairs["predicted"] / pairs if pairs else None,
        "latencies_unknown": priced.pairs["unknown"] / pairs if pairs else None,
    }
    return Findings(
        numbers,
        Section(
            "Network usage", _text(numbers), [_over_time(total, sums, numbers), _ratios(full), _queries(by_query), _links(priced.links)]
        ),
    )


def compared(queries: pl.DataFrame) -> pl.DataFrame:
    """Returns the queries in moments for which everything is known, as only those can be compared."""
    return queries.drop_nulls(["usage", *ALTERNATIVES])


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _by_query(full: pl.DataFrame) -> pl.DataFrame:
    means = full.group_by("query").agg(pl.col("usage", *ALTERNATIVES).mean(), pl.col("delay_ms").mean(), pl.len().alias("moments"))
    return means.with_columns((pl.col("usage") - pl.col("optimal")).alias("excess")).sort("excess", "query", descending=[True, False])


def _text(numbers: dict[str, Any]) -> str:
    text = (
        f"Network usage is rate times one-way latency, added up over links: the bytes in transit at an instant (SBON, section 2.3). "
        f"{count(numbers['queries'], 'query', 'queries')} over {count(numbers['links'], 'link')} had "
        f"{size(numbers['mean_usage_bytes'])} in transit on average, "
        "each shared link counted once.\n"
        "The alternatives are computed for each query by itself, without sharing, at the measured rates: all movable operators "
        "at one of "
        "its producers (the mean over them), all at its consumer, and the best placement in that moment on all nodes present, "
        "with all latencies known. "
    )
    if numbers["latencies_measured"] is not None:
        text += (
            "A latency is half of the least round trip that either end measured in the moment "
            f"({percent(numbers['latencies_measured'])} of pairs), else that of "
            f"the last moment within an hour ({percent(numbers['latencies_remembered'])}), else the prediction of the coordinates "
            f"({percent(numbers['latencies_predicted'])}); "
            f"{percent(numbers['latencies_unknown'])} of pairs stay unknown and are not used. "
        )
    if numbers["query_moments_left_out"]:
        share = numbers["query_moments_left_out"] / numbers["query_moments"]
        text += f"{percent(share)} of queries' moments lack a latency, a producer or a consumer and are left out of the comparison."
    return text


def _over_time(total: pl.DataFrame, sums: pl.DataFrame, numbers: dict[str, Any]) -> Plot:
    moments = sums[MOMENT].to_list()
    series = [plots.Series("all links, shared once", total[MOMENT].to_list(), total["usage"].to_list())]
    series += [
        plots.Series(f"{MEANING[name]}", moments, sums[name].to_list(), name not in ("usage", "optimal"))
        for name in ("usage", *ALTERNATIVES)
    ]
    if sums.is_empty():
        return Plot(
            "Network usage over time",
            plots.lines(series[:1], "UTC", "bytes in transit"),
            "No moment has all figures that a comparison needs.",
        )
    gap = sums.filter(pl.col("optimal") > 0).with_columns((pl.col("usage") / pl.col("optimal") - 1).alias("gap")).sort("gap")
    if gap.is_empty():
        return Plot(
            "Network usage over time", plots.lines(series, "UTC", "bytes in transit"), "No query had anything in transit if placed best."
        )
    worst, best = gap.row(-1, named=True), gap.row(0, named=True)
    text = (
        f"As placed, the queries cost {percent(_less(numbers['over_optimal']))} more than the best in hindsight: {percent(best['gap'])} "
        "at best, "
        f"{percent(worst['gap'])} at {clock(worst[MOMENT])}. {_against(numbers['over_producer'], 'All at a producer')}; "
        f"{_against(numbers['over_consumer'], 'all at the consumer')}; {_against(numbers['over_unmoved'], 'had nothing moved')}."
    )
    if worst["gap"] > 2 * max(numbers["over_optimal"] - 1, 0.01):
        text += " Its worst moment stands out: a change of the network or of rates there, which placements had not followed yet."
    return Plot("Network usage over time", plots.lines(series, "UTC", "bytes in transit"), text)


def _less(ratio: float | None) -> float | None:
    return None if ratio is None else ratio - 1


def _against(ratio: float | None, what: str) -> str:
    if ratio is None:
        return f"{what}: unknown"
    return f"{what}, it would have been {figure(1 / ratio)} times as much" if ratio > 0 else f"{what}: nothing was in transit"


def _ratios(full: pl.DataFrame) -> Plot:
    shown = full.group_by("query").agg(pl.col("usage", *ALTERNATIVES).mean()).filter(pl.col("optimal") > 0)
    series = []
    for name in ("usage", "unmoved", "producer", "consumer"):
        ratios = (shown[name] / shown["optimal"]).sort().to_list()
        series.append(plots.Series(MEANING[name], ratios, [(index + 1) / len(ratios) for index in range(len(ratios))]))
    if shown.is_empty():
        return Plot(
            "Queries against their best placement",
            plots.lines(series, "times the best", "share of queries", percent=True),
            "No query costs anything.",
        )
    own = (shown["usage"] / shown["optimal"]).sort()
    at_80 = own[min(len(own) - 1, int(0.8 * len(own)))]
    producer = (shown["producer"] / shown["optimal"]).sort()[min(len(own) - 1, int(0.8 * len(own)))]
    far = int((own > 2).sum())
    text = "Mean usage of each query over its best in hindsight (as figure 8 of the paper). At the 80th percentile queries cost "
    text += f"{percent(at_80 - 1)} more than "
    text += f"their best, at a producer {percent(producer - 1)} (the paper: 14 % and 48 %). "
    text += (
        f"{count(far, 'query', 'queries')} cost more than twice the best; the table names the most expensive."
        if far
        else "None costs more than twice its best."
    )
    return Plot(
        "Queries against their best placement",
        plots.lines(series, "times the best in hindsight", "share of queries", log_x=True, percent=True),
        text,
    )


def _queries(by_query: pl.DataFrame) -> Table:
    rows = [
        [row["query"], size(row["usage"]), *(size(row[name]) for name in ALTERNATIVES), figure(row["delay_ms"])]
        for row in by_query.head(WORST).iter_rows(named=True)
    ]
    text = "Mean bytes in transit, the queries first that lose most against their best placement. All queries and moments are in "
    text += "tables/usage_by_query."
    return Table("Queries with most to gain", ("query", *(MEANING[name] for name in ("usage", *ALTERNATIVES)), "delay, ms"), rows, text)


def _links(links: pl.DataFrame) -> Table:
    moments = links[MOMENT].n_unique()
    by_link = (
        links.group_by("link", "source_node", "target_node")
        .agg(
            (pl.col("usage").sum() / moments).alias("usage"),
            (pl.col("bytes_per_s") * pl.col("samples")).sum().truediv(pl.col("samples").sum()).alias("rate"),
            (pl.col("one_way_ms") * pl.col("samples")).sum().truediv(pl.col("samples").sum()).alias("one_way_ms"),
        )
        .sort("usage", "link", descending=[True, False])
    )
    everything = float(by_link["usage"].sum())
    rows = [
        [
            row["link"],
            f"{row['source_node']} - {row['target_node']}",
            size(row["rate"], "B/s"),
            figure(row["one_way_ms"]),
            size(row["usage"]),
            percent(row["usage"] / everything if everything else None),
        ]
        for row in by_link.head(WORST).iter_rows(named=True)
    ]
    top = float(by_link.head(WORST)["usage"].sum())
    text = f"The {min(WORST, by_link.height)} most expensive links hold {percent(top / everything if everything else None)} of all "
    text += "bytes in transit."
    return Table("Most expensive links", ("link", "nodes", "rate", "one way, ms", "in transit", "share"), rows, text)
