"""The operand columns of a window's aggregates, each computed once in the form that the aggregate needs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import polars as pl

from sbon.operators.compile import compile_column
from sbon.operators.moments import BY_FUNCTION, OF_PAIRS
from sbon.query.expression import Expression
from sbon.query.params.aggregate import Aggregate
from sbon.schema import ColumnType

_ZERO_TAKERS = frozenset({"sum", "avg", "min", "max", *BY_FUNCTION})
"""Aggregates that turn -0.0 into 0.0 in their answers, so that their rows may keep it."""
_WHERE_BOTH = frozenset({"arg_min", "arg_max", *OF_PAIRS})
"""Aggregates that skip values whose other operand is NULL."""


class Operands(NamedTuple):
    """Names of an aggregate's columns."""

    value: str | None
    """None for COUNT(*)."""
    by: str | None


class Prepared(NamedTuple):
    """The columns of all aggregates' operands."""

    columns: list[pl.Expr]
    operands: list[Operands]
    """Operands of each aggregate."""
    types: dict[str, ColumnType]
    """Type of each column."""


def prepared(aggregates: Sequence[Aggregate], types: Mapping[str, ColumnType]) -> Prepared:
    """Compiles the operands of aggregates over columns of these types."""
    made = Prepared([], [], {})
    known: dict[bytes, str] = {}
    for aggregate in aggregates:
        value = None if aggregate.operand is None else _column(made, known, types, aggregate, aggregate.operand, aggregate.by)
        by = None
        if aggregate.by is not None:
            by = _column(made, known, types, aggregate, aggregate.by, aggregate.operand if aggregate.function in OF_PAIRS else None)
        made.operands.append(Operands(value, by))
    return made


def _column(
    made: Prepared,
    known: dict[bytes, str],
    types: Mapping[str, ColumnType],
    aggregate: Aggregate,
    operand: Expression,
    other: Expression | None,
) -> str:
    """Returns the name of an operand's column, after adding it if it is new."""
    value, kind, _ = compile_column(operand, types)
    if aggregate.function in BY_FUNCTION and kind is ColumnType.INT:
        value, kind = value.cast(pl.Float64), ColumnType.FLOAT
    signed = aggregate.function in _ZERO_TAKERS and kind is ColumnType.FLOAT
    key = msgspec.msgpack.encode(operand) + kind.value.encode() + b"-" * signed
    where = other if aggregate.function in _WHERE_BOTH else None
    if where is not None:
        key += msgspec.msgpack.encode(where)
    name = known.setdefault(key, f"x{len(known)}")
    if name not in made.types:
        value = value if signed else one_zero(value, kind)
        if where is not None:
            value = pl.when(compile_column(where, types)[0].is_not_null()).then(value)
        made.types[name] = kind
        made.columns.append(value.alias(name))
    return name


def one_zero(value: pl.Expr, kind: ColumnType) -> pl.Expr:
    """Maps -0.0 to 0.0, so that they are one key and one extreme; which of them came first is arbitrary."""
    # Not value + 0.0: polars removes it as a no-op.
    return pl.when(value == 0.0).then(0.0).otherwise(value) if kind is ColumnType.FLOAT else value
