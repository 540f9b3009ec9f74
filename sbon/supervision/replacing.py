"""The placement problem of a recovery: lost operators are to be placed, living operators stay where they are."""

import msgspec

from sbon.query.params.streams import MulticastParams
from sbon.query.plan import OperatorSpec, Plan
from sbon.supervision.recovery_picture import Picture
from sbon.types import OperatorId


def plan_of(plan: Plan, picture: Picture, operators: frozenset[OperatorId]) -> Plan:
    """Returns a query's plan for placing some of its operators again.

    Lost operators that are not made again now are left out, with their links. Running operators of other queries are included as pinned.

    Parameters
    ----------
    operators : the operators to place
    """
    present = {spec.id: spec for spec in picture.specs.values() if spec.id in operators}
    beside = {end for link in picture.links for end in (link.source, link.target) if {link.source, link.target} & operators}
    for operator in sorted(beside - operators):
        node = picture.nodes.get(operator)
        if operator in picture.lost or node not in picture.alive:
            continue
        spec = picture.specs.get(operator)
        present[operator] = (
            msgspec.structs.replace(spec, pinned=node)
            if spec is not None
            else OperatorSpec(operator, MulticastParams(operator), (), None, node, "")
        )
    links = tuple(link for link in picture.links if link.source in present and link.target in present)
    order = {operator: place for place, operator in enumerate(picture.specs)}
    ordered = sorted(present.values(), key=lambda spec: order.get(spec.id, -1))
    return msgspec.structs.replace(plan, operators=tuple(ordered), links=links)
