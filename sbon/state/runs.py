"""Sorted runs: states on disk, sorted by the identities of their keys, written once and looked up in sorted batches.

A run consists of two files. The first has blocks of about four kilobytes: a checksum, then rows of 64-bit words with identity, uses and
numbers of a state. A filter of twelve bits a key tells whether a key may be in the run; a list of the blocks' first identities, in memory,
tells in which block. The second file has the keys and texts, as Arrow frames of some rows with checksums. It is read only for whole states:
in merges and copies, and if states have texts.

If two runs have the same key, the newer run counts. Runs of similar size are merged, piece by piece, so that there are few.
"""

import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.errors import RemoteProtocolError, StateError
from sbon.frame_bytes import decode_any, encode
from sbon.state.ids import Places, Words, sorted_by_id
from sbon.state.room import StateRoom

BLOCK_WORDS = 512
"""Words of a block: as many as a disk reads at once."""
TEXT_ROWS = 4096
"""Rows of a frame of keys. If lookups need texts, a frame has as many rows as a block instead."""
FILTER_BITS = 12
"""Bits of the filter for each key. About 2 % of absent keys pass the filter and are looked up."""
MERGE_ROWS = 16_384
"""Rows in one step of a merge, which takes a few milliseconds."""
FOUND_KEYS = 512
"""Keys looked up in one step. More: fewer steps, more memory for blocks."""
ID_WORDS, USES = 2, 2
"""Number of words of an identity; index of the word with the uses, which the numbers follow."""
_HEAD_WORDS = 1


class Entries(NamedTuple):
    """States with their keys."""

    words: Words
    """Identity, uses and numbers, (n, 3 + numbers)."""
    texts: pl.DataFrame
    """Keys and texts, (n,)."""

    def taken(self, rows: Places) -> "Entries":
        """Returns the given rows."""
        return Entries(self.words[rows], self.texts[rows])

    def in_order(self) -> "Entries":
        """Returns the rows sorted by identity, and only the first of several with the same identity."""
        order = sorted_by_id(self.words[:, :ID_WORDS])
        ids = self.words[order, :ID_WORDS]
        new = np.ones(len(order), np.bool_)
        new[1:] = (ids[1:] != ids[:-1]).any(axis=1)
        return self.taken(order[new])


