"""Finds exact optima for many queries on one large network, with all latencies known: OPTIMAL in SBON, section 4.1.

If the operators' links form a forest, message passing finds the best placement: an operator sends each neighbour the least cost of its side
for each node of the neighbour, nodes^2 additions a link. For plans with cycles (diamonds) the library's exact search is used.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sbon.cost.latency import KnownLatencies
from sbon.cost.problem import PlacementProblem
from sbon.placement.optimal import optimal_assignment
from sbon.types import FloatArray, NodeId, OperatorId


class _Edge(NamedTuple):
    """All links between two unpinned operators."""

    a: int
    b: int
    rate: float


class Oracle:
    """Finds optima in one network; latencies must be the same in both directions."""

    def __init__(self, nodes: Sequence[NodeId], truth: KnownLatencies) -> None:
        self._nodes = tuple(nodes)
        self._row = {node: row for row, node in enumerate(self._nodes)}
        self._truth = truth
        self._one_way_ms = truth.matrix_ms(self._nodes, self._nodes)

    def best(self, problem: PlacementProblem) -> dict[OperatorId, NodeId]:
        """Returns the assignment of least network usage.

        Raises
        ------
        PlacementError
            The query has cycles too dense for an exact search among so many nodes.
        """
        own, edges = self._costs(problem)
        if not _is_forest(len(own), edges):
            return optimal_assignment(problem, self._truth, self._nodes)[0]
        inward = self._messages(own, edges)
        choice = self._descend(own, edges, inward)
        return {**problem.pinned, **{operator: self._nodes[row] for operator, row in zip(problem.unpinned, choice, strict=True)}}

    def _costs(self, problem: PlacementProblem) -> tuple[list[FloatArray], list[_Edge]]:
        """Returns the cost of each operator's links to pinned operators on every node, and the links among unpinned operators."""
        index = {operator: number for number, operator in enumerate(problem.unpinned)}
        own = [np.zeros(len(self._nodes)) for _ in index]
        rates: dict[tuple[int, int], float] = {}
        for link in problem.links:
            source, target = index.get(link.source), index.get(link.target)
            if source is not None and target is not None:
                pair = (min(source, target), max(source, target))
                rates[pair] = rates.get(pair, 0.0) + link.rate_bytes_per_s
            elif source is not None:
                own[source] += link.rate_bytes_per_s * self._one_way_ms[self._row[problem.pinned[link.target]]]
            elif target is not None:
                own[target] += link.rate_bytes_per_s * self._one_way_ms[self._row[problem.pinned[link.source]]]
        return own, [_Edge(a, b, rate) for (a, b), rate in rates.items()]

    def _messages(self, own: Sequence[FloatArray], forest: Sequence[_Edge]) -> list[dict[int, FloatArray]]:
        """Returns, for each operator and each neighbour in the forest, the least cost of the neighbour's side by the operator's node."""
        around = _neighbours(len(own), forest)
        inward: list[dict[int, FloatArray]] = [{} for _ in own]
        waiting = [(source, target) for source, others in enumerate(around) for target in others]
        while waiting:
            later = []
            for source, target in waiting:
                if any(other not in inward[source] for other in around[source] if other != target):
                    later.append((source, target))
                    continue
                cost = own[source] + sum((inward[source][other] for other in around[source] if other != target), np.zeros(len(self._nodes)))
                inward[target][source] = (cost[:, None] + around[source][target] * self._one_way_ms).min(axis=0)
            waiting = later
        return inward

    def _descend(self, own: Sequence[FloatArray], forest: Sequence[_Edge], inward: Sequence[Mapping[int, FloatArray]]) -> list[int]:
        """Returns the best row of every operator: first that of a root by all its messages, then outwards, each by its neighbour's row."""
        around = _neighbours(len(own), forest)
        least = [costs + sum(messages.values(), np.zeros(len(self._nodes))) for costs, messages in zip(own, inward, strict=True)]
        choice: dict[int, int] = {}
        for root in range(len(own)):
            if root in choice:
                continue
            choice[root] = int(least[root].argmin())
            reached = [root]
            for operator in reached:  # the loop extends the list
                for other, rate in around[operator].items():
                    if other not in choice:
                        cost = least[other] - inward[other][operator] + rate * self._one_way_ms[choice[operator]]
                        choice[other] = int(cost.argmin())
                        reached.append(other)
        return [choice[operator] for operator in range(len(own))]


def _neighbours(count: int, edges: Sequence[_Edge]) -> list[dict[int, float]]:
    """Returns the neighbours of each operator, with the rates of their links."""
    around: list[dict[int, float]] = [{} for _ in range(count)]
    for a, b, rate in edges:
        around[a][b] = around[b][a] = rate
    return around


def _is_forest(count: int, edges: Sequence[_Edge]) -> bool:
    """Tells whether there is no cycle."""
    part = list(range(count))
    for a, b, _ in edges:
        if part[a] == part[b]:
            return False
        part = [part[a] if other == part[b] else other for other in part]
    return True
