"""Delay of a query: the longest path from a producer to a consumer, over the links alone."""

from collections.abc import Iterable, Mapping

from sbon.cost.latency import Latencies
from sbon.cost.network_usage import RatedLink
from sbon.errors import PlacementError
from sbon.placement.problem import PlacementLink, PlacementProblem
from sbon.types import NodeId, OperatorId


def longest_delay_ms(
    problem: PlacementProblem,
    assignment: Mapping[OperatorId, NodeId],
    latencies: Latencies,
    begun_ms: Mapping[OperatorId, float] | None = None,
) -> float:
    """Returns the one-way latency of the longest path from a producer to a consumer, over the operators' nodes; 0 without links.

    Parameters
    ----------
    assignment : operators left out take no part, nor do their links
    begun_ms : delays from the producers of operators that are replaced by running ones; their own inputs then do not count

    Raises
    ------
    PlacementError
        The links form a cycle.
    """
    return longest_way(problem, assignment, latencies, begun_ms)[0]


def longest_way(
    problem: PlacementProblem,
    assignment: Mapping[OperatorId, NodeId],
    latencies: Latencies,
    begun_ms: Mapping[OperatorId, float] | None = None,
) -> tuple[float, tuple[OperatorId, ...]]:
    """Returns the same, and the operators on that path, upstream first."""
    begun = begun_ms or {}
    links = [link for link in problem.links if link.source in assignment and link.target in assignment and link.target not in begun]
    delay = {operator: begun.get(operator, 0.0) for operator in assignment}
    before: dict[OperatorId, OperatorId] = {}
    outgoing: dict[OperatorId, list[PlacementLink]] = {}
    for link in links:
        outgoing.setdefault(link.source, []).append(link)
    for operator in upstream_first(assignment, links):
        for link in outgoing.get(operator, ()):
            arrival = delay[operator] + latencies.one_way_ms(assignment[operator], assignment[link.target])
            if link.target not in before or arrival > delay[link.target]:
                delay[link.target], before[link.target] = arrival, operator
    if not delay:
        return 0.0, ()
    way = [max(delay, key=lambda operator: delay[operator])]
    while way[-1] in before:
        way.append(before[way[-1]])
    return delay[way[0]], tuple(way[::-1])


def upstream_first(operators: Iterable[OperatorId], links: Iterable[RatedLink]) -> list[OperatorId]:
    """Returns the operators in topological order.

    Raises
    ------
    PlacementError
        The links form a cycle.
    """
    waiting = dict.fromkeys(operators, 0)
    targets: dict[OperatorId, list[OperatorId]] = {}
    for link in links:
        waiting[link.target] += 1
        targets.setdefault(link.source, []).append(link.target)
    order = [operator for operator, count in waiting.items() if count == 0]
    for operator in order:  # the list grows during the loop
        for target in targets.get(operator, ()):
            waiting[target] -= 1
            if waiting[target] == 0:
                order.append(target)
    if len(order) < len(waiting):
        circle = next(operator for operator, count in waiting.items() if count > 0)
        raise PlacementError(f"the links of operator {circle!r} go round in a circle, expected a plan without one")
    return order