class Run:
    """A run that has been written."""

    def __init__(self, room: StateRoom, name: str, width: int, text_rows: int) -> None:
        self._room, self._name, self._width, self._text_rows = room, name, width, text_rows
        self._block_rows = (BLOCK_WORDS - _HEAD_WORDS) // width
        self.rows = 0
        self.last_us = 0
        """Time at which the run's last state ends, or a later one."""
        self._firsts: Words = np.empty(0, np.uint64)
        self._filter: Words = np.zeros(1, np.uint64)
        self._text_ends: list[int] = [0]
        weakref.finalize(self, _removed, room, (self.words_name, self.texts_name))

    @property
    def words_name(self) -> str:
        """Returns the name of the file of words."""
        return f"w{self._name}"

    @property
    def texts_name(self) -> str:
        """Returns the name of the file of keys and texts."""
        return f"t{self._name}"

    @property
    def memory_bytes(self) -> int:
        """Returns the bytes that the run takes in memory."""
        return int(self._firsts.nbytes + self._filter.nbytes + 36 * len(self._text_ends))

    @property
    def firsts(self) -> Words:
        """Returns the first half of each block's first identity, in order."""
        return self._firsts

    def find(self, asked: Words) -> tuple[Places, Words, pl.DataFrame | None]:
        """Looks identities up, sorted by their first half, (n, 2).

        Returns
        -------
        tuple
            Indices of the identities found, (found,), their words, (found, width), and their keys and texts if lookups need texts.

        Raises
        ------
        StateError
            The files cannot be read, or are damaged.
        """
        maybe = np.flatnonzero(self.may_have(asked))
        parts = [self._find(asked, maybe[at : at + FOUND_KEYS]) for at in range(0, maybe.size, FOUND_KEYS)]
        if not parts:
            return maybe, np.empty((0, self._width), np.uint64), None
        texts = [part[2] for part in parts if part[2] is not None]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]), pl.concat(texts) if texts else None

    def _find(self, asked: Words, maybe: Places) -> tuple[Places, Words, pl.DataFrame | None]:
        """Looks up the identities at the indices `maybe`."""
        firsts = asked[maybe, 0]
        block = np.searchsorted(self._firsts, firsts, "right") - 1
        before = np.searchsorted(self._firsts, firsts, "left") - 1  # the same first half may begin in the previous block
        wanted = np.unique(np.concatenate([block, before]))
        wanted = wanted[wanted >= 0]
        if not wanted.size:
            return maybe[:0], np.empty((0, self._width), np.uint64), None
        words = self._blocks(wanted)
        place = np.searchsorted(np.ascontiguousarray(words[:, 0]), firsts, "left")
        found = np.full(maybe.size, -1, np.int64)
        asking = np.arange(maybe.size)
        while asking.size:
            asking = asking[place[asking] < len(words)]
            asking = asking[words[place[asking], 0] == firsts[asking]]
            same = words[place[asking], 1] == asked[maybe[asking], 1]
            found[asking[same]] = place[asking[same]]
            asking = asking[~same]
            place[asking] += 1
        there = np.flatnonzero(found >= 0)
        texts = None
        if self._text_rows == self._block_rows and there.size:
            block_of = found[there] // self._block_rows
            texts = pl.concat([self._texts(int(wanted[one])) for one in np.unique(block_of)])
            offset = np.unique(block_of, return_inverse=True)[1] * self._block_rows + found[there] % self._block_rows
            texts = texts[offset]
        return maybe[there], words[found[there]], texts

    def between(self, low: int, high: int | None) -> Entries:
        """Returns the entries whose identity has a first half from `low` to below `high`; None: no upper limit.

        Raises
        ------
        StateError
            The files cannot be read, or are damaged.
        """
        begin = max(0, int(np.searchsorted(self._firsts, np.uint64(low), "left")) - 1)
        end = self._firsts.size if high is None else int(np.searchsorted(self._firsts, np.uint64(high), "left"))
        if begin >= end:
            return Entries(np.empty((0, self._width), np.uint64), self._texts(0)[:0])
        words = self._blocks(np.arange(begin, end))
        firsts = np.ascontiguousarray(words[:, 0])
        start = int(np.searchsorted(firsts, np.uint64(low), "left"))
        stop = len(firsts) if high is None else int(np.searchsorted(firsts, np.uint64(high), "left"))
        row, last = begin * self._block_rows + start, begin * self._block_rows + stop
        if start == stop:
            return Entries(words[:0], self._texts(0)[:0])
        chunks = range(row // self._text_rows, (last - 1) // self._text_rows + 1)
        texts = pl.concat([self._texts(chunk) for chunk in chunks])
        return Entries(words[start:stop], texts[row - chunks.start * self._text_rows : last - chunks.start * self._text_rows])

    def may_have(self, ids: Words) -> npt.NDArray[np.bool_]:
        """Tells which identities may be in the run, (n,). About 2 % of absent ones are said to be, too."""
        bits = _filter_bits(ids)
        found: npt.NDArray[np.bool_] = (self._filter[_filter_words(ids, self._filter.size)] & bits) == bits
        return found

    def _blocks(self, wanted: Places) -> Words:
        """Reads blocks, in order; returns their rows without the padding of the last block."""
        block_bytes = 8 * BLOCK_WORDS
        data = self._read(self.words_name, [int(block) * block_bytes for block in wanted], block_bytes)
        blocks = np.frombuffer(data, np.uint64).reshape(len(wanted), BLOCK_WORDS)
        view = memoryview(data)
        sums = [zlib.crc32(view[at + 8 : at + block_bytes]) for at in range(0, len(data), block_bytes)]
        wrong = np.flatnonzero(blocks[:, 0] != np.array(sums, np.uint64))
        if wrong.size:
            raise self._damaged(self.words_name, f"the checksum of block {wanted[wrong[0]]} is wrong")
        used = self._block_rows * self._width
        rows = blocks[:, _HEAD_WORDS : _HEAD_WORDS + used].reshape(-1, self._width)
        missing = (int(wanted[-1]) + 1) * self._block_rows - self.rows
        return rows[: len(rows) - missing] if missing > 0 else rows

    def _texts(self, chunk: int) -> pl.DataFrame:
        start, end = self._text_ends[chunk], self._text_ends[chunk + 1]
        try:
            return decode_any(self._read(self.texts_name, [start], end - start))
        except RemoteProtocolError as problem:
            raise self._damaged(self.texts_name, str(problem)) from problem

    def _read(self, name: str, offsets: Sequence[int], size_bytes: int) -> bytes:
        try:
            data = self._room.disk.read_each(name, offsets, size_bytes)
        except OSError as problem:
            raise StateError(f"states in {name} cannot be read: {problem.strerror or problem}") from problem
        if len(data) != len(offsets) * size_bytes:
            raise self._damaged(name, f"expected {len(offsets) * size_bytes} bytes, read {len(data)}")
        return data

    def _damaged(self, name: str, what: str) -> StateError:
        return StateError(f"states in {name} are damaged: {what}; they are lost, submit the query again")


class Writing:
    """A run being written, in pieces in the order of their identities.

    Parameters
    ----------
    width : words of a row
    has_texts : whether lookups need the texts
    rows : most rows that the run will have
    """

    def __init__(self, room: StateRoom, width: int, *, has_texts: bool, rows: int) -> None:
        block_rows = (BLOCK_WORDS - _HEAD_WORDS) // width
        self._text_rows = block_rows if has_texts else TEXT_ROWS
        self._run = Run(room, room.name(), width, self._text_rows)
        self._room, self._width, self._block_rows = room, width, block_rows
        self._words: Words = np.empty((0, width), np.uint64)
        self._texts: list[pl.DataFrame] = []
        self._firsts: list[Words] = []
        self._run._filter = np.zeros(max(1, rows * FILTER_BITS // 64), np.uint64)

    @property
    def memory_bytes(self) -> int:
        """Returns the bytes that the run takes in memory until it is finished, without rows that have not been written yet."""
        return int(self._run._filter.nbytes)

    def add(self, entries: Entries) -> None:
        """Adds entries after the previous ones.

        Raises
        ------
        OSError
            The entries cannot be written. Give up the run.
        """
        ids = entries.words[:, :ID_WORDS]
        filters = self._run._filter
        np.bitwise_or.at(filters, _filter_words(ids, filters.size), _filter_bits(ids))
        self._run.rows += len(entries.words)
        self._words = np.concatenate([self._words, entries.words])
        self._texts.append(entries.texts)
        self._write(len(self._words) // self._block_rows)
        self._write_texts(self._text_rows)

    def finished(self) -> Run:
        """Writes the rest; returns the run.

        Raises
        ------
        OSError
            The rest cannot be written.
        """
        self._write(-(-len(self._words) // self._block_rows))
        self._write_texts(1)
        self._run._firsts = np.concatenate(self._firsts) if self._firsts else np.empty(0, np.uint64)
        return self._run

    def _write(self, count: int) -> None:
        """Writes blocks."""
        if not count:
            return
        rows, self._words = self._words[: count * self._block_rows], self._words[count * self._block_rows :].copy()
        blocks = np.zeros((count, BLOCK_WORDS), np.uint64)
        room = np.zeros((count * self._block_rows, self._width), np.uint64)
        room[: len(rows)] = rows
        blocks[:, _HEAD_WORDS : _HEAD_WORDS + self._block_rows * self._width] = room.reshape(count, -1)
        self._firsts.append(room[:: self._block_rows, 0].copy())
        blocks[:, 0] = [zlib.crc32(block[_HEAD_WORDS:].data) for block in blocks]
        self._room.append(self._run.words_name, [blocks.reshape(-1).view(np.uint8).data])

    def _write_texts(self, least: int) -> None:
        """Writes frames of keys while at least `least` rows wait."""
        waiting = sum(texts.height for texts in self._texts)
        if waiting < least:
            return
        whole, at, pieces = pl.concat(self._texts), 0, list[bytes]()
        while waiting - at >= least:
            pieces.append(encode(whole[at : at + self._text_rows]))
            self._run._text_ends.append(self._run._text_ends[-1] + len(pieces[-1]))
            at = min(waiting, at + self._text_rows)
        self._texts = [whole[at:]] if at < waiting else []
        self._room.append(self._run.texts_name, pieces)


class Merge:
    """A merge of runs, newest first, into one run, in steps of some rows.

    Parameters
    ----------
    has_texts : whether lookups need the texts
    """

    def __init__(self, runs: Sequence[Run], room: StateRoom, width: int, *, has_texts: bool) -> None:
        self.runs = runs
        self._ranges = ranges(runs, MERGE_ROWS)
        self._writing = Writing(room, width, has_texts=has_texts, rows=sum(run.rows for run in runs))

    @property
    def memory_bytes(self) -> int:
        """Returns the bytes that the new run takes in memory."""
        return self._writing.memory_bytes

    def step(self, alive: Callable[[Entries], Places]) -> int | Run:
        """Merges some rows, and keeps those that `alive` selects. Returns the number of rows read, or the new run once it is complete.

        Raises
        ------
        OSError
            The run cannot be written.
        StateError
            A run cannot be read.
        """
        span = next(self._ranges, None)
        if span is None:
            made = self._writing.finished()
            made.last_us = max(run.last_us for run in self.runs)
            return made
        parts = [run.between(*span) for run in self.runs]
        whole = joined(parts).in_order()
        self._writing.add(whole.taken(alive(whole)))
        return sum(len(part.words) for part in parts)


def joined(parts: Sequence[Entries]) -> Entries:
    """Returns the concatenation of entries."""
    return Entries(np.concatenate([part.words for part in parts]), pl.concat([part.texts for part in parts]))


def ranges(runs: Sequence[Run], rows: int) -> Iterator[tuple[int, int | None]]:
    """Yields ranges of the first half of identities, in order, each with about `rows` rows of all runs together."""
    firsts = np.sort(np.concatenate([run.firsts for run in runs]) if runs else np.empty(0, np.uint64))
    total = sum(run.rows for run in runs)
    count = max(1, -(-total // rows))
    edges = np.unique(firsts[np.linspace(0, firsts.size, count, endpoint=False).astype(np.int64)[1:]]) if firsts.size else firsts
    low = 0
    for edge in edges.tolist():
        if edge > low:
            yield low, edge
            low = edge
    yield low, None


def _filter_words(ids: Words, size: int) -> Places:
    return (((ids[:, 1] >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32)).astype(np.int64)


def _filter_bits(ids: Words) -> Words:
    one, mask, first = np.uint64(1), np.uint64(63), ids[:, 0]
    found = one << (first & mask)
    for shift in (6, 12, 18):
        found |= one << ((first >> np.uint64(shift)) & mask)
    return found


def _removed(room: StateRoom, names: Sequence[str]) -> None:
    for name in names:
        room.remove(name)
