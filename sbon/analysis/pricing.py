"""Costs of queries in each moment: with the operators' actual nodes, and with other placements.

Spark reduces the rows of links to one for each moment, link and pair of nodes; this module prices them with the latencies of `moments`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon.analysis.hindsight import FlowLink, Moment, delay_ms, least_usage_bytes, usage_bytes
from sbon.analysis.moments import LatencyBook
from sbon.analysis.workbench import MOMENT, Workbench, kept
from sbon.cost.network_usage import NetworkUsage
from sbon.errors import PlacementError
from sbon.types import FloatArray, NodeId, OperatorId, QueryId

QUERY_SCHEMA: dict[str, Any] = {
    MOMENT: pl.Datetime("us", "UTC"),
    "query": pl.String,
    "usage": pl.Float64,
    "unmoved": pl.Float64,
    "producer": pl.Float64,
    "consumer": pl.Float64,
    "optimal": pl.Float64,
    "delay_ms": pl.Float64,
    "delay_unmoved_ms": pl.Float64,
}
"""Schema of queries' costs: bytes in transit of each query as if it were alone; null if a latency is unknown."""


class Priced(NamedTuple):
    """The costs of all links and queries, by moment."""

    links: pl.DataFrame
    """moment, link, source, target, source_node, target_node, queries, share, bytes_per_s, rows_per_s, one_way_ms, usage, ..."""
    queries: pl.DataFrame
    """Table with the columns of `QUERY_SCHEMA`."""
    pairs: dict[str, int]
    """Pairs of nodes over all moments, by the origin of their latency."""


def price(bench: Workbench) -> Priced | None:
    """Reduces and prices the links; returns None if the log has none, or no latencies."""
    if not bench.has("links") or not (bench.has("probes") or bench.has("coordinates")):
        return None
    bench.say("network usage: rates of links")
    links = bench.keep("links_by_moment", _by_moment(bench.table("links"))).collect().sort(MOMENT, "link", "source_node", "target_node")
    pinned = bench.keep("placed", _placed(bench)).collect()
    bench.say("network usage: what each query would have cost elsewhere")
    book = LatencyBook(kept(bench.tables / "rtt_by_pair"), kept(bench.tables / "coordinates_by_moment"))
    return _price(bench, links, _pinned_nodes(pinned), book)


def _by_moment(links: DataFrame) -> DataFrame:
    return (
        links.withColumn("queries", F.array_sort("queries"))
        .groupBy(MOMENT, "link", "source", "target", F.col("agent").alias("source_node"), "target_node", "start", "queries")
        .agg(
            F.count("*").alias("samples"),
            F.min("time").alias("first"),
            F.avg("bytes_per_s").alias("bytes_per_s"),
            F.avg("rows_per_s").alias("rows_per_s"),
            F.avg("latency_ms").alias("latency_ms"),
            F.sum(F.col("stalled").cast("int")).alias("stalled"),
            F.max("batches_resent").alias("resent"),
        )
    )


def _placed(bench: Workbench) -> DataFrame:
    """Returns operators as the full optimisers placed them."""
    each = bench.table("placements").select("time", "query", F.explode("operators").alias("o"))
    return each.select(
        "time",
        "query",
        F.col("o.operator").alias("operator"),
        F.col("o.operator_kind").alias("operator_kind"),
        F.col("o.node").alias("node"),
        F.col("o.pinned").alias("pinned"),
        F.col("o.reused").alias("reused"),
    )


def _pinned_nodes(placed: pl.DataFrame) -> dict[OperatorId, bool]:
    """Tells for each operator whose placement is in the log whether it is pinned."""
    made = placed.filter(pl.col("reused").is_null())
    return dict(made.group_by("operator").agg(pl.col("pinned").any()).iter_rows())


def _price(bench: Workbench, links: pl.DataFrame, pinned: Mapping[OperatorId, bool], book: LatencyBook) -> Priced:
    first = first_hosts(links)
    samples = pl.col("samples").sum().over(MOMENT, "link")
    links = links.with_columns((pl.col("samples") / samples).alias("share"))
    by_moment = links.partition_by(MOMENT, as_dict=True, maintain_order=True)
    moments: list[datetime] = sorted(key[0] for key in by_moment)
    priced: list[pl.DataFrame] = []
    queries: list[dict[str, Any]] = []
    for moment, latencies in book.moments(moments):
        here = by_moment[moment,]
        one_way = pl.Series("one_way_ms", _one_way(here, latencies), dtype=pl.Float64)
        here = here.with_columns(pl.when(one_way.is_finite()).then(one_way).alias("one_way_ms"))
        usage = NetworkUsage().of_links((here["bytes_per_s"] * here["share"]).to_numpy(), here["one_way_ms"].to_numpy())
        priced.append(here.with_columns(pl.Series("usage", usage, dtype=pl.Float64).fill_nan(None)))
        queries += _queries(moment, priced[-1], latencies, pinned, first)
    pairs = {"measured": book.measured, "remembered": book.remembered, "predicted": book.predicted, "unknown": book.unknown}
    return Priced(
        bench.keep_here("usage_by_link", pl.concat(priced)),
        bench.keep_here("usage_by_query", pl.DataFrame(queries, schema=QUERY_SCHEMA)),
        pairs,
    )


