"""Wraps polars expressions in functions of their own, so that their size stays proportional to the SQL text.

A polars expression is a tree: a function that uses its argument four times contains it four times, and ten such functions nested in each
other contain it a million times, which exhausts the memory. An expression that would grow too large becomes a function that gets its
arguments as computed columns.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import polars as pl

from sbon.operators.frames import evaluated

LEAVES_MAX = 64
"""Most column references in an expression before it is contained; preparing so many takes some milliseconds."""

Part = TypeVar("Part")


def leaves(value: pl.Expr) -> int:
    """Counts the column references in an expression."""
    return len(value.meta.root_names())


def grows(value: pl.Expr, arguments: Sequence[pl.Expr]) -> bool:
    """Tells whether an expression repeats its arguments so often that it should be contained."""
    found = leaves(value)
    return found > LEAVES_MAX and found > sum(leaves(argument) for argument in arguments)


def contained(build: Callable[[Sequence[pl.Expr]], pl.Expr], arguments: Sequence[pl.Expr], dtype: pl.DataType) -> pl.Expr:
    """Returns the expression that `build` makes of its arguments, each of which is computed once."""
    names = [str(place) for place in range(len(arguments))]
    return _apart(build([pl.col(name) for name in names]), arguments, names, dtype)


def hidden(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Hides an expression, except for its columns, from polars, so that a deep expression is evaluated in parts."""
    columns = sorted(set(value.meta.root_names()))
    return _apart(value, [pl.col(name) for name in columns], columns, dtype) if columns else value


def halved(combine: Callable[[Part, Part], Part], parts: Sequence[Part]) -> Part:
    """Combines all parts pairwise, so that a long list does not become a deep tree; there is at least one part."""
    while len(parts) > 1:
        pairs = [combine(one, other) for one, other in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, parts[-1]] if len(parts) % 2 else pairs
    return parts[0]


def _apart(inner: pl.Expr, arguments: Sequence[pl.Expr], names: Sequence[str], dtype: pl.DataType) -> pl.Expr:
    """Evaluates the inner expression over a frame of the arguments, under these names."""

    def apply(columns: Sequence[pl.Series]) -> pl.Series:
        rows = next((column.len() for column in columns if column.len() != 1), 1)  # an argument without columns has a single value
        whole = [column.new_from_index(0, rows) if column.len() == 1 else column for column in columns]
        return evaluated(pl.DataFrame([column.alias(name) for name, column in zip(names, whole, strict=True)]), inner)

    return pl.map_batches(list(arguments), apply, return_dtype=dtype, is_elementwise=True)
