"""The first three moments of a quantity, such as a gap between batches or a service time."""

import math
from collections.abc import Iterable

import msgspec
import numpy as np

from sbon.errors import ShapeError
from sbon.types import FloatArray


class Moments(msgspec.Struct, frozen=True):
    """Raw moments: means of x, x^2 and x^3 of a quantity that is never negative.

    Raises
    ------
    ShapeError
        A moment is negative or not finite, or no quantity of 0 or more can have them: E[x]^2 <= E[x^2] and E[x^2]^2 <= E[x] E[x^3] must
        hold.
    """

    count: float
    first: float
    second: float
    third: float

    def __post_init__(self) -> None:
        if not all(0 <= moment < math.inf for moment in (self.count, self.first, self.second, self.third)):
            raise ShapeError(f"moments {self.first}, {self.second}, {self.third} of {self.count}, expected finite and 0 or more")
        room = 1 + 1e-6
        if self.first**2 > self.second * room or self.second**2 > self.first * self.third * room:
            raise ShapeError(f"moments {self.first}, {self.second}, {self.third} are impossible for a quantity of 0 or more")

    @property
    def variance(self) -> float:
        """Variance, E[x^2] - E[x]^2."""
        return max(0.0, self.second - self.first**2)

    @property
    def scv(self) -> float:
        """Squared coefficient of variation, variance / mean^2; 0 for a mean of 0."""
        return self.variance / self.first**2 if self.first > 0 else 0.0

    @property
    def skewness(self) -> float:
        """Third central moment / standard deviation^3; 0 for a constant."""
        if self.variance <= 1e-12 * self.second:
            return 0.0
        central: float = self.third - 3 * self.first * self.second + 2 * self.first**3
        return float(central / self.variance**1.5)

    def scaled(self, factor: float) -> "Moments":
        """Returns the moments of `factor` x the quantity."""
        return Moments(self.count, self.first * factor, self.second * factor**2, self.third * factor**3)


class MomentCounter:
    """Moments of a running quantity, in which older observations count less.

    Parameters
    ----------
    memory : observations after which the weight of one has fallen to 1 / e; infinite: all count alike
    """

    __slots__ = ("count", "first", "kept", "second", "third")

    def __init__(self, memory: float = 1000.0) -> None:
        self.kept = math.exp(-1 / memory)
        """Weight of all earlier observations after another one."""
        self.count = self.first = self.second = self.third = 0.0

    def add(self, value: float) -> None:
        """Adds one observation."""
        self.count = self.count * self.kept + 1
        share = 1 / self.count
        self.first += share * (value - self.first)
        self.second += share * (value * value - self.second)
        self.third += share * (value * value * value - self.third)

    def add_all(self, values: FloatArray) -> None:
        """Adds observations in order, (n,), with the same result as one after the other."""
        weights = self.kept ** np.arange(len(values) - 1, -1, -1.0)
        before = self.count * self.kept ** len(values)
        self.count = before + float(weights.sum())
        powers = [float((weights * values**power).sum()) for power in (1, 2, 3)]
        self.first, self.second, self.third = (
            (old * before + new) / self.count for old, new in zip((self.first, self.second, self.third), powers, strict=True)
        )

    @property
    def moments(self) -> Moments | None:
        """The moments so far; None before the first observation."""
        return Moments(self.count, self.first, self.second, self.third) if self.count else None


def moments_of(values: Iterable[float]) -> Moments:
    """Returns the moments of a sample.

    Raises
    ------
    ShapeError
        The sample is empty, or a value is negative or not finite.

    Examples
    --------
    >>> moments_of([1.0, 3.0])
    Moments(count=2.0, first=2.0, second=5.0, third=14.0)
    """
    counter = MomentCounter(math.inf)
    for value in values:
        if not 0 <= value < math.inf:
            raise ShapeError(f"a sample with {value}, expected finite values from 0")
        counter.add(value)
    if counter.moments is None:
        raise ShapeError("moments of an empty sample, expected a value at least")
    return counter.moments
