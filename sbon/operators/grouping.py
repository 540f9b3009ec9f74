"""Numbers rows by group, once for all aggregates of them.

Integers and times that lie close together are addressed directly (a slot is the number minus the least one; panes and keys together form a
grid), which takes a nanosecond a row. Grids with many more slots than rows are sorted (`runs`). Texts, NULLs, floats and numbers too far
apart go through a hash table of polars, or through a dict if rows are few. Each column is hashed by itself, since one number hashes several
times as fast as a row. `measures` and `exact` then aggregate by slot.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.runs import runs_of
from sbon.types import IntArray

Number = TypeVar("Number", np.int64, np.float64)

SLOTS_PER_ROW = 2
SLOTS_MIN = 4096
"""Number of slots that is always affordable; above it, SLOTS_PER_ROW slots are allowed for each row."""

NUMBERED_ROWS_MAX = 128
"""Most rows whose values are numbered one by one, in Python: a polars query takes as long for so few rows as for many more."""
_FIRST = "first"
_SIZE_MAX = 2**62


class _Column(NamedTuple):
    """A column as numbers from `least` to below `least + extent`: its own values, or numbers assigned to them."""

    codes: IntArray
    least: int
    extent: int
    distinct: pl.Series | None
    """The values that numbers were assigned to; None if the numbers are the values."""

    @classmethod
    def of(cls, column: pl.Series, extent_max: int) -> "_Column":
        """Numbers a column of at least one row. Numbers start at 0 if all values are positive and below `extent_max`, otherwise at the
        least value."""
        if (column.dtype == pl.Int64 or column.dtype.is_temporal()) and not column.null_count():
            numbers = physical(column)
            least, greatest = int(numbers.min()), int(numbers.max())
            if least > 0 and greatest < extent_max:
                least = 0
            if greatest - least < _SIZE_MAX // 2**30:
                return cls(numbers, least, greatest - least + 1, None)
        ids, leaders = _hashed(column)
        return cls(ids, 0, leaders.size, column[leaders])

    def values(self, offsets: IntArray, dtype: pl.DataType) -> pl.Series:
        """Returns the values with these numbers, counted from 0."""
        if self.distinct is not None:
            return self.distinct[offsets]
        numbers = pl.Series(offsets + self.least)
        return numbers if dtype == pl.Int64 else numbers.cast(dtype)


class _Addressed(NamedTuple):
    """Rows numbered by the combination of their values in some columns."""

    ids: IntArray
    """Slot of each row."""
    size: int
    columns: list[_Column]
    leaders: IntArray | None
    """One row of each slot; None if slots are the cells of the grid that the columns span, the last column varying fastest."""


def _addressed(columns: Sequence[pl.Series]) -> _Addressed:
    """Numbers rows, at least one, by columns, at least one."""
    limit = max(SLOTS_MIN, SLOTS_PER_ROW * len(columns[0]))
    numbered: list[_Column] = []
    ids, size, is_grid = np.zeros(1, np.int64), 1, True
    for values in columns:
        column = _Column.of(values, limit // size)
        if size * column.extent > _SIZE_MAX:
            runs = runs_of(ids, size)
            ids, size, is_grid = runs.numbers(), runs.starts.size, False
        numbered.append(column)
        offset = column.codes - column.least if column.least else column.codes
        ids = offset if size == 1 else ids if column.extent == 1 else ids * column.extent + offset
        size *= column.extent
    if size > limit or not is_grid:
        runs = runs_of(ids, size)
        return _Addressed(runs.numbers(), runs.starts.size, numbered, runs.leaders)
    return _Addressed(ids, size, numbered, None)


class Groups:
    """The groups of some rows, each a combination of values in some columns.

    Attributes
    ----------
    ids : (rows,)
        Slot of each row's group.
    size : number of slots; some may be empty
    keys : one row per non-empty group, in the order of their slots, with the grouping columns
    counts : (size,)
        Number of rows in each slot.
    known : columns of the main table that need not be computed, by name: a value per row of `keys`
    """

    def __init__(self, ids: IntArray, size: int, keys: pl.DataFrame) -> None:
        self.ids = ids
        self.size = size
        self.keys = keys
        self.counts: IntArray = np.bincount(ids, minlength=size)
        self.known: dict[str, pl.Series] = {}
        there = np.flatnonzero(self.counts)
        self._present = None if there.size == size else there

    @classmethod
    def of(cls, rows: pl.DataFrame, by: list[str], constant: tuple[str, int] | None = None) -> "Groups":
        """Numbers rows by the columns `by`. The first of them may be `constant`, (name, value): a column that the rows lack and that
        has this value in all of them."""
        grouped = by if constant is None else by[1:]
        groups = cls._by_columns(rows, grouped) if grouped and rows.height else cls._together(rows, grouped)
        if constant is not None:
            groups.keys.insert_column(0, pl.Series(constant[0], np.full(groups.keys.height, constant[1])))
        return groups

    @classmethod
    def _together(cls, rows: pl.DataFrame, by: list[str]) -> "Groups":
        """Returns a single group, for no columns or no rows."""
        count = min(1, rows.height)
        return cls(np.zeros(rows.height, np.int64), count, rows.select_seq(by) if by else pl.DataFrame(height=count))

    @classmethod
    def _by_columns(cls, rows: pl.DataFrame, by: list[str]) -> "Groups":
        given = [rows.get_column(name) for name in by]
        ids, size, columns, leaders = _addressed(given)
        if leaders is not None:
            named = zip(given, columns, strict=True)
            keys = [column.values(column.codes[leaders] - column.least, values.dtype).alias(values.name) for values, column in named]
            return cls(ids, size, pl.DataFrame(keys))
        groups = cls(ids, size, pl.DataFrame())
        rest = np.arange(size) if groups._present is None else groups._present
        keys = []
        for values, column in reversed(list(zip(given, columns, strict=True))):
            rest, offset = (rest // column.extent, rest % column.extent) if len(by) > 1 else (rest, rest)
            keys.append(column.values(offset, values.dtype).alias(values.name))
        groups.keys = pl.DataFrame(keys[::-1])
        return groups

    @property
    def numbers(self) -> IntArray:
        """Returns the row of each row's group in `keys`, (rows,)."""
        return self.ids if self._present is None else self._places()[self.ids]

    def taken(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Returns the entries of non-empty groups from an array by slot."""
        return values if self._present is None else values[self._present]

    def keys_at(self, slots: IntArray) -> pl.DataFrame:
        """Returns the keys of these slots, which are not empty."""
        return self.keys[slots if self._present is None else self._places()[slots]]

    def _places(self) -> IntArray:
        """Returns the row of each slot in `keys`, (size,); anything for an empty slot."""
        assert self._present is not None
        place = np.empty(self.size, np.int64)
        place[self._present] = np.arange(self._present.size)
        return place


def _hashed(column: pl.Series) -> tuple[IntArray, IntArray]:
    """Numbers equal values alike in order of appearance; returns the numbers and the row of each value's first appearance."""
    if len(column) <= NUMBERED_ROWS_MAX and not column.dtype.is_temporal():
        return _numbered(column.to_list())
    rows = column.alias("x").to_frame().with_row_index(_FIRST)
    first = rows.select_seq(pl.col(_FIRST).first().over("x")).to_series().to_numpy()
    leaders = np.flatnonzero(first == np.arange(first.size))
    numbers = np.empty(first.size, np.int64)
    numbers[leaders] = np.arange(leaders.size)
    return numbers[first], leaders


def _numbered(values: list[Any]) -> tuple[IntArray, IntArray]:
    """Numbers values as `_hashed` does, one after another."""
    numbers: dict[Any, int] = {}
    ids: list[int] = []
    leaders: list[int] = []
    for row, value in enumerate(values):
        number = numbers.setdefault(value if value == value else math.nan, len(numbers))  # a dict finds a NaN by identity only
        if number == len(leaders):
            leaders.append(row)
        ids.append(number)
    return np.array(ids, np.int64), np.array(leaders, np.int64)


def physical(values: pl.Series) -> IntArray:
    """Returns integers or times without NULL as the integers that represent them, without a copy."""
    return values.to_numpy().view(np.int64)


def positions(wanted: pl.DataFrame, rows: pl.DataFrame, by: list[str]) -> IntArray:
    """Returns for each of `rows` a row of `wanted` in the same group; -1 if there is none."""
    if by and wanted.height + rows.height:
        ids, size, _, _ = _addressed([pl.concat([wanted[name], rows[name]], rechunk=True) for name in by])
    else:
        ids, size = np.zeros(wanted.height + rows.height, np.int64), 1
    place = np.full(size, -1)
    place[ids[: wanted.height]] = np.arange(wanted.height)
    return place[ids[wanted.height :]]


def in_order(rows: pl.DataFrame, by: list[str], *, stable: bool = False) -> pl.DataFrame:
    """Returns rows sorted by columns, NULLs first; with `stable`, equal rows keep their order. Rows that `Groups` has numbered directly are
    sorted already, and checking that is cheaper than sorting.
    """
    return rows if _is_sorted(rows, by) else rows.sort(by, maintain_order=stable)


def _is_sorted(rows: pl.DataFrame, by: list[str]) -> bool:
    """Tells whether rows are known to be sorted; only integers and times without NULL are looked at."""
    rises = np.zeros(max(0, rows.height - 1), np.bool_)
    for name in by:
        column = rows[name]
        if not (column.dtype == pl.Int64 or column.dtype.is_temporal()) or column.null_count():
            return False
        numbers = physical(column)
        if ((numbers[1:] < numbers[:-1]) & ~rises).any():
            return False
        rises |= numbers[1:] > numbers[:-1]
    return True
