"""The set of keys seen so far, with the last instant of each, for lookups of many keys at a time.

Keys lie in runs, each sorted by a hash. A batch of keys, sorted by hash as well, is looked up in each run by binary search. Neighbouring
runs of similar size are merged, so that there are few runs; a key in both runs keeps only the later instant.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.grouping import Groups, physical
from sbon.operators.hashes import HashArray
from sbon.operators.partials import TIME
from sbon.types import IntArray

RUN_ROWS_MIN = 512
"""Greatest size of a run that is always merged with the next one, whatever the size of that one."""
NEVER = -(2**63)
"""Instant of a key that has not been seen."""

Column = pl.Series | IntArray
"""An array for integers and times without NULLs, a series for all else."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class _Run:
    """Keys sorted by hash; most occur once. Immutable."""

    __slots__ = ("columns", "first_us", "hashes", "last_us", "rows", "times")

    def __init__(self, rows: pl.DataFrame, hashes: HashArray, keys: Sequence[str]) -> None:
        self.rows = rows
        self.hashes = hashes
        self.times = physical(rows[TIME])
        self.columns = [_comparable(rows[key]) for key in keys]
        self.first_us, self.last_us = int(self.times.min()), int(self.times.max())

    @classmethod
    def of(cls, rows: pl.DataFrame, keys: Sequence[str]) -> "_Run":
        """Creates a run of keys in any order."""
        hashed = key_hashes(rows, keys)
        order = np.argsort(hashed)
        return cls(rows[order], hashed[order], keys)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Run":
        return self

    def instants(self, columns: Sequence[Column], hashed: HashArray, found: IntArray) -> None:
        """Writes the instants of the keys found here into `found` if they are later; `hashed` is sorted."""
        place = np.searchsorted(self.hashes, hashed)
        asking = self._with_hash(np.arange(hashed.size), place, hashed)
        while asking.size:
            at = place[asking]
            equal = _equal_keys(self.columns, at, columns, asking)
            found[asking] = np.maximum(found[asking], np.where(equal, self.times[at], NEVER))
            # The next entry may have the same hash: another key, or the same key again.
            place[asking] += 1
            asking = self._with_hash(asking, place, hashed)

    def _with_hash(self, asking: IntArray, place: IntArray, hashed: HashArray) -> IntArray:
        asking = asking[place[asking] < self.hashes.size]
        found: IntArray = asking[self.hashes[place[asking]] == hashed[asking]]
        return found

    def merged(self, other: "_Run", keys: Sequence[str]) -> "_Run":
        """Merges two runs; adjacent equal keys keep the later instant. A stable sort of two sorted parts is a merge."""
        hashed = np.concatenate([self.hashes, other.hashes])
        order = np.argsort(hashed, kind="stable")
        rows, hashed = pl.concat([self.rows, other.rows], rechunk=True)[order], hashed[order]
        again = np.flatnonzero(hashed[1:] == hashed[:-1])
        if again.size:
            columns, times = [_comparable(rows[key]) for key in keys], physical(rows[TIME])
            again = again[_equal_keys(columns, again, columns, again + 1)]
            kept = np.ones(rows.height, np.bool_)
            kept[again + (times[again] > times[again + 1])] = False
            rows, hashed = rows.filter(pl.Series(kept)), hashed[kept]
        return _Run(rows, hashed, keys)

    def since(self, below_us: int, keys: Sequence[str]) -> "_Run":
        """Returns the keys seen at or after `below_us`; returns the run itself if most of its keys are."""
        live = self.times >= below_us
        if 2 * np.count_nonzero(live) > self.times.size:
            return self
        return _Run(self.rows.filter(pl.Series(live)), self.hashes[live], keys)


