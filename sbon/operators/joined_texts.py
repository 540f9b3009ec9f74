"""STRING_AGG: joins the texts of a group in an order that does not depend on how rows arrived.

Texts are ordered by the ORDER BY of the call, if it has one, then by event time, then by themselves. With DISTINCT, they are ordered by
themselves alone. NULLs are left out. An answer that would exceed LENGTH_MAX ends with "..." after the last text that fits. A group keeps
only the texts that may be in its answer: a text preceded by LENGTH_MAX characters stays out, whatever follows.
"""

import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators.grouping import Groups, positions
from sbon.operators.measures import rows_apart
from sbon.operators.partials import TIME, Table
from sbon.query.params.aggregate import Aggregate

LENGTH_MAX = 65_536
"""Most characters of an answer, separators included, before the "..."."""

_BY, _AT, _TEXT = "by", "at", "text"


class TextTable(Table):
    """The texts of an operand, one row per group and text occurrence.

    Parameters
    ----------
    aggregate : the aggregate of the query
    operand, by : columns of the texts and of the values that order them
    """

    def __init__(self, aggregate: Aggregate, operand: str, by: str | None) -> None:
        super().__init__()
        self._separator = aggregate.separator
        self._operand = operand
        self._is_distinct = aggregate.function == "string_agg_distinct"
        self._columns = {} if by is None else {_BY: by}
        if not self._is_distinct:
            self._columns |= {_AT: TIME}
        self._order = [*self._columns, _TEXT]
        # NULLs are ordered as in PostgreSQL: last, or first in descending order.
        self._descending = [aggregate.descending, *([False] * (len(self._order) - 1))]

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Returns the texts that are not NULL."""
        there = rows[self._operand].is_not_null()
        columns = [rows[name].alias(own) for own, name in (self._columns | {_TEXT: self._operand}).items()]
        found = groups.keys_at(groups.ids[there.to_numpy()]).hstack([column.filter(there) for column in columns])
        return self.merge(found, groups.keys.columns)

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns the first texts of each group, in order."""
        unique = partials.unique(maintain_order=True) if self._is_distinct else partials
        kept = self.ordered(unique, by).filter(self._before(by) <= LENGTH_MAX + len(self._separator))
        return rows_apart(kept) if kept.height < partials.height else kept

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Orders by group, then as in the answer."""
        descending = [*([False] * len(by)), *self._descending]
        last = [*([False] * len(by)), *(not way for way in self._descending)]
        return partials.sort([*by, *self._order], descending=descending, nulls_last=last)

    def check(self, partials: pl.DataFrame) -> None:
        """Checks that every row has a text."""
        if partials[_TEXT].null_count() or (_AT in self._columns and partials[_AT].null_count()):
            raise RemoteProtocolError("texts of a window with a row without a text or an event time")

    def joined(self, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame) -> pl.Series:
        """Returns the answer of each of `groups`, in their order; NULL without texts."""
        ordered = self.ordered(merged, by)
        place = pl.Series("place", positions(groups, ordered, by))
        texts = ordered.select_seq(_TEXT).hstack([place])
        fits = self._before(["place"]) + pl.col(_TEXT).str.len_chars().cast(pl.Int64) <= LENGTH_MAX
        shown = texts.with_columns_seq(fits=fits).with_columns_seq(fits=pl.col("fits").cast(pl.Int8).cum_min().over("place") > 0)
        parts = pl.when("fits").then(_TEXT).otherwise(pl.lit("..."))
        first_left = pl.col("fits") | (pl.col("fits").shift(1, fill_value=True).over("place"))
        found = shown.filter(first_left).with_columns_seq(parts.alias(_TEXT)).group_by("place").agg(pl.col(_TEXT).str.join(self._separator))
        whole = pl.DataFrame({"place": range(groups.height)}, schema={"place": pl.Int64})
        return whole.join(found, on="place", how="left", maintain_order="left")[_TEXT]

    def _before(self, by: list[str]) -> pl.Expr:
        """Counts the characters in the answer before each row; rows are in order."""
        length = pl.col(_TEXT).str.len_chars().cast(pl.Int64) + len(self._separator)
        return length.cum_sum().over(by) - length
