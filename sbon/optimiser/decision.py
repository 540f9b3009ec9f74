"""What the full optimiser decided, and why: everything that `sbon explain` and the telemetry show."""

from collections.abc import Mapping

import msgspec

from sbon.cost.latency import EstimatedLatencies
from sbon.cost.network_usage import MS_PER_S, usage_of_assignment
from sbon.placement.baselines import at_consumer
from sbon.placement.candidates import CandidateReport, Choice, Regions, Reuse, running_at
from sbon.placement.problem import PlacementProblem
from sbon.types import NodeId, OperatorId


class CandidateView(msgspec.Struct, frozen=True):
    """One candidate of one operator, with the rest of the query where the decision puts it."""

    node: NodeId
    usage_bytes: float
    """Network usage of the operator's links if it ran here: by measured RTTs where there are any."""
    predicted_usage_bytes: float
    """The same by coordinates alone."""
    measured: bool
    """All those RTTs were measured."""
    load_ms: float
    free_slots: int
    answered: bool
    runs: OperatorId | None
    """The running operator that could serve instead."""


class PlacedOperator(msgspec.Struct, frozen=True):
    """Where one operator goes, and what else was considered."""

    operator: OperatorId
    node: NodeId
    pinned: bool
    reuse: Reuse | None
    candidates: tuple[CandidateView, ...]
    """Least usage first; empty for pinned operators."""


class PlacedLink(msgspec.Struct, frozen=True):
    """One link that the query adds to the network."""

    source: OperatorId
    target: OperatorId
    source_node: NodeId
    target_node: NodeId
    rate_bytes_per_s: float
    latency_ms: float
    """One way."""
    measured: bool
    """False: predicted by coordinates. A link within a node is measured at 0."""


class Decision(msgspec.Struct, frozen=True):
    """A query is placed."""

    assignment: dict[OperatorId, NodeId]
    """Node of every operator that takes part: pinned, new and reused ones."""
    reused: dict[OperatorId, Reuse]
    """Operators of the plan for which a running one serves."""
    dropped: tuple[OperatorId, ...]
    """Operators of the plan that are not needed, because they feed only reused ones."""
    explanation: tuple[PlacedOperator, ...]
    links: tuple[PlacedLink, ...]
    usage_here: float
    """Bytes in transit that this decision adds: inputs of reused operators flow already."""
    usage_producer: float | None
    """The whole query without reuse, all unpinned operators at one of the producers, mean over the producers; None without any."""
    usage_consumer: float | None
    """The same at the consumer."""
    candidates_asked: int
    rtts_measured: int
    """RTTs that candidates reported."""


def decide(
    problem: PlacementProblem,
    choice: Choice,
    regions: Regions,
    reports: Mapping[NodeId, CandidateReport],
    signatures: Mapping[OperatorId, str],
    latencies: EstimatedLatencies,
    asked: int,
) -> Decision:
    """The decision that a choice makes, with its explanation."""
    links = tuple(
        _link(link.source, link.target, link.rate_bytes_per_s, choice, latencies)
        for link in problem.links
        if link.source in choice.assignment and link.target in choice.assignment and link.target not in choice.reused
    )
    placed = tuple(
        PlacedOperator(
            operator,
            node,
            operator in problem.pinned,
            choice.reused.get(operator),
            () if operator in problem.pinned else _views(problem, operator, choice, regions, reports, signatures, latencies),
        )
        for operator, node in choice.assignment.items()
    )
    return Decision(
        assignment=choice.assignment,
        reused=choice.reused,
        dropped=choice.dropped,
        explanation=placed,
        links=links,
        usage_here=sum(link.rate_bytes_per_s * link.latency_ms for link in links) / MS_PER_S,
        usage_producer=_usage_at_producers(problem, latencies),
        usage_consumer=_usage_at_consumer(problem, latencies),
        candidates_asked=asked,
        rtts_measured=sum(len(report.rtts_ms) for report in reports.values()),
    )


def _link(source: OperatorId, target: OperatorId, rate: float, choice: Choice, latencies: EstimatedLatencies) -> PlacedLink:
    a, b = choice.assignment[source], choice.assignment[target]
    return PlacedLink(source, target, a, b, rate, latencies.one_way_ms(a, b), a == b or latencies.measured_rtt_ms(a, b) is not None)


def _views(
    problem: PlacementProblem,
    operator: OperatorId,
    choice: Choice,
    regions: Regions,
    reports: Mapping[NodeId, CandidateReport],
    signatures: Mapping[OperatorId, str],
    latencies: EstimatedLatencies,
) -> tuple[CandidateView, ...]:
    ends = [(choice.assignment[other], rate) for other, rate in problem.neighbours(operator) if other in choice.assignment]
    views = []
    for node in dict.fromkeys((choice.assignment[operator], *regions[operator])):
        report = reports.get(node)
        serving = running_at(operator, (node,), reports, signatures)
        views.append(
            CandidateView(
                node=node,
                usage_bytes=sum(rate * latencies.one_way_ms(node, end) for end, rate in ends) / MS_PER_S,
                predicted_usage_bytes=sum(rate * latencies.space.rtt_ms(node, end) / 2 for end, rate in ends) / MS_PER_S,
                measured=all(node == end or latencies.measured_rtt_ms(node, end) is not None for end, _ in ends),
                load_ms=report.load_ms if report is not None else latencies.space.coordinates[node].load_ms,
                free_slots=report.free_slots if report is not None else 0,
                answered=report is not None,
                runs=serving[0].operator if serving else None,
            )
        )
    return tuple(sorted(views, key=lambda view: (view.usage_bytes, view.node)))


def _usage_at_producers(problem: PlacementProblem, latencies: EstimatedLatencies) -> float | None:
    nodes = sorted({problem.pinned[operator] for operator in problem.producers})
    usages = [usage_of_assignment(problem.links, {**dict.fromkeys(problem.unpinned, node), **problem.pinned}, latencies) for node in nodes]
    return sum(usages) / len(usages) if usages else None


def _usage_at_consumer(problem: PlacementProblem, latencies: EstimatedLatencies) -> float | None:
    if not problem.consumers:
        return None
    return usage_of_assignment(problem.links, {**at_consumer(problem), **problem.pinned}, latencies)
