"""Delay of a query: the longest path from a producer to a consumer, over the links alone."""

from collections.abc import Iterable, Mapping

from sbon.cost.latency import Latencies
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.errors import PlacementError
from sbon.types import NodeId, OperatorId


def longest_delay_ms(problem: PlacementProblem, assignment: Mapping[OperatorId, NodeId], latencies: Latencies) -> float:
    """Returns the one-way latency of the longest path from a producer to a consumer, over the operators' nodes; 0 without links.

    An operator that runs already begins a path with its own delay; its inputs do not count.

    Raises
    ------
    PlacementError
        The links form a cycle.
    """
    delay = {operator: problem.begun_ms.get(operator, 0.0) for operator in (*problem.pinned, *problem.unpinned)}
    links = [link for link in problem.links if link.target not in problem.begun_ms]
    outgoing: dict[OperatorId, list[PlacementLink]] = {}
    for link in links:
        outgoing.setdefault(link.source, []).append(link)
    for operator in upstream_first(delay, links):
        for link in outgoing.get(operator, ()):
            arrival = delay[operator] + latencies.one_way_ms(assignment[operator], assignment[link.target])
            delay[link.target] = max(delay[link.target], arrival)
    return max(delay.values(), default=0.0)


def upstream_first(operators: Iterable[OperatorId], links: Iterable[PlacementLink]) -> list[OperatorId]:
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
        raise PlacementError(f"the links of operator {circle!r} form a cycle, expected a plan without one")
    return order
