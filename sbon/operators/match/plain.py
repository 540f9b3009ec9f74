"""Computes an expression over the values of one row in plain Python, if that gives the same answer as a frame; otherwise a frame is used.

Conditions that depend on the match so far are computed for one row at a time, for which a frame takes hundreds of times as long.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import polars as pl

from sbon.operators.compile import compile_column
from sbon.operators.frames import polars_type
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.schema import ColumnType

Row: TypeAlias = Mapping[str, Any]
"""Values by column; TIME and INTERVAL in microseconds."""
Plain: TypeAlias = Callable[[Row], Any]
_EXACT = 2**53
"""Integers up to this magnitude are exact as floats."""
_INT = 2**62
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {name: getattr(operator, name) for name in ("add", "sub", "mul")}


class _UnsureError(Exception):
    """Frames may have another answer than Python."""


def evaluator(expression: Expression, types: Mapping[str, ColumnType]) -> Plain:
    """Returns a function that computes an expression for one row.

    Parameters
    ----------
    types : types of the columns

    Raises
    ------
    RemoteProtocolError
        The expression is not one that the planner makes.
    """
    by_frame = _of_frame(expression, types)
    plain = _compile(expression)
    if plain is None:
        return by_frame

    def compute(row: Row) -> Any:
        try:
            return plain(row)
        except _UnsureError:
            return by_frame(row)

    return compute


def _of_frame(expression: Expression, types: Mapping[str, ColumnType]) -> Plain:
    value, kind, _ = compile_column(expression, types)
    value = value.cast(pl.Int64) if kind in (ColumnType.TIME, ColumnType.INTERVAL) else value

    def compute(row: Row) -> Any:
        columns = []
        for name, of in types.items():
            dtype = polars_type(of)
            is_number = of in (ColumnType.TIME, ColumnType.INTERVAL)
            column = pl.Series(name, [row.get(name)], dtype=pl.Int64() if is_number else dtype, strict=False)
            columns.append(column.cast(dtype) if is_number else column)
        return pl.DataFrame(columns).select_seq(value.alias("value"))["value"][0] if columns else pl.select(value.alias("value")).item()

    return compute


def _compile(expression: Expression) -> Plain | None:
    match expression:
        case Column(name=name):
            return lambda row: row[name]
        case Literal(value=value):
            return lambda _: value
        case Call(function=function, arguments=arguments):
            parts = [_compile(argument) for argument in arguments]
            known = [part for part in parts if part is not None]
            return _call(function, known) if len(known) == len(parts) else None
        case _:
            return None


def _call(function: str, parts: list[Plain]) -> Plain | None:
    if function in ("and", "or"):
        decides = function == "or"

        def connect(row: Row) -> bool | None:
            values = [part(row) for part in parts]
            return decides if decides in values else None if None in values else not decides

        return connect
    if function == "not" and len(parts) == 1:
        return lambda row: None if (value := parts[0](row)) is None else not value
    if function == "is_null" and len(parts) == 1:
        return lambda row: parts[0](row) is None
    if len(parts) == 2 and function in _COMPARISONS:
        return _both(_COMPARISONS[function], parts[0], parts[1])
    if len(parts) == 2 and function in _ARITHMETIC:
        return _both(_ARITHMETIC[function], parts[0], parts[1])
    return None


def _both(compute: Callable[[Any, Any], Any], left: Plain, right: Plain) -> Plain:
    def both(row: Row) -> Any:
        a, b = left(row), right(row)
        if a is None or b is None:
            return None
        if type(a) is not type(b):
            a, b = _as_float(a), _as_float(b)
        elif type(a) is float:
            _check(a)
            _check(b)
        value = compute(a, b)
        if type(value) is float:
            _check(value)
        elif type(value) is int and not -_INT < value < _INT:
            raise _UnsureError
        return value

    return both


def _as_float(value: Any) -> float:
    if type(value) is float:
        return _check(value)
    if type(value) is int and -_EXACT <= value <= _EXACT:
        return float(value)
    raise _UnsureError


def _check(value: float) -> float:
    if not math.isfinite(value):
        raise _UnsureError
    return value
