"""Tells when a placement rests on coordinates that are not reliable yet."""

from collections.abc import Collection, Mapping

from sbon.cost_space.coordinate import Coordinate
from sbon.query.plan import Plan
from sbon.types import NodeId

UNSETTLED_ERROR = 0.5
"""Error estimate from which on a coordinate says little about where its node is. Two agents get below it within a second of meeting."""


def unsettled(plan: Plan, alive: Collection[NodeId], coordinates: Mapping[NodeId, Coordinate]) -> list[str]:
    """Returns a note for the user if operators are placed by coordinates that are not reliable yet, as just after an agent's start."""
    if len(alive) == 1 or all(spec.pinned is not None for spec in plan.operators):
        return []
    young = [node for node in alive if node not in coordinates or coordinates[node].error >= UNSETTLED_ERROR]
    if not young:
        return []
    named = ", ".join(young[:5]) + (f" and {len(young) - 5} more" if len(young) > 5 else "")
    return [f"the coordinates of {named} have not settled: some seconds later, operators may go elsewhere"]
