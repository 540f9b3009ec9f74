"""Compares searches for the highest rates on random queries (WhiteWater, sections 6.1 to 6.3)."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sbon.search.best_rates import ROUNDS, annealed, best_rates
from sbon.search.exact import exhaustive, exhaustive_two_phase
from sbon.search.interface import Budget, Record
from sbon.search.metaheuristics import greedy, reactive_tabu, tabu, two_phase
from sbon.search.rates import RatesPlacement, Taken
from sbon_testbed.throughput.queries import paper_query, paper_supply

Report = Callable[[str, int, int], None]
Search = Callable[[RatesPlacement, np.random.Generator], Record[Taken] | None]

NODES_SMALL, CHOICES_SMALL, OTHERS_SMALL, SOURCES_SMALL = 2, 2, 5, 2
NODES_LARGE, CHOICES_LARGE, OPERATORS_LARGE = 10, 4, 40
SAME = 1e-3
"""Largest relative difference of rates that count as equal: the paper's precision."""
EVALUATIONS = 1e12
ITERATIONS = 1000
"""Iterations of a tabu search (section 6), half of them in each of two phases: these take 5 % longer than one in the paper (6.3)."""


def _endless() -> Budget:
    return Budget(evaluations=EVALUATIONS)


METHODS: dict[str, Search] = {
    "greedy": lambda one, rng: greedy(one, Budget(evaluations=EVALUATIONS)),
    "tabu": lambda one, rng: tabu(one, _endless(), rng, iterations=ITERATIONS),
    "reactive_tabu": lambda one, rng: reactive_tabu(one, _endless(), rng, iterations=ITERATIONS),
    "annealing": lambda one, rng: annealed(one, _endless(), rng),
    "two_phase": lambda one, rng: two_phase(
        lambda again, budget: reactive_tabu(again, budget, rng, iterations=ITERATIONS // 2), one, _endless()
    ),
    "default": lambda one, rng: best_rates(one, Budget(stale=ROUNDS), rng),
}
SMALL_METHODS: dict[str, Search] = {
    **METHODS,
    "two_phase_exhaustive": lambda one, rng: exhaustive_two_phase(one, _endless()),
    "random": lambda one, rng: None,
}


class _World:
    """One query, its nodes, and the configuration at which all searches begin."""

    def __init__(self, seed: int, number: int, *, small: bool, link_bytes_per_s: float = math.inf, choices: int = CHOICES_LARGE) -> None:
        rng = np.random.default_rng([seed, number, small])
        if small:
            sources = int(rng.integers(1, SOURCES_SMALL + 1))
            others = int(rng.integers(2, OTHERS_SMALL + 1))
            nodes, choices = NODES_SMALL, CHOICES_SMALL
        else:
            sources = int(rng.integers(3, OPERATORS_LARGE // 3 + 1))
            others = OPERATORS_LARGE - sources
            nodes = NODES_LARGE
        self.query, self.hosts = paper_query(rng, sources=sources, others=others, nodes=nodes, choices=choices)
        self.supply = paper_supply(rng, nodes, link_bytes_per_s)
        self._seed = [seed, number, small, 1]
        self.start = self.placement(None).node_of

    def placement(self, start: Any) -> RatesPlacement:
        """Returns a configuration with the given start; None: a random start."""
        return RatesPlacement(self.query.first_order(), self.hosts, self.supply, np.random.default_rng(self._seed), start)

    def run(self, search: Search) -> tuple[float, float, float]:
        """Returns the quality that a search finds, its processor time in s, and its evaluations a second."""
        one = self.placement(self.start.copy())
        began_s = time.process_time()
        record = search(one, np.random.default_rng(self._seed))
        seconds = time.process_time() - began_s
        evaluated = record.evaluated if record is not None else 1
        return one.quality, seconds, evaluated / max(seconds, 1e-9)


def evaluate_small(
    queries: int, seed: int, report: Report, wanted: Sequence[str] = (), link_bytes_per_s: float = math.inf
) -> dict[str, Any]:
    """Returns how near the searches in `wanted` (all if empty) come to the optimum of small queries (section 6.1).

    Parameters
    ----------
    link_bytes_per_s : highest rate of each link
    """
    methods = {name: search for name, search in SMALL_METHODS.items() if not wanted or name in wanted}
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(queries):
        report("small", number, queries)
        world = _World(seed, number, small=True, link_bytes_per_s=link_bytes_per_s)
        best, _, _ = world.run(lambda one, rng: exhaustive(one, _endless()))
        for name, search in methods.items():
            ratios[name].append(_ratio(world.run(search)[0], best))
    report("small", queries, queries)
    return {
        name: {
            "optimal_share": float(np.mean(np.array(found) >= 1 - SAME)),
            "ratio_p10": float(np.percentile(found, 10)),
            "worst": float(min(found)),
        }
        for name, found in ratios.items()
    }


def evaluate_large(
    queries: int,
    seed: int,
    report: Report,
    wanted: Sequence[str] = (),
    link_bytes_per_s: float = math.inf,
    choices: int = CHOICES_LARGE,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns how searches compare with reactive tabu on large queries (section 6.2), and their times (section 6.3).

    Parameters
    ----------
    wanted : searches to compare; all if empty
    link_bytes_per_s : highest rate of each link
    choices : number of nodes allowed for each operator
    """
    methods = {name: search for name, search in METHODS.items() if not wanted or name in wanted or name == "reactive_tabu"}
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    speeds: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(queries):
        report("large", number, queries)
        world = _World(seed, number, small=False, link_bytes_per_s=link_bytes_per_s, choices=choices)
        found = {name: world.run(search) for name, search in methods.items()}
        for name, (quality, took_s, speed) in found.items():
            ratios[name].append(_ratio(quality, found["reactive_tabu"][0]))
            seconds[name].append(took_s)
            speeds[name].append(speed)
    report("large", queries, queries)
    large = {
        name: {
            "better": float(np.mean(np.array(one) > 1 + SAME)),
            "same": float(np.mean(np.abs(np.array(one) - 1) <= SAME)),
            "worse": float(np.mean(np.array(one) < 1 - SAME)),
            "ratio_p50": float(np.median(one)),
            "ratio_p10": float(np.percentile(one, 10)),
        }
        for name, one in ratios.items()
        if name != "reactive_tabu"
    }
    times = {
        name: {
            "mean_ms": 1e3 * float(np.mean(took)),
            "p99_ms": 1e3 * float(np.percentile(took, 99)),
            "evaluations_per_s": float(np.median(speeds[name])),
        }
        for name, took in seconds.items()
    }
    times["neighbourhood"] = _neighbourhoods(seed)
    return large, times


def _neighbourhoods(seed: int, count: int = 200) -> dict[str, float]:
    """Measures the time to evaluate all moves of a configuration of 40 operators, as tabu search does in each iteration."""
    one = _World(seed, 0, small=False).placement(None)
    moves = one.all_moves()
    one.values_after(moves)
    began_s = time.process_time()
    for _ in range(count):
        one.values_after(moves)
    seconds = time.process_time() - began_s
    return {"mean_ms": 1e3 * seconds / count, "p99_ms": 1e3 * seconds / count, "evaluations_per_s": count * len(moves) / seconds}


def _ratio(found: float, best: float) -> float:
    return 1.0 if found == best else found / best if best else 1.0
