"""Makes the answers of matches, with the measures: one row for each match, or for each of its rows. Works on columns, for many matches at
once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from sbon.operators.compile import compile_column
from sbon.operators.frames import computed, polars_type
from sbon.operators.match.found import NO_NUMBER, Matches
from sbon.operators.match.log import NO_ROW, ROW, Log
from sbon.operators.match.readings import Readings, Rows
from sbon.query.params.matched import MatchParams
from sbon.schema import ColumnType
from sbon.types import IntArray
from sbon.watermarks import WATERMARK_END

_ROW = "\0row"
_ROWS_AN_ANSWER = 4
"""Number of matched rows that take about as long as one answer, if a match has one answer."""


class Answers:
    """Makes answers.

    Parameters
    ----------
    columns : types of the rows' columns

    Raises
    ------
    RemoteProtocolError
        A measure is not one that the planner makes.
    """

    def __init__(self, params: MatchParams, columns: Mapping[str, ColumnType], log: Log) -> None:
        self._params = params
        self._log = log
        self._readings = Readings(params, columns, log)
        measures = [(name, compile_column(value, self._readings.types)) for name, value in params.measures]
        self._measures = [value.cast(polars_type(kind)).alias(name) for name, (value, kind, _) in measures]
        self._read = {name for value in self._measures for name in value.meta.root_names()}
        """Operands that measures read; only conditions read the others."""
        self._kept = list(params.partition if params.passed is None else params.passed)

    def frames(self, matches: Matches, keys: Callable[[IntArray], pl.DataFrame], rows_max: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the answers of matches, in the order in which they are known, in steps of about `rows_max` rows.

        Parameters
        ----------
        keys : function that returns the partition columns of partitions
        """
        matches = matches.ordered(_order(matches, keys))
        lengths = np.diff(matches.offsets)
        sizes = np.cumsum(np.maximum(1, lengths // _ROWS_AN_ANSWER if self._params.passed is None else lengths))
        cuts = [0, *(np.flatnonzero(np.diff(sizes // rows_max)) + 1).tolist(), sizes.size]
        for begin, end in pairwise(cuts):
            if begin < end:
                whole = begin == 0 and end == sizes.size
                yield (self._frame(matches if whole else matches.ordered(np.arange(begin, end))),)

    def _frame(self, matches: Matches) -> pl.DataFrame:
        lengths = np.diff(matches.offsets)
        if self._params.passed is None:
            owner = np.arange(lengths.size)
            at = np.where(lengths > 0, matches.offsets[1:] - 1, NO_ROW)
        else:
            at = np.flatnonzero(~matches.excluded)
            owner = np.repeat(np.arange(lengths.size), lengths)[at]
            bare = np.flatnonzero(lengths == 0)
            if bare.size:
                owner, at = np.append(owner, bare), np.append(at, np.full(bare.size, NO_ROW))
                order = np.argsort(owner, kind="stable")
                owner, at = owner[order], at[order]
        rows = Rows(matches, owner, at)
        kept: list[pl.Series] = []
        if self._kept:
            anchors = np.where(at >= 0, matches.rows[at], matches.first[owner]) if matches.rows.size else matches.first[owner]
            kept = self._log.taken(anchors, self._kept).get_columns()
        known = self._known(matches.known[owner]) if self._params.dealt is None else self._begins(matches, owner)
        if not self._measures:
            return pl.DataFrame([*kept, *known])
        operands = [pl.Series(_ROW, np.arange(owner.size))]
        operands += [self._readings.of(one, rows) for one in self._params.operands if one.name in self._read]
        measures = computed(pl.DataFrame(operands), self._measures)
        is_match = (matches.numbers != NO_NUMBER) | matches.timed_out
        if not is_match.all():
            measures = measures.select_seq(pl.when(pl.Series(is_match[owner])).then(pl.all()))
        return pl.DataFrame([*kept, *measures.get_columns(), *known])

    def _known(self, known: IntArray) -> list[pl.Series]:
        """Returns the columns that tell when answers were known, if they are wanted. Answers settled by the end of the stream have the
        greatest time.
        """
        if not self._params.known:
            return []
        time, by_row = self._params.known
        return [pl.Series(time, np.minimum(known >> 1, WATERMARK_END - 1)).cast(pl.Datetime("us")), pl.Series(by_row, known & 1)]

    def _begins(self, matches: Matches, owner: IntArray) -> list[pl.Series]:
        """Returns the columns that tell the merger where matches begin, and where the next match may begin."""
        assert self._params.dealt is not None
        rows, offsets, shift = matches.rows, matches.offsets, 1
        if self._params.skip_to == "next":
            next_ = matches.first
        elif self._params.skip_to == "past":
            next_ = rows[offsets[1:] - 1]
        else:
            wanted, shift = np.flatnonzero(np.isin(matches.variables, self._params.skip_variables)), 0
            first = self._params.skip_to == "first"
            next_ = rows[wanted[np.searchsorted(wanted, offsets[:-1]) if first else np.searchsorted(wanted, offsets[1:]) - 1]]
        series = []
        names = self._params.dealt.columns
        for at, more, (time, row) in ((matches.first, 0, names[:2]), (next_, shift, names[2:])):
            series.append(pl.Series(time, self._log.times.values[at][owner]).cast(pl.Datetime("us")))
            series.append((self._log.taken(at, [ROW])[ROW] + more).gather(owner).alias(row))
        return series


def _order(matches: Matches, keys: Callable[[IntArray], pl.DataFrame]) -> IntArray:
    """Returns the order of matches: by the instant at which they are known, then by partition, then from left to right.

    Parameters
    ----------
    matches : matches of one partition are adjacent, from left to right
    """
    order = _stable_order(matches.known)
    known, of = matches.known[order], matches.lanes[order]
    if not ((known[1:] == known[:-1]) & (of[1:] != of[:-1])).any():
        return order
    lanes, inverse = np.unique(matches.lanes, return_inverse=True)
    frame = keys(lanes)
    ranks = np.zeros(lanes.size, np.int64)
    if frame.width:
        numbered = frame.with_columns_seq(pl.int_range(pl.len()).alias(_ROW))
        ranks[numbered.sort(frame.columns, maintain_order=True)[_ROW].to_numpy()] = np.arange(lanes.size)
    return np.lexsort((ranks[inverse], matches.known))


def _stable_order(numbers: IntArray) -> IntArray:
    """Returns the stable order of numbers. Numbers that lie close together are sorted with their places in the low bits, which takes a
    fifth of the time.
    """
    if not numbers.size:
        return numbers
    least, most, bits = int(numbers.min()), int(numbers.max()), numbers.size.bit_length()
    if (most - least).bit_length() + bits > 62:
        return np.argsort(numbers, kind="stable")
    keys: IntArray = (numbers - least) << bits | np.arange(numbers.size)
    keys.sort()
    return keys & (1 << bits) - 1