class Seen:
    """Keys with the instant at which each was seen last.

    Parameters
    ----------
    keys : columns of the key, at least one; rows also have the instant in µs, in column `TIME`
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = list(keys)
        self._runs: list[_Run] = []

    @property
    def rows(self) -> int:
        """Returns the number of keys kept, or more: a key that was added several times may count several times, and a forgotten key counts
        until it leaves memory."""
        return sum(run.rows.height for run in self._runs)

    def instants(self, rows: pl.DataFrame) -> IntArray:
        """Returns when each key was last seen, (n,); NEVER if it was not."""
        found = np.full(rows.height, NEVER)
        if not self._runs or rows.is_empty():
            return found
        hashed = key_hashes(rows, self._keys)
        order = np.argsort(hashed)
        hashed, ordered = hashed[order], found.copy()
        columns = [_comparable(rows[key])[order] for key in self._keys]
        for run in self._runs:
            run.instants(columns, hashed, ordered)
        found[order] = ordered
        return found

    def add(self, rows: pl.DataFrame) -> None:
        """Adds keys; the fewer duplicates in `rows`, the less memory they take."""
        if rows.is_empty():
            return
        self._runs.append(_Run.of(rows.select_seq(TIME, *self._keys), self._keys))
        while len(self._runs) > 1:
            before, last = self._runs[-2:]
            if before.rows.height > max(2 * last.rows.height, RUN_ROWS_MIN):
                break
            self._runs[-2:] = [before.merged(last, self._keys)]

    def take(self, rows: pl.DataFrame) -> None:
        """Adds keys of a snapshot."""
        self.add(rows)

    def make_room(self) -> None:
        """Does nothing: all keys are in memory."""

    def forget(self, below_us: int) -> None:
        """Drops keys last seen before `below_us`; a run is rewritten only when at least half of its keys are dropped."""
        runs = [run for run in self._runs if run.last_us >= below_us]
        self._runs = [run.since(below_us, self._keys) if run.first_us < below_us else run for run in runs]

    def frame(self, below_us: int) -> pl.DataFrame | None:
        """Returns the keys last seen at or after `below_us`, each once, sorted; None if there are none."""
        if not self._runs:
            return None
        rows = latest(pl.concat([run.rows for run in self._runs], rechunk=True), self._keys).filter(pl.col(TIME) >= below_us)
        return None if rows.is_empty() else rows.sort(self._keys)


def latest(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Returns each key once, with its last instant."""
    groups = Groups.of(rows, list(keys))
    instants = np.full(groups.size, NEVER)
    np.maximum.at(instants, groups.ids, physical(rows[TIME]))
    groups.keys.insert_column(0, pl.Series(TIME, groups.taken(instants)))
    return groups.keys


def key_hashes(rows: pl.DataFrame, keys: Sequence[str]) -> HashArray:
    """Returns a hash of each row's key, valid in this process only."""
    mixed = np.zeros(rows.height, np.uint64)
    for name in keys:
        column = rows[name]
        if _is_whole(column.dtype):  # hashes NULL like 0, so that columns with and without NULL give the same hashes
            whole = column.to_physical().fill_null(0) if column.null_count() else column
            values = physical(whole).view(np.uint64)
        else:
            values = column.hash().to_numpy()
        mixed = (mixed ^ values) * _FACTOR
        mixed ^= mixed >> _HALF
    return mixed * _FACTOR


def _comparable(column: pl.Series) -> Column:
    """Returns integers and times as an array: comparing small arrays takes a tenth of the time of a polars expression."""
    return physical(column) if _is_whole(column.dtype) and not column.null_count() else column


def _is_whole(kind: pl.DataType) -> bool:
    return kind == pl.Int64 or kind.is_temporal()


def _equal_keys(mine: Sequence[Column], at: IntArray, theirs: Sequence[Column], asking: IntArray) -> npt.NDArray[np.bool_]:
    """Tells whether the keys of `mine` at the places `at` equal the keys of `theirs` at the places `asking`."""
    equal = np.ones(at.size, np.bool_)
    for one, other in zip(mine, theirs, strict=True):
        equal &= _equal(one, at, other, asking)
    return equal


def _equal(mine: Column, at: IntArray, theirs: Column, asking: IntArray) -> npt.NDArray[np.bool_]:
    """Tells whether values are equal; NULL equals NULL."""
    one, other = mine[at], theirs[asking]
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.asarray(one == other)
    if isinstance(one, np.ndarray):
        one, other = other, one
    assert isinstance(one, pl.Series)
    return one.to_physical().eq_missing(pl.Series(other).to_physical()).to_numpy()
