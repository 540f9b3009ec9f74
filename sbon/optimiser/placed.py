"""The placement of a query in the engine's terms: which operators to make where, and which running ones to use.

Loads nothing that computes placements, as every agent imports it.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from sbon.query.instances import sets_of
from sbon.query.plan import Plan
from sbon.query.text import describe
from sbon.types import NodeId, OperatorId

if TYPE_CHECKING:
    from sbon.optimiser.decision import Decision


@dataclass(frozen=True)
class Placed:
    """Result of the optimiser, in the engine's terms."""

    decision: "Decision"
    nodes: dict[OperatorId, NodeId]
    """Operators to make, with their hosts."""
    reused: dict[OperatorId, tuple[OperatorId, NodeId]]
    """Operators that running ones replace, with these and their hosts."""
    unpinned_nodes: frozenset[NodeId]
    """Nodes that the optimiser chose, as opposed to those that operators are pinned to."""
    plan: Plan
    """Plan that was placed: the one that was asked for, or the same operators in another order."""
    note: str = ""
    """Text for people on a latency bound that may be broken; empty if none may be."""

    def bounded(self, delay_bound_ms: float | None, note: str) -> "Placed":
        """Returns this result with a note, and a bound that the network's part of the latency must keep while the query runs."""
        return replace(self, decision=structs.replace(self.decision, delay_bound_ms=delay_bound_ms), note=note)

    def explained(self, plan: Plan) -> dict[str, Any]:
        """Returns the result as `sbon explain --json` shows it."""
        specs = {spec.id: spec for spec in plan.operators}
        rates = {(link.source, link.target): link.rate_rows_per_s for link in plan.links}
        ids = {(link.source, link.target): link.id for link in plan.links}
        decision = self.decision
        nodes = {placed.operator: placed.node for placed in decision.explanation}
        return {
            "query": plan.query,
            "sql": plan.sql,
            "operators": [
                {
                    "id": placed.operator,
                    "kind": str(specs[placed.operator].params.__struct_config__.tag),
                    "text": describe(specs[placed.operator].params),
                    "node": placed.node,
                    "pinned": placed.pinned,
                    "reuse": placed.reuse.operator if placed.reuse is not None else None,
                    "candidates": [
                        {
                            "node": view.node,
                            "network_usage": view.usage_bytes,
                            "predicted_network_usage": view.predicted_usage_bytes,
                            "measured": view.measured,
                            "load_ms": view.load_ms,
                            "free_slots": view.free_slots,
                            "answered": view.answered,
                            "runs": view.runs,
                        }
                        for view in placed.candidates
                    ],
                }
                for placed in decision.explanation
            ],
            "links": [
                {
                    "id": ids[link.source, link.target],
                    "source": link.source,
                    "target": link.target,
                    "source_node": link.source_node,
                    "target_node": link.target_node,
                    "rate_rows_per_s": rates[link.source, link.target],
                    "rate_bytes_per_s": link.rate_bytes_per_s,
                    "latency_ms": link.latency_ms,
                    "latency_measured": link.measured,
                }
                for link in decision.links
            ],
            "instances": [one.told(nodes) for one in sets_of(plan) if all(i in nodes for i in one.operators)],
            "dropped": list(decision.dropped),
            "network_usage": {"here": decision.usage_here, "producer": decision.usage_producer, "consumer": decision.usage_consumer},
            "delay_ms": decision.delay_ms,
            "delay_bound_ms": decision.delay_bound_ms,
            "candidates_asked": decision.candidates_asked,
            "rtts_measured": decision.rtts_measured,
        }


def placed_as(plan: Plan, decision: "Decision") -> Placed:
    """Returns a decision in the engine's terms."""
    pinned = {spec.id for spec in plan.operators if spec.pinned is not None}
    nodes = {operator: node for operator, node in decision.assignment.items() if operator not in decision.reused}
    return Placed(
        decision=decision,
        nodes=nodes,
        reused={operator: (reuse.operator, reuse.node) for operator, reuse in decision.reused.items()},
        unpinned_nodes=frozenset(node for operator, node in nodes.items() if operator not in pinned),
        plan=plan,
    )
