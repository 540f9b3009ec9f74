"""Compares searches for worst-case latency in equal time: Mace-HC, random placement, load correlation (section IX-B.1, figures 13, 14)."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sbon.cost.excess import peak_excess
from sbon.cost.node_excess import Nodes
from sbon.search.correlation import ENOUGH, place_by_correlation
from sbon.search.interface import Budget
from sbon.search.latency import LatencyPlacement
from sbon.search.strategies import baseline, climb_from_arranged, climb_from_random, random_search
from sbon.types import FloatArray, IntArray
from sbon_testbed.mace.streams import Workload, workload

SEARCHES = {"mace_hc": climb_from_random, "random": random_search, "ours": climb_from_arranged}
"""`ours` climbs from a placement made in one pass, and perturbs the best placement instead of restarting."""
INTERVAL_S = 1.0
MOVES_TIMED = 200


def evaluate_placement(
    scales: Sequence[int], seed: int, *, draws: int, seconds_max: float, report: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Returns worst cases and times of all searches, by scale.

    Parameters
    ----------
    scales : 20 x scale nodes and 200 x scale operators
    draws : placements of Baseline
    seconds_max : longest time for load correlation; the other searches get the time that it took
    """
    results = {}
    for number, scale in enumerate(scales):
        report("placement", number, len(scales))
        results[str(scale)] = _at_scale(workload(scale, seed), seed, draws, seconds_max)
    report("placement", len(scales), len(scales))
    return results


def _at_scale(found: Workload, seed: int, draws: int, seconds_max: float) -> dict[str, Any]:
    nodes = Nodes(np.ones(found.nodes), np.ones(found.nodes, dtype=np.int64))
    result: dict[str, Any] = {"nodes": found.nodes, "operators": len(found.work), "load": found.load}

    def placement() -> LatencyPlacement:
        return LatencyPlacement(found.work, nodes, INTERVAL_S, np.random.default_rng(seed))

    result["corr"] = _correlation(found.work, placement(), nodes, seconds_max)
    seconds = result["corr"]["seconds"]
    for name, search in SEARCHES.items():
        budget = Budget(seconds=seconds, clock=time.perf_counter)
        record = search(placement(), budget)
        result[name] = {
            "worst_s": record.value,
            "seconds": record.curve[-1][0],
            "evaluated": budget.evaluated,
            "curve": [[round(at_s, 4), value] for at_s, _, value in record.curve],
        }
    one, began_s = placement(), time.perf_counter()
    drawn = [baseline(one, Budget(evaluations=1)).value for _ in range(draws)]
    p5, p50, p95 = np.percentile(drawn, [5, 50, 95]).tolist()
    result["baseline"] = {"worst_s": p50, "p5_s": p5, "p95_s": p95, "seconds": (time.perf_counter() - began_s) / draws, "draws": draws}
    result["spread_evenly_s"] = float(peak_excess(found.work.sum(axis=0) / found.nodes, INTERVAL_S))
    result["move_cpu_us"] = _move_us(placement())
    return result


def _correlation(work: FloatArray, placement: LatencyPlacement, nodes: Nodes, seconds_max: float) -> dict[str, Any]:
    """Runs load correlation; the time to value its placements does not count."""
    began_s, valuing_s = time.perf_counter(), 0.0
    curve: list[list[float]] = []

    def found(node_of: IntArray) -> bool:
        nonlocal valuing_s
        now_s = time.perf_counter()
        placement.restore(node_of)
        curve.append([round(now_s - began_s - valuing_s, 4), placement.value()])
        valuing_s += time.perf_counter() - now_s
        return now_s - began_s - valuing_s < seconds_max

    node_of, correlation = place_by_correlation(work, nodes.capacity_per_s, found=found)
    seconds = time.perf_counter() - began_s - valuing_s
    placement.restore(node_of)
    return {
        "worst_s": placement.value(),
        "seconds": seconds,
        "correlation": correlation,
        "reached": correlation >= ENOUGH,
        "curve": curve,
    }


def _move_us(placement: LatencyPlacement) -> float:
    """Returns the processor time to evaluate one move, as searches do it: for an operator and its likely nodes at a time."""
    moves = next(iter(placement.neighbourhoods()))
    began_ns = time.process_time_ns()
    for _ in range(MOVES_TIMED):
        placement.values_after(moves)
    return (time.process_time_ns() - began_ns) / 1000 / MOVES_TIMED / len(moves)
