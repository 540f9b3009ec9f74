"""What candidates say of themselves, and what was chosen from it."""

from collections.abc import Mapping, Sequence

import msgspec

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


def running_at(
    operator: OperatorId, nodes: Sequence[NodeId], reports: Mapping[NodeId, CandidateReport], signatures: Mapping[OperatorId, str]
) -> list[Reuse]:
    """Operators that could serve instead of this one, at those of `nodes` that have answered, in their order.

    An operator without a signature is never shared.
    """
    signature = signatures.get(operator, "")
    found = []
    for node in nodes:
        report = reports.get(node)
        if signature and report is not None and signature in report.running:
            found.append(Reuse(report.running[signature], node))
    return found
