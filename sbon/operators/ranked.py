"""Exact percentiles: keeps each value of a group with its number of occurrences, one row per group and value, as COUNT(DISTINCT) does."""

from collections.abc import Callable

import numpy as np
import polars as pl

from sbon.errors import RemoteProtocolError
from sbon.operators import measures
from sbon.operators.grouping import Groups, positions
from sbon.operators.partials import Table
from sbon.operators.sketches import ranks
from sbon.types import FloatArray, IntArray

_COUNT = "n"


class ValueTable(Table):
    """Number of occurrences of each value of an operand. NULL and NaN are left out."""

    def __init__(self, operand: str) -> None:
        super().__init__()
        self._operand = operand

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Counts values by group."""
        pairs = pl.DataFrame({"g": groups.ids, self._operand: rows[self._operand]}).drop_nulls()
        if pairs.schema[self._operand] == pl.Float64:
            pairs = pairs.filter(pl.col(self._operand).is_not_nan())
        found = Groups.of(pairs, ["g", self._operand])
        keys = groups.keys_at(found.keys["g"].to_numpy())
        return keys.hstack([found.keys[self._operand], measures.counted(found).alias(_COUNT)])

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Returns every value once, with the sum of its counts."""
        groups = Groups.of(partials, [*by, self._operand])
        return measures.rows_apart(groups.keys.hstack([measures.total_of(groups, partials[_COUNT]).alias(_COUNT)]))

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """Orders by group and value."""
        return partials.sort([*by, self._operand])

    def check(self, partials: pl.DataFrame) -> None:
        """Checks that every row has a value and a count above 0."""
        values, counts = partials[self._operand], partials[_COUNT]
        odd = values.dtype == pl.Float64 and values.is_nan().any()
        if values.null_count() or counts.null_count() or odd or not (counts.is_between(1, 2**40)).all():
            raise RemoteProtocolError("values of a percentile with a NULL or NaN, or with a count outside 1 to 2^40")

    def percentiles(self, share: float, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame, *, between: bool) -> pl.Series:
        """Returns for each of `groups`, in their order, the value below which this share of its values lies; NULL without values.

        With `between`, the answer is interpolated between two values, as a float; otherwise it is the least value with at least the share
        at or below it.
        """
        table = pl.DataFrame({"place": positions(groups, merged, by), "x": merged[self._operand], _COUNT: merged[_COUNT]}).sort(
            "place", "x"
        )
        values, counts = table["x"], table[_COUNT].to_numpy()
        total = np.zeros(groups.height, np.int64)
        np.add.at(total, table["place"].to_numpy(), counts)
        kind = pl.Float64 if between else values.dtype
        if not values.len():
            return pl.Series([None] * groups.height, dtype=kind)
        upto, ahead = np.cumsum(counts), np.cumsum(total) - total

        def at(rank: IntArray) -> pl.Series:
            return values[np.minimum(np.searchsorted(upto, ahead + rank), values.len() - 1)]

        found = pl.Series(_between(share, total, at)) if between else at(ranks(total, share))
        return pl.select(pl.when(pl.Series(total > 0)).then(found)).to_series().cast(kind)


def _between(share: float, total: IntArray, at: Callable[[IntArray], pl.Series]) -> FloatArray:
    place = share * np.maximum(total - 1, 0)
    whole = np.floor(place).astype(np.int64)
    part = place - whole
    low, high = (at(np.minimum(rank, np.maximum(total, 1))).cast(pl.Float64).to_numpy() for rank in (whole + 1, whole + 2))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = high - low
        # The distance of two floats may be beyond the range of floats, and infinities have no distance.
        found = np.where(np.isfinite(apart), low + apart * part, low * (1.0 - part) + high * part)
    values: FloatArray = np.where((part == 0.0) | (low == high), low, found)
    return values
