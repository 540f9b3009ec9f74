"""Tables of partial aggregates that merge in any order to the same answer; see `sbon.operators.aggregates`.

A table is a list of frames that is folded into one when it has doubled.
"""

import numpy as np
import polars as pl

from sbon.operators import exact

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

    def pieces(self, column: str) -> list[pl.Series]:
        """A column of the partials, unfolded."""
        return [frame[column] for frame in self._frames]

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
