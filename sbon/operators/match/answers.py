"""Makes the answers of matches: one row for each, or each of its rows, with the measures. All in columns, for many matches at once."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.compile import compile_column
from sbon.operators.frames import computed, polars_type
from sbon.operators.match.bindings import added, answered, begun
from sbon.operators.match.conditions import operand_type
from sbon.operators.match.found import NO_NUMBER, Matches
from sbon.operators.match.log import NO_ROW, Log
from sbon.query.plan import WATERMARK_END, MatchNumber, MatchParams, Navigation, Operand, Tally
from sbon.query.schema import ColumnType
from sbon.types import IntArray

_ROW = "\0row"
_NUMBERS = (ColumnType.TIME, ColumnType.INTERVAL)


class _Rows(NamedTuple):
    """The rows of an answer."""

    matches: Matches
    owner: IntArray
    """Match of each."""
    at: IntArray
    """Its place among the rows of the matches; -1 for a match without rows."""


class Answers:
    """Makes answers.

    Parameters
    ----------
    columns : of the rows

    Raises
    ------
    RemoteProtocolError
        A measure is not one that the planner makes.
    """

    def __init__(self, params: MatchParams, columns: Mapping[str, ColumnType], log: Log) -> None:
        self._params = params
        self._log = log
        self._types = {one.name: operand_type(one, columns) for one in params.operands}
        self._values: dict[str, pl.Expr] = {}
        """Expressions of the operands over the columns of a row."""
        for one in params.operands:
            value = one.aggregate.operand if isinstance(one, Tally) else getattr(one, "value", None)
            if value is not None:
                compiled, kind, _ = compile_column(value, columns)
                is_number = isinstance(one, Tally) and kind in _NUMBERS
                self._values[one.name] = (compiled.cast(pl.Int64) if is_number else compiled).alias(one.name)
        measures = [(name, compile_column(value, self._types)) for name, value in params.measures]
        self._measures = [value.cast(polars_type(kind)).alias(name) for name, (value, kind, _) in measures]
        self._read = {name for value in self._measures for name in value.meta.root_names()}
        """Operands of measures; the others are those of conditions alone."""
        self._kept = list(params.partition if params.passed is None else params.passed)
        self._names = pl.Series(list(params.variables), dtype=pl.String)

    def frames(self, matches: Matches, keys: Callable[[IntArray], pl.DataFrame], rows_max: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the answers of matches, in the order in which they are known, in steps of about so many rows.

        Parameters
        ----------
        keys : returns the partition columns of partitions
        """
        matches = matches.ordered(_order(matches, keys))
        sizes = np.cumsum(np.maximum(1, np.diff(matches.offsets)))
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
        rows = _Rows(matches, owner, at)
        kept: list[pl.Series] = []
        if self._kept:
            anchors = np.where(at >= 0, matches.rows[at], matches.first[owner]) if matches.rows.size else matches.first[owner]
            kept = self._log.taken(anchors, self._kept).get_columns()
        known = self._known(matches.known[owner])
        if not self._measures:
            return pl.DataFrame([*kept, *known])
        operands = [pl.Series(_ROW, np.arange(owner.size))]
        operands += [self._operand(one, rows) for one in self._params.operands if one.name in self._read]
        measures = computed(pl.DataFrame(operands), self._measures)
        is_match = (matches.numbers != NO_NUMBER) | matches.timed_out
        if not is_match.all():
            measures = measures.select_seq(pl.when(pl.Series(is_match[owner])).then(pl.all()))
        return pl.DataFrame([*kept, *measures.get_columns(), *known])

    def _known(self, known: IntArray) -> list[pl.Series]:
        """Returns the columns that tell when answers were known, if they are wanted; what the end settles has the last time there is."""
        if not self._params.known:
            return []
        time, by_row = self._params.known
        return [pl.Series(time, np.minimum(known >> 1, WATERMARK_END - 1)).cast(pl.Datetime("us")), pl.Series(by_row, known & 1)]

    def _operand(self, operand: Operand, rows: _Rows) -> pl.Series:
        name, matches = operand.name, rows.matches
        match operand:
            case MatchNumber():
                numbers = matches.numbers[rows.owner]
                return _with_nulls(pl.Series(name, numbers), numbers == NO_NUMBER)
            case Tally():
                return self._tally(operand, rows)
            case Navigation():
                found = self._navigated(operand, rows)
        if operand.value is None:
            inside = (found >= matches.offsets[rows.owner]) & (found < matches.offsets[rows.owner + 1])
            variables = matches.variables[np.where(inside, found, 0)] if matches.variables.size else np.zeros(found.size, np.int64)
            return _with_nulls(self._names.gather(variables).alias(name), ~inside)
        positions = np.where(found >= 0, matches.rows[found], NO_ROW) if matches.rows.size else np.full(found.size, NO_ROW)
        if operand.shift:
            positions = self._log.moved(positions, operand.shift)
        value = self._values[name]
        return _with_nulls(computed(self._log.taken(positions, value.meta.root_names()), [value])[name], positions < 0)

    def _navigated(self, operand: Navigation, rows: _Rows) -> IntArray:
        """Returns the row of the match that each answer reads: its place among all rows of the matches, or NO_ROW. For CLASSIFIER, the
        place of the row beside it."""
        matches, owner = rows.matches, rows.owner
        begin = matches.offsets[owner]
        last = np.where(rows.at >= 0, matches.offsets[owner + 1] - 1, NO_ROW) if operand.final else rows.at
        if not operand.variables:
            count = np.where(last >= 0, last + 1 - begin, 0)
            there = count > operand.skip
            found = np.where(there, begin + operand.skip if operand.first else last - operand.skip, NO_ROW)
        else:
            chosen, so_far = _chosen(matches, operand.variables)
            before = so_far[begin]
            count = np.where(last >= 0, so_far[last + 1] - before, 0)
            there = count > operand.skip
            at = before + (operand.skip if operand.first else count - 1 - operand.skip)
            found = np.where(there, chosen[np.where(there, at, 0)] if chosen.size else NO_ROW, NO_ROW)
        if operand.value is None and operand.shift:
            found = np.where(there, found + operand.shift, NO_ROW)
        return found

    # ---------------------------------------------------------------------------------------------------------- aggregates

    def _tally(self, operand: Tally, rows: _Rows) -> pl.Series:
        """Returns an aggregate: of each match once, or so far at each row."""
        matches, owner, kind = rows.matches, rows.owner, self._types[operand.name]
        chosen, so_far = _chosen(matches, operand.variables)
        values: list[Any] | None = None
        if operand.name in self._values:
            value = self._values[operand.name]
            column = computed(self._log.taken(matches.rows[chosen], value.meta.root_names()), [value])[operand.name]
            if column.null_count():
                there = column.is_not_null().to_numpy()
                so_far = np.append(0, np.cumsum(there))[so_far]
                column = column.drop_nulls()
            values = column.to_list()
        function, whole = operand.aggregate.function, operand.final
        if function == "count" or values is None:
            last = np.where(rows.at >= 0, matches.offsets[owner + 1] if whole else rows.at + 1, matches.offsets[owner])
            return pl.Series(operand.name, so_far[last] - so_far[matches.offsets[owner]])
        bounds = so_far[matches.offsets].tolist()
        plain = not any(type(one) is float and not math.isfinite(one) for one in values)
        if whole:
            of_match = [_aggregated(function, values[begin:end], plain=plain) for begin, end in pairwise(bounds)]
            found = [of_match[one] for one in owner.tolist()]
        else:
            states: list[Any] = []
            for begin, end in pairwise(bounds):
                state = begun(function)
                states.append([state] + [state := added(function, state, one) for one in values[begin:end]])
            counts = np.where(rows.at >= 0, so_far[rows.at + 1] - so_far[matches.offsets[owner]], 0).tolist()
            found = [answered(function, states[one][count]) for one, count in zip(owner.tolist(), counts, strict=True)]
        if kind in _NUMBERS:
            return pl.Series(operand.name, found, dtype=pl.Int64()).cast(polars_type(kind))
        return pl.Series(operand.name, found, dtype=polars_type(kind))


