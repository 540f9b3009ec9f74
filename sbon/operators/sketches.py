"""Sketches: small tables that answer nearly, merge in any order, and are the same on every machine.

APPROX_COUNT_DISTINCT keeps the LEAST_KEPT least hashes of a group's values. With fewer values the answer is their number; beyond, the
k-th least of n even draws lies near k / n. APPROX_PERCENTILE counts values in buckets, OCTAVE_BUCKETS to each power of two, cut from the
bits of the floats, so that no logarithm rounds differently elsewhere.
"""

import numpy as np
import polars as pl

from sbon.operators.grouping import Groups
from sbon.operators.hashes import hashes
from sbon.operators.measures import counted, extreme_of, total_of
from sbon.operators.partials import Table, distinct

LEAST_KEPT = 2048
"""Answers below it are exact; from it on the standard error is 1 / sqrt(LEAST_KEPT - 2), 2.2 %."""
OCTAVE_BITS = 6
"""Half a bucket is at most 2 ** -(OCTAVE_BITS + 1) of its values, 0.8 %; whole numbers below 128 have buckets of their own."""

_BILLION = 10**9
_SHIFT = np.int64(52 - OCTAVE_BITS)


class LeastHashTable(Table):
    """The least hashes of an operand's values, one row a group and hash.

    Source
    ------
    Bar-Yossef et al., Counting distinct elements in a data stream, RANDOM 2002, the second algorithm; the estimate (k - 1) / h_k and its
    error are of Beyer et al., On synopses for distinct-value estimation under multiset operations, SIGMOD 2007, section 3.
    """

    def __init__(self, operand: str) -> None:
        super().__init__()
        self._operand = operand

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Hashes of the values that are not NULL."""
        values = distinct(groups, rows[self._operand])
        hashed = values.with_columns(pl.Series("h", hashes(values[self._operand]), dtype=pl.UInt64)).drop(self._operand)
        return self.merge(hashed, groups.keys.columns)

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """The least ones, each once."""
        return partials.group_by(by).agg(pl.col("h").unique().bottom_k(LEAST_KEPT)).explode("h")

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """By group and hash."""
        return partials.sort([*by, "h"])

    def counts(self, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame) -> pl.Series:
        """About how many values each of `groups` has, in their order."""
        kept, last = pl.len(), pl.col("h").max().cast(pl.Float64) / 2.0**64
        guess = ((LEAST_KEPT - 1) / last).round(0).cast(pl.Int64)
        counted = merged.group_by(by).agg(pl.when(kept < LEAST_KEPT).then(kept.cast(pl.Int64)).otherwise(guess).alias("distinct"))
        found = groups.select(by).join(counted, on=by, how="left", nulls_equal=True, maintain_order="left")
        return found["distinct"].fill_null(0)


class BucketTable(Table):
    """How many of an operand's values lie in each bucket, with the least and the greatest of them; one row a group and bucket.

    NaN is left out as NULL is. Values of a magnitude below 1e-308 share a bucket.

    Source
    ------
    Buckets of equal relative width are those of Masson et al., DDSketch, VLDB 2019, section 2; cut linearly within an octave, as their
    section 4 does for speed.
    """

    def __init__(self, operand: str) -> None:
        super().__init__()
        self._operand = operand

    def partial(self, rows: pl.DataFrame, groups: Groups) -> pl.DataFrame:
        """Values counted by group and bucket."""
        values, ids = rows[self._operand].cast(pl.Float64), groups.ids
        there = values.is_not_null() & values.is_not_nan()
        if not there.all():
            values, ids = values.filter(there), ids[there.to_numpy()]
        numbers = values.to_numpy()
        bucket = np.abs(numbers).view(np.int64) >> _SHIFT
        bucket = np.where(numbers < 0.0, -bucket, bucket)
        cells = Groups.of(pl.DataFrame({"g": ids, "b": bucket}), ["g", "b"])
        low, high = (extreme_of(cells, values, greatest=greatest) for greatest in (False, True))
        found = cells.keys.hstack([counted(cells).alias("n"), low.alias("lo"), high.alias("hi")])
        return groups.keys_at(found["g"].to_numpy()).hstack(found.drop("g"))

    def merge(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """One row a group and bucket."""
        cells = Groups.of(partials, [*by, "b"])
        count = total_of(cells, partials["n"])
        low, high = (extreme_of(cells, partials[name], greatest=name == "hi") for name in ("lo", "hi"))
        return cells.keys.hstack([count.alias("n"), low.alias("lo"), high.alias("hi")])

    def ordered(self, partials: pl.DataFrame, by: list[str]) -> pl.DataFrame:
        """By group and bucket."""
        return partials.sort([*by, "b"])

    def percentiles(self, share: float, merged: pl.DataFrame, by: list[str], groups: pl.DataFrame) -> pl.Series:
        """The least value with at least this share of the values at or below it, nearly, of each of `groups`, in their order.

        The first and the last value of a bucket are known; of one between, the middle of the two is given.
        """
        billionths = round(share * _BILLION)
        total = pl.col("n").sum().cast(pl.Int128)
        rank = pl.max_horizontal((total * billionths + (_BILLION - 1)) // _BILLION, pl.lit(1, pl.Int128)).cast(pl.Int64)
        ranked = merged.sort([*by, "b"]).with_columns(pl.col("n").cum_sum().over(by).alias("c"), rank.over(by).alias("r"))
        low, high = pl.col("lo"), pl.col("hi")
        first = (pl.col("r") == pl.col("c") - pl.col("n") + 1) | (low == high)  # infinities have no middle
        value = pl.when(first).then(low).when(pl.col("r") == pl.col("c")).then(high).otherwise(low + (high - low) / 2)
        reached = ranked.filter(pl.col("c") >= pl.col("r")).group_by(by, maintain_order=True).agg(value.first().alias("percentile"))
        found = groups.select(by).join(reached, on=by, how="left", nulls_equal=True, maintain_order="left")
        return found["percentile"]
