"""`sbon plan capacity`: how late answers would be with more or fewer nodes, and at other rates."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from sbon.cost.arrivals import Series
from sbon.cost.latency_prediction import likely_worst_s, loads
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.prediction import predict
from sbon.cost.resources import Network, UseSeries
from sbon.planning.options import number
from sbon.planning.samples import known_shares
from sbon.query.estimate import estimate
from sbon.types import FloatArray, NodeId

RATES_MAX = 1e6
ADDED_NODES_MAX = 16
BESIDE_MS = 0.25
"""One-way latency between nodes at one place."""
ROUNDS_MAX = 6
"""Most operators that move to new nodes."""


def at_rates(query: PlacedQuery, factor: float) -> PlacedQuery:
    """Returns the query with the rates of all sources times `factor`; windows keep their groups, joins find more pairs."""
    if factor == 1.0:
        return query
    faster = estimate(
        msgspec.structs.replace(
            query.plan,
            links=tuple(msgspec.structs.replace(link, rate_rows_per_s=link.rate_rows_per_s * factor) for link in query.plan.links),
        ),
        shares=known_shares(query.plan, lambda spec: query.statistics[spec.id]),
    )
    arrivals = {
        operator: Series(one.start_s, one.width_s, one.rows * factor, one.batches, one.size_bytes * factor)
        for operator, one in query.arrivals.items()
    }
    return msgspec.structs.replace(query, plan=faster, arrivals=arrivals)


class _Beside:
    """Latencies with new nodes beside an existing one: as far as it from all other nodes, and `BESIDE_MS` from it."""

    def __init__(self, network: Network, beside: NodeId, fresh: frozenset[NodeId]) -> None:
        self._latencies, self._beside, self._fresh = network.latencies, beside, fresh

    def one_way_ms(self, source: NodeId, target: NodeId) -> float:
        """Returns the latency of a link between two nodes."""
        a, b = (self._beside if node in self._fresh else node for node in (source, target))
        if source == target:
            return 0.0
        return BESIDE_MS if a == b else self._latencies.one_way_ms(a, b)

    def matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """Returns the latencies of all pairs in ms, (sources, targets)."""
        return np.array([[self.one_way_ms(source, target) for target in targets] for source in sources])


def with_nodes(query: PlacedQuery, count: int) -> tuple[PlacedQuery, NodeId]:
    """Returns the query with so many more nodes, to which operators move where that makes answers sooner; and the node that the new ones
    are beside.

    New nodes are like the busiest one, without its other programs, and beside it. Operators of that node move to them one
    by one, as long as the expected worst case falls.
    """
    beside = busiest(query)
    fresh = tuple(f"new-{number + 1}" for number in range(count))
    alone = msgspec.structs.replace(query.nodes[beside], others=UseSeries((0.0,)), operators=None)
    wider = msgspec.structs.replace(
        query,
        nodes={**query.nodes, **{name: msgspec.structs.replace(alone, node=name) for name in fresh}},
        network=Network(query.network.bandwidths, _Beside(query.network, beside, frozenset(fresh)), query.network.is_measured),
    )
    best, best_s = wider, likely_worst_s(wider)
    free = [spec.id for spec in query.plan.operators if spec.pinned is None and query.node_of[spec.id] == beside]
    for _ in range(ROUNDS_MAX):
        tried = [
            msgspec.structs.replace(best, node_of={**best.node_of, operator: node})
            for operator in free
            for node in fresh
            if best.node_of[operator] != node
        ]
        values = [likely_worst_s(one) for one in tried]
        if not values or not min(values) < best_s:
            break
        best, best_s = tried[values.index(min(values))], min(values)
    return best, beside


def busiest(query: PlacedQuery) -> NodeId:
    """Returns the node with the greatest share of its capacity in use by the query."""
    shares = loads(query)
    return max(shares, key=lambda node: (shares[node], node))


def capacity(query: PlacedQuery, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the predictions for the requested rates and nodes, and for the query as it is."""
    factor = number(options, "rates", 1.0, 1e-6, RATES_MAX)
    count = int(number(options, "nodes", 0, 0, ADDED_NODES_MAX))
    then, beside = at_rates(query, factor), None
    if count:
        then, beside = with_nodes(then, count)
    moved = {operator: node for operator, node in then.node_of.items() if node != query.node_of[operator]}
    return {
        "rates": factor,
        "nodes": count,
        "beside": beside,
        "moved": moved,
        "now": predict(query).explained(),
        "then": predict(then).explained(),
    }
