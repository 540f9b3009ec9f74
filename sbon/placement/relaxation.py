"""Spring relaxation in the latency dimensions of the cost space: finds where operators come to rest (SBON, section 3.1.2, figure 7).

Links are springs, their data rates the spring constants. VIRTUAL-PLACE moves each unpinned operator by a damped step along the force on
it, until no force exceeds a threshold; the rest point minimises the sum of rate x latency^2 (equation 3).

With raw data rates the step of figure 7 overshoots as soon as delta x rate exceeds 2, for delta = 0.1 at 20 units of rate. Here each
operator's spring constants are divided by their sum, which leaves the rest point as it is and makes the force a length in ms: the distance
to the weighted mean of the operator's neighbours. A step is then a contraction for every delta up to 1 and any rates. It is slow only if
rates between unpinned operators are much higher than those to pinned ones; `iterations_max` bounds it.
"""

from collections.abc import Mapping

import numpy as np

from sbon.cost.problem import PlacementProblem
from sbon.cost.space import CostSpace
from sbon.placement.config import PlacementConfig
from sbon.types import FloatArray, OperatorId

PROVISIONAL_MS = 1.0
"""Largest distance from the origin at which an operator without a point starts, at random."""


def spring_weights(problem: PlacementProblem) -> tuple[FloatArray, FloatArray]:
    """Returns the relative spring constants of every unpinned operator.

    Returns
    -------
    (unpinned, unpinned) and (unpinned, pinned)
        Constants in the order of `problem.unpinned` and of `problem.pinned`. The rows of both together add up to 1, or to 0 for an
        operator without links. An operator all of whose rates are 0 weighs its links equally.
    """
    unpinned = {operator: row for row, operator in enumerate(problem.unpinned)}
    pinned = {operator: column for column, operator in enumerate(problem.pinned)}
    among = np.zeros((len(unpinned), len(unpinned)))
    fixed = np.zeros((len(unpinned), len(pinned)))
    for operator, row in unpinned.items():
        neighbours = problem.neighbours(operator)
        highest = max((rate for _, rate in neighbours), default=0.0)
        # Scaled by the highest rate first: a sum of rates near the largest float would overflow, one of tiny rates would underflow.
        weights = [rate / highest if highest > 0 else 1.0 for _, rate in neighbours]
        total = sum(weights)
        for (other, _), weight in zip(neighbours, weights, strict=True):
            if other in unpinned:
                among[row, unpinned[other]] += weight / total
            else:
                fixed[row, pinned[other]] += weight / total
    return among, fixed


def relax(
    problem: PlacementProblem,
    space: CostSpace,
    config: PlacementConfig,
    rng: np.random.Generator,
    start: Mapping[OperatorId, tuple[float, float, float]] | None = None,
) -> dict[OperatorId, tuple[float, float, float]]:
    """Runs VIRTUAL-PLACE for all unpinned operators together.

    Parameters
    ----------
    start : present points of operators; those left out start near the origin at random

    Returns
    -------
    dict
        The point of each unpinned operator, in the latency dimensions.

    Raises
    ------
    PlacementError
        A pinned operator's node has no coordinate.

    Source
    ------
    SBON (Pietzuch et al., ICDE 2006), section 3.1.2, figure 7; all operators step at once, each from its neighbours' last points.
    """
    among, fixed = spring_weights(problem)
    anchors = space.points_ms(list(problem.pinned.values()))
    # A point is drawn for every operator, so that giving one a start does not change another's.
    points = rng.uniform(-PROVISIONAL_MS, PROVISIONAL_MS, size=(len(problem.unpinned), 3))
    for row, operator in enumerate(problem.unpinned):
        if start is not None and operator in start:
            points[row] = start[operator]
    pull = fixed @ anchors if len(anchors) else np.zeros_like(points)
    linked = (among.sum(axis=1) + fixed.sum(axis=1) > 0)[:, None]
    for _ in range(config.iterations_max):
        force = among @ points + pull - points * linked
        if not len(force) or float(np.sqrt((force * force).sum(axis=1)).max()) < config.force_threshold:
            break
        points += config.delta * force
    return {operator: (float(p[0]), float(p[1]), float(p[2])) for operator, p in zip(problem.unpinned, points, strict=True)}
