"""The partitions of a pattern, as arrays with one entry each."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sbon.operators.match.grown import Grown
from sbon.operators.match.log import NO_ROW
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_END

Key: TypeAlias = tuple[Any, ...]
TIME_MAX = 2**61 - 1
END = 2 * TIME_MAX
"""The instant of the last watermark. An instant is twice an event time, plus 1 if a row of that time makes a match known, instead of a
watermark.
"""


def instants(times: IntArray, by_row: int) -> IntArray:
    """Returns the instants of these times, at which rows (`by_row` = 1) or watermarks (0) make matches known."""
    return np.minimum(times, TIME_MAX) * 2 + by_row


class Partitions:
    """Partitions by number.

    Attributes
    ----------
    keys : their values in the partition columns; None for a number that is free
    tail : position of the last row, NO_ROW if no row is kept
    count : number of rows that the partition ever had
    ready : place after the last row whose conditions are known
    start : place of the first row that is not settled
    since : event time of that row, WATERMARK_END if all rows are settled
    pending : event time of the first row whose conditions are not known yet; WATERMARK_END if there is none
    number : matches so far
    matched : place after the last row of any match
    known : instant at which the last match was known
    """

    def __init__(self) -> None:
        self.keys: list[Key | None] = []
        self._numbers: dict[Key, int] = {}
        self._free: list[int] = []
        self.tail, self.count, self.ready, self.start, self.since, self.pending, self.number, self.matched, self.known = (
            Grown(np.int64) for _ in range(9)
        )

    @property
    def size(self) -> int:
        """Returns the number of partitions, including free numbers."""
        return len(self.keys)

    def numbered(self, keys: Sequence[Key]) -> IntArray:
        """Returns the numbers of partitions; new partitions get a number."""
        numbers = self._numbers
        fresh = [key for key in dict.fromkeys(keys) if key not in numbers]
        if fresh:
            self._add(fresh)
        return np.array([numbers[key] for key in keys], np.int64)

    def _add(self, keys: Sequence[Key]) -> None:
        reused = [self._free.pop() for _ in range(min(len(keys), len(self._free)))]
        more = len(keys) - len(reused)
        added = [*reused, *range(self.size, self.size + more)]
        self.keys += [None] * more
        for number, key in zip(added, keys, strict=True):
            self.keys[number] = key
            self._numbers[key] = number
        at = np.array(added, np.int64)
        for column in self._columns():
            column.fill(more, 0)
            column.values[at] = 0
        self.tail.values[at] = NO_ROW
        self.since.values[at] = self.pending.values[at] = WATERMARK_END

    def _columns(self) -> tuple[Grown[np.int64], ...]:
        return (self.tail, self.count, self.ready, self.start, self.since, self.pending, self.number, self.matched, self.known)

    def forget(self, numbers: IntArray) -> None:
        """Forgets partitions."""
        for number in numbers.tolist():
            key = self.keys[number]
            if key is not None:
                del self._numbers[key]
                self.keys[number] = None
                self._free.append(number)
                self.count.values[number] = self.start.values[number] = self.ready.values[number] = 0
                self.since.values[number] = self.pending.values[number] = WATERMARK_END

    def present(self) -> IntArray:
        """Returns the numbers that are in use."""
        return np.array(sorted(self._numbers.values()), np.int64)


class Text(NamedTuple):
    """Rows whose conditions are known now for the first time; rows of one partition are adjacent and in order."""

    positions: IntArray
    lanes: IntArray
    """Numbers of the partitions that have got rows, ready or not."""
    begins: IntArray
    """For each partition, the place of its first row among `positions`."""
    ends: IntArray
    """For each partition, the place after its last row."""
