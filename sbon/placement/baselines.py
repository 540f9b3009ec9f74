"""Baseline placements without a cost space, for comparison (SBON, section 4.1)."""

from collections.abc import Callable, Sequence

import numpy as np

from sbon.cost.problem import PlacementProblem, reachable
from sbon.errors import PlacementError
from sbon.types import NodeId, OperatorId

Routes = Callable[[NodeId, NodeId], Sequence[NodeId]]
"""Returns the nodes on the network's route from one node to another, both ends included."""


def at_producer(problem: PlacementProblem, rng: np.random.Generator) -> dict[OperatorId, NodeId]:
    """Places all unpinned operators at the node of one producer, drawn at random (PRODUCER)."""
    nodes = sorted({problem.pinned[operator] for operator in problem.producers})
    if not nodes:
        raise PlacementError(f"operator {_first(problem)!r} has no pinned producer to be placed at")
    node = nodes[int(rng.integers(len(nodes)))]
    return dict.fromkeys(problem.unpinned, node)


def at_consumer(problem: PlacementProblem) -> dict[OperatorId, NodeId]:
    """Places all unpinned operators at the node of the consumer, or of the plan's last one (CONSUMER)."""
    if not problem.consumers:
        raise PlacementError(f"operator {_first(problem)!r} has no pinned consumer to be placed at")
    return dict.fromkeys(problem.unpinned, problem.pinned[problem.consumers[-1]])


def at_random(problem: PlacementProblem, nodes: Sequence[NodeId], rng: np.random.Generator) -> dict[OperatorId, NodeId]:
    """Places each unpinned operator at a random node (RANDOM)."""
    everywhere = sorted(nodes)
    if not everywhere:
        raise PlacementError(f"operator {_first(problem)!r} has no node to be placed at")
    return {operator: everywhere[int(rng.integers(len(everywhere)))] for operator in problem.unpinned}


def on_multicast_tree(problem: PlacementProblem, routes: Routes) -> dict[OperatorId, NodeId]:
    """Places each operator where the network's routes from its producers to its consumers have met (IP MULTICAST).

    The union of the unicast routes is the tree. An operator needs the streams of all its producers, so it goes to the first node on the
    first producer's route that lies on the routes of all of them.
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
