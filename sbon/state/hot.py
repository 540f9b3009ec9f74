"""States in memory: one row of 64-bit words for each, with their keys, in the order of their arrival."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.frame_bytes import decode_any, encode
from sbon.state.ids import Places, Words
from sbon.state.index import CELLS_A_KEY, Index
from sbon.state.runs import Entries

GROWTH = 1.06
"""Factor by which arrays grow. They grow in place: the system moves large arrays without a copy."""
KEY_BYTES = 48
"""Assumed bytes of a key until there are keys."""
TEXT_BYTES = 80
"""Assumed bytes of a text in a state."""
SLACK = 1.5
"""Factor for the free space of arrays, which grow and shrink."""
_ROOM_MIN = 64
_STEP_ROWS = 16_384
_FRAME_ROWS = 16_384
_LOOSE_FRAMES = 64

Values = npt.NDArray[Any]


class Hot:
    """States in memory.

    Parameters
    ----------
    keys : columns of the keys and their polars types
    texts : columns of the states that are texts
    width : number of words in a row
    """

    def __init__(self, keys: Mapping[str, pl.DataType], texts: Sequence[str], width: int) -> None:
        self._keys, self._texts = dict(keys), list(texts)
        self.held = 0
        """Number of states."""
        self.words: Words = np.empty((_ROOM_MIN, width), np.uint64)
        """Identity, uses and numbers of each state. Only the first `held` rows are used."""
        self.columns: dict[str, Values] = {name: np.empty(_ROOM_MIN, object) for name in texts}
        """Texts of each state."""
        self._frames: list[pl.DataFrame] = []
        """Keys, in order; the last `_loose` frames share memory with batches."""
        self._loose = 0
        self._frame_bytes, self._frame_rows = 0.0, 0
        """Bytes and rows of all frames except the loose ones."""
        self._index = Index()

    @property
    def entry_bytes(self) -> float:
        """Returns the average bytes of a state, with its share of all arrays."""
        key = self._frame_bytes / self._frame_rows if self._frame_rows else KEY_BYTES
        return SLACK * float(8 * self.words.shape[1] + 4 * 1.5 * CELLS_A_KEY + key + TEXT_BYTES * len(self._texts))

    def places(self, ids: Words) -> Places:
        """Returns the place of each identity, (n,); -1 if it has none."""
        return self._index.places(ids, self.words)

    def append(self, words: Words, rows: pl.DataFrame) -> Places:
        """Adds new states with their keys and texts; returns their places."""
        first, self.held = self.held, self.held + len(words)
        if self.held > len(self.words):
            longer = max(self.held, int(GROWTH * len(self.words)) + _ROOM_MIN)
            self.words.resize((longer, self.words.shape[1]), refcheck=False)
            self.columns = {name: _grown(column, longer) for name, column in self.columns.items()}
        self.words[first : self.held] = words
        for name in self._texts:
            self.columns[name][first : self.held] = np.array(rows[name].to_list(), dtype=object)
        self._index.add(first, len(words), self.words)
        self._frames.append(rows.select_seq(list(self._keys)))
        self._loose += 1
        if self._loose == _LOOSE_FRAMES or sum(frame.height for frame in self._frames[-self._loose :]) >= _FRAME_ROWS:
            loose = self._frames[-self._loose :]
            self._frames[-self._loose :] = []
            self._keep(loose)
        return np.arange(first, self.held)

    def entries(self) -> Entries:
        """Returns all states."""
        places = np.arange(self.held)
        return Entries(self.words[places], self.rows(places))

    def rows(self, places: Places) -> pl.DataFrame:
        """Returns keys and texts of states, by their places in ascending order."""
        edges = np.cumsum([0, *(frame.height for frame in self._frames)])
        cut = np.searchsorted(places, edges)
        parts = [frame[places[a:b] - edge] for frame, edge, a, b in zip(self._frames, edges, cut, cut[1:], strict=False) if b > a]
        rows = pl.concat(parts) if parts else pl.DataFrame(schema=self._keys)
        texts = [pl.Series(name, self.columns[name][places].tolist(), dtype=pl.String) for name in self._texts]
        return rows.hstack(texts) if texts else rows

    def retain(self, staying: npt.NDArray[np.bool_]) -> None:
        """Keeps the states marked in `staying`, (held,), and drops the others. No array is copied as a whole."""
        kept = at = 0
        for start in range(0, self.held, _STEP_ROWS):
            chosen = start + np.flatnonzero(staying[start : start + _STEP_ROWS])  # a state never moves to a later place
            self.words[kept : kept + chosen.size] = self.words[chosen]
            for column in self.columns.values():
                column[kept : kept + chosen.size] = column[chosen]
            kept += chosen.size
        for column in self.columns.values():
            column[kept:] = None
        frames, self._frames, waiting = self._frames[::-1], [], list[pl.DataFrame]()
        self._loose, self._frame_bytes, self._frame_rows = 0, 0.0, 0
        while frames:
            frame = frames.pop()
            waiting.append(frame.filter(pl.Series(staying[at : at + frame.height])))
            at += frame.height
            if not frames or sum(one.height for one in waiting) >= _FRAME_ROWS:
                self._keep(waiting)
                waiting = []
        self.held = kept
        self._index.clear(kept)
        self._index.add(0, kept, self.words)

    def copy(self) -> Self:
        """Returns a copy of the states."""
        copied = copy.copy(self)
        copied.words, copied._index = self.words[: self.held].copy(), copy.deepcopy(self._index)
        copied.columns = {name: column[: self.held].copy() for name, column in self.columns.items()}
        copied._frames = list(self._frames)
        return copied

    def _keep(self, frames: Sequence[pl.DataFrame]) -> None:
        """Joins frames of keys into one whose texts share no memory with batches."""
        whole = pl.concat(frames)
        whole = decode_any(encode(whole)) if whole.height and pl.String in whole.dtypes else whole.rechunk()
        self._frames.append(whole)
        self._loose, self._frame_rows = 0, self._frame_rows + whole.height
        for column in whole.get_columns():
            if column.dtype == pl.String:  # 16 bytes each, plus the bytes of longer texts
                self._frame_bytes += 16 * column.len() + float(column.str.len_bytes().sum() or 0)
            else:
                self._frame_bytes += float(column.estimated_size())


def _grown(array: Values, rows: int) -> Values:
    longer = np.empty((rows, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer
