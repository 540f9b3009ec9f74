"""Where operators go without a cost space: the paper's points of comparison (SBON, section 4.1)."""

from collections.abc import Callable, Sequence

import numpy as np

from sbon.errors import PlacementError
from sbon.placement.problem import PlacementProblem, reachable
from sbon.types import NodeId, OperatorId

Routes = Callable[[NodeId, NodeId], Sequence[NodeId]]
"""The nodes on the network's own way from one node to another, both ends included."""


def at_producer(problem: PlacementProblem, rng: np.random.Generator) -> dict[OperatorId, NodeId]:
    """PRODUCER: all unpinned operators at one of the producers' nodes, drawn at random."""
    nodes = sorted({problem.pinned[operator] for operator in problem.producers})
    if not nodes:
        raise PlacementError(f"operator {_first(problem)!r} has no pinned producer to be placed at")
    node = nodes[int(rng.integers(len(nodes)))]
    return dict.fromkeys(problem.unpinned, node)


def at_consumer(problem: PlacementProblem) -> dict[OperatorId, NodeId]:
    """CONSUMER: all unpinned operators at the node of the consumer (of the last one in the plan, where there are several)."""
    if not problem.consumers:
        raise PlacementError(f"operator {_first(problem)!r} has no pinned consumer to be placed at")
    return dict.fromkeys(problem.unpinned, problem.pinned[problem.consumers[-1]])


def at_random(problem: PlacementProblem, nodes: Sequence[NodeId], rng: np.random.Generator) -> dict[OperatorId, NodeId]:
    """RANDOM: each unpinned operator at any node."""
    everywhere = sorted(nodes)
    if not everywhere:
        raise PlacementError(f"operator {_first(problem)!r} has no node to be placed at")
    return {operator: everywhere[int(rng.integers(len(everywhere)))] for operator in problem.unpinned}


def on_multicast_tree(problem: PlacementProblem, routes: Routes) -> dict[OperatorId, NodeId]:
    """IP MULTICAST: each operator where the network's own routes from its producers to its consumers have come together.

    The union of the unicast routes is the tree; an operator needs all that its producers send, so that it goes to the first node on the
    way of the first producer that lies on the routes of all of them.
    """
    up, down = reachable(problem)
    result = {}
    for operator in problem.unpinned:
        producers = [other for other in problem.producers if other in up[operator]]
        consumers = [other for other in problem.consumers if other in down[operator]]
        if not producers or not consumers:
            raise PlacementError(f"operator {operator!r} has no pinned producer or no pinned consumer, so that no route passes it")
        ways = [routes(problem.pinned[p], problem.pinned[c]) for c in consumers for p in producers]
        common = set(ways[0]).intersection(*ways)
        # Routes to one consumer meet there at the latest; routes to several may not meet at all.
        result[operator] = next((node for node in ways[0] if node in common), problem.pinned[consumers[-1]])
    return result


def _first(problem: PlacementProblem) -> str:
    return problem.unpinned[0] if problem.unpinned else ""
