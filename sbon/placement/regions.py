"""Where to look for an operator's node: the candidates of least predicted network usage."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sbon.cost.space import CostSpace
from sbon.placement.candidates import Regions
from sbon.placement.median import median_points
from sbon.placement.problem import PlacementProblem
from sbon.types import FloatArray, NodeId, OperatorId

SCAN_MAX = 4096
"""Up to so many nodes all are ranked; in larger spaces only those near the operators' points."""
NEARBY = 256
"""Nodes near each operator's point that are ranked in a larger space."""


def ranked_regions(
    problem: PlacementProblem,
    space: CostSpace,
    k: int,
    load_weight: float,
    placed: Mapping[OperatorId, NodeId] | None = None,
    points: FloatArray | None = None,
) -> Regions:
    """The `k` best nodes for each operator by predicted usage of its links, load included.

    The other ends are taken to be at their nodes, where pinned or `placed`, else at the points where they would minimise usage (without
    a height, which is the same for every candidate). `points`, (unpinned, 3), may be given where they are known already.
    """
    if not problem.unpinned:
        return {}
    if points is None:
        points = median_points(problem, space)
    rows = _rows_ranked(problem, space, points, k)
    cost = _predicted_cost(problem, space, points, rows, load_weight, placed or {})
    best = min(k, len(rows))
    result: Regions = {}
    for column, operator in enumerate(problem.unpinned):
        costs = cost[:, column]
        near = np.argpartition(costs, best - 1)[:best] if best < len(rows) else np.arange(len(rows))
        # Rows are in order of name, which decides between equals.
        order = near[np.lexsort((near, costs[near]))]
        result[operator] = tuple(space.names[rows[index]] for index in order)
    return result


def _rows_ranked(problem: PlacementProblem, space: CostSpace, points: FloatArray, k: int) -> npt.NDArray[np.intp]:
    if len(space) <= SCAN_MAX:
        return np.arange(len(space))
    near = {
        name
        for x, y, z in points
        for name, _ in space.index.nearest((float(x), float(y), float(z)), max(NEARBY, 4 * k))
    }  # fmt: skip
    return np.array(sorted(space.rows(sorted(near | set(problem.pinned.values())))))


def _predicted_cost(
    problem: PlacementProblem,
    space: CostSpace,
    points: FloatArray,
    rows: npt.NDArray[np.intp],
    load_weight: float,
    placed: Mapping[OperatorId, NodeId],
) -> FloatArray:
    """(rows, unpinned): rate x predicted latency over an operator's links, in no particular unit."""
    fixed = {**placed, **problem.pinned}
    column = {operator: index for index, operator in enumerate(problem.unpinned)}
    others = sorted({other for operator in problem.unpinned for other, _ in problem.neighbours(operator)})
    place = {other: index for index, other in enumerate(others)}
    at = np.array([space.vectors_ms[space.row[fixed[o]]] if o in fixed else points[column[o]] for o in others]).reshape(-1, 3)
    height = np.array([space.heights_ms[space.row[fixed[o]]] if o in fixed else 0.0 for o in others])
    node_vectors, node_heights = space.vectors_ms[rows], space.heights_ms[rows]
    squared = (node_vectors**2).sum(axis=1)[:, None] + (at**2).sum(axis=1)[None, :] - 2 * node_vectors @ at.T
    rtt = np.sqrt(np.maximum(squared, 0.0)) + node_heights[:, None] + height[None, :]
    position = {int(row): index for index, row in enumerate(rows)}
    for other in others:
        if other in fixed and space.row[fixed[other]] in position:
            rtt[position[space.row[fixed[other]]], place[other]] = 0.0
    rate = np.zeros((len(others), len(problem.unpinned)))
    for operator in problem.unpinned:
        for other, bytes_per_s in problem.neighbours(operator):
            rate[place[other], column[operator]] += bytes_per_s
    cost: FloatArray = rtt @ rate + load_weight * space.loads_ms[rows][:, None] * rate.sum(axis=0)[None, :]
    return cost
