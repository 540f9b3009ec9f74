"""Polynomials in the rates of sources, as joins produce them (WhiteWater, section 4.1)."""

from collections.abc import Mapping

import msgspec

from sbon.errors import ShapeError
from sbon.types import FloatArray

Exponents = tuple[tuple[str, int], ...]
"""Powers of variables, sorted by name, without powers of 0; () is the constant."""
TERMS_MAX = 4096
"""Most terms of a product: joins in a chain multiply them."""


class Polynomial(msgspec.Struct, frozen=True):
    """A sum of products of variables with coefficients of 0 or more, so that it grows in each variable.

    Examples
    --------
    >>> left, right = variable("a"), variable("b")
    >>> (left.times(right).scaled(2.0).plus(constant(1.0))).at({"a": 3.0, "b": 5.0})
    31.0
    """

    terms: dict[Exponents, float]

    def plus(self, other: "Polynomial") -> "Polynomial":
        """Returns the sum."""
        found = dict(self.terms)
        for exponents, coefficient in other.terms.items():
            found[exponents] = found.get(exponents, 0.0) + coefficient
        return Polynomial(found)

    def scaled(self, factor: float) -> "Polynomial":
        """Returns the polynomial times a number; a factor of 0 leaves no terms."""
        return Polynomial({exponents: coefficient * factor for exponents, coefficient in self.terms.items()} if factor else {})

    def times(self, other: "Polynomial") -> "Polynomial":
        """Returns the product.

        Raises
        ------
        ShapeError
            The product might have more than `TERMS_MAX` terms.
        """
        if len(self.terms) * len(other.terms) > TERMS_MAX:
            raise ShapeError(f"a product of {len(self.terms)} and {len(other.terms)} terms, expected at most {TERMS_MAX} together")
        found: dict[Exponents, float] = {}
        for mine, factor in self.terms.items():
            for others, coefficient in other.terms.items():
                powers = dict(mine)
                for name, power in others:
                    powers[name] = powers.get(name, 0) + power
                exponents = tuple(sorted(powers.items()))
                found[exponents] = found.get(exponents, 0.0) + factor * coefficient
        return Polynomial(found)

    def at(self, rates: Mapping[str, float]) -> float:
        """Returns the value at these rates."""
        total = 0.0
        for exponents, coefficient in self.terms.items():
            for name, power in exponents:
                coefficient *= rates[name] ** power
            total += coefficient
        return total

    def along(self, profile: Mapping[str, float]) -> "FloatArray":
        """Returns the coefficients of 1, x, x^2 ... where all rates are x times those of the profile: (degree + 1,).

        Source
        ------
        WhiteWater, section 4.4: constraints in terms of only one variable.
        """
        import numpy as np

        degree = max((sum(power for _, power in exponents) for exponents in self.terms), default=0)
        found = np.zeros(degree + 1)
        for exponents, coefficient in self.terms.items():
            for name, power in exponents:
                coefficient *= profile[name] ** power
            found[sum(power for _, power in exponents)] += coefficient
        return found


def constant(value: float) -> Polynomial:
    """Returns a polynomial without variables; 0 has no terms."""
    return Polynomial({(): value} if value else {})


def variable(name: str) -> Polynomial:
    """Returns the polynomial that is one variable."""
    return Polynomial({((name, 1),): 1.0})
