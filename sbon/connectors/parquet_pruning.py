"""Skips row groups of a Parquet file that cannot contain rows of a query's answer, by the bounds of their columns.

`file_reader` uses it.

A condition is true for no row of a group if its constant lies outside the bounds. The bounds do not cover NULL and NaN. A comparison with
NULL is never true. NaN counts as greater than every number, so a condition that a `DOUBLE` is greater than something excludes no group. A
column without bounds excludes no group either, nor does a column whose values in the file are not exactly those of the source.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import polars as pl

from sbon.connectors.watermark import TIME_MAX_US
from sbon.formats.parquet_footer import Bounds, RowGroup
from sbon.formats.parquet_rows import always_converts
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.params.source import SourceParams
from sbon.query.reads import is_simple
from sbon.schema import ColumnType

Value: TypeAlias = int | float | bytes
_INT32, _INT64, _DOUBLE, _BYTES = 1, 2, 5, 6
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}
_BEYOND: Mapping[str, Callable[[Any, Any, Any], bool]] = {
    "eq": lambda least, greatest, constant: constant < least or constant > greatest,
    "lt": lambda least, greatest, constant: least >= constant,
    "le": lambda least, greatest, constant: least > constant,
    "gt": lambda least, greatest, constant: greatest <= constant,
    "ge": lambda least, greatest, constant: greatest < constant,
}


class Pruning:
    """Decides which row groups of a file to skip.

    No group of a file is skipped if some of its rows may not fit the schema: such rows must be counted as misfits, and their times must not
    move the watermark.

    Parameters
    ----------
    found : names and types of the file's columns
    """

    def __init__(self, params: SourceParams, found: pl.Schema) -> None:
        schema = params.columns
        self._kinds = {field.name: field.type for field in schema if _is_alike(field.type, found[field.name])}
        self._params = params
        fits = all(always_converts(field.type, found[field.name]) for field in schema)
        conditions = params.reads.conditions if params.reads is not None and fits else ()
        self._conditions = [condition for condition in map(self._condition, conditions) if condition is not None]

    def newest_us(self, group: RowGroup) -> tuple[bool, int | None]:
        """Returns whether a group is skipped, and the newest event time of its rows in microseconds (None without event times)."""
        nulls = [group.bounds[name].nulls if name in group.bounds else None for name in self._params.not_null]
        if any(nulls) or None in nulls or not any(self._is_beyond(group, *condition) for condition in self._conditions):
            return False, None
        time = self._params.time_column
        if time is None:
            return True, None
        bounds = self._bounds(group, time)
        if bounds is None or not group.bounds[time].is_exact or int(bounds[1]) > TIME_MAX_US:
            return False, None
        return True, int(bounds[1])

    def _condition(self, condition: Expression) -> tuple[str, str, Value] | None:
        if not is_simple(condition) or not isinstance(condition, Call):
            return None
        left, right = condition.arguments
        name = condition.function
        if not isinstance(left, Column):
            left, right, name = right, left, _TURNED[name]
        if not isinstance(left, Column) or not isinstance(right, Literal) or left.name not in self._kinds:
            return None
        constant = _constant(right, self._kinds[left.name])
        if constant is None or (isinstance(constant, float) and name in ("gt", "ge")):
            return None
        return left.name, name, constant

    def _is_beyond(self, group: RowGroup, column: str, comparison: str, constant: Value) -> bool:
        bounds = self._bounds(group, column)
        return bounds is not None and _BEYOND[comparison](*bounds, constant)

    def _bounds(self, group: RowGroup, column: str) -> tuple[Value, Value] | None:
        if column not in self._kinds or column not in group.bounds:
            return None
        return _values(group.bounds[column], self._kinds[column])


class ChunkPlan:
    """Decides where the chunks of a file begin and end.

    Parameters
    ----------
    groups : row groups of the file; empty if unknown
    pruning : decides which row groups to skip
    """

    def __init__(self, groups: Sequence[RowGroup], pruning: Pruning) -> None:
        self._ends = list(accumulate(group.rows for group in groups))
        self._left_out = {end - group.rows: (end, us) for group, end, us in _left_out(groups, self._ends, pruning)}
        """For each skipped group, by its first row: its end and its newest event time."""
        self._begins = sorted(self._left_out)

    def begin(self, offset: int) -> tuple[int, int | None]:
        """Returns where the next chunk from `offset` on begins, and the newest event time of the rows skipped before it."""
        newest_us: int | None = None
        while offset in self._left_out:
            offset, us = self._left_out[offset]
            newest_us = us if newest_us is None or us is None else max(newest_us, us)
        return offset, newest_us

    def end(self, offset: int, count: int) -> int:
        """Returns where a chunk of at most `count` rows ends: at the end of a row group, if possible.

        polars reads a row group from its beginning for each chunk with rows of it.
        """
        place = bisect_right(self._ends, offset + count) - 1
        end = self._ends[place] if place >= 0 and self._ends[place] > offset else offset + count
        behind = bisect_right(self._begins, offset)
        return min(end, self._begins[behind]) if behind < len(self._begins) else end


def _left_out(groups: Sequence[RowGroup], ends: Sequence[int], pruning: Pruning) -> Iterator[tuple[RowGroup, int, int | None]]:
    for group, end in zip(groups, ends, strict=True):
        is_left_out, newest_us = pruning.newest_us(group)
        if is_left_out and group.rows:
            yield group, end, newest_us


def _is_alike(kind: ColumnType, found: pl.DataType) -> bool:
    """Tells whether a column's values become those of the source unchanged, with bounds in the same order."""
    if kind is ColumnType.INT:
        return isinstance(found, pl.Int64 | pl.Int32)
    if kind is ColumnType.TIME:
        return isinstance(found, pl.Datetime) and found.time_unit == "us"
    return isinstance(found, pl.Float64 if kind is ColumnType.FLOAT else pl.String) and kind in (ColumnType.FLOAT, ColumnType.TEXT)


def _constant(literal: Literal, kind: ColumnType) -> Value | None:
    """Returns a constant in the form of the bounds of such a column; None if it is compared in another way."""
    value = literal.value
    if kind is ColumnType.TEXT:
        return value.encode() if isinstance(value, str) and literal.type is kind else None
    if kind is ColumnType.FLOAT and literal.type in (ColumnType.FLOAT, ColumnType.INT) and isinstance(value, int | float):
        number = float(value)
        return number if math.isfinite(number) and number == value else None
    return value if isinstance(value, int) and literal.type is kind else None


def _values(bounds: Bounds, kind: ColumnType) -> tuple[Value, Value] | None:
    """Returns the least and the greatest value; None if the bounds are not of this type."""
    if kind is ColumnType.TEXT:
        return (bounds.least, bounds.greatest) if bounds.kind == _BYTES else None
    forms = {_DOUBLE: "<d"} if kind is ColumnType.FLOAT else {_INT64: "<q", _INT32: "<i"} if kind is ColumnType.INT else {_INT64: "<q"}
    form = forms.get(bounds.kind)
    if form is None or {len(bounds.least), len(bounds.greatest)} != {struct.calcsize(form)}:
        return None
    least, greatest = (struct.unpack(form, bound)[0] for bound in (bounds.least, bounds.greatest))
    return (least, greatest) if least <= greatest else None  # False for NaN