def _aggregated(function: str, values: list[Any], *, plain: bool) -> Any:
    """Returns an aggregate of values, as `bindings` does one value after the other.

    Parameters
    ----------
    plain : no value is infinite or NaN
    """
    if plain and values:
        if function == "min":
            return min(values)
        if function == "max":
            return max(values)
        if type(values[0]) is float and function == "sum":
            try:
                return math.fsum(values)
            except OverflowError:
                pass
    state = begun(function)
    for value in values:
        state = added(function, state, value)
    return answered(function, state)


def _chosen(matches: Matches, variables: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Returns the places of the rows with one of some variables (all if none is given) among those of the matches, and how many there are
    before each place and at the end."""
    size = matches.rows.size
    if not variables:
        return np.arange(size), np.arange(size + 1)
    wanted = np.isin(matches.variables, variables)
    return np.flatnonzero(wanted), np.append(0, np.cumsum(wanted))


def _with_nulls(column: pl.Series, missing: npt.NDArray[np.bool_]) -> pl.Series:
    return column.set(pl.Series(missing), None) if missing.any() else column


def _order(matches: Matches, keys: Callable[[IntArray], pl.DataFrame]) -> IntArray:
    """Returns the order of matches: by the instant at which they are known, then by partition, then from left to right."""
    lanes, inverse = np.unique(matches.lanes, return_inverse=True)
    frame = keys(lanes)
    ranks = np.zeros(lanes.size, np.int64)
    if frame.width:
        numbered = frame.with_columns_seq(pl.int_range(pl.len()).alias(_ROW))
        ranks[numbered.sort(frame.columns, maintain_order=True)[_ROW].to_numpy()] = np.arange(lanes.size)
    return np.lexsort((np.arange(matches.lanes.size), ranks[inverse], matches.known))
