"""Runs queries over the same streams, with and without sharing of operators (SBON, section 4.2.2), and measures the network's total
traffic."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sbon.config import Layer
from sbon.types import NodeId, QueryId
from sbon_testbed.figures.oracle import usage_everywhere
from sbon_testbed.figures.pairs import Pair, Rates, query_sql, sources_sql
from sbon_testbed.figures.world import SETTLE_S, LongWorld, Look, MeasuredNetwork, Say, merged, usage_bytes, wan_bytes_per_s

AFTER_S = 900.0
"""Virtual seconds from the last query to the first observation, for multicasts and migrations."""
LOOKS = 10
LOOKS_APART_S = 97.0
"""Seconds between observations; not a multiple of the pause between batches, as then every observation would meet the same phase of the
few batches that make a rate."""
NEAR_MS, FAR_QUANTILE = 40.0, 0.6
"""Largest RTT within a group of consumers or producers, and least quantile of all RTTs between the groups."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "membership": {"gossip_interval_s": 2.0},
    "engine": {"sample_interval_s": 30.0, "batch_interval_s": 60.0},
}
"""Settings that let gossip about running operators keep up with arriving queries."""


class Asked(NamedTuple):
    """One query: the number of its pair of streams, and the node that submits it."""

    streams: int
    consumer: NodeId


class Shared(NamedTuple):
    """The queries of a run, and the observations at its end."""

    queries: list[QueryId]
    looks: list[Look]
    reused: int
    """Number of operators that queries found running when they began."""
    multicasts: int


def run_sharing(
    network: MeasuredNetwork,
    streams: Sequence[tuple[NodeId, NodeId]],
    asked: Sequence[Asked],
    seed: int,
    *,
    reuse: bool,
    multicast: bool,
    apart_s: float,
    say: Say,
    settings: Layer | None = None,
    settle_s: float = SETTLE_S,
    after_s: float = AFTER_S,
) -> Shared:
    """Submits the queries one after the other, `apart_s` virtual seconds apart, and observes the running operators at the end.

    Parameters
    ----------
    streams : nodes of each pair of streams
    """
    own = merged(SETTINGS, settings or {}, {"placement": {"reuse": reuse, "load_weight": 0.0}, "optimiser": {"multicast": multicast}})
    overlay = LongWorld(network, seed, own)
    try:
        overlay.settle(settle_s)
        for number, ends in enumerate(streams):
            overlay.world.submit(sources_sql(number, Pair(*ends, consumer=ends[0])))
        overlay.run(30.0)
        queries, reused = [], 0
        for count, one in enumerate(asked):
            results = overlay.world.ask(one.consumer, "submit", sql=query_sql(one.streams))
            queries.append(str(results[-1]["query"]))
            reused += sum(bool(operator["reused"]) for operator in results[-1]["operators"])
            overlay.run(apart_s)
            say(f"queries asked, reuse {'on' if reuse else 'off'}", count + 1, len(asked))
        overlay.run(after_s)
        looks = []
        for _ in range(LOOKS):
            overlay.run(LOOKS_APART_S)
            looks.append(overlay.look())
        return Shared(queries, looks, reused, sum(kind == "multicast" for kind in looks[-1].kinds.values()))
    finally:
        overlay.close()


def carried(run: Shared, network: MeasuredNetwork, which: Sequence[int] | None = None) -> dict[str, float]:
    """Returns network usage and bytes a second between nodes, as means over the observations, for all queries or those in `which`."""
    queries = None if which is None else frozenset(run.queries[index] for index in which)
    latency_ms = network.one_way_ms(0.0)
    return {
        "usage_bytes": float(np.mean([usage_bytes(look, network, latency_ms, queries) for look in run.looks])),
        "wan_bytes_per_s": float(np.mean([wan_bytes_per_s(look, queries) for look in run.looks])),
    }


def topology_of(run: Shared, which: Sequence[int]) -> dict[str, Any]:
    """Returns the operators that served the queries in `which` at the last observation, and the links between them, for figure 13."""
    queries = frozenset(run.queries[index] for index in which)
    look = run.looks[-1]
    links = [one for one in look.links if any(query in queries for query in one.queries)]
    ends = [(one.sender, one.link.partition(">")[2].rpartition(":")[0]) for one in links]
    operators = sorted({operator for pair in ends for operator in pair if operator in look.kinds})
    return {
        "operators": [{"id": one, "kind": look.kinds[one], "node": look.where[one]} for one in operators],
        "links": [
            {"source": source, "target": target, "bytes_per_s": one.bytes_per_s}
            for one, (source, target) in zip(links, ends, strict=True)
            if target in look.kinds
        ],
    }


