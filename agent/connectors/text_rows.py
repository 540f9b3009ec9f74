"""From columns of text to those of a schema: what every format of rows from outside has in common.

Text that is no value of its column's type leaves its row out. The row counts once, for the first such column in the schema's order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

import polars as pl

from sbon.misfits import Misfits
from sbon.operators.casts import cast
from sbon.operators.frames import polars_type
from sbon.operators.times import parse_times, parse_timestamps
from sbon.query.schema import ColumnType, Field, Schema
from sbon_agent.connectors.time_format import TimeFormat

Shown: TypeAlias = Callable[[int, str], tuple[str, str | bytes]]
"""A row's number in a frame and a column's name -> the value as people should see it, and the line."""

_WHOLE = r"^[+-]?[0-9]+(\.0*)?$"
_CAUSES = {
    ColumnType.BOOL: "is not true or false (BOOLEAN)",
    ColumnType.INT: "is not an integer (BIGINT)",
    ColumnType.FLOAT: "is not a number (FLOAT)",
    ColumnType.TEXT: "is not UTF-8 (TEXT)",
    ColumnType.INTERVAL: "is not an interval such as '90 s'",
}
BEYOND = "is beyond 64 bits (BIGINT)"


def cause(kind: ColumnType, times: TimeFormat) -> str:
    """Why a value does not fit a column of this type."""
    return f"is not a time in the format {times.shown}" if kind is ColumnType.TIME else _CAUSES[kind]


class TextRows:
    """Turns columns of text into those of a schema. An empty text is NULL but in TEXT columns, where CSV tells `""` from nothing.

    Parameters
    ----------
    misfits : counts what is left out
    texts : names of the columns that come as text; the others have their types already
    """

    def __init__(self, schema: Schema, times: TimeFormat, misfits: Misfits, texts: Collection[str]) -> None:
        self._times = times
        self._misfits = misfits
        self._names = [field.name for field in schema]
        self._typed = [field for field in schema if field.name in texts and field.type is not ColumnType.TEXT]

    def convert(self, frame: pl.DataFrame, shown: Shown) -> tuple[pl.DataFrame, pl.Series | None]:
        """The rows that fit, and which ones these are; None: all."""
        values: list[pl.Series] = []
        fits: pl.Series | None = None
        for field in self._typed:
            text = pl.col(field.name).str.strip_chars()
            given = frame.select(pl.when(text != "").then(text)).to_series()
            nothing = given.null_count() == len(given)
            value = given.cast(polars_type(field.type)) if nothing else self._value(given, field.type)
            if value.null_count() != given.null_count():
                value = self._odd_value(given, value, field.type)
                fits = self._count(field, given, value.is_null() & given.is_not_null(), fits, shown)
            values.append(value.alias(field.name))
        rows = frame.select(self._names).with_columns(values)
        return (rows, None) if fits is None else (rows.filter(fits), fits)

    def leave_out(self, field: Field, rows: int, first: int, shown: Shown, why: str = "") -> None:
        """Count rows whose value in a column is of no use."""
        why = why or cause(field.type, self._times)
        if self._misfits.is_new(field.name, why):
            value, line = shown(first, field.name)
            self._misfits.add(field.name, why, rows=rows, value=value, line=line)
        else:
            self._misfits.add(field.name, why, rows=rows)

    def _count(self, field: Field, given: pl.Series, bad: pl.Series, fits: pl.Series | None, shown: Shown) -> pl.Series:
        """Count rows with a bad text that have fitted so far; those that still fit."""
        new = bad if fits is None else bad & fits
        beyond = new & given.str.contains(_WHOLE).fill_null(False) if field.type is ColumnType.INT else new & False
        for found, why in ((new & ~beyond, ""), (beyond, BEYOND)):
            rows = int(found.sum())
            if rows:
                self.leave_out(field, rows, found.arg_max() or 0, shown, why)
        return ~bad if fits is None else fits & ~bad

    def _value(self, given: pl.Series, kind: ColumnType) -> pl.Series:
        text = pl.col("text")
        if kind is ColumnType.TIME:
            times = parse_times(given, self._times.text)
            if times.null_count() == given.null_count():
                return times
            numbers = given.to_frame("text").select(parse_timestamps(text.cast(pl.Float64, strict=False), self._times.unit_us)).to_series()
            return times.fill_null(numbers)
        if kind is ColumnType.INTERVAL:
            seconds = cast(text.cast(pl.Float64, strict=False), ColumnType.FLOAT, ColumnType.INTERVAL)
            value = pl.coalesce([seconds, cast(text, ColumnType.TEXT, ColumnType.INTERVAL)])
        else:
            value = cast(text, ColumnType.TEXT, kind)
        return given.to_frame("text").select(value).to_series()

    def _odd_value(self, given: pl.Series, value: pl.Series, kind: ColumnType) -> pl.Series:
        """With what is written in an unusual way: `5.0` is a whole number."""
        if kind is not ColumnType.INT:
            return value
        text = pl.col("text")
        whole = pl.when(text.str.contains(_WHOLE)).then(text.str.replace(r"\.0*$", ""))
        return value.fill_null(given.to_frame("text").select(cast(whole, ColumnType.TEXT, kind)).to_series())
