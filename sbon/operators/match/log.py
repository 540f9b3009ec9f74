"""The rows that a pattern's partitions still need, in the order in which they were put in order, as arrays.

Rows of one partition come in steps, and those of one step lie beside each other. A row's position grows with its place in its partition;
`prev` and `next` lead from row to row.
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
"""Column with the event time in microseconds, beside those of the input."""


class Log:
    """Rows by position.

    Attributes
    ----------
    times : event times, microseconds
    lanes : numbers of their partitions
    places : counted from the first row of the partition ever
    numbers : of the rows in `store`, which has them without TIME
    codes : classes of the rows by the conditions that they meet
    slots : of the attempt that begins there; NO_ROW if none does, or it is settled
    """

    def __init__(self, *, links: bool) -> None:
        self.store = RowStore()
        self.times = Grown(np.int64)
        self.lanes = Grown(np.int32)
        self.places = Grown(np.int64)
        self.numbers = Grown(np.int32)
        self.codes = Grown(np.uint16)
        self.slots = Grown(np.int32)
        self._prev = Grown(np.int32)
        self._next = Grown(np.int32) if links else None
        """Needed only where values of later rows are read."""

    @property
    def size(self) -> int:
        """Returns the number of rows, with those that nobody needs any more."""
        return self.times.size

    def add(self, times: IntArray, lanes: IntArray, places: IntArray, numbers: IntArray, tails: IntArray, begins: IntArray) -> None:
        """Appends rows of several partitions.

        Parameters
        ----------
        tails : of each partition, in their order here, the position of its last row so far, or NO_ROW
        begins : of each partition, the place of its first new row among the new ones
        """
        size, count = self.size, times.size
        self.times.extend(times)
        self.lanes.extend(lanes.astype(np.int32))
        self.places.extend(places)
        self.numbers.extend(numbers.astype(np.int32))
        self.codes.fill(count, 0)
        self.slots.fill(count, NO_ROW)
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
        """Returns the rows so far behind others in their partitions; NO_ROW where there is none."""
        links = self._prev if shift < 0 else self._next
        found = positions
        for _ in range(abs(shift)):
            assert links is not None
            found = np.where(found < 0, NO_ROW, links.values[found]).astype(np.int64) if links.size else np.full_like(found, NO_ROW)
        return found

    def back_to(self, least: int, last: int) -> list[int]:
        """Returns the positions of a partition's rows, those that are there: from a place on up to a position."""
        found, places, prev = [], self.places.values, self._prev.values
        while last >= 0 and places[last] >= least:
            found.append(last)
            last = int(prev[last])
        return found[::-1]

    def taken(self, positions: IntArray, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Returns rows by position, without TIME and maybe only some columns; for NO_ROW a row of NULLs."""
        return self.store.taken(np.where(positions < 0, NO_ROW, self.numbers.values[positions]), columns)

    def spans(self, first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the rows of stretches of partitions one behind the other, and where each begins among them, with their number at the end.

        Parameters
        ----------
        first, last : positions of the ends, both inclusive
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
        """Keeps only some rows; returns for each position the new one, NO_ROW for those that are gone, and NO_ROW once more at the end."""
        moved = np.full(live.size + 1, NO_ROW, np.int32)
        moved[:-1][live] = np.arange(np.count_nonzero(live), dtype=np.int32)
        self.numbers.replace(self.store.compact(self.numbers.values, live))
        for column in (self.times, self.places, self.lanes, self.slots, self.codes):
            column.keep(live)
        for links in (self._prev, self._next):
            if links is not None:
                links.keep(live)
                links.values[:] = moved[links.values]
        return moved
