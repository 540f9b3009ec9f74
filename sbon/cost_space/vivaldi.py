"""One step of Vivaldi (Dabek et al., SIGCOMM 2004): a partial relaxation of the spring between two nodes.

Heights follow the paper's section 5.4: the height adds to the norm of a difference, and takes a proportional share of the force.
Serf divides the heights' force by the Euclidean part alone. That throws the height of a node far off when a peer is near in the plane, so
that Serf needs a floor under the height. Here the height is merely kept from going below zero.
"""

import math

import numpy as np

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import ERROR_MAX, VECTOR_MS_MAX, Coordinate, estimated_rtt_ms

Vector = tuple[float, float, float]
ERROR_MIN = 0.001
"""Least error estimate: a node that claims no error at all would never move again."""


def random_direction(rng: np.random.Generator) -> Vector:
    """Returns a unit vector, to separate two nodes at one point."""
    while True:
        x, y, z = (float(v) for v in rng.standard_normal(3))
        norm = math.hypot(x, y, z)
        if norm > 1e-6:
            return (x / norm, y / norm, z / norm)


def clamped(value: float, bound: float = VECTOR_MS_MAX) -> float:
    """Returns the value, clamped to +-bound."""
    return min(max(value, -bound), bound)


def pulled_back(place: Vector, gravity_ms: float) -> Vector:
    """Returns the point after one step of gravity towards the origin: (|place| / gravity)^2 ms, at most all the way.

    RTTs fix the relative positions of nodes, not the position of the whole space, which errors and liars could move without bound.

    Source
    ------
    Ledlie, Gardner and Seltzer, "Network coordinates in the wild" (NSDI 2007), section 5.
    """
    length = math.hypot(*place)
    if gravity_ms <= 0 or length == 0:
        return place
    share = 1.0 - min((length / gravity_ms) ** 2 / length, 1.0)
    return (place[0] * share, place[1] * share, place[2] * share)


def vivaldi_step(own: Coordinate, peer: Coordinate, rtt_ms: float, config: CoordinateConfig, rng: np.random.Generator) -> Coordinate:
    """Returns the own coordinate after one sample; the inputs are checked already.

    The step is adaptive (section 4.3): a node with a small error estimate moves little, and least towards a peer with a large one.

    Parameters
    ----------
    own, peer : coordinates of the two nodes
    rtt_ms : measured between them, above 0
    rng : draws the direction that separates two nodes at one point

    Source
    ------
    Vivaldi (SIGCOMM 2004), figure 3 and section 5.4.
    """
    predicted = estimated_rtt_ms(own, peer)
    weight = own.error / max(own.error + peer.error, ERROR_MIN)
    sample_error = abs(predicted - rtt_ms) / rtt_ms
    gain = config.vivaldi_ce * weight
    error = min(max(sample_error * gain + own.error * (1.0 - gain), ERROR_MIN), ERROR_MAX)

    force = clamped(config.vivaldi_cc * weight * (rtt_ms - predicted), config.jump_ms_max)
    distance = math.dist(own.vector, peer.vector)
    if distance > 1e-9 and predicted > 1e-9:
        unit = tuple((a - b) / predicted for a, b in zip(own.vector, peer.vector, strict=True))
        height = max(own.height_ms + force * (own.height_ms + peer.height_ms) / predicted, 0.0)
    else:
        unit, height = random_direction(rng), own.height_ms
    if own.height_ms == 0.0 and force > 0:
        # With a height of 0 on both sides, neither would ever get a share of the force (section 5.4 starts heights above 0).
        height = max(height, min(0.01 * force, 1.0))
    x, y, z = (clamped(a + force * u) for a, u in zip(own.vector, unit, strict=True))
    return Coordinate(pulled_back((x, y, z), config.gravity_ms), min(height, VECTOR_MS_MAX), error, own.load_ms)
