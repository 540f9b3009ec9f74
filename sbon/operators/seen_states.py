"""Keeps the keys seen so far, like `sbon.operators.seen.Seen`, with the least used keys on disk (`sbon.state`)."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from sbon.operators.grouping import physical
from sbon.operators.partials import TIME
from sbon.operators.seen import NEVER
from sbon.state.ids import Places, Words, grouped, identities
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

    def instants(self, rows: pl.DataFrame) -> IntArray:
        """Returns when each key was last seen, (n,); NEVER if it was not.

        Raises
        ------
        StateError
            Keys on disk cannot be read.
        """
        found = grouped(identities([rows[name] for name in self._keys]))
        instants = np.full(len(found.ids), NEVER)
        keys = rows.select_seq(self._keys)[found.first]
        for start, end in self._steps(len(found.ids)):
            places = self._states.places(keys[start:end], found.ids[start:end], found.rows[start:end], may_exceed=True)
            there = np.flatnonzero(places >= 0)
            instants[start + there] = physical(self._states.at(places[there])[TIME])
        return instants[found.key_of]

    def add(self, rows: pl.DataFrame) -> None:
        """Adds keys; each keeps its latest instant.

        Raises
        ------
        StateError
            Keys on disk cannot be read.
        """
        self._add(rows, may_exceed=True)

    def take(self, rows: pl.DataFrame) -> None:
        """Adds keys of a snapshot.

        Raises
        ------
        StateFullError
            The disk takes no more keys; some have been added.
        """
        self._add(rows, may_exceed=False)

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

    def _add(self, rows: pl.DataFrame, *, may_exceed: bool) -> None:
        found = grouped(identities([rows[name] for name in self._keys]))
        instants = np.full(len(found.ids), NEVER)
        np.maximum.at(instants, found.key_of, physical(rows[TIME]))
        keys = rows.select_seq(self._keys)[found.first]
        for start, end in self._steps(len(found.ids)):
            self._put(keys[start:end], found.ids[start:end], instants[start:end], may_exceed=may_exceed)

    def _put(self, keys: pl.DataFrame, ids: Words, instants: IntArray, *, may_exceed: bool) -> None:
        uses: Places = np.zeros(len(ids), np.int64)
        places = self._states.places(keys, ids, uses, may_exceed=may_exceed)
        there, new = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        if there.size:
            before = physical(self._states.at(places[there])[TIME])
            self._states.put(places[there], pl.DataFrame({TIME: np.maximum(before, instants[there])}))
        if new.size:
            self._states.add(keys[new], ids[new], pl.DataFrame({TIME: instants[new]}))

    def _steps(self, keys: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of keys to look up at once: first key and end."""
        start = 0
        while start < keys:
            most = int(self._room.memory_bytes / STEP_SHARE / self._states.entry_bytes)
            end = min(keys, start + max(1, min(STEP_KEYS, most)))
            yield start, end
            start = end
