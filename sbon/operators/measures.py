"""Aggregates by group: counts, sums, bits, extremes, firsts and lasts. Plain numbers use array loops, other values polars.

Both ways give the same answers; the values decide which one is used.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.operators.grouping import Groups, Number, physical
from sbon.types import IntArray

_SLOT = "slot"
_SUM_MAX = 2.0**62


def counted(groups: Groups) -> pl.Series:
    """Counts the rows of each group."""
    return pl.Series(groups.taken(groups.counts))


def count_of(groups: Groups, values: pl.Series) -> pl.Series:
    """Counts the values of each group that are not NULL."""
    if not values.null_count():
        return counted(groups)
    there = values.is_not_null().to_numpy()
    return pl.Series(groups.taken(np.bincount(groups.ids[there], minlength=groups.size)))


def total_of(groups: Groups, values: pl.Series) -> pl.Series:
    """Sums counts and other numbers without NULL whose sum is known to fit 64 bits."""
    total = np.zeros(groups.size, np.int64)
    np.add.at(total, groups.ids, values.to_numpy())
    return pl.Series(groups.taken(total))


def sum_of(groups: Groups, values: pl.Series) -> pl.Series:
    """Sums integers of up to 128 bits as 128 bits; no stream is long enough to overflow them."""
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


BITS: dict[str, tuple[np.ufunc, int]] = {
    "bit_and": (np.bitwise_and, -1),
    "bit_or": (np.bitwise_or, 0),
    "bit_xor": (np.bitwise_xor, 0),
}
"""Bit operations, and the value that each gives without input."""


def bits_of(groups: Groups, values: pl.Series, kind: str) -> pl.Series:
    """Returns the bitwise AND, OR or XOR of the integers of each group; NULLs are left out."""
    operation, start = BITS[kind]
    ids = groups.ids
    if values.null_count():
        ids, values = ids[values.is_not_null().to_numpy()], values.drop_nulls()
    found = np.full(groups.size, start)
    operation.at(found, ids, values.to_numpy())
    return pl.Series(groups.taken(found))


def special_of(groups: Groups, values: pl.Series) -> pl.Series:
    """Sums the floats that are not finite; 0 if there are none."""
    if finite(values):
        return pl.Series(groups.taken(np.zeros(groups.size)))
    return _by_polars(groups, values, pl.col("x").filter(~pl.col("x").is_finite()).sum())


def extreme_of(groups: Groups, values: pl.Series, *, greatest: bool) -> pl.Series:
    """Returns the least or the greatest value of each group; NULL without values. NaN is skipped unless there is nothing else, and zero
    has no sign."""
    numbers = plain_numbers(values)
    if numbers is None:
        column = pl.col("x")
        found = apart(_by_polars(groups, values, column.max() if greatest else column.min()))
        return (
            found
            if found.dtype != pl.Float64
            else found.to_frame("x").select_seq(pl.when(column == 0.0).then(0.0).otherwise(column)).to_series()
        )
    return _like(values, groups.taken(_extremes(groups.ids, groups.size, numbers, greatest=greatest)))


def _extremes(ids: IntArray, size: int, numbers: npt.NDArray[Number], *, greatest: bool) -> npt.NDArray[Number]:
    """Returns the least or the greatest number of each slot; for an empty one, any number."""
    start = numbers.min() if greatest else numbers.max()
    found = np.full(size, start)
    (np.maximum if greatest else np.minimum).at(found, ids, numbers)
    return found


def edge_of(groups: Groups, values: pl.Series, times: pl.Series, *, last: bool) -> tuple[pl.Series, pl.Series]:
    """Returns the first value of each group (the least one of its instant) or the last (the greatest one), and the instant. NULLs are
    skipped unless there is nothing else."""
    numbers, at = plain_numbers(values), plain_numbers(times)
    if numbers is not None and at is not None:
        instant = _extremes(groups.ids, groups.size, at, greatest=last)
        there = np.flatnonzero(at == instant[groups.ids])
        edge = _extremes(groups.ids[there], groups.size, numbers[there], greatest=last)
        return _like(values, groups.taken(edge)), _like(times, groups.taken(instant))
    value, time = pl.col("x"), pl.col("y")
    pair = _sorted_last(value, time, is_float=times.dtype == pl.Float64) if last else _sorted_first(value, time)
    frame = pl.DataFrame({_SLOT: groups.ids, "x": values, "y": times}).group_by(_SLOT).agg(*pair).sort(_SLOT)
    return apart(frame["x"]), apart(frame["y"])


def _sorted_first(value: pl.Expr, time: pl.Expr) -> list[pl.Expr]:
    order = [value.is_null(), time, value]
    return [value.sort_by(order).first(), time.sort_by(order).first()]


def _sorted_last(value: pl.Expr, time: pl.Expr, *, is_float: bool) -> list[pl.Expr]:
    # NaN is the greatest float, and the last one only if there is nothing else.
    order = [value.is_not_null(), *([time.is_not_nan()] if is_float else []), time, value]
    return [value.sort_by(order).last(), time.sort_by(order).last()]


def _by_polars(groups: Groups, values: pl.Series, expression: pl.Expr) -> pl.Series:
    """Aggregates with polars; its groups, sorted by slot, are the groups in order."""
    return pl.DataFrame({_SLOT: groups.ids, "x": values}).group_by(_SLOT).agg(expression).sort(_SLOT)["x"]


def apart(values: pl.Series) -> pl.Series:
    """Copies texts to memory of their own, since a text picked out of a batch keeps all texts of the batch in memory."""
    return values + "" if values.dtype == pl.String else values


def rows_apart(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the same rows, with texts in memory of their own."""
    texts = [apart(column) for column in rows.get_columns() if column.dtype == pl.String]
    return rows.with_columns_seq(texts) if texts else rows


def plain_numbers(values: pl.Series) -> npt.NDArray[Any] | None:
    """Returns numbers to compare as an array; None if there are NULLs or NaNs, other types, or no values."""
    if not values.len() or values.null_count() or not (values.dtype in (pl.Int64, pl.Float64) or values.dtype.is_temporal()):
        return None
    numbers = values.to_numpy() if values.dtype == pl.Float64 else physical(values)
    if numbers.dtype == np.float64 and np.isnan(numbers.min()):
        return None
    return numbers


def _like(values: pl.Series, numbers: npt.NDArray[Any]) -> pl.Series:
    found = pl.Series(numbers + 0.0 if numbers.dtype == np.float64 else numbers)
    return found if found.dtype == values.dtype else found.cast(values.dtype)


def finite(values: pl.Series) -> bool:
    """Tells whether no value is an infinity or NaN."""
    if values.null_count():
        return bool(values.is_finite().all())
    numbers = values.to_numpy()
    return not numbers.size or bool(np.isfinite(numbers.min()) and np.isfinite(numbers.max()))
