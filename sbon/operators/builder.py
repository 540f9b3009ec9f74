"""The interface of builders of scalar functions; `sbon.operators.scalars` lists them all."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.query.functions import MaybeType

Builder: TypeAlias = Callable[[Sequence[pl.Expr], Sequence[MaybeType], Sequence[Any]], pl.Expr]
"""Makes the expression of a call from its arguments, their types (None for a bare NULL, in `NULL_TAKERS` alone), and the values of those
that are literals. The value is None for other arguments.
"""


def plainly(apply: Callable[..., pl.Expr]) -> Builder:
    """Returns the builder of a function that ignores types and literals."""
    return lambda values, types, literals: apply(*values)


def literal_text(name: str, literal: Any) -> str:
    """Returns the value of an argument that must be a literal text."""
    if not isinstance(literal, str):
        raise RemoteProtocolError(f"{name} takes a literal text here, got {literal!r}")
    return literal


def each(make: Callable[[Any], Any], dtype: pl.DataType) -> Callable[[pl.Expr], pl.Expr]:
    """Applies a function to each value that is not NULL, for functions without a polars expression."""

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        return pl.Series([None if value is None else make(value) for value in columns[0]], dtype=dtype)

    return lambda value: pl.map_batches([value], apply, return_dtype=dtype, is_elementwise=True)
