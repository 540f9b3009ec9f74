"""Finds placements within a delay bound by pricing time: each link on a path that takes too long gets a price.

With a price for each ms on each link, the assignment of least cost is found exactly by elimination. Prices start at 0; as long as the
longest path is too long, the prices of its links rise. Then all prices are reduced by bisection to the least that suffice. (Lagrangian
relaxation of the constrained shortest path, Handler and Zang, Networks 10, 1980; the gap that it may leave is for `bounded_graph.improved`
to close.)
"""

import itertools
from collections.abc import Mapping

import numpy as np

from sbon.placement.elimination import minimise
from sbon.placement.options import Chosen, Graph, Options
from sbon.types import FloatArray, OperatorId

RAISES_MAX = 30
HALVINGS = 6
GROWTH = 1.3
"""Factor by which the price grows each time that a path is still too long."""

_Prices = dict[tuple[OperatorId, OperatorId], float]


def priced(graph: Graph, options: Mapping[OperatorId, Options], bound_ms: float) -> list[Chosen]:
    """Returns the choices within the bound that were found, each of least cost under some prices; possibly none."""
    a_ms = [float(graph.of_links(source, target, np.ones(1))[0]) for target, inputs in graph.inputs.items() for source in inputs]
    step = sum(a_ms) / max(len(a_ms), 1) / 4 or 1.0
    prices: _Prices = {}
    found: list[Chosen] = []
    for _ in range(RAISES_MAX):
        chosen = _least(graph, options, prices, 1.0)
        reached_ms, way = graph.longest(options, chosen)
        if reached_ms <= bound_ms:
            found.append(chosen)
            break
        for link in itertools.pairwise(way):
            prices[link] = prices.get(link, 0.0) + step
        step *= GROWTH
    low, high = 0.0, 1.0
    for _ in range(HALVINGS if found else 0):
        share = (low + high) / 2
        chosen = _least(graph, options, prices, share)
        if graph.longest(options, chosen)[0] <= bound_ms:
            found.append(chosen)
            high = share
        else:
            low = share
    return found


def _least(graph: Graph, options: Mapping[OperatorId, Options], prices: _Prices, share: float) -> Chosen:
    """Returns the choices of least cost when a ms on a link costs a share of its price, beside the link's own cost."""
    variable = {operator: index for index, operator in enumerate(graph.order)}
    pairwise: dict[tuple[int, int], FloatArray] = {}
    for target, inputs in graph.inputs.items():
        for source in inputs:
            latency = graph.between(options, source, target)
            table = graph.of_links(source, target, latency) + share * prices.get((source, target), 0.0) * latency
            table[:, ~options[target].fresh] = 0.0
            pairwise[variable[source], variable[target]] = table  # the order is topological, so source precedes target
    indices, _ = minimise([options[operator].cost for operator in graph.order], pairwise)
    return dict(zip(graph.order, indices, strict=True))
