"""Rows that partitions of a pattern still need, in frames that are appended to and compacted."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from sbon.types import IntArray

SLACK_ROWS = 4_096
"""Rows that nobody needs may be this many and a quarter as many as the needed ones before they are removed."""
FRAME_ROWS_MAX = 2**20
"""Frames with so many rows are not combined any more: for a moment, that takes as much memory again."""


class RowStore:
    """Rows by number. Numbers grow; those of the rows that are kept stay beside each other."""

    def __init__(self) -> None:
        self._frames: list[pl.DataFrame] = []
        self._first = 0
        self._size = 0

    @property
    def rows(self) -> int:
        """Returns the number of rows kept."""
        return self._size

    def add(self, frame: pl.DataFrame) -> int:
        """Appends rows; returns the number of the first one."""
        number = self._first + self._size
        self._frames.append(frame)
        self._size += frame.height
        # As in a binary counter, so that each row is copied a few times in all, and there are few frames.
        while len(self._frames) > 1 and self._frames[-2].height <= min(FRAME_ROWS_MAX, 2 * self._frames[-1].height):
            last = self._frames.pop()
            self._frames[-1] = pl.concat([self._frames[-1], last], rechunk=True)
        return number

    def taken(self, numbers: IntArray, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Returns rows by their numbers, maybe only some columns; for -1 a row of NULLs."""
        places = np.where(numbers < 0, -1, numbers - self._first)
        index = pl.Series(places, dtype=pl.Int64)
        if (places < 0).any():
            index = index.set(index < 0, None)
        whole = self._frames[0] if len(self._frames) == 1 else pl.concat(self._frames, rechunk=False)
        wanted = pl.all() if columns is None else pl.col(list(columns))
        return whole.select_seq(wanted.gather(index.cast(pl.UInt32)))

    def needs_compaction(self, live: int) -> bool:
        """Tells whether many rows are not needed."""
        return self._size > live + live // 4 + SLACK_ROWS

    def compact(self, numbers: IntArray) -> int:
        """Keeps these rows only, in this order; returns the new number of the first one, behind which the others follow."""
        kept = self.taken(numbers) if numbers.size else None
        self._first += self._size
        self._frames = [] if kept is None else [kept.rechunk()]
        self._size = numbers.size
        return self._first
