"""A node's coordinate in the cost space (SBON, section 3.1.1).

A coordinate has three latency dimensions in milliseconds of RTT, a height for the access link that every path of the node crosses, an
error estimate that weighs the node's coordinate against others', and a load dimension in the same unit as latency.

The height follows Vivaldi (Dabek et al., SIGCOMM 2004, section 5.4): the RTT between two nodes is the Euclidean distance of their
vectors plus both heights.
"""

import math

import msgspec

from sbon.errors import CoordinateError

VECTOR_MS_MAX = 100_000.0
"""Largest component or height, beyond any path on Earth; larger ones are refused."""
ERROR_MAX = 10.0


class Coordinate(msgspec.Struct, frozen=True, array_like=True):
    """The coordinate of a node. Everything but `error` is in milliseconds of RTT, not one-way latency."""

    vector: tuple[float, float, float]
    height_ms: float
    error: float
    """Relative error that the node expects of its own predictions: 0 is perfect, 1 is no information."""
    load_ms: float = 0.0


ORIGIN = Coordinate((0.0, 0.0, 0.0), 0.0, 1.0, 0.0)


def check(coordinate: Coordinate) -> Coordinate:
    """Returns the coordinate after checking that a correct node could have sent it.

    Raises
    ------
    CoordinateError
        A value is not finite, negative although it must not be, or too large. One NaN let in would spread to every node.
    """
    (x, y, z), height, error, load = coordinate.vector, coordinate.height_ms, coordinate.error, coordinate.load_ms
    bound = VECTOR_MS_MAX
    # Comparisons with NaN are false, so each of these refuses it; this runs for every datagram.
    if not (-bound <= x <= bound and -bound <= y <= bound and -bound <= z <= bound):
        raise CoordinateError(f"coordinate vector {coordinate.vector}, expected finite values within ±{bound:g} ms")
    if not 0 <= height <= bound:
        raise CoordinateError(f"coordinate height {height} ms, expected 0 to {bound:g}")
    if not 0 <= error <= ERROR_MAX:
        raise CoordinateError(f"coordinate error estimate {error}, expected 0 to {ERROR_MAX:g}")
    if not 0 <= load <= bound:
        raise CoordinateError(f"coordinate load {load} ms, expected 0 to {bound:g}")
    return coordinate


def estimated_rtt_ms(a: Coordinate, b: Coordinate) -> float:
    """Returns the RTT that the latency dimensions predict between two nodes.

    Source
    ------
    Vivaldi (SIGCOMM 2004), section 5.4: ||a - b|| + height(a) + height(b).

    Examples
    --------
    >>> estimated_rtt_ms(Coordinate((0.0, 0.0, 0.0), 1.0, 0.1), Coordinate((3.0, 4.0, 0.0), 2.0, 0.1))
    8.0
    """
    return math.dist(a.vector, b.vector) + a.height_ms + b.height_ms


def cost_distance_ms(point: tuple[float, float, float], node: Coordinate) -> float:
    """Returns the distance in the full cost space from a virtual placement (no height, no load) to a node.

    The load dimension is a Euclidean one (SBON, section 3.1.1), so that a loaded node moves away from everything; the height is
    added, as for latency.
    """
    return math.hypot(math.dist(point, node.vector), node.load_ms) + node.height_ms
