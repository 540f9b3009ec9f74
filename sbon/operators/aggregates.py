"""What a window keeps of its rows: partial aggregates that merge in any order to the same answer.

Partials are kept in tables. The main one has a row for each pane and key, with the counts, integer sums, extremes, firsts and lasts;
every float operand whose sum is wanted has a table of exact parts (`sbon.operators.exact`), every operand of COUNT(DISTINCT) one of its
values. A table is a list of frames that is folded into one when it has doubled.

Aggregates leave NULL out; of no values, COUNT is 0 and all others are NULL. FIRST and LAST go by event time, and among rows of one instant
take the least and the greatest value, since the order of arrival is an accident. SUM of integers is exact, NULL beyond 64 bits; SUM, AVG
and STDDEV of floats are rounded once from the exact sum. MIN and MAX pass NaN over unless there is nothing else.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators import exact
from sbon.operators.frames import polars_type
from sbon.query.functions import aggregate_type
from sbon.query.plan import Aggregate
from sbon.query.schema import ColumnType

TIME = "t"
"""Column of the event time, microseconds, in prepared rows."""
FOLD_ROWS_MIN = 8192
FOLD_FRAMES = 64

_PARTS = ("s0", "s1", "s2")


class Table:
    """Partials of one kind. `by` are the columns of the group: pane or window, then keys."""

    def __init__(self) -> None:
        self._frames: list[pl.DataFrame] = []
        self.rows = 0

    def partial(self, rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Partials of prepared rows."""
        raise LookupError(f"{type(self).__name__} gives no partials")

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """One partial where there were several of a group."""
        raise LookupError(f"{type(self).__name__} does not merge")

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Folded partials in an order that depends on nothing but themselves."""
        return partials.sort(by)

    def add(self, partials: pl.DataFrame, by: list[str]) -> None:
        """Keep more partials."""
        self._frames.append(partials)
        self.rows += partials.height
        fresh = self.rows - self._frames[0].height
        if fresh > max(FOLD_ROWS_MIN, self._frames[0].height) or len(self._frames) > FOLD_FRAMES:
            self.folded(by)

    def folded(self, by: list[str]) -> pl.DataFrame | None:
        """All partials as one frame, one row a group; None before the first."""
        if len(self._frames) > 1:
            self.replace(self.merge(pl.concat(self._frames), by))
        return self._frames[0] if self._frames else None

    def replace(self, partials: pl.DataFrame) -> None:
        """Keep these partials alone."""
        self._frames = [partials]
        self.rows = partials.height


class MainTable(Table):
    """Counts, integer sums, extremes, firsts and lasts."""

    def __init__(self) -> None:
        super().__init__()
        self._make: dict[str, pl.Expr] = {"n": pl.len().cast(pl.Int64)}
        self._merge: dict[str, pl.Expr] = {"n": pl.col("n").sum()}

    def measure(self, kind: str, operand: str) -> str:
        """Keep a measure of an operand; the name of its column."""
        name = f"{kind}:{operand}"
        if name in self._make:
            return name
        x, kept = pl.col(operand), pl.col(name)
        if kind == "count":
            self._make[name], self._merge[name] = x.count().cast(pl.Int64), kept.sum()
        elif kind == "sum":
            self._make[name], self._merge[name] = x.cast(pl.Int128).sum(), kept.sum()
        elif kind == "special":
            self._make[name], self._merge[name] = x.filter(~x.is_finite()).sum(), kept.sum()
        elif kind in ("min", "max"):
            self._make[name], self._merge[name] = getattr(x, kind)(), getattr(kept, kind)()
        else:
            self._add_edge(kind, name, x)
        return name

    def _add_edge(self, kind: str, name: str, x: pl.Expr) -> None:
        at = f"{name}:at"
        for source, time, value in ((self._make, pl.col(TIME), x), (self._merge, pl.col(at), pl.col(name))):
            if kind == "first":
                order = [value.is_null(), time, value]
                source[name], source[at] = value.sort_by(order).first(), time.sort_by(order).first()
            else:
                order = [value.is_not_null(), time, value]
                source[name], source[at] = value.sort_by(order).last(), time.sort_by(order).last()

    def partial(self, rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """One row a group."""
        return rows.group_by(by).agg(value.alias(name) for name, value in self._make.items())

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """One row a group."""
        return partials.group_by(by).agg(value.alias(name) for name, value in self._merge.items())


class ExactTable(Table):
    """The exact sum of a float operand, or of its squares; one row a group and bin."""

    def __init__(self, operand: str, *, squares: bool) -> None:
        super().__init__()
        self._operand = operand
        self._split = exact.split_squares if squares else exact.split
        self._copies = 2 if squares else 1

    def partial(self, rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Parts summed by group and bin; what is not finite is the main table's."""
        x = pl.col(self._operand)
        rows = rows.select(*by, x).filter(x.is_finite() & (x != 0.0))
        bins, *parts = self._split(rows[self._operand].to_numpy().astype(np.float64, copy=False))
        groups = rows.select(by)
        columns = dict(zip(("b", *_PARTS), (bins, *parts), strict=True))
        split = pl.concat([groups] * self._copies).with_columns(pl.Series(name, values) for name, values in columns.items())
        return self.merge(split, by)

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Parts summed by group and bin, in 128 bits: no stream is long enough to overflow them."""
        return partials.group_by([*by, "b"]).agg(pl.col(name).cast(pl.Int128).sum() for name in _PARTS)

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """By group and bin."""
        return partials.sort([*by, "b"])

    def totals(self, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame) -> list[tuple[int, int]]:
        """The exact sum of each of `groups`, in their order; see `exact.total`."""
        lists = merged.group_by(by).agg("b", *_PARTS)
        found = groups.select(by).join(lists, on=by, how="left", nulls_equal=True, maintain_order="left")
        columns = [found[name].to_list() for name in ("b", *_PARTS)]
        return [exact.total(bins or (), parts) for bins, *parts in zip(*columns, strict=True)]


class DistinctTable(Table):
    """The values of an operand, one row a group and value."""

    def __init__(self, operand: str) -> None:
        super().__init__()
        self._operand = operand

    def partial(self, rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """The values that are not NULL."""
        return rows.select(*by, self._operand).filter(pl.col(self._operand).is_not_null()).unique()

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Every value once."""
        return partials.unique()

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """By group and value."""
        return partials.sort([*by, self._operand])

    def counts(self, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame) -> pl.Series:
        """Number of values of each of `groups`, in their order."""
        counted = merged.group_by(by).agg(pl.len().cast(pl.Int64).alias("distinct"))
        found = groups.select(by).join(counted, on=by, how="left", nulls_equal=True, maintain_order="left")
        return found["distinct"].fill_null(0)


