"""What a builder of a scalar function is: `sbon.operators.scalars` lists them all."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.query.functions import MaybeType

Builder: TypeAlias = Callable[[Sequence[pl.Expr], Sequence[MaybeType], Sequence[Any]], pl.Expr]
"""Makes the expression of a call from its arguments, their types (None for a bare NULL, in `NULL_TAKERS` alone), and the values of those
that are literals.
"""


def plainly(apply: Callable[..., pl.Expr]) -> Builder:
    """The builder of a function that needs its arguments alone."""
    return lambda values, types, literals: apply(*values)


def literal_text(name: str, literal: Any) -> str:
    """The value of an argument that must be a literal text."""
    if not isinstance(literal, str):
        raise RemoteProtocolError(f"{name} takes a literal text here, got {literal!r}")
    return literal


def each(make: Callable[[Any], Any], dtype: pl.DataType) -> Callable[[pl.Expr], pl.Expr]:
    """A function of single values that are not NULL, for what polars has no expression for."""

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        return pl.Series([None if value is None else make(value) for value in columns[0]], dtype=dtype)

    return lambda value: pl.map_batches([value], apply, return_dtype=dtype, is_elementwise=True)
