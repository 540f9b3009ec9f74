"""One whole version of a lookup table, with an index of its keys.

The index is the sorted hashes of the keys: a batch finds its candidates in two binary searches per row, however large the table is. Keys
of candidates are compared again, as different keys may have one hash.
"""

from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.hashes import hashes

Places = npt.NDArray[np.int64]
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class TableVersion:
    """The rows of a version whose keys are not NULL, in order of arrival. Immutable."""

    def __init__(self, rows: pl.DataFrame, keys: list[str]) -> None:
        self.rows = rows.drop_nulls(keys).rechunk()
        self._keys = keys
        found = _hashes(self.rows, keys)
        self._order = np.argsort(found, kind="stable")
        self._sorted = found[self._order]
        self.most = _longest_run(self._sorted)
        """Greatest number of rows with one key hash."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "TableVersion":
        return self

    def pairs(self, rows: pl.DataFrame) -> tuple[Places, Places]:
        """Returns the places of rows and of table rows with equal keys, in the order of the rows, then of the table; NULL equals nothing.

        Parameters
        ----------
        rows : rows with the key columns, of the same types as the table's
        """
        asking = np.arange(rows.height)
        if any(rows[key].null_count() for key in self._keys):
            whole = reduce(and_, (rows[key].is_not_null() for key in self._keys))
            asking, rows = asking[whole.to_numpy()], rows.filter(whole)
        wanted = _hashes(rows, self._keys)
        first = np.searchsorted(self._sorted, wanted, side="left")
        counts = np.searchsorted(self._sorted, wanted, side="right") - first
        before = np.cumsum(counts) - counts
        candidates = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
        mine, theirs = np.repeat(np.arange(rows.height), counts), self._order[candidates]
        if mine.size:
            equal = reduce(and_, (rows[key][pl.Series(mine)] == self.rows[key][pl.Series(theirs)] for key in self._keys)).to_numpy()
            mine, theirs = mine[equal], theirs[equal]
        return asking[mine], theirs


def _hashes(rows: pl.DataFrame, keys: list[str]) -> npt.NDArray[np.uint64]:
    mixed = np.zeros(rows.height, np.uint64)
    for key in keys:
        mixed = (mixed ^ hashes(rows[key])) * _FACTOR
    return mixed


def _longest_run(numbers: npt.NDArray[np.uint64]) -> int:
    """Returns the number of occurrences of the most frequent of some sorted numbers; 0 if there are none."""
    if not numbers.size:
        return 0
    begins = np.flatnonzero(np.concatenate([np.ones(1, np.bool_), numbers[1:] != numbers[:-1], np.ones(1, np.bool_)]))
    return int(np.diff(begins).max())