def rates_of(run: Shared) -> Rates:
    """Returns the median rates of the three kinds of link: into the left and right side of a join, and out of it. All queries are alike."""
    found: dict[str, list[float]] = {"0": [], "1": [], "out": []}
    for one in run.looks[-1].links:
        source, _, rest = one.link.partition(">")
        target, _, port = rest.rpartition(":")
        kind = run.looks[-1].kinds.get(target)
        if kind == "join":
            found[port].append(one.bytes_per_s)
        elif run.looks[-1].kinds.get(source) == "join":
            found["out"].append(one.bytes_per_s)
    return Rates(*(float(np.median(found[key])) for key in ("0", "1", "out")))


def each_equal_operator_once(
    network: MeasuredNetwork, streams: Sequence[tuple[NodeId, NodeId]], asked: Sequence[Asked], rates: Rates
) -> dict[str, float]:
    """Returns the cost of the workload if queries over the same streams shared one operator on its best node, with one output to each
    consumer.

    The cost is computed from the workload and the true matrix alone; it does not depend on the operators that agents have shared.
    """
    number = {node: index for index, node in enumerate(network.nodes)}
    latency_ms = network.one_way_ms(0.0)
    usage = wan = 0.0
    for which, count in sorted(Counter(one.streams for one in asked).items()):
        left, right = (number[node] for node in streams[which])
        consumers = [number[one.consumer] for one in asked if one.streams == which]
        ends, carry = [left, right, *consumers], [rates.left, rates.right, *[rates.out] * count]
        everywhere = usage_everywhere(latency_ms, ends, carry)
        best = int(everywhere.argmin())
        usage += float(everywhere[best])
        wan += sum(rate for end, rate in zip(ends, carry, strict=True) if end != best)
    return {"usage_bytes": usage, "wan_bytes_per_s": wan}


def draw_zipf(
    network: MeasuredNetwork, sources: int, queries: int, exponent: float, seed: int
) -> tuple[list[tuple[NodeId, NodeId]], list[Asked]]:
    """Draws queries over two different sources each, with probability proportional to 1 / rank ** exponent; consumers are uniform.

    Returns
    -------
    streams, asked
        The pairs of sources in use, and the queries in order.
    """
    rng = np.random.default_rng([seed, 0x21BF])
    homes = [network.nodes[int(i)] for i in rng.choice(len(network.nodes), sources, replace=False)]
    share = np.arange(1, sources + 1, dtype=np.float64) ** -exponent
    share /= share.sum()
    streams: dict[tuple[NodeId, NodeId], int] = {}
    asked = []
    for _ in range(queries):
        low, high = sorted(int(i) for i in rng.choice(sources, 2, replace=False, p=share))
        which = streams.setdefault((homes[low], homes[high]), len(streams))
        asked.append(Asked(which, network.nodes[int(rng.integers(len(network.nodes)))]))
    return list(streams), asked


def draw_far_groups(network: MeasuredNetwork, groups: int, seed: int) -> tuple[list[tuple[NodeId, NodeId]], list[Asked]]:
    """Draws `groups` groups like the paper's four queries: two near producers, and four consumers near each other but far from the
    producers."""
    rng = np.random.default_rng([seed, 0xFA12])
    rtt = network.rtt_ms[0]
    far_ms = float(np.quantile(rtt[np.triu_indices(len(rtt), 1)], FAR_QUANTILE))
    streams: list[tuple[NodeId, NodeId]] = []
    asked: list[Asked] = []
    for hub in rng.permutation(len(rtt)):
        consumers = np.argsort(rtt[hub], kind="stable")[:4]
        far = np.flatnonzero(rtt[consumers].min(axis=0) >= far_ms)
        near = [(int(a), int(b)) for a in far for b in far if a < b and rtt[a, b] <= NEAR_MS]
        if rtt[hub, consumers].max() > NEAR_MS or not near:
            continue
        left, right = near[int(rng.integers(len(near)))]
        asked += [Asked(len(streams), network.nodes[int(consumer)]) for consumer in consumers]
        streams.append((network.nodes[left], network.nodes[right]))
        if len(streams) == groups:
            break
    return streams, asked
