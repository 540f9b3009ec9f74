"""Computes points that minimise network usage itself: rate x distance, not its square.

The rest point of springs minimises rate x latency^2, which long links dominate. Network usage is the sum of rate x latency, whose minimum
is the weighted geometric median of an operator's neighbours (Weber's problem; with several operators at once, the multifacility one). It
is convex. Iteratively reweighted least squares (Weiszfeld, Tohoku Math. J. 43, 1937) solves it: springs whose constants are divided by
their present length. Distances are smoothed by a length that shrinks from step to step, so that operators may share a point.
"""

import numpy as np

from sbon.cost.problem import PlacementProblem
from sbon.cost.space import CostSpace
from sbon.types import FloatArray

STEPS = 12
"""Number of steps. Twice as many move points by less than the error of coordinates."""
SMOOTHING_MS_START = 50.0
SMOOTHING_MS_END = 0.5
"""Final smoothing length, below the accuracy of any coordinate."""
TIE = 1e-9
"""Share of the greatest rate that ties every operator to the mean of the pinned ones, so that one without a rate has a point, too."""


def median_points(problem: PlacementProblem, space: CostSpace) -> FloatArray:
    """Returns the points of the unpinned operators, (unpinned, 3), that minimise the sum of rate x distance over the links.

    Raises
    ------
    PlacementError
        A pinned operator's node has no coordinate.
    """
    count = len(problem.unpinned)
    anchors = space.points_ms(list(problem.pinned.values()))
    middle = anchors.mean(axis=0) if len(anchors) else np.zeros(3)
    row = {operator: index for index, operator in enumerate((*problem.unpinned, *problem.pinned))}
    links = [link for link in problem.links if min(row[link.source], row[link.target]) < count]
    if not links:
        return np.tile(middle, (count, 1))
    a = np.array([row[link.source] for link in links], dtype=np.intp)
    b = np.array([row[link.target] for link in links], dtype=np.intp)
    rates = np.array([link.rate_bytes_per_s for link in links], dtype=np.float64)
    rates = rates / float(rates.max()) if rates.any() else np.ones(len(links))
    points = np.concatenate([np.tile(middle, (count, 1)), anchors])
    # (links, nodes of the graph): +1 where a link starts, -1 where it ends. Springs of constants w give incidence^T w incidence.
    incidence = np.zeros((len(links), len(points)))
    incidence[np.arange(len(links)), a] += 1.0
    incidence[np.arange(len(links)), b] -= 1.0
    free, held = incidence[:, :count], incidence[:, count:] @ anchors
    for step in range(STEPS):
        smoothing = SMOOTHING_MS_START * (SMOOTHING_MS_END / SMOOTHING_MS_START) ** (step / (STEPS - 1))
        extension = free @ points[:count] + held
        weight = rates if step == 0 else rates / np.sqrt((extension * extension).sum(axis=1) + smoothing * smoothing)
        points[:count] = _rest(free, held, weight, middle)
    return points[:count]


def _rest(free: FloatArray, held: FloatArray, weight: FloatArray, middle: FloatArray) -> FloatArray:
    """Returns the rest points of springs with the given constants, (unpinned, 3), by solving their linear system."""
    tie = TIE * max(float(weight.max()), 1e-12)
    pulled = free.T * weight
    stiffness, pull = pulled @ free, tie * middle - pulled @ held
    if len(stiffness) == 1:
        return np.asarray(pull / (stiffness[0, 0] + tie), dtype=np.float64)
    stiffness.flat[:: len(stiffness) + 1] += tie
    return np.asarray(np.linalg.solve(stiffness, pull), dtype=np.float64)
