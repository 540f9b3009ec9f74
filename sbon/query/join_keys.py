"""Finds the conditions of a join that equate a value of its left side with one of its right side."""

from collections.abc import Iterable

from sbon.query.expression import Call, Cast, Expression
from sbon.query.rewrite import columns_of, type_of
from sbon.schema import ColumnType

Sides = tuple[set[str], set[str]]
"""Column names of the left and the right side."""


def crossing(conditions: Iterable[Expression], sides: Sides) -> tuple[list[Expression], list[Expression]]:
    """Splits conditions into those on columns of both sides, and the others."""
    both: list[Expression] = []
    others: list[Expression] = []
    for condition in conditions:
        used = columns_of([condition])
        (both if all(any(name in side for name in used) for side in sides) else others).append(condition)
    return both, others


def key_of(condition: Expression, sides: Sides, types: dict[str, ColumnType]) -> tuple[Expression, Expression] | None:
    """Returns the left and right value of an equality between the sides; None if the condition is no such equality."""
    if not isinstance(condition, Call) or condition.function != "eq":
        return None
    for one, other in (condition.arguments, condition.arguments[::-1]):
        names = columns_of([one]), columns_of([other])
        if names[0] and names[1] and sides[0].issuperset(names[0]) and sides[1].issuperset(names[1]):
            return _alike(one, other, types)
    return None


def _alike(left: Expression, right: Expression, types: dict[str, ColumnType]) -> tuple[Expression, Expression]:
    """Widens integers compared with floats, since keys are compared as they are stored."""
    kinds = [type_of(side, types) for side in (left, right)]
    if kinds == [ColumnType.INT, ColumnType.FLOAT]:
        return Cast(left, ColumnType.FLOAT), right
    if kinds == [ColumnType.FLOAT, ColumnType.INT]:
        return left, Cast(right, ColumnType.FLOAT)
    return left, right
