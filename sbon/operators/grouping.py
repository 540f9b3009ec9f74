"""Rows numbered by group, once for all that is computed of them.

Whole numbers and times that lie close together are addressed directly (a slot is the number less the least one; panes and keys together
make a grid), which takes a nanosecond a row; all else - texts, NULLs, floats, numbers far apart - goes through a hash table of polars.
What is then summed or compared by slot is in `measures` and `exact`.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

Number = TypeVar("Number", np.int64, np.float64)
IntArray = npt.NDArray[np.int64]

SLOTS_PER_ROW = 2
SLOTS_MIN = 4096
"""Slots that are always worth their memory; beyond, there may be SLOTS_PER_ROW for each row."""

_FIRST = "first"


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
        groups = cls._single(rows) if not grouped else cls._direct(rows, grouped) or cls._hashed(rows, grouped)
        if constant is not None:
            groups.keys.insert_column(0, pl.Series(constant[0], np.full(groups.keys.height, constant[1])))
        return groups

    @classmethod
    def _single(cls, rows: pl.DataFrame) -> "Groups":
        count = min(1, rows.height)
        return cls(np.zeros(rows.height, np.int64), count, pl.DataFrame(height=count))

    @classmethod
    def _direct(cls, rows: pl.DataFrame, by: list[str]) -> "Groups | None":
        """By address, or None where columns are not whole numbers that lie close together."""
        limit = max(SLOTS_MIN, SLOTS_PER_ROW * rows.height)
        columns: list[tuple[IntArray, int, int]] = []
        size = 1
        for name in by:
            series = rows[name]
            if not (series.dtype == pl.Int64 or series.dtype.is_temporal()) or series.null_count() or not rows.height:
                return None
            values = physical(series)
            least, greatest = int(values.min()), int(values.max())
            if 0 < least < limit and size * (greatest + 1) <= limit:
                least = 0  # the numbers are slots as they are
            extent = greatest - least + 1
            size *= extent
            if size > limit:
                return None
            columns.append((values, least, extent))
        ids: IntArray | None = None
        for values, least, extent in columns:
            if extent == 1 and ids is not None:
                continue
            offset = values - least if least else values
            ids = offset if ids is None else ids * extent + offset
        assert ids is not None
        groups = cls(ids, size, pl.DataFrame())
        rest = np.arange(size) if groups._present is None else groups._present
        keys: list[pl.Series] = []
        for name, (_, least, extent) in reversed(list(zip(by, columns, strict=True))):
            rest, offset = (rest // extent, rest % extent) if len(by) > 1 else (rest, rest)
            key = pl.Series(name, offset + least)
            keys.append(key if rows.schema[name] == pl.Int64 else key.cast(rows.schema[name]))
        groups.keys = pl.DataFrame(keys[::-1])
        return groups

    @classmethod
    def _hashed(cls, rows: pl.DataFrame, by: list[str]) -> "Groups":
        first = rows.select(by).with_row_index(_FIRST).select(pl.col(_FIRST).first().over(by))[_FIRST].to_numpy()
        leaders = np.flatnonzero(first == np.arange(first.size))
        slots = np.empty(first.size, np.int64)
        slots[leaders] = np.arange(leaders.size)
        return cls(slots[first], leaders.size, rows.select(by)[leaders])

    def taken(self, values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Of values by slot, those of the groups that are there."""
        return values if self._present is None else values[self._present]

    def keys_at(self, slots: IntArray) -> pl.DataFrame:
        """The keys of these slots, which are not empty."""
        return self.keys[slots if self._present is None else np.searchsorted(self._present, slots)]


def physical(values: pl.Series) -> IntArray:
    """Whole numbers or times, none NULL, as the numbers they are kept as; no copy."""
    return values.to_numpy().view(np.int64)


def positions(wanted: pl.DataFrame, rows: pl.DataFrame, by: list[str]) -> IntArray:
    """For each of `rows` a place of its group in `wanted`; -1 where it has none."""
    groups = Groups.of(pl.concat([wanted.select(by), rows.select(by)]), by)
    place = np.full(groups.size, -1)
    place[groups.ids[: wanted.height]] = np.arange(wanted.height)
    return place[groups.ids[wanted.height :]]
