"""Variances, covariances, correlations and regression lines from exact sums. Each is rounded once; for a deviation or correlation the
root is rounded, too.

The textbook formula n * sum(x * y) - sum(x) * sum(y) suffers from cancellation in floats and is exact in integers. So answers are the same
bit for bit, however rows were cut into batches and panes.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sbon.operators import digits
from sbon.operators.digits import to_float
from sbon.operators.exact import BIN_BITS
from sbon.types import IntArray


class Scaled(NamedTuple):
    """The number `number * 2^exponent`."""

    number: int
    exponent: int

    def times(self, other: "Scaled") -> "Scaled":
        """Returns the product."""
        return Scaled(self.number * other.number, self.exponent + other.exponent)

    def minus(self, other: "Scaled") -> "Scaled":
        """Returns the difference."""
        least = min(self.exponent, other.exponent)
        return Scaled((self.number << (self.exponent - least)) - (other.number << (other.exponent - least)), least)

    def over(self, other: "Scaled") -> float:
        """Divides by a number above 0 and rounds once; infinite beyond the range of floats."""
        return to_float(self.number, self.exponent - other.exponent, other.number)


class Moments(NamedTuple):
    """Exact sums over the values of one group, or over its pairs in which neither value is NULL. For single values, y is x."""

    number: int
    x: Scaled
    y: Scaled
    xx: Scaled
    yy: Scaled
    xy: Scaled

    def _spread(self, one: Scaled, other: Scaled, product: Scaled) -> Scaled:
        return Scaled(self.number * product.number, product.exponent).minus(one.times(other))

    def covariance(self, freedom: int) -> float:
        """Returns the covariance with `number - freedom` degrees of freedom, at least 1."""
        return self._spread(self.x, self.y, self.xy).over(Scaled(self.number * (self.number - freedom), 0))

    def correlation(self) -> float | None:
        """Returns the correlation; None if x or y is constant."""
        together = self._spread(self.x, self.y, self.xy)
        apart = self._spread(self.x, self.x, self.xx).times(self._spread(self.y, self.y, self.yy))
        if not apart.number:
            return None
        size = math.sqrt(together.times(together).over(apart))
        return -size if together.number < 0 else size

    def slope(self) -> float | None:
        """Returns the slope of the regression line x = slope * y + intercept; None if y is constant."""
        apart = self._spread(self.y, self.y, self.yy)
        return self._spread(self.x, self.y, self.xy).over(apart) if apart.number else None

    def intercept(self) -> float | None:
        """Returns the value of the line at y = 0; None if y is constant."""
        apart = self._spread(self.y, self.y, self.yy)
        if not apart.number:
            return None
        rest = self.x.times(apart).minus(self._spread(self.x, self.y, self.xy).times(self.y))
        return rest.over(Scaled(self.number * apart.number, apart.exponent))


class Moment(NamedTuple):
    """An aggregate of moments, and the least number of values that it needs."""

    least: int
    value: Callable[[Moments], float | None]


OF_VALUES = {
    "var_samp": Moment(2, lambda moments: moments.covariance(1)),
    "var_pop": Moment(1, lambda moments: moments.covariance(0)),
    "stddev": Moment(2, lambda moments: math.sqrt(moments.covariance(1))),
    "stddev_pop": Moment(1, lambda moments: math.sqrt(moments.covariance(0))),
}
OF_PAIRS = {
    "covar_samp": Moment(2, lambda moments: moments.covariance(1)),
    "covar_pop": Moment(1, lambda moments: moments.covariance(0)),
    "corr": Moment(2, Moments.correlation),
    "regr_slope": Moment(2, Moments.slope),
    "regr_intercept": Moment(2, Moments.intercept),
}
BY_FUNCTION = OF_VALUES | OF_PAIRS


def scaled(table: IntArray, lowest: int) -> Iterator[Scaled]:
    """Yields the numbers of a table of digits; see `sbon.operators.digits`."""
    return (Scaled(number, BIN_BITS * lowest) for number in digits.integers(table))
