"""The full optimiser's decision with its explanation: everything that `sbon explain` and the telemetry show."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sbon.cost.delay import longest_delay_ms
from sbon.cost.latency import EstimatedLatencies, KnownLatencies, Latencies
from sbon.cost.model import Conditions, CostModel
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.placement.baselines import at_consumer
from sbon.placement.candidates import CandidateReport, Choice, Regions, Reuse, running_at
from sbon.types import NodeId, OperatorId


class CandidateView(msgspec.Struct, frozen=True):
    """One candidate of one operator, with all other operators where the decision puts them."""

    node: NodeId
    usage_bytes: float
    """Cost of the operator's links if it ran here, by measured RTTs where known."""
    predicted_usage_bytes: float
    """Cost of the operator's links if it ran here, by coordinates alone."""
    measured: bool
    """True if all these RTTs were measured."""
    load_ms: float
    free_slots: int
    answered: bool
    runs: OperatorId | None
    """The running operator that could be reused here."""


class PlacedOperator(msgspec.Struct, frozen=True):
    """The node of one operator, and the candidates considered."""

    operator: OperatorId
    node: NodeId
    pinned: bool
    reuse: Reuse | None
    candidates: tuple[CandidateView, ...]
    """Candidates, least usage first; empty for pinned operators."""


class PlacedLink(msgspec.Struct, frozen=True):
    """One link that the query adds to the network."""

    source: OperatorId
    target: OperatorId
    source_node: NodeId
    target_node: NodeId
    rate_bytes_per_s: float
    latency_ms: float
    """One-way latency."""
    measured: bool
    """False if the latency is predicted by coordinates. A link within a node counts as measured, at 0."""


class Decision(msgspec.Struct, frozen=True):
    """The placement of a query."""

    assignment: dict[OperatorId, NodeId]
    """Node of every operator that takes part: pinned, new and reused ones."""
    reused: dict[OperatorId, Reuse]
    """Operators of the plan that are replaced by running ones."""
    dropped: tuple[OperatorId, ...]
    """Operators of the plan that are not needed, because they feed only reused ones."""
    explanation: tuple[PlacedOperator, ...]
    links: tuple[PlacedLink, ...]
    usage_here: float
    """Cost that this decision adds, without load; inputs of reused operators flow already."""
    usage_producer: float | None
    """Cost of the whole query without reuse, with all unpinned operators at one producer, as the mean over the producers; None without
    producers."""
    usage_consumer: float | None
    """Cost of the whole query without reuse, with all unpinned operators at the consumer."""
    candidates_asked: int
    rtts_measured: int
    """Number of RTTs that candidates reported."""
    delay_ms: float | None = None
    """Longest one-way path from a producer to a consumer, over the links alone; None if the host of a running operator does not report
    the delay of its path."""
    delay_bound_ms: float | None = None
    begun_ms: dict[OperatorId, float] = {}
    """Delays of reused operators' longest paths from a producer, as far as their hosts report them."""
    candidates: tuple[NodeId, ...] = ()
    """All nodes that take part or were asked."""
    one_way_ms: tuple[tuple[float, ...], ...] = ()
    """One-way latencies from each of `candidates` to each."""
    measured: tuple[tuple[bool, ...], ...] = ()
    """True for each of these latencies that was measured."""


def decide(
    problem: PlacementProblem,
    choice: Choice,
    regions: Regions,
    reports: Mapping[NodeId, CandidateReport],
    signatures: Mapping[OperatorId, str],
    latencies: EstimatedLatencies,
    model: CostModel,
    asked: int,
) -> Decision:
    """Builds the decision for a choice, with its explanation."""
    known = _Known(problem, choice, regions, latencies)
    conditions = Conditions(known.ends)
    added = choice.adds(problem, reports)
    neighbours = problem.links_of_each()
    placed = tuple(
        PlacedOperator(
            operator,
            node,
            operator in problem.pinned,
            choice.reused.get(operator),
            ()
            if operator in problem.pinned
            else _views(
                [(choice.assignment[other], rate) for other, rate in neighbours[operator] if other in choice.assignment],
                tuple(dict.fromkeys((node, *regions[operator]))),
                {reuse.node: reuse for reuse in running_at(problem, operator, regions[operator], reports, signatures)},
                reports,
                known,
                model,
            ),
        )
        for operator, node in choice.assignment.items()
    )
    return Decision(
        assignment=choice.assignment,
        reused=choice.reused,
        dropped=choice.dropped,
        explanation=placed,
        links=tuple(_link(link, choice, known) for link in added.links),
        usage_here=model.of_assignment(added, choice.assignment, conditions),
        usage_producer=_at_producers(problem, known.ends, model),
        usage_consumer=model.of_assignment(problem, {**at_consumer(problem), **problem.pinned}, conditions) if problem.consumers else None,
        candidates_asked=asked,
        rtts_measured=sum(len(report.rtts_ms) for report in reports.values()),
        delay_ms=longest_delay_ms(added, choice.assignment, known.ends) if choice.reused.keys() <= added.begun_ms.keys() else None,
        delay_bound_ms=problem.delay_bound_ms,
        begun_ms={operator: added.begun_ms[operator] for operator in choice.reused if operator in added.begun_ms},
        candidates=known.nodes,
        one_way_ms=tuple(map(tuple, latencies.matrix_ms(known.nodes, known.nodes).tolist())),
        measured=tuple(map(tuple, latencies.is_measured(known.nodes, known.nodes).tolist())),
    )


