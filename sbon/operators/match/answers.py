"""Makes the answers of matches: one row for each, or each of its rows, with the measures.

Which row an operand reads is found in plain Python, match by match; its value and the measures are computed in columns, for many matches at
once. Aggregates are added up row by row, by the same rules as in conditions (`sbon.operators.match.bindings`).
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from sbon.operators.compile import compile_column
from sbon.operators.frames import computed, polars_type
from sbon.operators.match.bindings import added, answered, begun
from sbon.operators.match.conditions import operand_type
from sbon.operators.match.lane import Found, Key
from sbon.operators.match.store import RowStore
from sbon.query.plan import MatchNumber, MatchParams, Navigation, Operand, Tally
from sbon.query.schema import ColumnType

_ROW = "\0row"
_NUMBERS = (ColumnType.TIME, ColumnType.INTERVAL)


class Match(NamedTuple):
    """A match of a partition, or a row that is in none."""

    key: Key
    found: Found
    ids: list[int]
    """Numbers of the partition's rows in the store."""
    base: int
    """Place of the first one of them in the partition."""

    def row(self, place: int) -> int:
        """Returns the number of a row, counted from the first one of the match; -1 if the partition has no such row."""
        at = self.found.first + place - self.base
        return self.ids[at] if 0 <= at < len(self.ids) else -1


class _Columns:
    """The answers of some matches while they are collected."""

    def __init__(self, params: MatchParams) -> None:
        self.anchors: list[int] = []
        """The row that each answer has its columns from."""
        self.matched: list[bool] = []
        self.operands: dict[str, list[Any]] = {one.name: [] for one in params.operands}
        """For each answer the row to read, the variable's name, the aggregate or the match's number."""


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

    def __init__(self, params: MatchParams, columns: Mapping[str, ColumnType]) -> None:
        self._params = params
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
        self._kept = list(params.partition if params.passed is None else params.passed)
        self._tallies = [one for one in params.operands if isinstance(one, Tally)]

    def frames(self, matches: list[Match], store: RowStore, keys: pl.DataFrame, rows_max: int) -> Iterator[Sequence[pl.DataFrame]]:
        """Yields the answers of matches, in the order in which they are known, in steps of about so many rows.

        Parameters
        ----------
        keys : partition columns of the matches, in their order
        """
        ordered = _ordered(matches, keys)
        begin = 0
        while begin < len(ordered):
            end, rows = begin, 0
            while end < len(ordered) and rows < rows_max:
                rows += max(1, len(ordered[end].found.labels.variables))
                end += 1
            yield (self._frame(ordered[begin:end], store),)
            begin = end

    def _frame(self, matches: Sequence[Match], store: RowStore) -> pl.DataFrame:
        columns = _Columns(self._params)
        sums = self._added(matches, store)
        for number, match in enumerate(matches):
            self._collect(columns, match, {name: running[number] for name, running in sums.items()})
        rows = len(columns.anchors)
        operands = [pl.Series(_ROW, np.arange(rows))]
        operands += [self._operand(one, columns, store) for one in self._params.operands]
        kept = store.taken(np.array(columns.anchors, np.int64)).select(self._kept).get_columns() if self._kept else []
        if not self._measures:
            return pl.DataFrame(kept)
        measures = computed(pl.DataFrame(operands), self._measures)
        if not all(columns.matched):
            measures = measures.select(pl.when(pl.Series(columns.matched)).then(pl.all()))
        return pl.DataFrame([*kept, *measures.get_columns()])

    def _operand(self, operand: Operand, columns: _Columns, store: RowStore) -> pl.Series:
        name = operand.name
        found, kind = columns.operands[name], self._types[name]
        if isinstance(operand, Navigation) and operand.value is not None:
            numbers = np.array(found, np.int64)
            series = computed(store.taken(numbers), [self._values[name]])[name]
            missing = numbers < 0
            return series.set(pl.Series(missing), None) if missing.any() else series
        if kind in _NUMBERS:
            return pl.Series(name, found, dtype=pl.Int64()).cast(polars_type(kind))
        return pl.Series(name, found, dtype=polars_type(kind))

    def _added(self, matches: Sequence[Match], store: RowStore) -> dict[str, list[list[Any]]]:
        """Returns for each aggregate and match its states: before the first row and behind each."""
        if not self._tallies:
            return {}
        numbers = [match.row(place) for match in matches for place in range(len(match.found.labels.variables))]
        rows = store.taken(np.array(numbers, np.int64)) if numbers else None
        sums: dict[str, list[list[Any]]] = {}
        for tally in self._tallies:
            function, values = tally.aggregate.function, [1] * len(numbers)
            if tally.name in self._values and rows is not None:
                values = computed(rows, [self._values[tally.name]])[tally.name].to_list()
            wanted, at, sums[tally.name] = set(tally.variables), 0, []
            for match in matches:
                states = [begun(function)]
                for variable in match.found.labels.variables:
                    state, value = states[-1], values[at]
                    counts = value is not None and (not wanted or variable in wanted)
                    states.append(added(function, state, value) if counts else state)
                    at += 1
                sums[tally.name].append(states)
        return sums

    def _collect(self, columns: _Columns, match: Match, sums: Mapping[str, list[Any]]) -> None:
        """Adds the answers of one match."""
        found, params = match.found, self._params
        labels, size = found.labels, len(found.labels.variables)
        if size == 0:
            rows = [-1]
        elif params.passed is None:
            rows = [size - 1]
        else:
            rows = [place for place in range(size) if not labels.excluded[place]]
        columns.anchors += [match.row(max(0, place)) for place in rows]
        columns.matched += [found.number is not None] * len(rows)
        places: dict[tuple[int, ...], list[int]] = {}
        for one in params.operands:
            column = columns.operands[one.name]
            match one:
                case MatchNumber():
                    column += [found.number] * len(rows)
                case Tally(aggregate=aggregate, final=final):
                    states = sums[one.name]
                    column += [answered(aggregate.function, states[-1 if final else place + 1]) for place in rows]
                case Navigation(variables=variables):
                    if variables not in places:
                        wanted = set(variables)
                        places[variables] = [at for at, label in enumerate(labels.variables) if not wanted or label in wanted]
                    column += [self._read(one, places[variables], place, match) for place in rows]

    def _read(self, operand: Navigation, places: Sequence[int], place: int, match: Match) -> Any:
        """Returns the row that an operand reads, as its number in the store, or the name of its variable."""
        count = len(places) if operand.final else bisect_right(places, place)
        at = operand.skip if operand.first else count - 1 - operand.skip
        is_there = 0 <= at < count
        row = places[at] + operand.shift if is_there else 0
        if operand.value is not None:
            return match.row(row) if is_there else -1
        labels = match.found.labels.variables
        return self._params.variables[labels[row]] if is_there and 0 <= row < len(labels) else None


def _ordered(matches: list[Match], keys: pl.DataFrame) -> list[Match]:
    """Returns matches by the instant at which they are known, then by partition, then from left to right."""
    by_key = matches
    if keys.width:
        numbered = keys.with_columns(pl.int_range(pl.len()).alias(_ROW))
        places = numbered.sort(keys.columns, nulls_last=True, maintain_order=True)[_ROW].to_list()
        by_key = [matches[place] for place in places]
    return sorted(by_key, key=lambda match: match.found.known)
