"""Computes the values that operands have on rows of matches: in columns, for many matches at once."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.compile import compile_column
from sbon.operators.frames import computed, polars_type
from sbon.operators.match.bindings import SUM_MAX, added, answered, begun, ratio
from sbon.operators.match.conditions import operand_type
from sbon.operators.match.found import NO_NUMBER, Matches
from sbon.operators.match.gathering import Gathering, gathering_of
from sbon.operators.match.log import NO_ROW, Log
from sbon.query.expression import Column
from sbon.query.params.matched import ROW_LABEL, MatchNumber, MatchParams, Navigation, Operand, Tally
from sbon.schema import ColumnType
from sbon.types import IntArray

_NUMBERS = (ColumnType.TIME, ColumnType.INTERVAL)


class Rows(NamedTuple):
    """Rows of matches, on which operands are computed."""

    matches: Matches
    owner: IntArray
    """Match of each row."""
    at: IntArray
    """Place of each row among the rows of the matches; -1 for a match without rows."""


class Readings:
    """The operands of a pattern.

    Parameters
    ----------
    columns : types of the rows' columns and of ROW_LABEL
    ahead : whether CLASSIFIER is known of rows after the current one, because the match is complete

    Attributes
    ----------
    types : types of the operands, by name

    Raises
    ------
    RemoteProtocolError
        An operand is not one that the planner makes.
    """

    def __init__(self, params: MatchParams, columns: Mapping[str, ColumnType], log: Log, *, ahead: bool = True) -> None:
        self._log = log
        self._ahead = ahead
        self.types = {one.name: operand_type(one, columns) for one in params.operands}
        self._values: dict[str, pl.Expr] = {}
        """Expressions of the operands over the columns of a row."""
        self._gatherings: dict[str, Gathering] = {}
        for one in params.operands:
            gathering = gathering_of(one, columns)
            if gathering is not None:
                self._gatherings[one.name] = gathering
                continue
            value = one.aggregate.operand if isinstance(one, Tally) else getattr(one, "value", None)
            if value is not None:
                compiled, kind, _ = compile_column(value, columns)
                is_number = isinstance(one, Tally) and kind in _NUMBERS
                self._values[one.name] = (compiled.cast(pl.Int64) if is_number else compiled).alias(one.name)
        self._names = pl.Series(list(params.variables), dtype=pl.String)

    def of(self, operand: Operand, rows: Rows) -> pl.Series:
        """Returns the value of an operand on each row."""
        name, matches = operand.name, rows.matches
        match operand:
            case MatchNumber():
                numbers = matches.numbers[rows.owner]
                return _with_nulls(pl.Series(name, numbers), numbers == NO_NUMBER)
            case Tally() if name in self._gatherings:
                return self._gathered(operand, rows, self._gatherings[name]).alias(name)
            case Tally():
                return self._tally(operand, rows)
            case Navigation():
                found = self._navigated(operand, rows)
        if operand.value is None:
            end = matches.offsets[rows.owner + 1] if self._ahead else rows.at + 1
            inside = (found >= matches.offsets[rows.owner]) & (found < end)
            variables = matches.variables[np.where(inside, found, 0)] if matches.variables.size else np.zeros(found.size, np.int64)
            return _with_nulls(self._names.gather(variables).alias(name), ~inside)
        positions = np.where(found >= 0, matches.rows[found], NO_ROW) if matches.rows.size else np.full(found.size, NO_ROW)
        if operand.shift:
            positions = self._log.moved(positions, operand.shift)
        value = self._values[name]
        read = self._log.taken(positions, value.meta.root_names())
        column = read.to_series().alias(name) if isinstance(operand.value, Column) else computed(read, [value])[name]
        return _with_nulls(column, positions < 0)

    def _navigated(self, operand: Navigation, rows: Rows) -> IntArray:
        """Returns the row that each answer reads, as its place among all rows of the matches, or NO_ROW. For PREV and NEXT of CLASSIFIER,
        returns the place of the row that they name.
        """
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

    def _tally(self, operand: Tally, rows: Rows) -> pl.Series:
        """Returns an aggregate: over the whole match (FINAL), or over its rows so far."""
        matches, owner = rows.matches, rows.owner
        chosen, so_far = _chosen(matches, operand.variables)
        values: list[Any] | None = None
        if operand.name in self._values:
            value = self._values[operand.name]
            column = computed(self._rows(matches, chosen, [value]), [value])[operand.name]
            if column.null_count():
                there = column.is_not_null().to_numpy()
                so_far = np.append(0, np.cumsum(there))[so_far]
                column = column.drop_nulls()
            values = column.to_list()
        function, whole = operand.aggregate.function, operand.final
        if function == "count" or values is None:
            last = np.where(rows.at >= 0, matches.offsets[owner + 1] if whole else rows.at + 1, matches.offsets[owner])
            return pl.Series(operand.name, so_far[last] - so_far[matches.offsets[owner]])
        if function in ("sum", "avg") and values and all(map(math.isfinite, values)):
            begins = so_far[matches.offsets[owner]]
            last = np.where(rows.at >= 0, so_far[matches.offsets[owner + 1] if whole else rows.at + 1], begins)
            found = _sums(function, values, begins.tolist(), last.tolist())
            return self._told(operand.name, found)
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
        return self._told(operand.name, found)

    def _rows(self, matches: Matches, places: IntArray, values: Sequence[pl.Expr]) -> pl.DataFrame:
        """Returns the columns that values read, for rows of matches."""
        read = list(dict.fromkeys(name for value in values for name in value.meta.root_names()))
        rows = self._log.taken(matches.rows[places], [name for name in read if name != ROW_LABEL])
        return rows.with_columns_seq(self._names.gather(matches.variables[places]).alias(ROW_LABEL)) if ROW_LABEL in read else rows

    def _gathered(self, operand: Tally, rows: Rows, gathering: Gathering) -> pl.Series:
        """Returns an aggregate that is computed over stretches of rows."""
        matches, owner = rows.matches, rows.owner
        chosen, so_far = _chosen(matches, operand.variables)
        operands = computed(self._rows(matches, chosen, gathering.columns), gathering.columns)
        begins = so_far[matches.offsets[owner]]
        ends = np.where(rows.at >= 0, so_far[matches.offsets[owner + 1] if operand.final else rows.at + 1], begins)
        return gathering.of(operands, begins, ends)

    def _told(self, name: str, values: list[Any]) -> pl.Series:
        kind = self.types[name]
        if kind in _NUMBERS:
            return pl.Series(name, values, dtype=pl.Int64()).cast(polars_type(kind))
        return pl.Series(name, values, dtype=polars_type(kind))


def _sums(function: str, values: list[Any], begins: list[int], ends: list[int]) -> list[Any]:
    """Returns sums or means of stretches of finite values, exact and rounded once. `bindings` computes the same, one
    value after the other.
    """
    is_float, least = type(values[0]) is float, 0
    if is_float:  # as integers in units of 2^least
        mantissas, exponents = np.frexp(values)
        exponents = exponents.astype(np.int64) - 53
        least = int(exponents.min())
        wholes = np.ldexp(mantissas, 53).astype(np.int64).tolist()
        values = [whole << shift for whole, shift in zip(wholes, (exponents - least).tolist(), strict=True)]
    totals = [0, *accumulate(values)]
    up, down = max(0, least), max(0, -least)
    found: list[Any] = []
    for begin, end in zip(begins, ends, strict=True):
        total = totals[end] - totals[begin]
        if begin == end:
            found.append(None)
        elif function == "sum" and not is_float:
            found.append(total if -SUM_MAX <= total < SUM_MAX else None)
        else:
            found.append(ratio(total << up, (end - begin if function == "avg" else 1) << down))
    return found


def _aggregated(function: str, values: list[Any], *, plain: bool) -> Any:
    """Returns an aggregate of values. `bindings` computes the same, one value after the other.

    Parameters
    ----------
    plain : whether no value is infinite or NaN
    """
    if plain and values:
        if function == "min":
            return min(values)
        if function == "max":
            return max(values)
    state = begun(function)
    for value in values:
        state = added(function, state, value)
    return answered(function, state)


def _chosen(matches: Matches, variables: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Returns the places, among the rows of the matches, of the rows with one of these variables (all rows if none is given), and how many
    such rows there are before each place and in total.
    """
    size = matches.rows.size
    if not variables:
        return np.arange(size), np.arange(size + 1)
    wanted = np.isin(matches.variables, variables)
    return np.flatnonzero(wanted), np.append(0, np.cumsum(wanted))


def _with_nulls(column: pl.Series, missing: npt.NDArray[np.bool_]) -> pl.Series:
    return column.set(pl.Series(missing), None) if missing.any() else column
