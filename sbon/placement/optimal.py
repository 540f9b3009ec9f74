"""The optimal placement, for comparison. It needs all latencies, which no agent knows (SBON, section 4.1, OPTIMAL)."""

from collections.abc import Sequence

from sbon.cost.latency import Latencies
from sbon.cost.model import Conditions, CostModel
from sbon.cost.network_usage import NetworkUsage
from sbon.cost.problem import PlacementProblem
from sbon.placement.candidates import CandidateReport
from sbon.placement.joint import JointProblem
from sbon.types import NodeId, OperatorId


def optimal_assignment(
    problem: PlacementProblem, latencies: Latencies, nodes: Sequence[NodeId], model: CostModel | None = None
) -> tuple[dict[OperatorId, NodeId], float]:
    """Returns the assignment of least cost and its cost; without a model the least network usage, in bytes.

    Exact for trees of operators in operators x nodes^2 additions, for up to 8,000 nodes, and for other plans as far as they can be
    eliminated (`sbon.placement.elimination`, TABLE_MAX and WORK_MAX). Where two paths part and meet again (diamonds), eliminating an
    operator takes nodes^3 additions, feasible for up to 1,500 nodes. Denser plans take another power for each further path: four operators
    that all exchange data, up to 250 nodes. Every node takes any number of operators.

    Under a delay bound it is exact for trees with few equivalent alternatives (`sbon.placement.bounded_tree`); elsewhere the optimum may
    be missed.

    Raises
    ------
    PlacementError
        The plan is too dense for so many nodes; the message gives the work needed.
    DelayBoundError
        No placement within the problem's delay bound was found.
    """
    everywhere = tuple(sorted(nodes))
    unlimited = {node: CandidateReport(node, {}, len(problem.pinned) + len(problem.unpinned)) for node in everywhere}
    regions = dict.fromkeys(problem.unpinned, everywhere)
    model = model or NetworkUsage()
    assignment = dict(problem.pinned)
    if problem.unpinned:
        assignment = JointProblem(problem, regions, unlimited, {}, latencies, model).best().assignment
    return assignment, model.of_assignment(problem, assignment, Conditions(latencies))
