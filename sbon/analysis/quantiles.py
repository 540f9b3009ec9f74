"""Quantiles of many values in one pass: counts in narrow bins, which can be added up across machines, then quantiles of the counts.

Exact quantiles would need all values of a group in one place. Bins are as narrow as the figures need: a tenth of a percentage point for
relative errors, two percent for durations. So a quantile here is within half a bin of the exact one, whatever the number of rows, and the
same from run to run.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from sbon import digest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BIN = "bin"
COUNT = "rows"


class Bins(NamedTuple):
    """Bins of equal width, of the value or of its logarithm."""

    width: float
    logarithmic: bool
    lowest: float
    highest: float
    """Largest value; larger ones count as this one."""

    def of(self, value: "Column") -> "Column":
        """Returns the bin's number; null for null and NaN."""
        bounded = F.least(F.greatest(F.nanvl(value, F.lit(None).cast("double")), F.lit(self.lowest)), F.lit(self.highest))
        bounded = F.when(value.isNotNull() & ~F.isnan(value), bounded)
        return F.floor((F.log(bounded) if self.logarithmic else bounded) / self.width).cast("int")

    def middle(self, number: "Column") -> "Column":
        """Returns the value in the middle of a bin."""
        centre = (number + 0.5) * self.width
        return F.exp(centre) if self.logarithmic else centre

    def half_width(self, value: float) -> float:
        """Returns the largest error of a quantile."""
        return value * math.expm1(self.width) if self.logarithmic else self.width


RELATIVE_ERROR = Bins(0.001, False, 0.0, 10.0)
"""Bins of relative errors; ten times the true value counts as the maximum."""
MILLISECONDS = Bins(math.log(digest.GROWTH), True, digest.LEAST_MS, digest.MOST_MS)
"""Bins of the agents' digests, so that both add up: 2 percent wide."""


def binned(rows: "DataFrame", keys: Sequence[str], value: "Column", bins: Bins) -> "DataFrame":
    """Counts the values in each bin, as (keys, bin, rows); rows without a value are left out."""
    return rows.withColumn(BIN, bins.of(value)).where(F.col(BIN).isNotNull()).groupBy(*keys, BIN).agg(F.count("*").alias(COUNT))


def quantiles(counts: "DataFrame", keys: Sequence[str], shares: dict[str, float], bins: Bins) -> "DataFrame":
    """Returns one row for each combination of keys: `rows`, and the quantiles by name, from the counts of `binned`.

    The quantile of a share q of n values is the least value with at least q n values up to it (nearest rank).
    """
    by_key = Window.partitionBy(*[F.col(key) for key in keys])
    up_to = by_key.orderBy(BIN).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ranked = counts.withColumn("up_to", F.sum(COUNT).over(up_to)).withColumn("total", F.sum(COUNT).over(by_key))
    wanted = [
        bins.middle(F.min(F.when(F.col("up_to") >= share * F.col("total"), F.col(BIN)))).alias(name) for name, share in shares.items()
    ]
    return ranked.groupBy(*keys).agg(F.max("total").alias(COUNT), *wanted)


def quantile_of(counts: pl.DataFrame, share: float, bins: Bins) -> float | None:
    """Returns one quantile of counts in a local frame; None without rows."""
    return quantiles_by(counts.with_columns(pl.lit(0).alias("all")), "all", {"q": share}, bins).get_column("q").first()  # type: ignore[return-value]


def quantiles_by(counts: pl.DataFrame, key: str, shares: dict[str, float], bins: Bins) -> pl.DataFrame:
    """Returns the result of `quantiles` for counts in a local frame, ordered by the single key."""
    summed = counts.group_by(key, BIN).agg(pl.col(COUNT).sum()).sort(key, BIN)
    ranked = summed.with_columns(pl.col(COUNT).cum_sum().over(key).alias("up_to"), pl.col(COUNT).sum().over(key).alias("total"))
    wanted = []
    for name, share in shares.items():
        reached = pl.col(BIN).filter(pl.col("up_to") >= share * pl.col("total")).min()
        centre = (reached + 0.5) * bins.width
        wanted.append((centre.exp() if bins.logarithmic else centre).alias(name))
    return ranked.group_by(key).agg(pl.col("total").first().alias(COUNT), *wanted).sort(key)