class _Known:
    """Latencies from all candidates to all nodes that take part, looked up once for all figures of a decision."""

    def __init__(self, problem: PlacementProblem, choice: Choice, regions: Regions, latencies: EstimatedLatencies) -> None:
        ends = tuple(dict.fromkeys((*choice.assignment.values(), *problem.pinned_nodes)))
        nodes = tuple(dict.fromkeys((*ends, *(node for region in regions.values() for node in region))))
        self.nodes = nodes
        self.space = latencies.space
        self.row = {node: row for row, node in enumerate(nodes)}
        """Row of each node in the matrix; nodes of `ends` are its columns, too."""
        self.one_way_ms = latencies.matrix_ms(nodes, ends)
        self.predicted_ms = latencies.space.rtt_matrix_ms(nodes, ends) / 2
        self.measured = latencies.is_measured(nodes, ends)
        self.ends = KnownLatencies(ends, 2 * self.one_way_ms[: len(ends)])


def _link(link: PlacementLink, choice: Choice, known: _Known) -> PlacedLink:
    a, b = choice.assignment[link.source], choice.assignment[link.target]
    here, there = known.row[a], known.row[b]
    latency_ms = float(known.one_way_ms[here, there])
    return PlacedLink(link.source, link.target, a, b, link.rate_bytes_per_s, latency_ms, bool(known.measured[here, there]))


def _views(
    links: Sequence[tuple[NodeId, float]],
    nodes: Sequence[NodeId],
    running: Mapping[NodeId, Reuse],
    reports: Mapping[NodeId, CandidateReport],
    known: _Known,
    model: CostModel,
) -> tuple[CandidateView, ...]:
    """Returns an operator's candidates, given its links as (node, rate)."""
    rows, columns = [known.row[node] for node in nodes], [known.row[end] for end, _ in links]
    rates = np.array([rate for _, rate in links], dtype=np.float64)
    # Sums over few links in a fixed order, so that equal nodes get equal results.
    usage = model.of_links(rates, known.one_way_ms[rows][:, columns]).sum(axis=1).tolist()
    predicted = model.of_links(rates, known.predicted_ms[rows][:, columns]).sum(axis=1).tolist()
    measured: list[bool] = np.all(known.measured[rows][:, columns], axis=1).tolist()
    views = []
    for node, usage_bytes, predicted_bytes, is_measured in zip(nodes, usage, predicted, measured, strict=True):
        report = reports.get(node)
        views.append(
            CandidateView(
                node=node,
                usage_bytes=usage_bytes,
                predicted_usage_bytes=predicted_bytes,
                measured=is_measured,
                load_ms=report.load_ms if report is not None else known.space.coordinate(node).load_ms,
                free_slots=report.free_slots if report is not None else 0,
                answered=report is not None,
                runs=running[node].operator if node in running else None,
            )
        )
    return tuple(sorted(views, key=lambda view: (view.usage_bytes, view.node)))


def _at_producers(problem: PlacementProblem, latencies: Latencies, model: CostModel) -> float | None:
    """Returns the mean over the producers' nodes of the cost of the links with all unpinned operators there."""
    there = sorted({problem.pinned[operator] for operator in problem.producers})
    if not there:
        return None
    # Links between pinned operators are unchanged; those of unpinned ones lead from the common node to the pinned ends.
    fixed, ends, rates = 0.0, [], []
    for link in problem.links:
        pinned = [problem.pinned[end] for end in (link.source, link.target) if end in problem.pinned]
        if len(pinned) == 2:
            fixed += float(model.of_links(link.rate_bytes_per_s, np.array(latencies.one_way_ms(*pinned))))
        elif pinned:
            ends.append(pinned[0])
            rates.append([link.rate_bytes_per_s])
    return fixed + float(model.of_links(np.array(rates).reshape(-1, 1), latencies.matrix_ms(ends, there)).sum(axis=0).mean())
