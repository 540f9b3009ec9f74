"""The rows that a pattern's partitions still need, as arrays, in the order in which steps have sorted them.

Rows come in steps, and the rows of one partition in one step are adjacent. A row's position grows with its place in its partition; `_prev`
and `_next` lead from row to row of a partition.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.match.grown import Grown
from sbon.operators.match.store import RowStore
from sbon.types import IntArray

NO_ROW = -1
TIME = "\0time"
"""Column with the event time in microseconds, in addition to the columns of the input."""
ROW = "\0row of its time"
"""Column with the place of a row among the rows of its event time; there if windows are dealt to instances."""
_SMALL_MAX = 2**31 - 1
_PIECE = 2**16


class Log:
    """Rows by position.

    Parameters
    ----------
    columns : names of the rows' columns, without TIME
    time_column : the column of the event times
    links : whether values of later rows are read
    opens : the column that tells which rows may open windows of this instance; None: no such column

    Attributes
    ----------
    times : event times, microseconds
    lanes : numbers of the rows' partitions
    places : places of the rows, counted from the first row that the partition ever had
    codes : classes of the rows by the conditions that they meet
    slots : slot of the attempt that begins at the row; NO_ROW if none begins there, or it is settled
    opens : the values of that column; no values without it
    """

    def __init__(self, columns: Sequence[str], time_column: str, *, links: bool, opens: str | None = None) -> None:
        self._columns = list(columns)
        self._time = time_column if len(self._columns) > 1 else None
        """The column whose values are `times`; `store` has the others."""
        self.store = RowStore()
        self.times = Grown(np.int64)
        self.lanes = Grown(np.int32)
        self.places: Grown[np.int32] | Grown[np.int64] = Grown(np.int32)
        self.codes = Grown(np.uint16)
        self.slots = Grown(np.int32)
        self._opens = opens
        self.opens = Grown(np.bool_)
        self._prev = Grown(np.int32)
        self._next = Grown(np.int32) if links else None
        """Needed only if values of later rows are read."""

    @property
    def size(self) -> int:
        """Returns the number of rows, including rows that nothing needs any more."""
        return self.times.size

    def add(self, rows: pl.DataFrame, lanes: IntArray, places: IntArray, tails: IntArray, begins: IntArray) -> None:
        """Appends rows of several partitions.

        Parameters
        ----------
        rows : rows with TIME; rows of one partition are adjacent and in order
        tails : for each partition, in the order of `rows`, the position of its last row so far, or NO_ROW
        begins : for each partition, the place of its first row in `rows`
        """
        size, count = self.size, rows.height
        self.times.extend(rows[TIME].to_numpy())
        self.store.add(rows.select_seq([name for name in self._columns if name != self._time]))
        self.lanes.extend(lanes.astype(np.int32))
        if self.places.values.dtype != np.int64 and int(places.max(initial=0)) > _SMALL_MAX:
            wide = Grown(np.int64)
            wide.extend(self.places.values.astype(np.int64))
            self.places = wide
        self.places.extend(places.astype(self.places.values.dtype))
        self.codes.fill(count, 0)
        self.slots.fill(count, NO_ROW)
        if self._opens is not None:
            self.opens.extend(rows[self._opens].fill_null(value=False).to_numpy())
        prev = np.arange(size - 1, size + count - 1, dtype=np.int32)
        prev[begins] = tails
        self._prev.extend(prev)
        if self._next is not None:
            following = np.arange(size + 1, size + count + 1, dtype=np.int32)
            following[np.append(begins[1:], count) - 1] = NO_ROW
            self._next.extend(following)
            there = tails >= 0
            self._next.values[tails[there]] = begins[there] + size

    def moved(self, positions: IntArray, shift: int) -> IntArray:
        """Returns the positions of the rows `shift` rows after these in their partitions (before these, if negative); NO_ROW if there is
        none.
        """
        links = self._prev if shift < 0 else self._next
        found = positions
        for _ in range(abs(shift)):
            assert links is not None
            found = np.where(found < 0, NO_ROW, links.values[found]).astype(np.int64) if links.size else np.full_like(found, NO_ROW)
        return found

    def back_to(self, least: int, last: int) -> list[int]:
        """Returns the positions of the rows of a partition, as far as they are kept, from the place `least` to the position `last`."""
        found, places, prev = [], self.places.values, self._prev.values
        while last >= 0 and places[last] >= least:
            found.append(last)
            last = int(prev[last])
        return found[::-1]

    def taken(self, positions: IntArray, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Returns rows by position, without TIME, with all columns or only some; for NO_ROW a row of NULLs."""
        names = self._columns if columns is None else columns
        found: list[pl.Series] = []
        if stored := [name for name in names if name != self._time]:
            found = self.store.taken(positions, stored).get_columns()
        if len(stored) < len(names):
            times = self.times.values[positions] if self.size else np.zeros(positions.size, np.int64)
            series = pl.Series(self._time, times).cast(pl.Datetime("us"))
            missing = positions < 0
            found.insert(list(names).index(str(self._time)), series.set(pl.Series(missing), None) if missing.any() else series)
        return pl.DataFrame(found) if found else pl.DataFrame(height=positions.size)

    def spans(self, first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the positions of the rows of all stretches, one stretch after the other, and where each stretch begins among them, with
        the number of all rows at the end.

        Parameters
        ----------
        first, last : positions of the first and the last row of each stretch, which are in one partition
        """
        lengths = self.places.values[last] - self.places.values[first] + 1
        offsets = np.append(0, np.cumsum(lengths))
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        found = np.repeat(first, lengths) + inside
        split = np.flatnonzero(last - first + 1 != lengths)  # their rows came in several steps
        if split.size:
            at, to, begin = last[split], offsets[split + 1] - 1, offsets[split]
            prev = self._prev.values
            while at.size:
                found[to] = at
                left = to > begin
                at, to, begin = prev[at[left]].astype(np.int64), to[left] - 1, begin[left]
        return found, offsets

    def compact(self, live: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        """Keeps only the live rows. Returns the new position for each old one, NO_ROW for dropped rows, and NO_ROW at the end, so that
        NO_ROW maps to itself.
        """
        moved = np.full(live.size + 1, NO_ROW, np.int32)
        moved[:-1][live] = np.arange(np.count_nonzero(live), dtype=np.int32)
        self.store.compact(live)
        for column in (self.times, self.places, self.lanes, self.slots, self.codes):
            column.keep(live)
        if self._opens is not None:
            self.opens.keep(live)
        for links in (self._prev, self._next):
            if links is not None:
                links.keep(live)
                for begin in range(0, links.size, _PIECE):
                    piece = links.values[begin : begin + _PIECE]
                    piece[:] = moved[piece]
        return moved
