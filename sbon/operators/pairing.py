"""Helpers of joins: drop rows that cannot match, and pair the rest with the faster of polars' two engines."""

from typing import Literal

import polars as pl

from sbon.watermarks import WATERMARK_END

STREAMED_ROWS_MIN = 4_096
"""Number of rows, of both sides together, from which polars' streaming engine is faster: half the time per row, but 0.2 ms more per call.
"""


def paired(left: pl.DataFrame, right: pl.DataFrame, left_on: list[str], right_on: list[str], how: Literal["inner", "left"]) -> pl.DataFrame:
    """Pairs rows of both sides with equal keys (NULL equals nothing), in the order of the left rows, then of the right ones.

    Parameters
    ----------
    left, right : frames without a common column name
    left_on, right_on : the keys; those of the right side are not in the answer
    how : "left" also returns left rows without a partner
    """
    if left.height + right.height < STREAMED_ROWS_MIN and not _misses_nan(left, right, left_on, right_on):
        return left.join(right, left_on=left_on, right_on=right_on, how=how, maintain_order="left_right")
    pairs = left.lazy().join(right.lazy(), left_on=left_on, right_on=right_on, how=how, maintain_order="left_right", coalesce=True)
    return pairs.collect(engine="streaming")


def in_time(rows: pl.DataFrame, time: str, first_us: int) -> pl.DataFrame:
    """Returns the rows with an event time not before `first_us`; mostly all rows."""
    times = rows[time]
    least, greatest = times.min(), times.max()
    if isinstance(least, int) and isinstance(greatest, int) and first_us <= least <= greatest < WATERMARK_END and not times.null_count():
        return rows
    return rows.filter(((times >= first_us) & (times < WATERMARK_END)).fill_null(False))


def without_null(rows: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """Returns the rows with a value in each of these columns."""
    return rows.drop_nulls(columns) if any(rows[column].null_count() for column in columns) else rows


def _misses_nan(left: pl.DataFrame, right: pl.DataFrame, left_on: list[str], right_on: list[str]) -> bool:
    """Tells whether polars' in-memory engine would lose pairs of NaN keys: if a side is sorted by its only key, it does a merge join, in
    which NaN does not equal NaN. A column of one row counts as sorted.
    """
    if len(left_on) > 1 or not left[left_on[0]].dtype.is_float():
        return False
    keys = left[left_on[0]], right[right_on[0]]
    return any(key.flags["SORTED_ASC"] or key.flags["SORTED_DESC"] for key in keys) and all(bool(key.is_nan().any()) for key in keys)
