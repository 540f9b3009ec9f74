"""Rows numbered by group, once for all that is computed of them.

Whole numbers and times that lie close together are addressed directly (a slot is the number less the least one; panes and keys together
make a grid), which takes a nanosecond a row; grids with many more slots than rows are sorted (`runs`); all else - texts, NULLs, floats,
numbers beyond all grids - goes through a hash table of polars, a column at a time, since one number hashes several times as fast as a row.
What is then summed or compared by slot is in `measures` and `exact`.
"""

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.runs import runs_of
from sbon.types import IntArray

Number = TypeVar("Number", np.int64, np.float64)

SLOTS_PER_ROW = 2
SLOTS_MIN = 4096
"""Slots that are always worth their memory; beyond, there may be SLOTS_PER_ROW for each row."""

_FIRST = "first"
_SIZE_MAX = 2**62


class _Column(NamedTuple):
    """A column as numbers, `least` to before `least + extent`: its own, or numbers given to what it has."""

    codes: IntArray
    least: int
    extent: int
    distinct: pl.Series | None
    """What the numbers were given to."""

    @classmethod
    def of(cls, column: pl.Series, extent_max: int) -> "_Column":
        """At least one row; a column that is as well numbered from 0 should have no more than `extent_max` numbers."""
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
        """What has these numbers, from 0 on."""
        if self.distinct is not None:
            return self.distinct[offsets]
        numbers = pl.Series(offsets + self.least)
        return numbers if dtype == pl.Int64 else numbers.cast(dtype)


class Groups:
    """The groups of some rows, each a combination of values in some columns.

    Attributes
    ----------
    ids : (rows,)
        Slot of each row's group.
    size : slots; some may be empty
    keys : a row for each group that is there, in the order of their slots, with the columns asked for
    counts : (size,)
        Rows of each slot.
    """

    def __init__(self, ids: IntArray, size: int, keys: pl.DataFrame) -> None:
        self.ids = ids
        self.size = size
        self.keys = keys
        self.counts: IntArray = np.bincount(ids, minlength=size)
        there = np.flatnonzero(self.counts)
        self._present = None if there.size == size else there

    @classmethod
    def of(cls, rows: pl.DataFrame, by: list[str], constant: tuple[str, int] | None = None) -> "Groups":
        """Number rows by the columns `by`; the first of them may be `constant`, of which all rows have this value without having it as a
        column."""
        grouped = by if constant is None else by[1:]
        groups = cls._by_columns(rows, grouped) if grouped and rows.height else cls._together(rows, grouped)
        if constant is not None:
            groups.keys.insert_column(0, pl.Series(constant[0], np.full(groups.keys.height, constant[1])))
        return groups

    @classmethod
    def _together(cls, rows: pl.DataFrame, by: list[str]) -> "Groups":
        """No columns, or no rows."""
        count = min(1, rows.height)
        return cls(np.zeros(rows.height, np.int64), count, rows.select(by) if by else pl.DataFrame(height=count))

    @classmethod
    def _by_columns(cls, rows: pl.DataFrame, by: list[str]) -> "Groups":
        limit = max(SLOTS_MIN, SLOTS_PER_ROW * rows.height)
        columns: list[_Column] = []
        ids, size, is_grid = np.zeros(1, np.int64), 1, True
        for name in by:
            column = _Column.of(rows[name], limit // size)
            if size * column.extent > _SIZE_MAX:
                runs = runs_of(ids, size)
                ids, size, is_grid = runs.numbers(), runs.starts.size, False
            columns.append(column)
            offset = column.codes - column.least if column.least else column.codes
            ids = offset if size == 1 else ids if column.extent == 1 else ids * column.extent + offset
            size *= column.extent
        if size > limit or not is_grid:
            runs = runs_of(ids, size)
            return cls(runs.numbers(), runs.starts.size, rows.select(by)[runs.leaders])
        groups = cls(ids, size, pl.DataFrame())
        rest = np.arange(size) if groups._present is None else groups._present
        keys: list[pl.Series] = []
        for name, column in reversed(list(zip(by, columns, strict=True))):
            rest, offset = (rest // column.extent, rest % column.extent) if len(by) > 1 else (rest, rest)
            keys.append(column.values(offset, rows.schema[name]).alias(name))
        groups.keys = pl.DataFrame(keys[::-1])
        return groups

    def taken(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Of values by slot, those of the groups that are there."""
        return values if self._present is None else values[self._present]

    def keys_at(self, slots: IntArray) -> pl.DataFrame:
        """The keys of these slots, which are not empty."""
        if self._present is None:
            return self.keys[slots]
        place = np.empty(self.size, np.int64)
        place[self._present] = np.arange(self._present.size)
        return self.keys[place[slots]]


def _hashed(column: pl.Series) -> tuple[IntArray, IntArray]:
    """Equal values' number, in order of appearance, and the row where each is first."""
    rows = column.alias("x").to_frame().with_row_index(_FIRST)
    first = rows.select(pl.col(_FIRST).first().over("x")).to_series().to_numpy()
    leaders = np.flatnonzero(first == np.arange(first.size))
    numbers = np.empty(first.size, np.int64)
    numbers[leaders] = np.arange(leaders.size)
    return numbers[first], leaders


def physical(values: pl.Series) -> IntArray:
    """Whole numbers or times, none NULL, as the numbers they are kept as; no copy."""
    return values.to_numpy().view(np.int64)


def positions(wanted: pl.DataFrame, rows: pl.DataFrame, by: list[str]) -> IntArray:
    """For each of `rows` a place of its group in `wanted`; -1 where it has none."""
    groups = Groups.of(pl.concat([wanted.select(by), rows.select(by)], rechunk=True), by)
    place = np.full(groups.size, -1)
    place[groups.ids[: wanted.height]] = np.arange(wanted.height)
    return place[groups.ids[wanted.height :]]
