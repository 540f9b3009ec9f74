"""Keeps the keys seen so far, like `sbon.operators.seen.Seen`, with the least used keys on disk (`sbon.state`)."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from sbon.operators.grouping import Groups, physical
from sbon.operators.partials import TIME
from sbon.operators.seen import NEVER
from sbon.state.ids import Places, Words, identities
from sbon.state.room import StateRoom
from sbon.state.store import States
from sbon.types import IntArray

STEP_KEYS = 65_536
"""Most keys that are looked up at once."""
STEP_SHARE = 4
"""The keys that are looked up at once take at most one part in this many of the memory."""


class SeenStates:
    """Keys with the instant at which each was seen last.

    Keys are looked up when the watermark passes rows, which cannot be put off. If the disk is full then, the keys in memory exceed their
    limit, by at most one for each row that waited. `make_room` then raises an error before the operator takes further rows.

    Parameters
    ----------
    keys : columns of the key and their types, none before they are known; rows also have the instant in µs, in column `TIME`

    Raises
    ------
    StateError
        The memory is too small for the keys of one batch.
    """

    def __init__(self, keys: Mapping[str, pl.DataType], room: StateRoom) -> None:
        self._keys, self._room = list(keys), room
        self._states = States(keys, {TIME: pl.Int64()}, room, TIME)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SeenStates":
        forked = SeenStates.__new__(SeenStates)
        forked._keys, forked._room, forked._states = self._keys, self._room, self._states.fork()
        return forked

    @property
    def rows(self) -> int:
        """Returns the number of keys kept, or more."""
        return len(self._states)

    def batch(self, rows: pl.DataFrame) -> "SeenBatch":
        """Looks up the keys of rows, at least one.

        Raises
        ------
        StateError
            Keys on disk cannot be read.
        """
        return SeenBatch(self, self._states, self._keys, rows)

    def take(self, rows: pl.DataFrame) -> None:
        """Adds keys of a snapshot.

        Raises
        ------
        StateFullError
            The disk takes no more keys; some have been added.
        """
        groups = Groups.of(rows, self._keys)
        instants = np.full(groups.size, NEVER)
        np.maximum.at(instants, groups.ids, physical(rows[TIME]))
        self.put(groups.keys, identities([groups.keys[name] for name in self._keys]), groups.taken(instants), may_exceed=False)

    def make_room(self) -> None:
        """Moves keys to disk if those in memory exceed their limit.

        Raises
        ------
        StateFullError
            The disk takes no more keys.
        """
        self._states.make_room()

    def forget(self, below_us: int) -> None:
        """Drops keys last seen before `below_us`; some keys on disk stay for a while."""
        self._states.forget(below_us - 1)

    def pieces(self, below_us: int) -> Iterator[pl.DataFrame]:
        """Yields the keys last seen at or after `below_us`, each once, in pieces, with their instants in the first column.

        Raises
        ------
        StateError
            Keys on disk cannot be read.
        """
        for piece in self._states.pieces():
            rows = piece.filter(piece[TIME] >= below_us)
            if rows.height:
                yield rows.select_seq(TIME, *self._keys)

    def frame(self, below_us: int) -> pl.DataFrame | None:
        """Returns the keys that `pieces` yields as one frame, sorted by key; None if there are none."""
        pieces = list(self.pieces(below_us))
        return pl.concat(pieces, rechunk=True).sort(self._keys) if pieces else None

    def put(self, keys: pl.DataFrame, ids: Words, instants: IntArray, *, may_exceed: bool) -> None:
        """Adds distinct keys, in steps; each keeps its latest instant."""
        for start, end in self.steps(len(ids)):
            uses: Places = np.zeros(end - start, np.int64)
            places = self._states.places(keys[start:end], ids[start:end], uses, may_exceed=may_exceed)
            noted(self._states, keys[start:end], ids[start:end], places, instants[start:end])

    def steps(self, keys: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of keys to look up at once: first key and end."""
        start = 0
        while start < keys:
            most = int(self._room.memory_bytes / STEP_SHARE / self._states.entry_bytes)
            end = min(keys, start + max(1, min(STEP_KEYS, most)))
            yield start, end
            start = end


class SeenBatch:
    """The keys of some rows, which are hashed and looked up once, and whose instants are noted after the rows have been examined.

    Attributes
    ----------
    numbers : (rows,)
        Number of each row's key.
    """

    def __init__(self, seen: SeenStates, states: States, keys: list[str], rows: pl.DataFrame) -> None:
        self._seen, self._states = seen, states
        groups = Groups.of(rows, keys)
        self.numbers = groups.numbers
        self._keys = groups.keys
        self._ids = identities([groups.keys[name] for name in keys])
        counts = groups.taken(groups.counts)
        self._before = np.full(counts.size, NEVER)
        self._places: Places | None = None
        """Place of each key; None if they were looked up in several steps, after which places are no longer valid."""
        for start, end in seen.steps(counts.size):
            places = states.places(self._keys[start:end], self._ids[start:end], counts[start:end], may_exceed=True)
            there = np.flatnonzero(places >= 0)
            self._before[start + there] = physical(states.at(places[there])[TIME])
            self._places = places if end - start == counts.size else None

    def instants(self, rows: IntArray) -> IntArray:
        """Returns when the keys of these rows were last seen, in the shape of `rows`; NEVER if they were not."""
        return self._before[self.numbers[rows]]

    def note(self, rows: IntArray | slice, instants: IntArray) -> None:
        """Notes that the keys of these rows were seen at these instants; each keeps its latest one. Called once.

        Raises
        ------
        StateError
            Keys on disk cannot be read.
        """
        seen = np.full(self._before.size, NEVER)
        np.maximum.at(seen, self.numbers[rows], instants)
        changed = np.flatnonzero(seen > self._before)
        keys, ids = (self._keys, self._ids) if changed.size == seen.size else (self._keys[changed], self._ids[changed])
        if self._places is None:
            self._seen.put(keys, ids, seen[changed], may_exceed=True)
        else:
            noted(self._states, keys, ids, self._places[changed], seen[changed])


def noted(states: States, keys: pl.DataFrame, ids: Words, places: Places, instants: IntArray) -> None:
    """Stores the instants of distinct keys unless they have a later one; `places` are those of `States.places`."""
    there, new = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
    if there.size:
        before = physical(states.at(places[there])[TIME])
        states.put(places[there], pl.DataFrame({TIME: np.maximum(before, instants[there])}))
    if new.size:
        states.add(keys[new], ids[new], pl.DataFrame({TIME: instants[new]}))
