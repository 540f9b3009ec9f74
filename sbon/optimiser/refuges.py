"""Ranks new hosts for an operator whose host leaves. The operator cannot stay, so cost alone decides, not a saving. No I/O."""

from collections.abc import Mapping

from sbon.cost.latency import LatenciesOfPairs
from sbon.cost.model import Conditions, CostModel
from sbon.cost.space import CostSpace
from sbon.optimiser.knowledge import measured_rtt_ms
from sbon.optimiser.local import problem_of_view
from sbon.optimiser.slack import Way, may_lengthen
from sbon.optimiser.views import OperatorView
from sbon.placement.candidates import CandidateReport
from sbon.types import NodeId

UNKNOWN_MS = 1000.0
"""Assumed RTT between two nodes without any information, which ranks such a candidate after all others without excluding it."""


def refuges(view: OperatorView, reports: Mapping[NodeId, CandidateReport], space: CostSpace, model: CostModel) -> tuple[NodeId, ...]:
    """Returns the candidates with room for all of the operators, best first.

    Candidates that keep every path within its queries' slack come first, ordered by cost. The others follow, since a
    late answer is better than none.

    Parameters
    ----------
    view : the operator, or the operators of one body, with the neighbours that stay
    reports : reports of the candidates that have answered
    """
    room, problem = len(view.operators), problem_of_view(view)
    ranked = []
    for node, report in reports.items():
        if node == view.here or report.free_slots < room:
            continue
        ways = []
        one_way_ms: dict[tuple[NodeId, NodeId], float] = {}
        for neighbour in view.neighbours:
            there_ms = _rtt_ms(node, neighbour.node, report, space)
            here_ms = _rtt_ms(view.here, neighbour.node, reports.get(view.here), space)
            one_way_ms[neighbour.node, node] = there_ms / 2
            ways.append(Way(neighbour.upstream, here_ms / 2, there_ms / 2, neighbour.delay_ms))
        conditions = Conditions(LatenciesOfPairs(one_way_ms), {node: report.load_ms})
        cost = model.of_assignment(problem, {**problem.pinned, view.id: node}, conditions)
        ranked.append((bool(ways) and not may_lengthen(ways, view.delay_slack_ms), cost, node))
    return tuple(node for _, _, node in sorted(ranked))


def _rtt_ms(node: NodeId, neighbour: NodeId, report: CandidateReport | None, space: CostSpace) -> float:
    """Returns the measured RTT, or else the one that the coordinates predict."""
    measured = measured_rtt_ms(node, neighbour, report)
    if measured is not None:
        return measured
    return space.rtt_ms(node, neighbour) if node in space and neighbour in space else UNKNOWN_MS
