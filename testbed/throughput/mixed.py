"""Compares searches under all kinds of limits: nodes of cities, links with bandwidths, profiles of three points (`mixed`).

The placement of least usage ignores the limits of nodes and links. An exact search finds the least usage that sustains the profile.
"""

from typing import Any

import msgspec
import numpy as np

from sbon.cost.throughput import Supply
from sbon.search.best_rates import ROUNDS, best_rates
from sbon.search.exact import exhaustive
from sbon.search.interface import Budget
from sbon.search.metaheuristics import anneal, greedy, reactive_tabu
from sbon.search.orders import Piece, Query
from sbon.search.rates import RatesPlacement
from sbon.types import IntArray
from sbon_testbed.throughput.queries import paper_query
from sbon_testbed.throughput.search import Report, Search
from sbon_testbed.topology import CitiesConfig, build

NODES, CHOICES, SOURCES, OTHERS = 20, 4, 2, 5
POINTS = ("day", "evening", "launch")
ROW_NS, JOIN_ROW_NS = 60.0, 400.0
"""Costs of a row in sbon's filters and joins, of the order that `sbon bench operators` measures."""
CORES_MOST = 4
EVALUATIONS = 1e12
SAME = 1e-6


def mixed_query(rng: np.random.Generator) -> tuple[Query, list[tuple[int, ...]], Supply]:
    """Draws a query with two sources and five other operators, its possible hosts, and a network of 20 cities with limits."""
    query, hosts = paper_query(rng, sources=SOURCES, others=OTHERS, nodes=NODES, choices=CHOICES)
    pieces: list[Piece] = []
    for piece in query.pieces:
        if piece.rates:
            rates = tuple((10 ** rng.uniform(2.0, 3.5, len(POINTS))).tolist())
            pieces.append(msgspec.structs.replace(piece, rates=rates))
        else:
            pieces.append(msgspec.structs.replace(piece, per_row_ns=JOIN_ROW_NS if piece.span_s is not None else ROW_NS))
    asked = msgspec.structs.replace(query, pieces=tuple(pieces), points=POINTS, lifts=True)
    topology = build(CitiesConfig(), NODES, int(rng.integers(2**31)))
    work = 1e9 * rng.integers(1, CORES_MOST + 1, NODES) * rng.uniform(0.3, 1.0, NODES)
    bandwidth = 10 ** rng.uniform(6.0, 8.0, (NODES, NODES))
    return (
        asked,
        hosts,
        Supply(
            nodes=topology.nodes,
            work=work,
            core=np.minimum(work, 1e9),
            memory=10 ** rng.uniform(7.0, 9.5, NODES),
            bandwidth=bandwidth,
            propagation_s=np.asarray(topology.rtt_ms, dtype=np.float64) / 2e3 * (1 - np.eye(NODES)),
        ),
    )


def evaluate_mixed(queries: int, seed: int, report: Report) -> dict[str, Any]:
    """Returns by how much each search exceeds the least usage that sustains the profile, over queries that overload the placement of least
    usage.

    Each query's profile is scaled so that the placement of least usage sustains 0.7 of it. Queries that no placement can sustain then are
    skipped.
    """
    above: dict[str, list[float]] = {name: [] for name in ("default", "default_search", "reactive_tabu", "annealing", "greedy")}
    carried: dict[str, int] = dict.fromkeys(above, 0)
    tried = number = 0
    while tried < queries and number < 20 * queries:
        rng = np.random.default_rng([seed, number, 7])
        number += 1
        query, hosts, supply = mixed_query(rng)
        cheapest = RatesPlacement(query.first_order(), hosts, supply, rng, target=1e-12)
        exhaustive(cheapest, Budget(evaluations=1))
        quality = cheapest.quality
        if not 0 < quality < np.inf:
            continue
        scaled = msgspec.structs.replace(
            query,
            pieces=tuple(
                msgspec.structs.replace(piece, rates=tuple(rate * quality / 0.7 for rate in piece.rates)) for piece in query.pieces
            ),
        )

        def start(seed_of: int, node_of: IntArray | None = None) -> RatesPlacement:
            return RatesPlacement(scaled.first_order(), hosts, supply, np.random.default_rng(seed_of), node_of, target=1.0)  # noqa: B023

        exact = start(number)
        begun = exact.node_of.copy()
        exhaustive(exact, Budget(evaluations=1))
        if exact.quality < 1:
            continue
        report("mixed", tried, queries)
        tried += 1
        searches: dict[str, Search] = {
            "default": lambda one, rng: best_rates(one, Budget(stale=ROUNDS), rng),
            "default_search": lambda one, rng: best_rates(one, Budget(stale=ROUNDS), rng, small=0),
            "reactive_tabu": lambda one, rng: reactive_tabu(one, Budget(evaluations=EVALUATIONS), rng, iterations=200),
            "annealing": lambda one, rng: anneal(one, Budget(evaluations=EVALUATIONS), rng),
            "greedy": lambda one, rng: greedy(one, Budget(evaluations=EVALUATIONS)),
        }
        for name, search in searches.items():
            one = start(number, begun.copy())
            search(one, np.random.default_rng(number))
            if one.quality >= 1 - SAME:
                carried[name] += 1
                above[name].append(one.usage / exact.usage - 1 if exact.usage else 0.0)
    report("mixed", tried, queries)
    return {
        "queries": tried,
        **{
            name: {
                "carried": carried[name] / tried if tried else 0.0,
                "usage_above_p50": float(np.median(found)) if found else None,
                "usage_above_worst": float(max(found)) if found else None,
            }
            for name, found in above.items()
        },
    }
