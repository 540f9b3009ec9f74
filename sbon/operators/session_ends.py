"""Finds the fragments of sessions that a later fragment continues, where most fragments are on disk.

Fragments are ordered by the pane in which they end. When the watermark passes a pane, each of its fragments ends a session unless a
fragment of a later pane begins less than a gap after it. Later panes are not sorted by key, so their rows are read one frame at a time, and
a table of hashes rules out most rows of other keys. A fragment that is continued moves into the last pane of its session. So each fragment
is aggregated once, and panes that the watermark has passed leave the disk as those of other windows do.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.cold_partials import Part, Tables
from sbon.operators.frames import rows_where
from sbon.operators.grouping import in_order, physical, positions
from sbon.operators.measures import rows_apart
from sbon.operators.windowed import PANE
from sbon.state.sorted_runs import Source
from sbon.types import IntArray

STEP_FRAMES = 16
"""Frames that are searched for keys in one step."""
CELLS_A_KEY = 8
"""Least number of cells of the hash table for each key; of the rows with other keys, at most 1/8 pass it."""
HASHES_FACTOR = 8
"""Most fragments that are examined at once, as a multiple of those that are in memory with more than a hash."""
LastPanes = Callable[[pl.DataFrame], IntArray]
LINKED_SHARE = 4
"""Fragments in memory are put into the panes of later ones if these are at least 1/4 of all, as far as a first part of the keys tells."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Moves(NamedTuple):
    """Fragments that move into later panes."""

    groups: pl.DataFrame
    """Their panes and keys."""
    panes: IntArray
    """Their new panes."""

    @classmethod
    def of(cls, fragments: pl.DataFrame, panes: IntArray, by: Sequence[str]) -> Self:
        """Returns the moves of fragments that get these panes."""
        changed = panes != physical(fragments[PANE])
        return cls(rows_where(fragments.select_seq(by), changed), panes[changed])

    @property
    def rows(self) -> int:
        """Returns the number of fragments that move."""
        return self.groups.height

    def moved(self, rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns rows of a table with their new panes."""
        if not self.rows or not rows.height:
            return rows
        at = positions(self.groups, rows, by)
        return rows.with_columns_seq(pl.Series(PANE, np.where(at >= 0, self.panes[at], physical(rows[PANE]))))


def parted(part: Part, moves: Moves, by: list[str], high: int) -> tuple[Part, Part]:
    """Returns the rows of tables with their new panes: those of panes up to `high`, and those that move into later ones."""
    ended: Part = {}
    later: Part = {}
    for name, frame in part.items():
        rows = moves.moved(frame, by)
        goes_on = physical(rows[PANE]) > high
        ended[name], later[name] = rows_where(rows, ~goes_on), rows_where(rows, goes_on)
    return ended, later


def gathered(tables: Tables, keys: list[str], columns: Sequence[str], last_panes: LastPanes, rows_max: int) -> Iterator[None]:
    """Puts the fragments of each session that are in memory into one pane, in steps, a part of the keys at a time; does nothing if few
    fragments move.

    Parameters
    ----------
    columns : of the main table, which `last_panes` needs; the first ones are the pane and the keys
    rows_max : most rows of a part, about
    """
    by, parts = list(columns[: 1 + len(keys)]), min(256, 1 + sum(table.rows for table in tables.values()) // rows_max)
    part_of = {
        name: [(_hashes(frame, keys) % np.uint64(parts)).astype(np.uint8) for frame in table.frames] for name, table in tables.items()
    }
    panes = {name: [physical(frame[PANE]).copy() for frame in table.frames] for name, table in tables.items()}
    for part in range(parts):
        held = {name: [np.flatnonzero(of == part) for of in part_of[name]] for name in tables}
        main = zip(tables["main"].frames, held["main"], strict=True)
        fragments = pl.concat([frame.select_seq(columns)[rows] for frame, rows in main], rechunk=True)
        moves = Moves.of(fragments, last_panes(fragments), by)
        if not part and LINKED_SHARE * moves.rows < fragments.height:
            return
        for name, table in tables.items():
            for frame, rows, new in zip(table.frames, held[name], panes[name], strict=True):
                new[rows] = physical(moves.moved(frame.select_seq(by)[rows], by)[PANE])
        yield
    for name, table in tables.items():
        frames = list(table.frames)
        for at, new in enumerate(panes[name]):
            frames[at] = rows_apart(in_order(frames[at].with_columns_seq(pl.Series(PANE, new)), by))
            table.replace_all(frames)
            yield


class Ends:
    """Finds the fragments of the next panes that fragments of later panes continue. Few fragments are in memory at once: only hashes of
    most keys.

    Parameters
    ----------
    keys : columns of the key
    columns : of the main table, which `last_panes` needs; the first ones are the pane and the keys
    last_panes : returns the last pane of the session to which each fragment belongs, as far as these fragments tell
    rows_max : most fragments in memory at once, about
    """

    def __init__(self, keys: Sequence[str], columns: Sequence[str], last_panes: LastPanes, rows_max: int) -> None:
        self._keys, self._columns, self._last_panes = list(keys), list(columns), last_panes
        self._rows_max = rows_max
        self.moves = Moves(pl.DataFrame(), np.empty(0, np.int64))
        """Those found last."""
        self.next_rows = rows_max
        """Number of fragments to examine next."""

    def find(self, sources: Sequence[Source], first: int, last: int) -> Iterator[None]:
        """Finds the fragments of the panes from `first` to `last` that move, in steps.

        Raises
        ------
        StateError
            Fragments on disk cannot be read.
        """
        hashes: list[npt.NDArray[np.uint64]] = []
        for frame in _frames(sources, first, last + 1):
            hashes.append(_hashes(frame, self._keys))
            yield
        ending = np.sort(np.concatenate([np.empty(0, np.uint64), *hashes]))
        hashes.clear()
        later: list[pl.DataFrame] = []
        yield from self._find(_Hashes(ending), _frames(sources, last + 1, None), later)
        again = [ending[1:][ending[1:] == ending[:-1]], *(_hashes(rows, self._keys) for rows in later)]
        own: list[pl.DataFrame] = []
        yield from self._find(_Hashes(np.unique(np.concatenate(again))), _frames(sources, first, last + 1), own)
        count = sum(rows.height for rows in own)
        self.next_rows = min(HASHES_FACTOR * self._rows_max, 2 * self.next_rows, self._rows_max * ending.size // max(1, count))
        self.moves = Moves(pl.DataFrame(), np.empty(0, np.int64))
        if count:
            whole = pl.concat([*own, *later], rechunk=True)
            panes = self._last_panes(whole)[:count]
            self.moves = Moves.of(whole[:count], panes, self._columns[: 1 + len(self._keys)])

    def _find(self, wanted: "_Hashes", frames: Iterator[pl.DataFrame], found: list[pl.DataFrame]) -> Iterator[None]:
        """Appends to `found` the rows whose keys have one of these hashes, in steps."""
        if wanted.any:
            for number, frame in enumerate(frames):
                at = wanted.rows(_hashes(frame, self._keys))
                if at.size:
                    found.append(rows_apart(pl.DataFrame([frame[name].gather(at) for name in self._columns])))
                if number % STEP_FRAMES == 0:
                    yield


class _Hashes:
    """A set of hashes, sorted."""

    def __init__(self, hashes: npt.NDArray[np.uint64]) -> None:
        self._hashes, self._mask = hashes, np.uint64((1 << (CELLS_A_KEY * hashes.size).bit_length()) - 1)
        self._taken = np.zeros(int(self._mask) + 1, np.bool_)
        self._taken[self._cells(hashes)] = True
        self.any = hashes.size > 0

    def rows(self, hashes: npt.NDArray[np.uint64]) -> IntArray:
        """Returns the places of hashes that are in the set, which must not be empty."""
        at = np.flatnonzero(self._taken[self._cells(hashes)])  # rules out most, faster than a search
        nearest = np.searchsorted(self._hashes, hashes[at]).clip(max=self._hashes.size - 1)
        found: IntArray = at[self._hashes[nearest] == hashes[at]]
        return found

    def _cells(self, hashes: npt.NDArray[np.uint64]) -> IntArray:
        return (hashes & self._mask).view(np.int64)


def _frames(sources: Sequence[Source], first: int, end: int | None) -> Iterator[pl.DataFrame]:
    for source in sources:
        yield from source.one_by_one("main", (first,), None if end is None else (end,))


def _hashes(rows: pl.DataFrame, keys: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Returns a hash of each row's key. Rows with equal hashes may have different keys."""
    found = rows[keys[0]].hash().to_numpy()
    for name in keys[1:]:
        found = found * _FACTOR ^ rows[name].hash().to_numpy()
    return found
