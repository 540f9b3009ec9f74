"""Partial aggregates that a window keeps of its rows, and the answers computed from them. Answers do not depend on how rows were
batched or interleaved.

Partials are kept in tables (`sbon.operators.partials`). The main one has a row for each pane and key, with the counts, integer sums,
extremes, firsts and lasts. Further tables hold: exact parts of each float operand that is summed (`sbon.operators.exact`); the values of
each operand of COUNT(DISTINCT); values with their numbers of occurrences for exact percentiles (`sbon.operators.ranked`); and sketches for
APPROX_COUNT_DISTINCT and APPROX_PERCENTILE (`sbon.operators.sketches`).

Aggregates skip NULL; without values, COUNT is 0 and all others are NULL. FIRST and LAST go by event time. Among rows with equal event
times, FIRST takes the least value and LAST the greatest, because their order of arrival is arbitrary. ARG_MIN and ARG_MAX do the same with
their second operand in place of the event time. SUM of integers is exact, NULL beyond 64 bits; SUM and AVG of floats are rounded once from
the exact sum, and so are variances, covariances and the like (`sbon.operators.moments`). MIN and MAX skip NaN unless there is nothing else.
"""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators import digits, moments
from sbon.operators.frames import polars_type
from sbon.operators.grouping import Groups, in_order
from sbon.operators.joined_texts import TextTable
from sbon.operators.measures import BITS, rows_apart
from sbon.operators.operands import Operands
from sbon.operators.partials import DistinctTable, ExactTable, MainTable, Table
from sbon.operators.ranked import ValueTable
from sbon.operators.sketches import BucketTable, LeastHashTable
from sbon.query.functions import aggregate_type
from sbon.query.params.aggregate import Aggregate
from sbon.schema import ColumnType
from sbon.types import IntArray

_EDGES = {"min": "min", "max": "max", "first": "first", "last": "last", "bool_and": "min", "bool_or": "max"}
"""Aggregates whose answer is one of the values, with the measure that finds it; false is less than true."""
_BY = {"arg_min": "first", "arg_max": "last"}
"""Aggregates whose answer is the first or last value in the order of a second operand instead of the event time."""
_PERCENTILES = ("percentile_cont", "percentile_disc")
_TEXTS = ("string_agg", "string_agg_distinct")
APART_RATIO = 4
"""Rows per partial above which the partials' texts are copied, since they would otherwise keep the texts of all rows in memory."""


class Aggregates:
    """The tables that a window's aggregates need, and the answers computed from them.

    Parameters
    ----------
    aggregates : the window's aggregates
    operands : for each aggregate, the names of its columns in prepared rows
    types : types of these columns
    """

    def __init__(self, aggregates: Sequence[Aggregate], operands: Sequence[Operands], types: dict[str, ColumnType]) -> None:
        self.main = MainTable()
        self.tables: dict[str, Table] = {"main": self.main}
        self._answers = list(zip(aggregates, operands, strict=True))
        self._types = types
        self._results: list[ColumnType] = []
        for index, (aggregate, (operand, by)) in enumerate(self._answers):
            try:
                kind = aggregate_type(aggregate.function, types[operand] if operand else None, types[by] if by else None)
            except QueryError as error:
                raise RemoteProtocolError(str(error)) from error
            self._results.append(kind)
            if operand and aggregate.function in _TEXTS:
                self.tables[f"texts:{index}"] = TextTable(aggregate, operand, by)
            elif operand:
                self._want(aggregate.function, operand, by)

    def _want(self, function: str, operand: str, by: str | None) -> None:
        if function == "count_distinct":
            self.tables.setdefault(f"distinct:{operand}", DistinctTable(operand))
            return
        if function == "approx_count_distinct":
            self.tables.setdefault(f"least:{operand}", LeastHashTable(operand))
            return
        if function == "approx_percentile":
            self.tables.setdefault(f"buckets:{operand}", BucketTable(operand))
            return
        if function in _PERCENTILES:
            self.tables.setdefault(f"values:{operand}", ValueTable(operand))
            return
        self.main.measure("count", operand)
        if function in _EDGES:
            self.main.measure(_EDGES[function], operand)
        elif function in _BY and by:
            self.main.measure(_BY[function], operand, by)
        elif function in moments.BY_FUNCTION:
            self._want_moments(function, operand, by or operand)
        elif function in BITS:
            self.main.measure(function, operand)
        elif function in ("sum", "avg") and self._types[operand] is ColumnType.FLOAT:
            self.main.measure("special", operand)
            self.tables.setdefault(f"sum:{operand}", ExactTable(operand))
        elif function in ("sum", "avg"):
            self.main.measure("sum", operand)

    def _want_moments(self, function: str, x: str, y: str) -> None:
        for operand in (x, y):
            self.main.measure("special", operand)
            self.tables.setdefault(f"sum:{operand}", ExactTable(operand))
        pairs = [(x, y)]
        if function == "corr":
            pairs.append((x, x))
        if function in ("corr", "regr_slope", "regr_intercept"):
            pairs.append((y, y))
        for one, other in pairs:
            self.tables.setdefault(f"products:{one}:{other}", ExactTable(one, other))

    def add(self, rows: pl.DataFrame, groups: Groups, by: list[str]) -> None:
        """Adds partials of prepared rows, numbered by group, to all tables."""
        for table in self.tables.values():
            partials = table.partial(rows, groups)
            if partials.height * APART_RATIO <= rows.height:
                partials = rows_apart(partials)
            table.add(partials, by, puts_off=True)

    def answers(self, merged: dict[str, pl.DataFrame], by: list[str], kept: Sequence[str] = ()) -> pl.DataFrame:
        """Returns the groups, in order, each with its aggregates as columns a0, a1, ...

        Parameters
        ----------
        merged : partials by name of the table, one per group
        kept : columns of the main table that are returned unchanged
        """
        groups = in_order(merged["main"], by)
        answers = [self._answer(index, groups, merged, by) for index in range(len(self._answers))]
        made = [answer for answer in answers if isinstance(answer, pl.Series)]
        if len(made) == len(answers):  # the usual case: building an expression takes longer than computing a thousand answers
            return pl.DataFrame([*(groups[name] for name in (*by, *kept)), *made])
        return groups.select_seq(*by, *kept, *answers)

    def _answer(self, index: int, groups: pl.DataFrame, merged: dict[str, pl.DataFrame], by: list[str]) -> pl.Expr | pl.Series:
        aggregate, operands = self._answers[index]
        operand = operands.value
        name, function, result = f"a{index}", aggregate.function, polars_type(self._results[index])
        if operand is None:
            return groups["n"].alias(name)
        count = pl.col(f"count:{operand}")
        if function == "count":
            return groups[f"count:{operand}"].alias(name)
        if function == "count_distinct":
            table = self.tables[f"distinct:{operand}"]
            assert isinstance(table, DistinctTable)
            return table.counts(merged[f"distinct:{operand}"], by, groups).alias(name)
        if function == "approx_count_distinct":
            least = self.tables[f"least:{operand}"]
            assert isinstance(least, LeastHashTable)
            return least.counts(merged[f"least:{operand}"], by, groups).alias(name)
        if function == "approx_percentile":
            buckets = self.tables[f"buckets:{operand}"]
            assert isinstance(buckets, BucketTable)
            return buckets.percentiles(aggregate.share, merged[f"buckets:{operand}"], by, groups).alias(name)
        if function in _TEXTS:
            texts = self.tables[f"texts:{index}"]
            assert isinstance(texts, TextTable)
            return texts.joined(merged[f"texts:{index}"], by, groups).alias(name)
        if function in _PERCENTILES:
            values = self.tables[f"values:{operand}"]
            assert isinstance(values, ValueTable)
            between = function == "percentile_cont"
            return values.percentiles(aggregate.share, merged[f"values:{operand}"], by, groups, between=between).alias(name)
        if function in _EDGES:
            return groups[f"{_EDGES[function]}:{operand}"].cast(result).alias(name)
        if function in _BY:
            return groups[f"{_BY[function]}:{operand}:{operands.by}"].cast(result).alias(name)
        if function in BITS:
            return pl.when(count > 0).then(pl.col(f"{function}:{operand}")).alias(name)
        if function in moments.BY_FUNCTION:
            return self._moments(function, operands, groups, merged, by).alias(name)
        if self._types[operand] is ColumnType.FLOAT:
            return self._float_answers(function, operand, groups, merged, by).alias(name)
        total = pl.when(count > 0).then(pl.col(f"sum:{operand}"))
        if function == "avg":
            return (total.cast(pl.Float64) / count).alias(name)
        return total.cast(pl.Int64, strict=False).alias(name)

    def _digits(self, name: str, groups: pl.DataFrame, merged: dict[str, pl.DataFrame], by: list[str]) -> tuple[IntArray, int]:
        exact = self.tables[name]
        assert isinstance(exact, ExactTable)
        return digits.table(exact.digits(merged[name], by, groups), groups.height)

    def _float_answers(
        self, function: str, operand: str, groups: pl.DataFrame, merged: dict[str, pl.DataFrame], by: list[str]
    ) -> pl.Series:
        """Computes sums and means; NULL without values. If some values are infinite or NaN, only those count."""
        counts = groups[f"count:{operand}"].to_numpy()
        specials = groups[f"special:{operand}"].to_numpy()
        sums, lowest = self._digits(f"sum:{operand}", groups, merged, by)
        values = digits.rounded(sums, lowest) if function == "sum" else digits.quotients(sums, lowest, np.maximum(counts, 1))
        values = np.where(specials != 0.0, specials, values)
        if counts.all():
            return pl.Series(values)
        return pl.select(pl.when(pl.Series(counts > 0)).then(pl.Series(values))).to_series()

    def _moments(
        self, function: str, operands: Operands, groups: pl.DataFrame, merged: dict[str, pl.DataFrame], by: list[str]
    ) -> pl.Series:
        """Computes deviations, covariances and the like; NULL with too few values, NaN if any value is not finite."""
        x = operands.value
        assert x is not None
        y = operands.by or x
        names = (f"sum:{x}", f"sum:{y}", f"products:{x}:{x}", f"products:{y}:{y}", f"products:{x}:{y}")
        kept = {name: list(moments.scaled(*self._digits(name, groups, merged, by))) for name in names if name in self.tables}
        columns = [kept.get(name, kept[f"products:{x}:{y}"]) for name in names]
        least, value = moments.BY_FUNCTION[function]
        odd = ((groups[f"special:{x}"] != 0.0) | (groups[f"special:{y}"] != 0.0)).to_list()
        answers: list[float | None] = []
        for is_odd, count, *sums in zip(odd, groups[f"count:{x}"].to_list(), *columns, strict=True):
            answers.append(None if count < least else math.nan if is_odd else value(moments.Moments(count, *sums)))
        return pl.Series(answers, dtype=pl.Float64)
