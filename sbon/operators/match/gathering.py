"""Aggregates over rows of a match, other than COUNT, SUM, AVG, MIN and MAX. They are computed like aggregates of windows, with each stretch
of rows as a group.

The order of the rows replaces the event time for FIRST_VALUE, STRING_AGG and ARRAY_AGG.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from sbon.operators.aggregates import Aggregates
from sbon.operators.frames import polars_type
from sbon.operators.grouping import Groups
from sbon.operators.operands import prepared
from sbon.operators.partials import TIME
from sbon.query.functions import aggregate_type
from sbon.query.params.matched import Operand, Tally
from sbon.query.params.ordered import OVER_FUNCTIONS
from sbon.schema import ColumnType
from sbon.types import IntArray

_GROUP = "g"
ROWS_MAX = 262_144
"""Approximate number of rows that are aggregated at once, to bound the memory. A row of several stretches counts several times."""


class Gathering:
    """An aggregate over stretches of rows.

    Parameters
    ----------
    columns : types of the rows' columns

    Attributes
    ----------
    columns : expressions over the rows' columns, whose values the methods take
    types : of the expressions
    """

    def __init__(self, tally: Tally, columns: Mapping[str, ColumnType]) -> None:
        self._aggregate = tally.aggregate
        made = prepared([tally.aggregate], columns)
        self.columns, self._operands, self._types = made.columns, made.operands, made.types
        self.types = list(made.types.values())
        kinds = [None if name is None else made.types[name] for name in made.operands[0]]
        self._result = polars_type(aggregate_type(tally.aggregate.function, *kinds))

    def of(self, operands: pl.DataFrame, begins: IntArray, ends: IntArray) -> pl.Series:
        """Returns the aggregate of each stretch of rows.

        Parameters
        ----------
        operands : values of `columns` on the rows
        begins, ends : (stretches,) places of the first row and after the last row; a stretch may have no row
        """
        keys, which = np.unique(begins << 32 | ends, return_inverse=True)
        begins, lengths = keys >> 32, (keys & 2**32 - 1) - (keys >> 32)
        cuts = [0, *(np.flatnonzero(np.diff(np.cumsum(lengths) // ROWS_MAX)) + 1).tolist(), keys.size]
        found = [self._some(operands, begins[one:other], lengths[one:other]) for one, other in pairwise(cuts)]
        return pl.concat(found).gather(which)

    def of_values(self, rows: Sequence[tuple[Any, ...]]) -> Any:
        """Returns the aggregate of some rows, given as values of `columns`; times are in microseconds."""
        series = []
        for column, kind, values in zip(self.columns, self.types, zip(*rows, strict=True) if rows else [()] * len(self.types), strict=True):
            is_number = kind in (ColumnType.TIME, ColumnType.INTERVAL)
            given = pl.Series(column.meta.output_name(), values, dtype=pl.Int64() if is_number else polars_type(kind))
            series.append(given.cast(polars_type(kind)) if is_number else given)
        found = self.of(pl.DataFrame(series), np.zeros(1, np.int64), np.full(1, len(rows)))
        return (found.cast(pl.Int64) if found.dtype.is_temporal() else found)[0]

    def _some(self, operands: pl.DataFrame, begins: IntArray, lengths: IntArray) -> pl.Series:
        of = np.repeat(np.arange(lengths.size), lengths)
        if not of.size:
            return self._with_gaps(pl.Series([], dtype=self._result), np.full(lengths.size, -1))
        at = np.arange(of.size) + np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
        there = np.flatnonzero(lengths)
        groups = Groups(of, lengths.size, pl.DataFrame({_GROUP: there}))
        aggregates = Aggregates([self._aggregate], self._operands, self._types)
        aggregates.add(operands[at].with_columns_seq(pl.Series(TIME, np.arange(of.size))), groups, [_GROUP])
        merged = {name: pl.concat(table.frames, rechunk=True) for name, table in aggregates.tables.items()}
        found = aggregates.answers(merged, [_GROUP])
        place = np.full(lengths.size, -1)
        place[found[_GROUP].to_numpy()] = np.arange(found.height)
        return self._with_gaps(found["a0"].cast(self._result), place)

    def _with_gaps(self, answers: pl.Series, place: IntArray) -> pl.Series:
        """Returns the answers at these places; for -1, a stretch without rows, NULL, or 0 for counts."""
        whole = pl.concat([answers, pl.Series([None], dtype=self._result)]).gather(np.where(place < 0, answers.len(), place))
        return whole.fill_null(0) if "count" in self._aggregate.function else whole


def gathering_of(operand: Operand, columns: Mapping[str, ColumnType]) -> Gathering | None:
    """Returns the gathering that computes an operand, if it is an aggregate other than the five that states of attempts have."""
    if isinstance(operand, Tally) and operand.aggregate.function not in OVER_FUNCTIONS:
        return Gathering(operand, columns)
    return None
