"""The interface of cost models, which placement takes as an argument.

A model computes the cost of a whole assignment and the change by a move, and tells which assignments it forbids. It also gives the cost of
one link and of one host, by which candidates are ranked. A model that is exactly the sum of these (`is_sum`) can be minimised exactly by
elimination (`sbon.placement.joint`). Others, such as the longest path or the busiest node, use them only to rank.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from sbon.cost.delay import longest_delay_ms
from sbon.cost.latency import Latencies
from sbon.cost.problem import PlacementProblem
from sbon.errors import DelayBoundError, PlacementError
from sbon.types import FloatArray, NodeId, OperatorId


class Conditions(msgspec.Struct, frozen=True):
    """Latencies between nodes, and their loads, as a cost model reads them."""

    latencies: Latencies
    load_ms: Mapping[NodeId, float] = {}
    """Load of each node as a dimension of the cost space; nodes left out have none."""


class CostModel(Protocol):
    """A cost that placement and the optimisers minimise, and that reports show."""

    is_sum: bool
    """True if an assignment costs exactly what its links and the hosts of its unpinned operators cost."""

    def of_assignment(self, problem: PlacementProblem, assignment: Mapping[OperatorId, NodeId], conditions: Conditions) -> float:
        """Returns the cost with every operator where `assignment` puts it.

        Raises
        ------
        PlacementError
            An end of a link has no node.
        """

    def of_move(
        self,
        problem: PlacementProblem,
        assignment: Mapping[OperatorId, NodeId],
        operator: OperatorId,
        node: NodeId,
        conditions: Conditions,
    ) -> float:
        """Returns by how much the cost grows if one unpinned operator goes to this node; below 0 for a saving.

        Equals the difference of two `of_assignment`, but computes only the parts that the move changes.
        """

    def refusal(self, problem: PlacementProblem, assignment: Mapping[OperatorId, NodeId], conditions: Conditions) -> PlacementError | None:
        """Returns why the assignment is not allowed, as an error to raise; None if it keeps within all bounds of the problem."""

    def of_links(self, rate_bytes_per_s: float | FloatArray, latency_ms: FloatArray) -> FloatArray:
        """Returns the costs of links of these rates and one-way latencies, in their broadcast shape."""

    def of_hosts(self, rate_bytes_per_s: float | FloatArray, load_ms: FloatArray) -> FloatArray:
        """Returns the costs of an operator on hosts of these loads, given the rate of all its links together."""


class SumOfLinks:
    """Base of models that are a sum over links and hosts; a subclass gives the cost of one of each."""

    is_sum = True

    def of_links(self, rate_bytes_per_s: float | FloatArray, latency_ms: FloatArray) -> FloatArray:
        """Returns the costs of links of these rates and one-way latencies, in their broadcast shape."""
        raise NotImplementedError

    def of_hosts(self, rate_bytes_per_s: float | FloatArray, load_ms: FloatArray) -> FloatArray:
        """Returns the costs of an operator on hosts of these loads, given the rate of all its links together."""
        raise NotImplementedError

    def of_assignment(self, problem: PlacementProblem, assignment: Mapping[OperatorId, NodeId], conditions: Conditions) -> float:
        """Returns the cost of all links, and of the hosts of unpinned operators."""
        links = [(_placed(assignment, link.source), _placed(assignment, link.target), link.rate_bytes_per_s) for link in problem.links]
        total = self._of_pairs(links, conditions)
        if conditions.load_ms:
            loads = [conditions.load_ms.get(_placed(assignment, operator), 0.0) for operator in problem.unpinned]
            rates = problem.rates()
            total += float(self.of_hosts(np.array([rates[operator] for operator in problem.unpinned]), np.array(loads)).sum())
        return total

    def of_move(
        self,
        problem: PlacementProblem,
        assignment: Mapping[OperatorId, NodeId],
        operator: OperatorId,
        node: NodeId,
        conditions: Conditions,
    ) -> float:
        """Returns the growth of the cost of the operator's own links and host."""
        here = _placed(assignment, operator)
        mine = [link for link in problem.links if operator in (link.source, link.target)]
        growth = 0.0
        for where, sign in ((node, 1.0), (here, -1.0)):
            ends = [[where if end == operator else _placed(assignment, end) for end in (link.source, link.target)] for link in mine]
            growth += sign * self._of_pairs([(a, b, link.rate_bytes_per_s) for (a, b), link in zip(ends, mine, strict=True)], conditions)
        loads = np.array([conditions.load_ms.get(where, 0.0) for where in (here, node)])
        at_here, at_node = self.of_hosts(sum(rate for _, rate in problem.neighbours(operator)), loads).tolist()
        return growth + float(at_node - at_here)

    def refusal(self, problem: PlacementProblem, assignment: Mapping[OperatorId, NodeId], conditions: Conditions) -> PlacementError | None:
        """Returns the error for an assignment whose longest path exceeds the problem's delay bound."""
        if problem.delay_bound_ms is None:
            return None
        delay_ms = longest_delay_ms(problem, assignment, conditions.latencies)
        return None if problem.in_time(delay_ms) else DelayBoundError(problem.delay_bound_ms, delay_ms)

    def _of_pairs(self, links: Sequence[tuple[NodeId, NodeId, float]], conditions: Conditions) -> float:
        latency = np.array([conditions.latencies.one_way_ms(a, b) for a, b, _ in links], dtype=np.float64)
        return math.fsum(self.of_links(np.array([rate for _, _, rate in links], dtype=np.float64), latency).tolist())


def _placed(assignment: Mapping[OperatorId, NodeId], operator: OperatorId) -> NodeId:
    if operator not in assignment:
        raise PlacementError(f"operator {operator!r} has no node, expected one for every operator of the problem")
    return assignment[operator]
