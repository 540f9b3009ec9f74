"""What candidates say of themselves, and what was chosen from it."""

from collections.abc import Mapping, Sequence

import msgspec

from sbon.placement.problem import PlacementProblem
from sbon.types import NodeId, OperatorId


class CandidateReport(msgspec.Struct, frozen=True):
    """One node's answer: what it has measured, what it can take, what it runs."""

    node: NodeId
    rtts_ms: dict[NodeId, float]
    """Of the nodes asked about, those it has measured."""
    free_slots: int
    """Operators that it would accept now."""
    load_ms: float = 0.0
    running: dict[str, OperatorId] = {}
    """Signature -> operator that it runs, for the signatures asked about."""
    reserved: int = 0
    """Operators that it would accept too, had it not promised the room to other queries."""
    upstream_delay_ms: dict[OperatorId, float] = {}
    """Of the operators that it runs: the longest way from a producer to them, over the links. Without it a bounded query takes none."""
    memory_short: bool = False
    """It has no memory for operators that keep state, of which there are some."""


class Reuse(msgspec.Struct, frozen=True, array_like=True):
    """A running operator that serves instead of a new one."""

    operator: OperatorId
    node: NodeId


class Choice(msgspec.Struct, frozen=True):
    """Where operators go."""

    assignment: dict[OperatorId, NodeId]
    """Node of every operator that takes part, pinned and reused ones included."""
    reused: dict[OperatorId, Reuse]
    dropped: tuple[OperatorId, ...]
    """Operators that serve only reused ones, and are not needed."""


Regions = dict[OperatorId, tuple[NodeId, ...]]
"""The candidates of each unpinned operator, best first."""


def upstream_delay_ms(
    problem: PlacementProblem, operator: OperatorId, reuse: Reuse, reports: Mapping[NodeId, CandidateReport]
) -> float | None:
    """The longest way from a producer to a running operator that serves instead of `operator`; None if its host does not tell.

    Where `operator` is itself a producer, the way begins there.
    """
    if operator in problem.producers:
        return 0.0
    told = reports[reuse.node].upstream_delay_ms.get(reuse.operator) if reuse.node in reports else None
    return told if told is not None and 0 <= told < float("inf") else None


def begun_ms(
    problem: PlacementProblem, reused: Mapping[OperatorId, Reuse], reports: Mapping[NodeId, CandidateReport]
) -> dict[OperatorId, float] | None:
    """The same of all reused operators; None if it is not known of one."""
    found: dict[OperatorId, float] = {}
    for operator, reuse in reused.items():
        delay = upstream_delay_ms(problem, operator, reuse, reports)
        if delay is None:
            return None
        found[operator] = delay
    return found


def running_at(
    problem: PlacementProblem,
    operator: OperatorId,
    nodes: Sequence[NodeId],
    reports: Mapping[NodeId, CandidateReport],
    signatures: Mapping[OperatorId, str],
) -> list[Reuse]:
    """Operators that could serve instead of this one, at those of `nodes` that have answered, in their order.

    An operator without a signature is never shared. A query with a delay bound takes only those whose own delay is known and within it.
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
