"""Expressions that polars works out by themselves, so that their size stays that of what was written.

A polars expression is a tree: a function that looks at its argument four times holds it four times, and ten such functions within each
other hold it a million times, which takes all memory. What would grow too large is put into a function of its own, which gets its arguments
as columns that are computed already.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import polars as pl

from sbon.operators.frames import evaluated

LEAVES_MAX = 64
"""Columns that an expression looks at, each as often as it does, before it is contained: some milliseconds to prepare."""

Part = TypeVar("Part")


def leaves(value: pl.Expr) -> int:
    """How often an expression looks at a column."""
    return len(value.meta.root_names())


def grows(value: pl.Expr, arguments: Sequence[pl.Expr]) -> bool:
    """Whether an expression should be contained, as it looks at its arguments too often."""
    found = leaves(value)
    return found > LEAVES_MAX and found > sum(leaves(argument) for argument in arguments)


def contained(build: Callable[[Sequence[pl.Expr]], pl.Expr], arguments: Sequence[pl.Expr], dtype: pl.DataType) -> pl.Expr:
    """The expression that `build` makes of its arguments, each of which is computed once."""
    names = [str(place) for place in range(len(arguments))]
    return _apart(build([pl.col(name) for name in names]), arguments, names, dtype)


def hidden(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """An expression of which polars sees the columns alone: one that is too deep is worked out in parts."""
    columns = sorted(set(value.meta.root_names()))
    return _apart(value, [pl.col(name) for name in columns], columns, dtype) if columns else value


def halved(combine: Callable[[Part, Part], Part], parts: Sequence[Part]) -> Part:
    """All parts combined, neighbours first, so that a long list is no deep tree; there is at least one."""
    while len(parts) > 1:
        pairs = [combine(one, other) for one, other in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, parts[-1]] if len(parts) % 2 else pairs
    return parts[0]


def _apart(inner: pl.Expr, arguments: Sequence[pl.Expr], names: Sequence[str], dtype: pl.DataType) -> pl.Expr:
    """The inner expression over a frame of the arguments, by these names."""

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        rows = max(column.len() for column in columns)
        whole = [column if column.len() == rows else column.new_from_index(0, rows) for column in columns]
        return evaluated(pl.DataFrame([column.alias(name) for name, column in zip(names, whole, strict=True)]), inner)

    return pl.map_batches(list(arguments), apply, return_dtype=dtype, is_elementwise=True)
