"""Where an operator goes when its host leaves: it cannot stay, so that no saving is asked for, only the least cost. Without I/O."""

from collections.abc import Mapping

from sbon.cost.network_usage import MS_PER_S
from sbon.cost.space import CostSpace
from sbon.optimiser.knowledge import measured_rtt_ms
from sbon.optimiser.slack import Way, may_lengthen
from sbon.optimiser.views import OperatorView
from sbon.placement.candidates import CandidateReport
from sbon.types import NodeId

UNKNOWN_MS = 1000.0
"""The RTT between two nodes of which nothing is known: such a candidate comes after those that know the way, not never."""


def refuges(
    view: OperatorView, reports: Mapping[NodeId, CandidateReport], space: CostSpace, load_weight: float = 0.0
) -> tuple[NodeId, ...]:
    """The candidates that have room for all of it, best first.

    Those come first where no way becomes longer than its queries bear, and of those the one of least network usage and load. The others
    follow: an answer that is late is worth more than none.

    Parameters
    ----------
    view : the operator, or the operators of one body, with the neighbours that stay
    reports : of those that have answered
    load_weight : bytes in transit that a millisecond of load counts for each byte/s (`PlacementConfig.load_weight`)
    """
    room = len(view.operators)
    ranked = []
    for node, report in reports.items():
        if node == view.here or report.free_slots < room:
            continue
        ways, cost = [], 0.0
        for neighbour in view.neighbours:
            there_ms = _rtt_ms(node, neighbour.node, report, space)
            here_ms = _rtt_ms(view.here, neighbour.node, reports.get(view.here), space)
            cost += neighbour.rate_bytes_per_s / MS_PER_S * (there_ms + load_weight * report.load_ms) / 2
            ways.append(Way(neighbour.upstream, here_ms / 2, there_ms / 2, neighbour.delay_ms))
        ranked.append((bool(ways) and not may_lengthen(ways, view.delay_slack_ms), cost, node))
    return tuple(node for _, _, node in sorted(ranked))


def _rtt_ms(node: NodeId, neighbour: NodeId, report: CandidateReport | None, space: CostSpace) -> float:
    """As it was measured, or else as the coordinates say."""
    measured = measured_rtt_ms(node, neighbour, report)
    if measured is not None:
        return measured
    return space.rtt_ms(node, neighbour) if node in space and neighbour in space else UNKNOWN_MS
