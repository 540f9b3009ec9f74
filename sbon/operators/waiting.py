"""Rows that wait until the watermark has passed them. They are mostly in the order of their times, so due rows can be cut off at once."""

from typing import Any

import numpy as np
import polars as pl

from sbon.operators.grouping import physical
from sbon.operators.measures import rows_apart
from sbon.operators.partials import TIME

BLOCK_ROWS_MAX = 65_536
"""Most rows of a combined block; small blocks are merged, as each costs the same to examine."""


class _Block:
    """Some rows with event times. Immutable.

    Parameters
    ----------
    held_rows : number of rows whose memory these rows keep; 0: only their own
    """

    __slots__ = ("first_us", "held_rows", "in_order", "last_us", "rows", "time")

    def __init__(self, rows: pl.DataFrame, time: str, held_rows: int = 0) -> None:
        times = physical(rows[time])
        self.rows, self.time, self.held_rows = rows, time, held_rows or rows.height
        self.first_us, self.last_us = int(times.min()), int(times.max())
        self.in_order = bool((times[1:] >= times[:-1]).all())

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Block":
        return self

    def cut(self, before_us: int) -> tuple[pl.DataFrame, "_Block"]:
        """Returns the rows with event times below `before_us`, and a block of the others, which are copied if they are few."""
        times = physical(self.rows[self.time])
        if self.in_order:
            place = int(np.searchsorted(times, before_us))
            due, left = self.rows[:place], self.rows[place:]
        else:
            is_due = pl.Series(times < before_us)
            due, left = self.rows.filter(is_due), self.rows.filter(~is_due)
        if 2 * left.height >= self.held_rows:
            return due, _Block(left, self.time, self.held_rows)
        return due, _Block(rows_apart(left[np.arange(left.height)]), self.time)


class Waiting:
    """Rows that wait, each with an event time in µs in column `time`."""

    def __init__(self, time: str = TIME) -> None:
        self._time = time
        self._blocks: list[_Block] = []
        self.rows = 0

    def add(self, rows: pl.DataFrame) -> None:
        """Keeps rows."""
        if rows.is_empty():
            return
        self._blocks.append(_Block(rows, self._time))
        self.rows += rows.height
        while len(self._blocks) > 1:
            before, last = (block.rows for block in self._blocks[-2:])
            if before.height > 2 * last.height or before.height + last.height > BLOCK_ROWS_MAX:
                break
            self._blocks[-2:] = [_Block(pl.concat([before, last], rechunk=True), self._time)]

    def take(self, before_us: int) -> pl.DataFrame | None:
        """Removes and returns the rows with event times below `before_us`; None if there are none."""
        due, blocks = [], []
        for block in self._blocks:
            if block.last_us < before_us:
                due.append(block.rows)
            elif block.first_us < before_us:
                passed, left = block.cut(before_us)
                due.append(passed)
                blocks.append(left)
            else:
                blocks.append(block)
        self._blocks = blocks
        self.rows -= sum(rows.height for rows in due)
        if len(due) == 1:
            return due[0]
        return pl.concat(due, rechunk=True) if due else None

    def frame(self) -> pl.DataFrame | None:
        """Returns all rows; None if there are none."""
        return pl.concat([block.rows for block in self._blocks], rechunk=True) if self._blocks else None

    def replace(self, rows: pl.DataFrame) -> None:
        """Replaces all rows with these."""
        self._blocks, self.rows = [], 0
        self.add(rows)
