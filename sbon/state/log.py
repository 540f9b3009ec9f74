"""A queue of rows that may exceed memory: its oldest and newest rows are in memory, the rows between in runs on disk.

A run (`sbon.state.runs`) of a log has row numbers as identities. It is written once, read back from its beginning, shared with copies of
the log, and removed with the last of these. The oldest rows are always in memory, so that a look at them reads nothing from disk.
"""

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import numpy as np
import polars as pl

from sbon.state.ids import Words
from sbon.state.room import StateRoom
from sbon.state.runs import ID_WORDS, TEXT_ROWS, Entries, Run, Writing

FRAME_BYTES = 1000
"""Bytes of memory counted for each frame besides its rows."""
SHARE_WRITTEN = 4
"""The newest rows are written when they take 1/4 of the log's memory. More: more and smaller runs."""
RETRY_CALLS = 64
"""Number of calls without a write after a failed write, because the disk is unlikely to have room again at once."""


class RowLog:
    """Frames of rows with one schema, the oldest first.

    Parameters
    ----------
    alike : columns with a single value in each frame
    room : disk, and the memory that a log may take; None: everything is in memory
    """

    def __init__(self, alike: Sequence[str], room: StateRoom | None = None) -> None:
        self._alike, self._room = list(alike), room
        self._head: deque[pl.DataFrame] = deque()
        self._tail: deque[pl.DataFrame] = deque()
        """The newest frames; empty if there are no runs and the head has room."""
        self._runs: deque[Run] = deque()
        self._begin = 0
        """Number of rows of the first run that have been read."""
        self._head_bytes = self._tail_bytes = 0
        self._pause = 0
        self.rows = 0
        """Number of rows, those on disk included."""

    def __bool__(self) -> bool:
        return bool(self._head)

    @property
    def memory_bytes(self) -> int:
        """Returns the size of the rows in memory."""
        return self._head_bytes + self._tail_bytes

    @property
    def on_disk(self) -> bool:
        """Tells whether some rows are on disk."""
        return bool(self._runs)

    @property
    def first(self) -> pl.DataFrame:
        """Returns the oldest frame. The log must not be empty."""
        return self._head[0]

    def append(self, frame: pl.DataFrame) -> None:
        """Appends rows. They stay in memory if the disk is full."""
        self.rows += frame.height
        if self._runs or self._tail or (self._room is not None and self._head_bytes >= self._room.log_bytes // 2):
            self._tail.append(frame)
            self._tail_bytes += _size(frame)
        else:
            self._head.append(frame)
            self._head_bytes += _size(frame)
        self.relieve()

    def relieve(self) -> None:
        """Writes the newest rows to disk if they are many. After a failure, tries again after `RETRY_CALLS` calls."""
        room = self._room
        if room is None or not self._tail or SHARE_WRITTEN * self._tail_bytes < room.log_bytes:
            return
        if self._pause:
            self._pause -= 1
            return
        try:
            writing, rows = Writing(room, ID_WORDS, has_texts=False, rows=0), 0
            for frame in self._tail:
                writing.add(Entries(_numbers(rows, frame.height), frame))
                rows += frame.height
            self._runs.append(writing.finished())
        except OSError:
            self._pause = RETRY_CALLS
            return
        self._tail, self._tail_bytes = deque(), 0

    def drop(self, count: int) -> None:
        """Removes the first rows, at most those of the first frame.

        Raises
        ------
        StateError
            The next rows cannot be read back.
        """
        frame = self._head.popleft()
        self._head_bytes -= _size(frame)
        self.rows -= min(count, frame.height)
        if count < frame.height:
            self._head.appendleft(frame[count:])
            self._head_bytes += _size(self._head[0])
        elif not self._head:
            self._refill()

    def frames(self) -> Iterator[pl.DataFrame]:
        """Yields all rows, some thousands at a time.

        Raises
        ------
        StateError
            Rows cannot be read back.
        """
        yield from _gathered(self._head)
        begin = self._begin
        for run in self._runs:
            for start in range(begin, run.rows, TEXT_ROWS):
                yield run.between(start, start + TEXT_ROWS).texts
            begin = 0
        yield from _gathered(self._tail)

    def take(self, frame: pl.DataFrame) -> None:
        """Appends rows whose values in the columns `alike` may differ."""
        for part in self._parts(frame):
            self.append(part)

    def fork(self) -> Self:
        """Returns a copy of the log; rows on disk are shared."""
        forked = copy.copy(self)
        forked._head, forked._tail, forked._runs = deque(self._head), deque(self._tail), deque(self._runs)
        return forked

    def _refill(self) -> None:
        """Refills the empty head: with the oldest rows from disk, or with the newest rows if none are on disk."""
        if not self._runs:
            self._head, self._tail = self._tail, deque()
            self._head_bytes, self._tail_bytes = self._tail_bytes, 0
            return
        run = self._runs[0]
        end = min(run.rows, self._begin + TEXT_ROWS)
        self._head.extend(self._parts(run.between(self._begin, end).texts))
        self._head_bytes = sum(map(_size, self._head))
        self._begin = end
        if end == run.rows:
            self._runs.popleft()
            self._begin = 0

    def _parts(self, frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Cuts a frame wherever a value in the columns `alike` changes."""
        at = 0
        for length in frame.select_seq(pl.struct(self._alike).rle().struct.field("len")).to_series().to_list():
            yield frame[at : at + length]
            at += length


def _gathered(frames: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yields the rows of small frames in larger frames."""
    waiting, rows = list[pl.DataFrame](), 0
    for frame in frames:
        waiting.append(frame)
        rows += frame.height
        if rows >= TEXT_ROWS:
            yield pl.concat(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pl.concat(waiting)


def _numbers(first: int, count: int) -> Words:
    numbers = np.zeros((count, ID_WORDS), np.uint64)
    numbers[:, 0] = np.arange(first, first + count)
    return numbers


def _size(frame: pl.DataFrame) -> int:
    return FRAME_BYTES + int(frame.estimated_size())