class Aggregates:
    """The tables that a window's aggregates need, and the answers made of them.

    Parameters
    ----------
    aggregates : as asked for
    operands : for each of them the name of its column in prepared rows, None for COUNT(*)
    types : of these columns
    """

    def __init__(self, aggregates: Sequence[Aggregate], operands: Sequence[str | None], types: dict[str, ColumnType]) -> None:
        self.main = MainTable()
        self.tables: dict[str, Table] = {"main": self.main}
        self._answers = list(zip(aggregates, operands, strict=True))
        self._types = types
        self._results: list[ColumnType] = []
        for aggregate, operand in self._answers:
            try:
                kind = aggregate_type(aggregate.function, types[operand] if operand else None)
            except QueryError as error:
                raise RemoteProtocolError(str(error)) from error
            self._results.append(kind)
            if operand:
                self._want(aggregate.function, operand)

    def _want(self, function: str, operand: str) -> None:
        if function == "count_distinct":
            self.tables.setdefault(f"distinct:{operand}", DistinctTable(operand))
            return
        self.main.measure("count", operand)
        if function in ("min", "max", "first", "last"):
            self.main.measure(function, operand)
        elif function in ("sum", "avg", "stddev") and self._types[operand] is ColumnType.FLOAT:
            self.main.measure("special", operand)
            self.tables.setdefault(f"sum:{operand}", ExactTable(operand, squares=False))
            if function == "stddev":
                self.tables.setdefault(f"squares:{operand}", ExactTable(operand, squares=True))
        elif function in ("sum", "avg"):
            self.main.measure("sum", operand)

    def answers(self, merged: dict[str, pl.DataFrame], by: list[str]) -> pl.DataFrame:
        """The groups, in order, each with its aggregates as columns a0, a1, ...

        Parameters
        ----------
        merged : the tables' partials, one a group, by name of the table
        """
        groups = merged["main"].sort(by)
        columns = [pl.col(name) for name in by]
        answers = [self._answer(index, groups, merged, by) for index in range(len(self._answers))]
        return groups.select(*columns, *answers)

    def _answer(self, index: int, groups: pl.DataFrame, merged: dict[str, pl.DataFrame], by: list[str]) -> pl.Expr | pl.Series:
        aggregate, operand = self._answers[index]
        name, function, result = f"a{index}", aggregate.function, polars_type(self._results[index])
        if operand is None:
            return pl.col("n").alias(name)
        count = pl.col(f"count:{operand}")
        if function == "count":
            return count.alias(name)
        if function == "count_distinct":
            table = self.tables[f"distinct:{operand}"]
            assert isinstance(table, DistinctTable)
            return table.counts(merged[f"distinct:{operand}"], by, groups).alias(name)
        if function in ("min", "max", "first", "last"):
            return pl.col(f"{function}:{operand}").cast(result).alias(name)
        if self._types[operand] is ColumnType.FLOAT:
            return pl.Series(name, self._float_answers(function, operand, groups, merged, by), dtype=pl.Float64)
        total = pl.when(count > 0).then(pl.col(f"sum:{operand}"))
        if function == "avg":
            return (total.cast(pl.Float64) / count).alias(name)
        return total.cast(pl.Int64, strict=False).alias(name)

    def _totals(self, name: str, groups: pl.DataFrame, merged: dict[str, pl.DataFrame], by: list[str]) -> list[tuple[int, int]]:
        table = self.tables[name]
        assert isinstance(table, ExactTable)
        return table.totals(merged[name], by, groups)

    def _float_answers(
        self, function: str, operand: str, groups: pl.DataFrame, merged: dict[str, pl.DataFrame], by: list[str]
    ) -> list[float | None]:
        counts = groups[f"count:{operand}"].to_list()
        specials = groups[f"special:{operand}"].to_list()
        sums = self._totals(f"sum:{operand}", groups, merged, by)
        squares = self._totals(f"squares:{operand}", groups, merged, by) if function == "stddev" else sums
        values: list[float | None] = []
        for count, special, sum_, square in zip(counts, specials, sums, squares, strict=True):
            if count == 0 or (function == "stddev" and count < 2):
                values.append(None)
            elif special != 0.0:  # an infinity or NaN among the values is all that counts
                values.append(float("nan") if function == "stddev" else special)
            elif function == "stddev":
                values.append(exact.deviation(count, sum_, square))
            else:
                values.append(exact.to_float(*sum_, divisor=count if function == "avg" else 1))
        return values
