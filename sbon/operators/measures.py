"""Counts, sums, extremes, firsts and lasts by group, as array loops where the values are plain numbers, through polars where not.

Both ways give the same; which one is taken depends on what the values are, never on the answer.
"""

import numpy as np
import polars as pl

from sbon.operators.grouping import Groups, IntArray
from sbon.types import FloatArray

_SLOT = "slot"
_SUM_MAX = 2.0**62


def counted(groups: Groups) -> pl.Series:
    """Rows of each group."""
    return pl.Series(groups.taken(np.bincount(groups.ids, minlength=groups.size)), dtype=pl.Int64)


def count_of(groups: Groups, values: pl.Series) -> pl.Series:
    """Values of each group that are not NULL."""
    if not values.null_count():
        return counted(groups)
    there = values.is_not_null().to_numpy()
    return pl.Series(groups.taken(np.bincount(groups.ids[there], minlength=groups.size)), dtype=pl.Int64)


def sum_of(groups: Groups, values: pl.Series) -> pl.Series:
    """The sum of whole numbers of up to 128 bits, as 128 bits: no stream is long enough to overflow it."""
    least, greatest = values.min(), values.max()
    bound = max(abs(least), abs(greatest)) if isinstance(least, int) and isinstance(greatest, int) else 0
    if bound * float(values.len()) >= _SUM_MAX:
        return _by_polars(groups, values, pl.col("x").cast(pl.Int128).sum())
    numbers = values.cast(pl.Int64)
    ids = groups.ids
    if numbers.null_count():
        ids, numbers = ids[numbers.is_not_null().to_numpy()], numbers.drop_nulls()
    total = np.zeros(groups.size, np.int64)
    np.add.at(total, ids, numbers.to_numpy())
    return pl.Series(groups.taken(total)).cast(pl.Int128)


def special_of(groups: Groups, values: pl.Series) -> pl.Series:
    """The sum of the floats that are not finite; 0 of none."""
    if finite(values):
        return pl.Series(groups.taken(np.zeros(groups.size)))
    return _by_polars(groups, values, pl.col("x").filter(~pl.col("x").is_finite()).sum())


def extreme_of(groups: Groups, values: pl.Series, *, greatest: bool) -> pl.Series:
    """The least or the greatest value of each group; NULL of none. NaN is passed over unless there is nothing else."""
    numbers = _plain(values)
    if numbers is None:
        column = pl.col("x")
        return _by_polars(groups, values, column.max() if greatest else column.min())
    extreme = np.maximum if greatest else np.minimum
    if numbers.dtype == np.float64:
        floats = np.full(groups.size, -np.inf if greatest else np.inf)
        extreme.at(floats, groups.ids, numbers)
        return pl.Series(groups.taken(floats))
    limits = np.iinfo(np.int64)
    integers = np.full(groups.size, limits.min if greatest else limits.max)
    extreme.at(integers, groups.ids, numbers)
    return pl.Series(groups.taken(integers)).cast(values.dtype)


def edge_of(groups: Groups, values: pl.Series, times: pl.Series, *, last: bool) -> tuple[pl.Series, pl.Series]:
    """The first value of each group, the least one of its instant, or the last, the greatest one; and the instant. NULLs are passed over
    unless there is nothing else."""
    numbers, at = _plain(values), _plain(times)
    if numbers is not None and at is not None:
        instants = extreme_of(groups, times, greatest=last)
        instant = np.zeros(groups.size, np.int64)
        slots = np.flatnonzero(np.bincount(groups.ids, minlength=groups.size))
        instant[slots] = instants.to_numpy()
        there = np.flatnonzero(at == instant[groups.ids])
        return extreme_of(Groups(groups.ids[there], groups.size, slots, groups.keys), values[there], greatest=last), instants
    value, time = pl.col("x"), pl.col("y")
    pair = _sorted_last(value, time) if last else _sorted_first(value, time)
    frame = pl.DataFrame({_SLOT: groups.ids, "x": values, "y": times}).group_by(_SLOT).agg(*pair).sort(_SLOT)
    return frame["x"], frame["y"]


def _sorted_first(value: pl.Expr, time: pl.Expr) -> list[pl.Expr]:
    order = [value.is_null(), time, value]
    return [value.sort_by(order).first(), time.sort_by(order).first()]


def _sorted_last(value: pl.Expr, time: pl.Expr) -> list[pl.Expr]:
    order = [value.is_not_null(), time, value]
    return [value.sort_by(order).last(), time.sort_by(order).last()]


def _by_polars(groups: Groups, values: pl.Series, expression: pl.Expr) -> pl.Series:
    """Slots that are there, in order, are the groups in order."""
    return pl.DataFrame({_SLOT: groups.ids, "x": values}).group_by(_SLOT).agg(expression).sort(_SLOT)["x"]


def _plain(values: pl.Series) -> IntArray | FloatArray | None:
    """Numbers to compare as an array; None where there are NULLs or NaNs, or no numbers."""
    if values.null_count() or not (values.dtype in (pl.Int64, pl.Float64) or values.dtype.is_temporal()):
        return None
    numbers = values.to_physical().to_numpy()
    if numbers.dtype == np.float64 and numbers.size and np.isnan(numbers.min()):
        return None
    return numbers


def finite(values: pl.Series) -> bool:
    """No value is an infinity or NaN."""
    if values.null_count():
        return bool(values.is_finite().all())
    numbers = values.to_numpy()
    return not numbers.size or bool(np.isfinite(numbers.min()) and np.isfinite(numbers.max()))
