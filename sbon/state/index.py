"""A hash table from identities of keys to places, with vectorised lookups: open addressing, linear probing, no deletion."""

import numpy as np
import numpy.typing as npt

from sbon.state.ids import Places, Words

CELLS_A_KEY = 2
"""Least number of cells for each key. Fewer cells make probes longer."""
_CELLS_MIN = 1024
_STEP_KEYS = 16_384
"""Keys added in one step; small, so that the step needs little memory besides the table."""


class Index:
    """Places of identities that an owner keeps in an array, where place p has the identity `ids[p]`."""

    def __init__(self, room: int = 0) -> None:
        self._cells: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._used = 0
        self._make(room)

    def places(self, asked: Words, ids: Words) -> Places:
        """Returns the place of each identity asked for, (n,); -1 if it has none."""
        found = np.full(len(asked), -1, np.int64)
        if not self._used:
            return found
        asking = np.arange(len(asked))
        at = self._home(asked)
        while asking.size:
            held = self._cells[at]
            taken = held >= 0
            same = taken & (ids[held, 1] == asked[asking, 1]) & (ids[held, 0] == asked[asking, 0])
            found[asking[same]] = held[same]
            go_on = taken & ~same
            asking, at = asking[go_on], self._next(at[go_on])
        return found

    def add(self, first: int, count: int, ids: Words) -> None:
        """Adds `count` places from `first` on. Their identities must be new."""
        if (self._used + count) * CELLS_A_KEY > self._cells.size:
            self._make(self._used + count)
            first, count = 0, first + count
        self._used = first + count
        for start in range(first, self._used, _STEP_KEYS):
            end = min(self._used, start + _STEP_KEYS)
            adding = np.arange(start, end, dtype=np.int32)
            at = self._home(ids[start:end])
            while adding.size:
                free = self._cells[at] < 0
                self._cells[at[free]] = adding[free]  # if several want one cell, the last one gets it
                left = self._cells[at] != adding
                adding, at = adding[left], self._next(at[left])

    def clear(self, room: int) -> None:
        """Removes all places, and makes room for `room` keys."""
        self._make(room)

    def _make(self, keys: int) -> None:
        cells = _CELLS_MIN
        while cells < CELLS_A_KEY * keys:
            cells *= 2
        if cells != self._cells.size:
            self._cells = np.empty(0, np.int32)  # free the old cells first
            self._cells = np.empty(cells, np.int32)
        self._cells.fill(-1)
        self._used = 0

    def _home(self, ids: Words) -> Places:
        return (ids[:, 1] & np.uint64(self._cells.size - 1)).astype(np.int64)

    def _next(self, at: Places) -> Places:
        return (at + 1) & (self._cells.size - 1)
