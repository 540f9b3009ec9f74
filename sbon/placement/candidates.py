"""Candidates' reports, and the choice made from them."""

from collections.abc import Mapping, Sequence

import msgspec

from sbon.cost.problem import PlacementProblem
from sbon.types import NodeId, OperatorId


class CandidateReport(msgspec.Struct, frozen=True):
    """One node's answer: its measured RTTs, its free capacity, and its running operators."""

    node: NodeId
    rtts_ms: dict[NodeId, float]
    """Measured RTTs to the nodes asked about, as far as known."""
    free_slots: int
    """Number of operators that it would accept now."""
    load_ms: float = 0.0
    running: dict[str, OperatorId] = {}
    """Running operators by signature, for the signatures asked about."""
    reserved: int = 0
    """Number of operators that it would accept in addition if it had not reserved the room for other queries."""
    upstream_delay_ms: dict[OperatorId, float] = {}
    """For its running operators, the longest path from a producer, over the links. A query with a delay bound reuses no operator whose
    delay is missing."""
    memory_short: bool = False
    """True if the node has no memory for operators with state, and the query has such operators."""


class Reuse(msgspec.Struct, frozen=True, array_like=True):
    """A running operator that is used instead of a new one."""

    operator: OperatorId
    node: NodeId


class Choice(msgspec.Struct, frozen=True):
    """The nodes of a query's operators."""

    assignment: dict[OperatorId, NodeId]
    """Node of every operator that takes part, pinned and reused ones included."""
    reused: dict[OperatorId, Reuse]
    dropped: tuple[OperatorId, ...]
    """Operators that only feed reused ones, and are not needed."""

    def adds(self, problem: PlacementProblem, reports: Mapping[NodeId, CandidateReport]) -> PlacementProblem:
        """Returns the problem that the choice adds to the network: reused operators are pinned where they run, and their inputs flow
        already.

        Delays that the hosts of reused operators do not report are missing from `begun_ms`.
        """
        delays = {operator: upstream_delay_ms(problem, operator, reuse, reports) for operator, reuse in self.reused.items()}
        pinned = {op: node for op, node in self.assignment.items() if op in problem.pinned or op in self.reused}
        return PlacementProblem(
            pinned,
            tuple(operator for operator in problem.unpinned if operator in self.assignment and operator not in pinned),
            tuple(
                link
                for link in problem.links
                if link.source in self.assignment and link.target in self.assignment and link.target not in self.reused
            ),
            problem.delay_bound_ms,
            {operator: delay for operator, delay in delays.items() if delay is not None},
        )


Regions = dict[OperatorId, tuple[NodeId, ...]]
"""The candidates of each unpinned operator, best first."""


def upstream_delay_ms(
    problem: PlacementProblem, operator: OperatorId, reuse: Reuse, reports: Mapping[NodeId, CandidateReport]
) -> float | None:
    """Returns the longest path from a producer to a running operator that replaces `operator`; None if its host does not report it.

    If `operator` is itself a producer, the path begins there.
    """
    if operator in problem.producers:
        return 0.0
    told = reports[reuse.node].upstream_delay_ms.get(reuse.operator) if reuse.node in reports else None
    return told if told is not None and 0 <= told < float("inf") else None


def running_at(
    problem: PlacementProblem,
    operator: OperatorId,
    nodes: Sequence[NodeId],
    reports: Mapping[NodeId, CandidateReport],
    signatures: Mapping[OperatorId, str],
) -> list[Reuse]:
    """Returns the operators that could replace this one, at those of `nodes` that have answered, in their order.

    An operator without a signature is never shared. A query with a delay bound accepts only operators whose delay is known and within the
    bound.
    """
    signature = signatures.get(operator, "")
    if not signature:
        return []
    found = []
    for node in nodes:
        report = reports.get(node)
        if report is not None and signature in report.running:
            reuse = Reuse(report.running[signature], node)
            if problem.delay_bound_ms is not None:
                delay = upstream_delay_ms(problem, operator, reuse, reports)
                if delay is None or not problem.in_time(delay):
                    continue
            found.append(reuse)
    return found
