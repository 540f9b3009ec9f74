"""Rows of several tables, each sorted by the same columns, in memory or on disk, read by ranges of these columns.

A run on disk is one file, written once: frames of some thousand rows with checksums, each of one table. The first row of each frame is
in memory, so that a read touches only the frames of its range. The order is that of polars: NULL first, NaN last.
"""

import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import RemoteProtocolError, StateError
from sbon.frame_bytes import decode_any, encode
from sbon.state.room import StateRoom

FRAME_ROWS = 4096
"""Rows of a frame on disk. More: fewer reads, more rows read beside a range."""
_FRAME_BYTES = 150
"""Assumed bytes of memory for each frame on disk besides its first row."""

Counts = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Values of an integer column, in order, and the number of rows of each, (values,) both."""
Key = tuple[Any, ...]
"""The values of a row in the first columns of the order, times as numbers. A shorter key comes before all rows that it begins."""


class Source(Protocol):
    """Sorted rows of several tables."""

    @property
    def rows(self) -> int:
        """Returns the number of rows of all tables."""

    @property
    def counts(self) -> Counts:
        """Returns the values of the first column, in order, and the number of rows of each, of all tables together."""

    def firsts(self, table: str) -> pl.DataFrame:
        """Returns a sample of rows of a table, at least the first and one in `FRAME_ROWS`: the columns of the order, times as numbers."""

    def between(self, table: str, low: Key, high: Key | None) -> list[pl.DataFrame]:
        """Returns the rows from `low` to below `high`, in order; None: no upper limit.

        Raises
        ------
        StateError
            The rows cannot be read, or are damaged.
        """

    def one_by_one(self, table: str, low: Key, high: Key | None) -> Iterator[pl.DataFrame]:
        """Yields the rows of `between`, a frame at a time.

        Raises
        ------
        StateError
            The rows cannot be read, or are damaged.
        """


class SortedRows:
    """Sorted rows in memory.

    Parameters
    ----------
    tables : frames, at least one each; each frame is sorted
    by : columns of the order
    """

    def __init__(self, tables: Mapping[str, Sequence[pl.DataFrame]], by: Sequence[str]) -> None:
        self._tables, self._by = {name: list(frames) for name, frames in tables.items()}, list(by)

    @property
    def rows(self) -> int:
        """Returns the number of rows of all tables."""
        return sum(frame.height for frames in self._tables.values() for frame in frames)

    @property
    def counts(self) -> Counts:
        """Returns the values of the first column, and the number of rows of each."""
        return _together([_counted(frame[self._by[0]]) for frames in self._tables.values() for frame in frames])

    def firsts(self, table: str) -> pl.DataFrame:
        """Returns a sample of rows of a table."""
        return pl.concat([_sample(frame, self._by) for frame in self._tables[table]])

    def between(self, table: str, low: Key, high: Key | None) -> list[pl.DataFrame]:
        """Returns the rows of a range, those of each frame in order."""
        found: list[pl.DataFrame] = []
        for frame in self._tables[table]:
            begin, end = below(frame, self._by, low), frame.height if high is None else below(frame, self._by, high)
            if end > begin:
                found.append(frame.slice(begin, end - begin))
        return found

    def one_by_one(self, table: str, low: Key, high: Key | None) -> Iterator[pl.DataFrame]:
        """Yields the rows of a range, some thousand at a time."""
        for rows in self.between(table, low, high):
            yield from rows.iter_slices(FRAME_ROWS)


class SortedRun:
    """Sorted rows on disk; `SortedWriting` makes it. The file is removed with the last reference to the run."""

    def __init__(self, room: StateRoom, by: Sequence[str]) -> None:
        self._room, self._by = room, list(by)
        self._name = f"p{room.name()}"
        self.rows = 0
        """Number of rows of all tables."""
        self.counts: Counts = _counted(pl.Series(dtype=pl.Int64))
        """Values of the first column, and the number of rows of each."""
        self._firsts: dict[str, pl.DataFrame] = {}
        self._places: dict[str, list[tuple[int, int]]] = {}
        """Offset and size of each frame in the file."""
        weakref.finalize(self, room.remove, self._name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SortedRun":
        return self

    @property
    def memory_bytes(self) -> int:
        """Returns the bytes that the run takes in memory."""
        frames = sum(map(len, self._places.values()))
        return int(
            sum(one.nbytes for one in self.counts) + sum(one.estimated_size() for one in self._firsts.values()) + _FRAME_BYTES * frames
        )

    def firsts(self, table: str) -> pl.DataFrame:
        """Returns the first row of each frame of a table."""
        return self._firsts[table]

    def between(self, table: str, low: Key, high: Key | None) -> list[pl.DataFrame]:
        """Returns the rows of a range.

        Raises
        ------
        StateError
            The file cannot be read, or is damaged.
        """
        return list(self.one_by_one(table, low, high))

    def one_by_one(self, table: str, low: Key, high: Key | None) -> Iterator[pl.DataFrame]:
        """Yields the rows of a range, a frame at a time.

        Raises
        ------
        StateError
            The file cannot be read, or is damaged.
        """
        firsts = self._firsts[table]
        begin = max(0, below(firsts, self._by, low) - 1)  # rows from `low` on may begin within the frame before
        end = firsts.height if high is None else below(firsts, self._by, high)
        for at, place in enumerate(self._places[table][begin:end], begin):
            frame = self._frame(place)
            if high is not None and at == end - 1:
                frame = frame.slice(0, below(frame, self._by, high))
            if at == begin:
                frame = frame.slice(below(frame, self._by, low))
            if frame.height:
                yield frame

    def _frame(self, place: tuple[int, int]) -> pl.DataFrame:
        offset, size_bytes = place
        try:
            data = self._room.disk.read(self._name, offset, size_bytes)
        except OSError as problem:
            raise StateError(f"states in {self._name} cannot be read: {problem.strerror or problem}") from problem
        try:
            return decode_any(data)
        except RemoteProtocolError as problem:
            raise StateError(f"states in {self._name} are damaged: {problem}; they are lost, submit the query again") from problem


class SortedWriting:
    """A run being written. Each table comes in pieces, in order; the tables may alternate."""

    def __init__(self, room: StateRoom, by: Sequence[str]) -> None:
        self._room, self._by = room, list(by)
        self._run = SortedRun(room, by)
        self._waiting: dict[str, list[pl.DataFrame]] = {}
        self._samples: dict[str, list[pl.DataFrame]] = {}
        self._counts: list[Counts] = []
        self._bytes = 0

    def add(self, table: str, rows: pl.DataFrame) -> None:
        """Adds sorted rows, after the previous ones of the table.

        Raises
        ------
        OSError
            The rows cannot be written. Give up the run.
        """
        waiting = self._waiting.setdefault(table, [])
        waiting.append(rows)
        self._run.rows += rows.height
        self._counts.append(_counted(rows[self._by[0]]))
        if sum(one.height for one in waiting) >= FRAME_ROWS:
            self._write(table, FRAME_ROWS)

    def finished(self) -> SortedRun:
        """Writes the rest; returns the run.

        Raises
        ------
        OSError
            The rest cannot be written.
        """
        for table in self._waiting:
            self._write(table, 1)
            samples = self._samples.get(table, [])
            self._run._firsts[table] = pl.concat(samples, rechunk=True) if samples else _sample(self._waiting[table][0], self._by)
            self._run._places.setdefault(table, [])
        self._run.counts = _together(self._counts)
        return self._run

    def _write(self, table: str, least: int) -> None:
        """Writes frames of a table while at least `least` rows wait."""
        whole, at, pieces = pl.concat(self._waiting[table]), 0, list[bytes]()
        places = self._run._places.setdefault(table, [])
        while whole.height - at >= least:
            pieces.append(encode(whole.slice(at, FRAME_ROWS)))
            places.append((self._bytes, len(pieces[-1])))
            self._bytes += len(pieces[-1])
            at = min(whole.height, at + FRAME_ROWS)
        self._waiting[table] = [whole.slice(at)]
        if pieces:
            self._samples.setdefault(table, []).append(_sample(whole.slice(0, at), self._by))
            self._room.append(self._run._name, pieces)


def below(rows: pl.DataFrame, by: Sequence[str], key: Key) -> int:
    """Returns the number of sorted rows that come before a key."""
    begin, end = 0, rows.height
    for name, value in zip(by, key, strict=False):
        if begin == end:
            break
        first, last = _equal(rows[name].slice(begin, end - begin), value)
        begin, end = begin + first, begin + last
    return begin


def edges(sources: Sequence[Source], tables: Sequence[str], by: Sequence[str], ranges: int, values: Sequence[int] = ()) -> list[Key | None]:
    """Returns the bounds of about `ranges` ranges of all rows together: the empty key, keys in ascending order, and None.

    Parameters
    ----------
    by : columns of the keys, in order
    values : in the first column of the sources' order; only rows with these count. Empty: all rows count.
    """
    samples = [source.firsts(table) for source in sources for table in tables]
    if values:
        samples = [sample.filter(sample.to_series(0).is_in(values)) for sample in samples]
    whole = pl.concat([sample.select_seq(by) for sample in samples]).sort(by)
    if whole.is_empty():
        return [(), None]
    chosen = np.unique(np.linspace(0, whole.height, max(1, ranges), endpoint=False).astype(np.int64)[1:])
    return [(), *whole[chosen].unique(maintain_order=True).rows(), None]


def counted(sources: Sequence[Source]) -> Counts:
    """Returns the values of the first column of all sources, in order, and the number of rows of each."""
    return _together([source.counts for source in sources])


def stretches(values: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], rows: int) -> Iterator[tuple[int, int]]:
    """Yields the first and last values of stretches with at most `rows` rows each, or with one value.

    Parameters
    ----------
    values : in order, at least one
    counts : number of rows of each value
    """
    low, together = 0, 0
    for at, count in enumerate(counts.tolist()):
        if at > low and together + count > rows:
            yield int(values[low]), int(values[at - 1])
            low, together = at, 0
        together += count
    yield int(values[low]), int(values[-1])


def _counted(column: pl.Series) -> Counts:
    values, counts = np.unique(column.to_numpy(), return_counts=True)
    return values.astype(np.int64), counts.astype(np.int64)


def _together(parts: Sequence[Counts]) -> Counts:
    values, place = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    counts = np.zeros(values.size, np.int64)
    np.add.at(counts, place, np.concatenate([part[1] for part in parts]))
    return values, counts


def _sample(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Returns one row in `FRAME_ROWS`, with the columns of the order, in memory of its own."""
    sample = decode_any(encode(pl.DataFrame([rows[name].gather_every(FRAME_ROWS) for name in by])))
    return pl.DataFrame([column.to_physical() for column in sample.get_columns()])


def _equal(values: pl.Series, value: Any) -> tuple[int, int]:
    """Returns the range of values that equal one value: sorted values, NULL first, NaN last. Where there are none, the range is empty, at
    the place where they would be.
    """
    nulls, total = values.null_count(), values.len()
    if value is None:
        return 0, nulls
    values = values.slice(nulls)
    if values.dtype == pl.String:
        return nulls + bisect_left(values, value), nulls + bisect_right(values, value)  # search_sorted takes some 50 µs
    plain = values.dtype.is_temporal() or values.dtype in (pl.Int64, pl.Float64)
    numbers = values.to_numpy() if plain else values.to_physical().to_numpy()  # to_physical takes 100 µs
    if values.dtype.is_temporal():
        numbers = numbers.view(np.int64)
    if values.dtype.is_float():
        numbers = numbers[: numbers.size - int(np.count_nonzero(np.isnan(numbers)))]
        if value != value:
            return nulls + numbers.size, total
    return nulls + int(np.searchsorted(numbers, value, "left")), nulls + int(np.searchsorted(numbers, value, "right"))
