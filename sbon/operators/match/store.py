"""Rows that partitions of a pattern still need, in frames that are appended to and compacted."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.types import IntArray

SLACK_ROWS = 4_096
"""Rows that nothing needs are removed once they are more than this number plus a quarter of the needed rows."""
FRAME_ROWS_MAX = 2**20
"""Most rows of a combined frame: combining takes, for a moment, as much memory again."""


class RowStore:
    """Rows by number: 0 for the first one."""

    def __init__(self) -> None:
        self._frames: list[pl.DataFrame] = []
        self._size = 0

    @property
    def rows(self) -> int:
        """Returns the number of rows kept."""
        return self._size

    def add(self, frame: pl.DataFrame) -> None:
        """Appends rows."""
        self._frames.append(frame)
        self._size += frame.height
        # Frames are combined as in a binary counter, so that each row is copied a few times in all, and there are few frames.
        while len(self._frames) > 1 and self._combines(self._frames[-2].height, self._frames[-1].height):
            last = self._frames.pop()
            self._frames[-1] = pl.concat([self._frames[-1], last], rechunk=True)

    def _combines(self, before: int, last: int) -> bool:
        return before <= 2 * last and before + last <= FRAME_ROWS_MAX

    def taken(self, numbers: IntArray, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Returns rows by their numbers, with all columns or only some; for -1 a row of NULLs."""
        index = pl.Series(numbers.astype(np.uint32))
        if (numbers < 0).any():
            index = index.set(pl.Series(numbers < 0), None)
        whole = self._frames[0] if len(self._frames) == 1 else pl.concat(self._frames, rechunk=False)
        wanted = pl.all() if columns is None else pl.col(list(columns))
        return whole.select_seq(wanted.gather(index))

    def needs_compaction(self, live: int) -> bool:
        """Tells whether many rows are not needed."""
        return self._size > live + live // 4 + SLACK_ROWS

    def compact(self, live: npt.NDArray[np.bool_]) -> None:
        """Keeps only the live rows, in their order. A frame is not copied if all its rows are kept."""
        frames, self._frames, self._size, begin = self._frames[::-1], [], 0, 0
        while frames:
            frame = frames.pop()
            kept = np.flatnonzero(live[begin : begin + frame.height])
            begin += frame.height
            if kept.size < frame.height:
                frame = frame.select_seq(pl.all().gather(pl.Series(kept.astype(np.uint32))))
            if kept.size:
                self.add(frame)
