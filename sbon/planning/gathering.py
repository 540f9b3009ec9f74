"""Gathers the known figures of a placed query from the cost store of an agent."""

from collections.abc import Iterable, Mapping

import msgspec

from sbon.cost.arrivals import Series
from sbon.cost.latency import LatenciesOfPairs
from sbon.cost.placed_query import PlacedQuery, by_rule_of
from sbon.cost.resources import Network, NodeResources
from sbon.cost.store import CostStore
from sbon.optimiser.placed import Placed
from sbon.query.params.source import SourceParams
from sbon.query.plan import Plan
from sbon.types import NodeId, OperatorId


def gathered(cost_store: CostStore, plan: Plan, placed: Placed, now: float) -> PlacedQuery:
    """Returns a query as the optimiser has placed it, with the figures in the cost store."""
    decision = placed.decision
    links = [
        (source, target, latency_ms, is_measured)
        for source, row, measured in zip(decision.candidates, decision.one_way_ms, decision.measured, strict=True)
        for target, latency_ms, is_measured in zip(decision.candidates, row, measured, strict=True)
        if source != target
    ]
    links += [(link.source_node, link.target_node, link.latency_ms, link.measured) for link in decision.links]
    found = placed_query(
        cost_store,
        plan,
        decision.assignment,
        links,
        shared=frozenset(decision.reused),
        begun_ms=decision.begun_ms,
        network_usage_bytes=decision.usage_here,
        now=now,
    )
    return msgspec.structs.replace(found, nodes={**{node: cost_store.nodes.of(node, now) for node in decision.candidates}, **found.nodes})


def placed_query(
    cost_store: CostStore,
    plan: Plan,
    node_of: Mapping[OperatorId, NodeId],
    links: Iterable[tuple[NodeId, NodeId, float, bool]],
    *,
    shared: frozenset[OperatorId] = frozenset(),
    begun_ms: Mapping[OperatorId, float] | None = None,
    network_usage_bytes: float = 0.0,
    own_cores: Mapping[NodeId, float] | None = None,
    arrivals: Mapping[OperatorId, Series] | None = None,
    now: float,
) -> PlacedQuery:
    """Returns a query with a placement, and the figures of its parts in the cost store; parts without figures have those of rules.

    Parameters
    ----------
    node_of : nodes of the operators that take part; the plan's others are left out
    links : for each pair of nodes that a link leads over: both nodes, the one-way latency in ms, and whether it was measured
    shared : operators that run already for other queries; their inputs flow in any case
    begun_ms : latency from a source to each shared operator, as far as it is known
    own_cores : cores that the query uses already, by node, apart from `shared`; they do not count as used by others
    arrivals : measured arrivals of sources whose rows come in bursts
    """
    operators = tuple(spec for spec in plan.operators if spec.id in node_of)
    kept = tuple(link for link in plan.links if link.source in node_of and link.target in node_of and link.target not in shared)
    pairs = list(links)
    measured = {(source, target) for source, target, _, is_measured in pairs if is_measured}
    statistics = {}
    alone = {operator: sizing.alone for sizing in plan.sizings for operator in sizing.operators}
    for spec in operators:
        known = cost_store.statistics.of(spec.signature, now) or cost_store.statistics.of(alone.get(spec.id, ""), now)
        expected = 1.0 if isinstance(spec.params, SourceParams) else spec.selectivity
        statistics[spec.id] = known if known is not None else by_rule_of(spec, expected)
    return PlacedQuery(
        plan=msgspec.structs.replace(plan, operators=operators, links=kept),
        node_of=dict(node_of),
        shared=shared,
        begun_s={operator: delay_ms / 1e3 for operator, delay_ms in (begun_ms or {}).items()},
        statistics=statistics,
        nodes={node: _without(cost_store.nodes.of(node, now), (own_cores or {}).get(node, 0.0)) for node in set(node_of.values())},
        network=Network(
            cost_store.bandwidths,
            LatenciesOfPairs({(source, target): latency_ms for source, target, latency_ms, _ in pairs}),
            lambda source, target: (source, target) in measured,
        ),
        arrivals=arrivals or {},
        network_usage_bytes=network_usage_bytes,
        now=now,
    )


def _without(node: NodeResources, cores: float) -> NodeResources:
    """Returns the resources of a node, without the cores that the query itself uses."""
    if node.operators is None or cores <= 0:
        return node
    return msgspec.structs.replace(node, operators=node.operators.less(cores))
