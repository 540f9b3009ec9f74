"""Where the operators of a new query go: the full optimiser (SBON, section 3.2), with real candidates answering.

The optimiser is loaded with the first query: most agents take none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from agent.gossip import Gossip
from agent.host import Host
from agent.surveying import Surveying
from sbon.errors import SbonError
from sbon.membership.digest import may_contain
from sbon.membership.members import MemberStatus
from sbon.optimiser.config import OptimiserConfig
from sbon.placement.config import PlacementConfig
from sbon.query.plan import Plan
from sbon.query.text import describe
from sbon.types import NodeId, OperatorId

if TYPE_CHECKING:
    from sbon.optimiser.decision import Decision
    from sbon.optimiser.full import Action
    from sbon.placement.candidates import CandidateReport


@dataclass(frozen=True)
class Placed:
    """A decision in the engine's terms."""

    decision: "Decision"
    nodes: dict[OperatorId, NodeId]
    """Operators to be made, and where."""
    reused: dict[OperatorId, tuple[OperatorId, NodeId]]
    """Operators for which running ones serve."""
    unpinned_nodes: frozenset[NodeId]
    """Nodes that were chosen, not given."""

    def explained(self, plan: Plan) -> dict[str, Any]:
        """As `sbon explain --json` shows it."""
        specs = {spec.id: spec for spec in plan.operators}
        rates = {(link.source, link.target): link.rate_rows_per_s for link in plan.links}
        ids = {(link.source, link.target): link.id for link in plan.links}
        decision = self.decision
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
            "dropped": list(decision.dropped),
            "network_usage": {"here": decision.usage_here, "producer": decision.usage_producer, "consumer": decision.usage_consumer},
            "candidates_asked": decision.candidates_asked,
            "rtts_measured": decision.rtts_measured,
        }


class Placing:
    """Runs a full optimiser for each query that is placed."""

    def __init__(self, host: Host, gossip: Gossip, surveying: Surveying, config: PlacementConfig, optimiser: OptimiserConfig) -> None:
        self._host = host
        self._gossip = gossip
        self._surveying = surveying
        self._config = config
        self._optimiser = optimiser
        self._rng = host.rng.spawn(1)[0]

    def place(self, plan: Plan, done: Callable[[Placed | SbonError], None], excluded: frozenset[NodeId] = frozenset()) -> None:
        """Decide; nodes in `excluded` count as full, and with any, nothing is shared."""
        from sbon.optimiser.full import AskCandidate, FullOptimiser
        from sbon.optimiser.reuse import shareable_signatures
        from sbon.placement.problem import problem_of

        signatures = {} if excluded else shareable_signatures(plan)
        optimiser = FullOptimiser(
            problem_of(plan), signatures, self._gossip.coordinates(), self._config, self._rng, hosts=self._hosts(signatures)
        )

        def perform(step: "Callable[[], list[Action]]") -> None:
            try:
                actions = step()
            except SbonError as problem:
                done(problem)
                return
            for action in actions:
                if isinstance(action, AskCandidate):
                    self._surveying.ask(action.node, action.about, action.signatures, self._optimiser.answer_timeout_s, answered)
                else:
                    done(_placed(plan, action))

        def answered(node: NodeId, report: "CandidateReport | None") -> None:
            if report is None:
                perform(lambda: optimiser.unanswered(node))
            else:
                told = msgspec.structs.replace(report, free_slots=0) if node in excluded else report
                perform(lambda: optimiser.answered(told))

        perform(optimiser.begin)

    def _hosts(self, signatures: Mapping[OperatorId, str]) -> dict[str, list[NodeId]]:
        """For each signature, the members whose digest says that they may run it."""
        found: dict[str, list[NodeId]] = {}
        for signature in sorted(set(signatures.values())):
            nodes = [
                name
                for name, member in sorted(self._gossip.members.items())
                if member.status is MemberStatus.ALIVE and may_contain(member.digest, signature)
            ]
            if nodes:
                found[signature] = nodes
        return found


def _placed(plan: Plan, decision: "Decision") -> Placed:
    pinned = {spec.id for spec in plan.operators if spec.pinned is not None}
    nodes = {operator: node for operator, node in decision.assignment.items() if operator not in decision.reused}
    return Placed(
        decision=decision,
        nodes=nodes,
        reused={operator: (reuse.operator, reuse.node) for operator, reuse in decision.reused.items()},
        unpinned_nodes=frozenset(node for operator, node in nodes.items() if operator not in pinned),
    )
