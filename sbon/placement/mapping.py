"""Maps points in the cost space to nodes (SBON, section 3.1.3, "Physical Operator Mapping")."""

from collections.abc import Mapping

from sbon.cost.problem import PlacementProblem
from sbon.errors import PlacementError
from sbon.placement.candidates import CandidateReport, Choice, Regions, Reuse, running_at
from sbon.types import NodeId, OperatorId


def walk(
    problem: PlacementProblem, regions: Regions, reports: Mapping[NodeId, CandidateReport], signatures: Mapping[OperatorId, str]
) -> Choice:
    """Chooses for each operator the first candidate that runs it already, else the nearest with room (steps 4 and 5).

    Downstream operators go first, since a reused operator makes those that feed only it unnecessary.

    Raises
    ------
    PlacementError
        No candidate that has answered has room for an operator.
    """
    reused: dict[OperatorId, Reuse] = {}
    for operator in reversed((*problem.pinned, *problem.unpinned)):
        where = regions[operator] if operator in regions else (problem.pinned[operator],)
        serving = running_at(problem, operator, where, reports, signatures)
        if serving:
            reused[operator] = serving[0]
    kept = problem.needed(reused)
    reused = {operator: reuse for operator, reuse in reused.items() if operator in kept}
    room = room_of(problem, reports, reused, kept)
    assignment: dict[OperatorId, NodeId] = {}
    for operator in (*problem.pinned, *problem.unpinned):
        if operator not in kept:
            continue
        if operator in reused:
            assignment[operator] = reused[operator].node
        elif operator in problem.pinned:
            assignment[operator] = problem.pinned[operator]
        else:
            node = next((node for node in regions[operator] if room.get(node, 0) > 0), None)
            if node is None:
                raise no_room(operator, len(regions[operator]))
            room[node] -= 1
            assignment[operator] = node
    dropped = tuple(operator for operator in (*problem.pinned, *problem.unpinned) if operator not in kept)
    return Choice(assignment, reused, dropped)


def room_of(
    problem: PlacementProblem,
    reports: Mapping[NodeId, CandidateReport],
    reused: Mapping[OperatorId, Reuse],
    kept: frozenset[OperatorId],
) -> dict[NodeId, int]:
    """Returns how many unpinned operators each answering node can take, besides this query's own pinned ones."""
    room = {node: report.free_slots for node, report in reports.items()}
    for operator, node in problem.pinned.items():
        if node in room and operator in kept and operator not in reused:
            room[node] -= 1
    return room


def no_room(operator: OperatorId, asked: int) -> PlacementError:
    """Returns the error for an operator that none of the nodes asked can host."""
    return PlacementError(f"no node can host operator {operator!r}: none of {asked} candidates has answered and has room for it")
