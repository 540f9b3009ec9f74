"""Waiting in a queue, and the largest of several delays: closed forms for the models of batches and stages.

Latency-constrained analytics (sections 3.2 to 3.4) asks for mean and variance of a G/G/1 queue from three moments of gaps and service
times, and for moments of the largest of n normal delays.
"""

import functools
import math
from statistics import NormalDist

import msgspec
import numpy as np

from sbon.cost.moments import Moments
from sbon.errors import ShapeError


class Wait(msgspec.Struct, frozen=True):
    """Time that a batch waits before it is served, in the unit of the moments. All are infinite if the queue grows without end."""

    mean: float
    variance: float
    waits: float
    """Probability that a batch waits at all."""
    load: float
    """Mean service time by mean gap."""


def gg1_wait(gaps: Moments, service: Moments) -> Wait:
    """Approximates how long batches wait for one server, first come first served.

    Exact for exponential gaps; within some 20 % for gamma distributed ones; worse for gaps that depend on each other.

    Parameters
    ----------
    gaps : between two batches
    service : of a batch, in the same unit

    Raises
    ------
    ShapeError
        The mean gap is 0.

    Source
    ------
    Kraemer and Langenbach-Belz (1976) for the mean; Whitt, The Queueing Network Analyzer (1983), equations 44 to 53, for the probability of
    a wait and the variance.

    Examples
    --------
    Exponential gaps and service times, load 0.5: mean wait 1 x service time.

    >>> gg1_wait(Moments(1, 2.0, 8.0, 48.0), Moments(1, 1.0, 2.0, 6.0)).mean
    1.0
    """
    if gaps.first <= 0:
        raise ShapeError("gaps of 0, expected a mean above 0")
    load = service.first / gaps.first
    if service.first <= 0:
        return Wait(0.0, 0.0, 0.0, 0.0)
    if load >= 1:
        return Wait(math.inf, math.inf, 1.0, load)
    ca, cs, idle = gaps.scv, service.scv, 1 - load
    if ca + cs <= 1e-12:
        return Wait(0.0, 0.0, 0.0, load)  # even gaps and even work: a batch is served before the next one comes
    bent = math.exp(-2 * idle * (1 - ca) ** 2 / (3 * load * (ca + cs))) if ca < 1 else 1.0
    mean = service.first * load * (ca + cs) * bent / (2 * idle)
    if ca <= 1:
        share = (1 + ca + load * cs) / (1 + load * (cs - 1) + load**2 * (4 * ca + cs))
    else:
        share = 4 * load / (ca + load**2 * (4 * ca + cs))
    waits = min(1.0, max(1e-9, load + (ca - 1) * load * idle * share))
    third = service.third / service.first**3
    # Squared coefficient of variation of the wait of those that wait.
    delayed = 2 * load - 1 + 4 * idle * third / (3 * (cs + 1) ** 2)
    return Wait(mean, mean**2 * max(0.0, (delayed + 1 - waits) / waits), waits, load)


@functools.lru_cache(maxsize=1024)
def largest_of_normals(count: int) -> tuple[float, float]:
    """Returns mean and deviation of the largest of `count` independent standard normal variables.

    Integrated numerically over its distribution function, with an error below 1e-6: the constants a and a' of the paper.

    Raises
    ------
    ShapeError
        `count` is below 1.

    Source
    ------
    Latency-constrained analytics, section 3.3.

    Examples
    --------
    >>> largest_of_normals(1)[1]
    1.0
    """
    if count < 1:
        raise ShapeError(f"the largest of {count}, expected 1 at least")
    if count == 1:
        return 0.0, 1.0
    points = np.linspace(-9.0, 9.0, 3601)
    below = np.array([NormalDist().cdf(point) for point in points]) ** count
    step = float(points[1] - points[0])
    # E[X] = int_0^inf 1 - F - int_-inf^0 F; E[X^2] = 2 int_0^inf x (1 - F) - 2 int_-inf^0 x F.
    tail = np.where(points > 0, 1 - below, -below)
    tail[len(points) // 2] = 0.5 - below[len(points) // 2]
    mean = float(tail.sum()) * step
    second = 2 * float((points * tail).sum()) * step
    return mean, math.sqrt(second - mean**2)
