"""Puts the operators of a placed query where its answers keep within a latency bound at the least network usage, among nodes that have been
asked already. `sbon.placement.latency_bounded` searches; this module makes the input of that search from a query, its placement and its
figures."""

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from sbon.cost.latency_prediction import latest_s, least_way_s
from sbon.cost.model import CostModel
from sbon.cost.placed_query import PlacedQuery
from sbon.optimiser.placed import Placed
from sbon.placement.config import PlacementConfig
from sbon.placement.latency_bounded import Choices, least_cost_within
from sbon.placement.models import model_of
from sbon.planning.admission import harmed, new_by_rule
from sbon.types import NodeId, OperatorId

JUDGED_MAX = 120
"""Most placements whose latency is predicted for one query: a second and a half of one core."""
OPTIONS_MAX = 24
"""Most nodes of one operator: those at which its own links cost least."""


def placed_within(
    placed: Placed, query: PlacedQuery, bound_ms: float, config: PlacementConfig, rng: np.random.Generator
) -> dict[OperatorId, NodeId] | None:
    """Returns the node of every operator in the placement of least cost within the bound; None if the placement should stay as it is: it
    keeps within the bound, nothing may move, or no placement was found.

    Parameters
    ----------
    query : `placed`, with the resources of all candidates
    config : names the model of costs
    bound_ms : for the upper bound of the worst case, as predicted
    """
    known = without_new_sink(query)

    def judge(nodes: tuple[NodeId, ...]) -> tuple[float, Mapping[NodeId, float]]:
        one = msgspec.structs.replace(known, node_of=dict(zip(order, nodes, strict=True)))
        delay_bound_ms = query.plan.delay_bound_ms
        if delay_bound_ms is not None and 1e3 * network_s(one) > delay_bound_ms * (1 + 1e-9):
            return math.inf, {}
        return judged(one)

    choices = choices_of(placed, query, model_of(config))
    order = tuple(spec.id for spec in query.plan.operators)
    if choices.count == 1 or judge(tuple(query.node_of[operator] for operator in order))[0] <= bound_ms / 1e3:
        return None
    found = least_cost_within(choices, judge, bound_ms / 1e3, rng, judged_max=JUDGED_MAX)
    return None if found is None else dict(zip(order, found, strict=True))


def judged(query: PlacedQuery) -> tuple[float, Mapping[NodeId, float]]:
    """Returns the upper bound of the latency in s, infinite where a running query would break its bound, and how many s each node is
    behind."""
    upper_s, behind_s = latest_s(query)
    return (math.inf if harmed(query) else upper_s), behind_s


def network_s(query: PlacedQuery) -> float:
    """Returns the time in s of the longest path through a query over links alone."""
    reached = {spec.id: query.begun_s.get(spec.id, 0.0) for spec in query.plan.operators}
    for spec in query.plan.operators:
        for link in (link for link in query.plan.links if link.target == spec.id):
            source, target = query.node_of[link.source], query.node_of[link.target]
            way_s = query.network.propagation_s(source, target) if source != target else 0.0
            reached[link.target] = max(reached[link.target], reached[link.source] + way_s)
    return max(reached.values())


def without_new_sink(query: PlacedQuery) -> PlacedQuery:
    """Returns the query without the cost of its sink, exchanges and merges, where these alone are rules: every sink is new
    (`admission.with_known_figures`)."""
    by_rule = new_by_rule(query)
    return msgspec.structs.replace(query, shared=query.shared | by_rule) if by_rule else query


def choices_of(placed: Placed, query: PlacedQuery, model: CostModel) -> Choices:
    """Returns the nodes on which operators may be: their present ones, and the candidates that have room for them."""
    plan, decision = query.plan, placed.decision
    order = tuple(spec.id for spec in plan.operators)  # upstream first
    number = {operator: place for place, operator in enumerate(order)}
    views = {one.operator: one.candidates for one in decision.explanation if not one.pinned and one.reuse is None}
    options: list[tuple[NodeId, ...]] = []
    load_ms: dict[NodeId, float] = {}
    room: dict[NodeId, int] = {}
    for operator in order:
        able = [view for view in views.get(operator, ()) if view.answered and view.free_slots > 0 and view.node in query.nodes]
        load_ms.update({view.node: view.load_ms for view in able})
        room.update({view.node: view.free_slots for view in able})
        here = query.node_of[operator]
        options.append(tuple(dict.fromkeys((here, *(view.node for view in able[:OPTIONS_MAX])))))
    nodes = tuple(dict.fromkeys(node for one in options for node in one))
    row = {node: place for place, node in enumerate(nodes)}
    one_way_ms = np.array([[0.0 if a == b else 1e3 * query.network.propagation_s(a, b) for b in nodes] for a in nodes])
    rates: dict[OperatorId, float] = dict.fromkeys(order, 0.0)
    for link in plan.links:
        rates[link.source] += link.rate_bytes_per_s
        rates[link.target] += link.rate_bytes_per_s
    return Choices(
        nodes=nodes,
        options=tuple(tuple(row[node] for node in one) for one in options),
        host_cost=tuple(
            tuple(float(model.of_hosts(rates[operator], np.array(load_ms.get(node, 0.0)))) if operator in views else 0.0 for node in one)
            for operator, one in zip(order, options, strict=True)
        ),
        links=tuple((number[link.source], number[link.target]) for link in plan.links),
        link_cost=np.array([model.of_links(link.rate_bytes_per_s, one_way_ms) for link in plan.links]).reshape(-1, len(nodes), len(nodes)),
        least_s=np.array([[0.0 if a == b else least_way_s(query, a, b) for b in nodes] for a in nodes]),
        delays_s=tuple(query.begun_s.get(operator, 0.0) + query.pace_s + query.clock_s + query.quantum_s for operator in order),
        room={node: slots for node, slots in room.items() if node in row},
        roomless=frozenset(number[operator] for operator in decision.reused if operator in number),
    )
