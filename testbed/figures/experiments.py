"""Runs the experiments of SBON, section 4.2, one after the other, for `sbon testbed figures`.

The result is plain values. The same seed gives the same result, except `cpu_seconds`, the processor time of each experiment.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sbon.config import Layer
from sbon.types import FloatArray
from sbon_testbed.figures.migration import RELAXATION, Times, Variant, draw_far_pair, figure10, figure12
from sbon_testbed.figures.pairs import PAYLOAD_BYTES, draw_pairs
from sbon_testbed.figures.shared_queries import (
    AFTER_S,
    Shared,
    carried,
    draw_far_groups,
    draw_zipf,
    each_equal_operator_once,
    rates_of,
    run_sharing,
    topology_of,
)
from sbon_testbed.figures.shared_queries import SETTINGS as SHARING_SETTINGS
from sbon_testbed.figures.world import JITTER_MS, SETTINGS, SETTLE_S, STEADY_S, MeasuredNetwork, Say

HOUR_S = 3600.0
SLOWER: Layer = {"membership": {"interval_s": 120.0}}
"""Settings of figure 10; with a shorter interval its twenty hours would take too long."""
PROMPT: Layer = {
    "membership": {"interval_s": 5.0},
    "optimiser": {"interval_s": 10.0, "lookup_interval_s": 30.0, "cooldown_s": 30.0},
}
"""Settings of figure 12 on Seattle, which changes every quarter of an hour: probes and reviews are not slowed down as in `SETTINGS`."""
EXPERIMENTS = ("figure10", "figure12", "figure13", "zipf")


@dataclass(frozen=True)
class Extent:
    """The size of the experiments."""

    nodes: int = 130
    """Nodes drawn from those of PlanetLab; for Seattle, at most all its 99."""
    hours_one: float = 20.0
    """Hours of figures 10 and 11."""
    hours_pairs: float = 5.0
    """Hours of figure 12."""
    pairs: int = 24
    seattle_slices: int = 20
    """Slices of figure 12, a quarter of an hour each. Figure 10 uses all."""
    groups: int = 6
    """Groups of four queries each (figure 13; the paper has one)."""
    zipf_queries: int = 200
    zipf_sources: int = 16
    zipf_exponent: float = 1.0
    apart_s: float = 120.0
    """Virtual seconds between two queries of figure 13."""
    zipf_apart_s: float = 20.0
    settle_s: float = SETTLE_S
    after_s: float = AFTER_S
    """Virtual seconds from the last of many queries to the first observation."""


FULL = Extent()
QUICK = Extent(
    nodes=24,
    hours_one=0.5,
    hours_pairs=0.5,
    pairs=3,
    seattle_slices=3,
    groups=1,
    zipf_queries=8,
    zipf_sources=3,
    apart_s=60.0,
    zipf_apart_s=60.0,
    settle_s=900.0,
    after_s=600.0,
)
"""Sizes for tests: everything runs, nothing is representative."""

Read = Callable[[str, int, int | None], MeasuredNetwork]
"""Reads a network by name, number of nodes and number of slices; nodes are drawn from the seed."""


def run_figures(
    read: Read,
    loads: Sequence[FloatArray],
    extent: Extent,
    seed: int,
    say: Say,
    only: Sequence[str] = EXPERIMENTS,
) -> dict[str, Any]:
    """Runs the experiments in `only` and returns their results in the form of `figures.json`."""
    planetlab = read("PlanetLab", extent.nodes, None)
    seattle = read("Seattle", extent.nodes, None)
    result: dict[str, Any] = {
        "version": 1,
        "seed": seed,
        "extent": asdict(extent),
        "settings": {
            "agents": {table: dict(values) for table, values in SETTINGS.items()},
            "sharing": {table: dict(values) for table, values in SHARING_SETTINGS.items()},
            "figure10": {table: dict(values) for table, values in SLOWER.items()},
            "figure12 on Seattle": {table: dict(values) for table, values in PROMPT.items()},
            "jitter_ms": JITTER_MS,
            "steady_s": STEADY_S,
            "payload_bytes": PAYLOAD_BYTES,
        },
        "networks": {network.name: {"nodes": len(network.nodes), "slices": len(network.rtt_ms)} for network in (planetlab, seattle)},
        "cpu_seconds": {},
    }
    experiments: dict[str, Callable[[], dict[str, Any]]] = {
        "figure10": lambda: _figure10(planetlab, seattle, loads, extent, seed, say),
        "figure12": lambda: _figure12(planetlab, read("Seattle", extent.nodes, extent.seattle_slices), loads, extent, seed, say),
        "figure13": lambda: _figure13(planetlab, extent, seed, say),
        "zipf": lambda: _zipf(planetlab, extent, seed, say),
    }
    for name, experiment in experiments.items():
        if name in only:
            began_s = time.process_time()
            result[name] = experiment()
            result["cpu_seconds"][name] = round(time.process_time() - began_s, 1)
    return result


def _figure10(
    planetlab: MeasuredNetwork, seattle: MeasuredNetwork, loads: Sequence[FloatArray], extent: Extent, seed: int, say: Say
) -> dict[str, Any]:
    times = Times(extent.hours_one * HOUR_S, extent.settle_s)
    variants = (Variant("PlanetLab, RELAXATION first", planetlab, RELAXATION, True), Variant("Seattle", seattle, {}, False))
    return {variant.name: figure10(variant, draw_far_pair(variant.network, seed), times, seed, loads, say, SLOWER) for variant in variants}


def _figure12(
    planetlab: MeasuredNetwork, seattle: MeasuredNetwork, loads: Sequence[FloatArray], extent: Extent, seed: int, say: Say
) -> dict[str, Any]:
    times = Times(extent.hours_pairs * HOUR_S, extent.settle_s)
    variants = (
        Variant("PlanetLab, RELAXATION first", planetlab, RELAXATION, False),
        Variant("PlanetLab", planetlab, {}, False),
        Variant("PlanetLab, latency and load", planetlab, {}, True),
        Variant("Seattle", seattle, PROMPT, False),
    )
    return {
        variant.name: figure12(variant, draw_pairs(variant.network, extent.pairs, seed), times, seed, loads, say, {})
        for variant in variants
    }


def _figure13(network: MeasuredNetwork, extent: Extent, seed: int, say: Say) -> dict[str, Any]:
    streams, asked = draw_far_groups(network, extent.groups, seed)
    # Round robin over the groups, so that the queries of one group come some minutes apart.
    order = sorted(range(len(asked)), key=lambda index: (index % 4, index // 4))
    turn = [asked[index] for index in order]

    def run(reuse: bool, multicast: bool) -> Shared:
        return run_sharing(
            network,
            streams,
            turn,
            seed,
            reuse=reuse,
            multicast=multicast,
            apart_s=extent.apart_s,
            say=lambda what, done, total: say(f"figure 13: {what}", done, total),
            settle_s=extent.settle_s,
            after_s=extent.after_s,
        )

    regimes = {"alone": run(False, False), "reuse": run(True, False), "multicast": run(True, True)}
    groups = []
    for group, ends in enumerate(streams):
        which = [position for position, one in enumerate(turn) if one.streams == group]
        figures: dict[str, Any] = {name: carried(run, network, which) for name, run in regimes.items()}
        figures["topology"] = {name: topology_of(run, which) for name, run in regimes.items()}
        figures |= {"producers": list(ends), "consumers": [turn[position].consumer for position in which]}
        groups.append(figures | _savings(figures))
    total = {name: _sum(group[name] for group in groups) for name in regimes}
    counts = {"reused": regimes["multicast"].reused, "multicasts": regimes["multicast"].multicasts}
    return {"groups": groups, **total, **_savings(total), **counts}


def _zipf(network: MeasuredNetwork, extent: Extent, seed: int, say: Say) -> dict[str, Any]:
    streams, asked = draw_zipf(network, extent.zipf_sources, extent.zipf_queries, extent.zipf_exponent, seed)

    def run(reuse: bool, multicast: bool) -> Shared:
        return run_sharing(
            network,
            streams,
            asked,
            seed,
            reuse=reuse,
            multicast=multicast,
            apart_s=extent.zipf_apart_s if reuse else extent.zipf_apart_s / 5,
            say=lambda what, done, total: say(f"Zipf: {what}", done, total),
            settle_s=extent.settle_s,
            after_s=extent.after_s,
        )

    regimes = {"alone": run(False, False), "reuse": run(True, False), "multicast": run(True, True)}
    totals = {name: carried(run, network) for name, run in regimes.items()}
    once = each_equal_operator_once(network, streams, asked, rates_of(regimes["alone"]))
    possible = {key: totals["alone"][key] - once[key] for key in once}
    return {
        "queries": len(asked),
        "sources": extent.zipf_sources,
        "exponent": extent.zipf_exponent,
        "queries_by_streams": [count for _, count in sorted(Counter(one.streams for one in asked).items())],
        **totals,
        "shared_once": once,
        **_savings(totals),
        "saving_shared_once": 1 - once["usage_bytes"] / totals["alone"]["usage_bytes"],
        "share_of_shared_once": {
            name: {key: (totals["alone"][key] - totals[name][key]) / possible[key] if possible[key] > 0 else None for key in once}
            for name in ("reuse", "multicast")
        },
        "reused": regimes["multicast"].reused,
        "multicasts": regimes["multicast"].multicasts,
    }


def _savings(regimes: dict[str, Any]) -> dict[str, float]:
    """Returns the shares of network usage and of bytes between nodes that sharing saves, without and with multicast operators."""
    result = {}
    for name in ("reuse", "multicast"):
        for key, suffix in (("usage_bytes", ""), ("wan_bytes_per_s", "_wan")):
            alone = regimes["alone"][key]
            result[f"saving_{name}{suffix}"] = 1 - regimes[name][key] / alone if alone > 0 else 0.0
    return result


def _sum(figures: Any) -> dict[str, float]:
    total: Counter[str] = Counter()
    for one in figures:
        total.update(one)
    return dict(total)
