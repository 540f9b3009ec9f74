"""Filters and projects a few rows as plain values, without a frame.

For a single row, a frame and two polars queries cost more than the transfer over a link. Most filters compare columns with constants, and
most projections pick columns: those need no frame. All others, and all larger batches, are left to `sbon.operators.map`. Both ways give
the same answers.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from sbon.operators.values import Values
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.params.rowwise import MapParams
from sbon.schema import ColumnType, Schema

Taker: TypeAlias = Callable[[Values], Values]
Truths: TypeAlias = Sequence[bool | None]
Condition: TypeAlias = Callable[[Values], Truths]
"""Returns for each row whether a condition holds; None if that is unknown (NULL)."""

CONDITION_DEPTH_MAX = 20
"""Most levels of nested conditions; deeper ones need a frame."""
INT_MAX = 2**62

_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {name: getattr(operator, name) for name in _MIRRORED}
_OF_FLOATS: dict[str, Callable[[Any, Any], bool]] = {
    **_COMPARISONS,
    "gt": lambda value, bound: not value <= bound,
    "ge": lambda value, bound: not value < bound,
}
"""Comparisons of floats. As in frames, NaN is greater than every number."""


class _Field(NamedTuple):
    place: int
    type: ColumnType


def few_rows(params: MapParams, schema: Schema) -> Taker | None:
    """Returns the function that computes the answers for rows of this schema, or None if they need a frame.

    Examples
    --------
    >>> from sbon.schema import Field
    >>> schema = (Field("x", ColumnType.INT), Field("y", ColumnType.TEXT))
    >>> positive = Call("gt", (Column("x"), Literal(0, ColumnType.INT)))
    >>> take = few_rows(MapParams(positive, (("name", Column("y")),)), schema)
    >>> take(Values(3, ([1, None, -1], ["a", "b", "c"])))
    Values(rows=1, columns=(['a'],))
    """
    fields = {field.name: _Field(place, field.type) for place, field in enumerate(schema)}
    places: list[int] | None = None
    if params.columns is not None:
        picked = [fields.get(value.name) if isinstance(value, Column) else None for _, value in params.columns]
        known = [field.place for field in picked if field is not None]
        if len(known) < len(picked):
            return None
        places = known
    condition = None
    if params.predicate is not None:
        condition = _condition(params.predicate, fields, CONDITION_DEPTH_MAX)
        if condition is None:
            return None
    return lambda values: _answer(values, condition, places)


def _answer(values: Values, condition: Condition | None, places: Sequence[int] | None) -> Values:
    columns = values.columns if places is None else tuple(values.columns[place] for place in places)
    if condition is None:
        return Values(values.rows, columns)
    kept = [row for row, truth in enumerate(condition(values)) if truth]
    if len(kept) == values.rows:
        return Values(values.rows, columns)
    return Values(len(kept), tuple([column[row] for row in kept] for column in columns))


def _condition(expression: Expression, fields: Mapping[str, _Field], depth: int) -> Condition | None:
    if depth <= 0 or not isinstance(expression, Call):
        return None
    function, arguments = expression.function, expression.arguments
    if function in ("and", "or") and arguments:
        parts = [_condition(argument, fields, depth - 1) for argument in arguments]
        known = [part for part in parts if part is not None]
        decides = function == "or"
        return (lambda values: _fold([part(values) for part in known], decides)) if len(known) == len(parts) else None
    if function in _COMPARISONS and len(arguments) == 2:
        left, right = arguments
        if isinstance(left, Literal):
            left, right, function = right, left, _MIRRORED[function]
        if isinstance(right, Literal):
            return _comparison(function, left, right, fields) if isinstance(left, Column) else _divisible(function, left, right, fields)
    return None


def _fold(parts: Sequence[Truths], decides: bool) -> Truths:
    """Combines truth values in three-valued logic: one part may decide alone, otherwise an unknown part makes the result unknown."""
    return [decides if decides in row else None if None in row else not decides for row in zip(*parts, strict=True)]


def _comparison(function: str, column: Column, literal: Literal, fields: Mapping[str, _Field]) -> Condition | None:
    field, bound = fields.get(column.name), literal.value
    if field is None or bound is None:
        return None
    if field.type is ColumnType.FLOAT and literal.type in (ColumnType.FLOAT, ColumnType.INT) and type(bound) in (int, float):
        if not abs(float(bound)) < float("inf"):
            return None
        return _each(_OF_FLOATS[function], field.place, float(bound))
    if literal.type is not field.type:
        return None
    if field.type is ColumnType.TEXT and type(bound) is str:
        return _each(_COMPARISONS[function], field.place, bound)
    if field.type in (ColumnType.INT, ColumnType.TIME, ColumnType.INTERVAL) and type(bound) is int and abs(bound) <= INT_MAX:
        return _each(_COMPARISONS[function], field.place, bound)
    return None


def _divisible(function: str, rest: Expression, zero: Literal, fields: Mapping[str, _Field]) -> Condition | None:
    """Compiles `column % n = 0` and `column % n <> 0` of integers."""
    if function not in ("eq", "ne") or zero.type is not ColumnType.INT or type(zero.value) is not int or zero.value != 0:
        return None
    if not isinstance(rest, Call) or rest.function != "mod" or len(rest.arguments) != 2:
        return None
    column, divisor = rest.arguments
    if not isinstance(column, Column) or not isinstance(divisor, Literal) or divisor.type is not ColumnType.INT:
        return None
    field, size = fields.get(column.name), divisor.value
    if field is None or field.type is not ColumnType.INT or type(size) is not int or not 0 < abs(size) <= INT_MAX:
        return None
    compare = _COMPARISONS[function]
    return _each(lambda value, _: compare(value % size, 0), field.place, 0)


def _each(compare: Callable[[Any, Any], bool], place: int, bound: Any) -> Condition:
    return lambda values: [None if value is None else compare(value, bound) for value in values.columns[place]]