def first_hosts(links: pl.DataFrame) -> dict[OperatorId, NodeId]:
    """Returns the first known node of each operator."""
    ends = pl.concat(
        [links.select("first", pl.col(end).alias("operator"), pl.col(f"{end}_node").alias("node")) for end in ("source", "target")]
    )
    return dict(ends.sort("first", "operator", "node").group_by("operator", maintain_order=True).agg(pl.col("node").first()).iter_rows())


def _one_way(links: pl.DataFrame, latencies: Moment) -> FloatArray:
    """Returns one-way latencies in ms, (links,); infinite if unknown."""
    source, target = (
        links[f"{end}_node"].replace_strict(dict(latencies.row), default=-1, return_dtype=pl.Int64).to_numpy()
        for end in ("source", "target")
    )
    known = (source >= 0) & (target >= 0)
    found = (
        np.where(known, latencies.one_way_ms[np.where(known, source, 0), np.where(known, target, 0)], np.inf)
        if len(latencies.row)
        else np.full(len(links), np.inf)
    )
    return np.where((links["source_node"] == links["target_node"]).to_numpy(), 0.0, found)


class _Query:
    """One query's links in one moment."""

    def __init__(self) -> None:
        self.rates: dict[tuple[OperatorId, OperatorId, str], float] = defaultdict(float)
        self.usage = 0.0
        self.known = True
        self.hosts: dict[OperatorId, tuple[float, NodeId]] = {}


_COLUMNS = ("link", "source", "target", "source_node", "target_node", "queries", "share", "bytes_per_s", "usage")


def _queries(
    moment: datetime, links: pl.DataFrame, latencies: Moment, pinned: Mapping[OperatorId, bool], first: Mapping[OperatorId, NodeId]
) -> Iterable[dict[str, Any]]:
    found: dict[QueryId, _Query] = defaultdict(_Query)
    for link, source, target, source_node, target_node, queries, share, rate, usage in links.select(_COLUMNS).iter_rows():
        for name in queries:
            query = found[name]
            query.rates[source, target, link] += rate * share
            query.known = query.known and usage is not None
            query.usage += usage or 0.0
            for operator, node in ((source, source_node), (target, target_node)):
                if operator not in query.hosts or query.hosts[operator][0] < share:
                    query.hosts[operator] = (share, node)
    for name, query in sorted(found.items()):
        yield {MOMENT: moment, "query": name, **_costs(query, latencies, pinned, first)}


def _costs(
    query: _Query, latencies: Moment, pinned: Mapping[OperatorId, bool], first: Mapping[OperatorId, NodeId]
) -> dict[str, float | None]:
    """Returns the costs of one query in one moment."""
    links = [FlowLink(source, target, rate) for (source, target, _), rate in sorted(query.rates.items())]
    hosts = {operator: node for operator, (_, node) in query.hosts.items()}
    receiving, sending = {link.target for link in links}, {link.source for link in links}
    fixed = {op: node for op, node in hosts.items() if pinned.get(op, op not in receiving or op not in sending)}
    unmoved = {op: node if op in fixed else first.get(op, node) for op, node in hosts.items()}
    movable = hosts.keys() - fixed.keys()
    producers = sorted({fixed[op] for op in fixed if op not in receiving})
    consumers = sorted({fixed[op] for op in fixed if op not in sending})

    def all_at(nodes: Sequence[NodeId]) -> float | None:
        costs = [usage_bytes(links, {**dict.fromkeys(movable, node), **fixed}, latencies) for node in nodes]
        return _finite(sum(costs) / len(costs)) if costs else None

    try:
        optimal = _finite(least_usage_bytes(links, fixed, latencies))
    except PlacementError:
        optimal = None  # too dense for an exact answer
    return {
        "usage": query.usage if query.known else None,
        "unmoved": _finite(usage_bytes(links, unmoved, latencies)),
        "producer": all_at(producers),
        "consumer": all_at(consumers),
        "optimal": optimal,
        "delay_ms": _finite(delay_ms(links, hosts, latencies)),
        "delay_unmoved_ms": _finite(delay_ms(links, unmoved, latencies)),
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
