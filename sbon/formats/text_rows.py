"""Converts columns of text to the columns of a schema, for all formats of rows from outside.

A row with a text that is no value of its column's type is left out. The row counts once, for the first such column in the schema's order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from typing import TypeAlias

import polars as pl

from sbon.arrays import ELEMENTS_MAX, nested_text
from sbon.formats.time_format import TimeFormat
from sbon.json_texts import JSON_DEPTH_MAX
from sbon.misfits import Misfits
from sbon.operators.casts import cast
from sbon.operators.frames import polars_type
from sbon.operators.times import parse_times, parse_timestamps, parse_whole_timestamps
from sbon.schema import ELEMENT_TYPES, ColumnType, Field, Schema, element_type, family, held_type, type_name

Shown: TypeAlias = Callable[[int, str], tuple[str, str | bytes]]
"""A row's number in a frame and a column's name -> the value as people should see it, and the line."""


def _not_array(element: ColumnType) -> str:
    return f"is not an array of {type_name(element)}, or has more than {ELEMENTS_MAX:,} elements"


_WHOLE = r"^[+-]?[0-9]+(\.0*)?$"
_CAUSES = {
    ColumnType.BOOL: "is not true or false (BOOLEAN)",
    ColumnType.INT: "is not an integer (BIGINT)",
    ColumnType.FLOAT: "is not a number (FLOAT)",
    ColumnType.TEXT: "is not UTF-8 (TEXT)",
    ColumnType.INTERVAL: "is not an interval such as '90 s'",
    ColumnType.JSON: f"is not JSON, or nested more than {JSON_DEPTH_MAX} deep (JSON)",
    **{kind: _not_array(element) for kind, element in ELEMENT_TYPES.items()},
}
_TRIED = 8
"""Number of times at the beginning that are checked for numbers. If only later ones are numbers, these are read the slow way."""
BEYOND = "is beyond 64 bits (BIGINT)"


def cause(kind: ColumnType, times: TimeFormat) -> str:
    """Returns why a value does not fit a column of this type."""
    if family(kind) is not kind:  # structs
        one = element_type(kind)
        return f"is not {type_name(kind)}" if one is None else _not_array(one)
    return f"is not a time in the format {times.shown}" if kind is ColumnType.TIME else _CAUSES[kind]


class TextRows:
    """Converts columns of text to those of a schema. An empty text is NULL, except in TEXT columns, where CSV tells `""` from nothing.

    Parameters
    ----------
    misfits : counts rows that are left out
    texts : names of the columns that come as text, or with the types of `plain_types`; all others have their types already
    """

    def __init__(self, schema: Schema, times: TimeFormat, misfits: Misfits, texts: Collection[str]) -> None:
        self._times = times
        self._misfits = misfits
        self._names = [field.name for field in schema]
        self._typed = [field for field in schema if field.name in texts and field.type is not ColumnType.TEXT]
        self.odd: set[str] = set()
        """Columns that have had texts in an unusual form."""
        self.numbers: set[str] = set()
        """Columns of times that have had only whole numbers in earlier blocks."""

    def counting(self, misfits: Misfits) -> TextRows:
        """Returns a converter that shares what this one learns, but counts left-out rows in `misfits`."""
        other = copy(self)
        other._misfits = misfits
        return other

    def convert(self, frame: pl.DataFrame, shown: Shown) -> tuple[pl.DataFrame, pl.Series | None]:
        """Returns the rows that fit, and a mask of these; None: all.

        Plain texts, such as `-12`, `1.5` and `true` without blanks, are read first, a column at once. The others are read the slow way.
        """
        values: list[pl.Series] = []
        fits: pl.Series | None = None
        for field in self._typed:
            texts = frame[field.name]
            value = self._plain_value(texts, field)
            if value.null_count() != texts.null_count():
                self.odd.add(field.name)
                odd = (value.is_null() & texts.is_not_null()).arg_true()
                given = texts.gather(odd).cast(pl.String())
                given = given.to_frame("text").select_seq(_trimmed(pl.col("text"))).to_series()
                rest = self._odd_value(given, self._value(given, field.type), field.type)
                value = value.scatter(odd, rest)
                unfit = (rest.is_null() & given.is_not_null()).arg_true()
                if len(unfit):
                    fits = self._count(field, odd.gather(unfit), given.gather(unfit), fits, frame.height, shown)
            values.append(value.alias(field.name))
        rows = frame.select_seq(self._names).with_columns_seq(values)
        return (rows, None) if fits is None else (rows.filter(fits), fits)

    def plain_types(self) -> dict[str, pl.DataType]:
        """Returns the types as which a reader may try to read columns at once, because all their texts have been plain so far."""
        kinds = {field.name: field.type for field in self._typed if field.name not in self.odd}
        types = {name: polars_type(kind) for name, kind in kinds.items() if kind in (ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT)}
        return types | {name: polars_type(ColumnType.INT) for name in self.numbers if name in kinds}

    def leave_out(self, field: Field, rows: int, first: int, shown: Shown, why: str = "") -> None:
        """Counts rows whose value in a column cannot be used."""
        why = why or cause(field.type, self._times)
        if self._misfits.is_new(field.name, why):
            value, line = shown(first, field.name)
            self._misfits.add(field.name, why, rows=rows, value=value, line=line)
        else:
            self._misfits.add(field.name, why, rows=rows)

    def _count(self, field: Field, bad: pl.Series, texts: pl.Series, fits: pl.Series | None, height: int, shown: Shown) -> pl.Series:
        """Counts rows with a bad text that have fitted so far; returns a mask of the rows that still fit.

        Parameters
        ----------
        bad : places of the rows
        texts : bad texts of these rows
        height : number of all rows
        """
        fits = pl.repeat(True, height, dtype=pl.Boolean(), eager=True) if fits is None else fits
        new = fits.gather(bad)
        beyond = new & texts.str.contains(_WHOLE) if field.type is ColumnType.INT else new & False
        for found, why in ((new & ~beyond, ""), (beyond, BEYOND)):
            rows = int(found.sum())
            if rows:
                self.leave_out(field, rows, int(bad[found.arg_max() or 0]), shown, why)
        return fits.scatter(bad, False)

    def _plain_value(self, texts: pl.Series, field: Field) -> pl.Series:
        """Returns the values of plain texts; NULL for all others, which may still have a value."""
        dtype = polars_type(field.type)
        if texts.null_count() == len(texts) or field.type is ColumnType.INTERVAL:
            return pl.Series([], dtype=dtype).clear(len(texts))
        if held_type(field.type) is not field.type:
            return _documents(texts, field.type)
        if field.type is ColumnType.TIME:
            begin = texts.head(_TRIED).cast(pl.Int64(), strict=False)
            return parse_times(texts, self._times.text) if begin.null_count() == len(begin) else self._plain_times(texts, field.name)
        if field.type is ColumnType.BOOL and texts.dtype != dtype:
            text = pl.col("text")
            return texts.to_frame("text").select_seq(pl.when(text == "true").then(True).when(text == "false").then(False)).to_series()
        return texts.cast(dtype, strict=False)

    def _plain_times(self, texts: pl.Series, column: str = "") -> pl.Series:
        if self._times.text is not None:
            return parse_times(texts, self._times.text)
        numbers = texts.cast(pl.Int64(), strict=False)
        if numbers.null_count() == len(numbers):
            return parse_times(texts)
        times = parse_whole_timestamps(numbers, self._times.unit_us)
        if numbers.null_count() == texts.null_count():
            self.numbers.add(column)
            return times
        return times.fill_null(parse_times(texts))

    def _value(self, given: pl.Series, kind: ColumnType) -> pl.Series:
        text = pl.col("text")
        if held_type(kind) is not kind:
            return _documents(given, kind)
        if kind is ColumnType.TIME:
            numbers = (
                given.to_frame("text").select_seq(parse_timestamps(text.cast(pl.Float64, strict=False), self._times.unit_us)).to_series()
            )
            return self._plain_times(given).fill_null(numbers)
        if kind is ColumnType.INTERVAL:
            seconds = cast(text.cast(pl.Float64, strict=False), ColumnType.FLOAT, ColumnType.INTERVAL)
            value = pl.coalesce([seconds, cast(text, ColumnType.TEXT, ColumnType.INTERVAL)])
        else:
            value = cast(text, ColumnType.TEXT, kind)
        return given.to_frame("text").select_seq(value).to_series()

    def _odd_value(self, given: pl.Series, value: pl.Series, kind: ColumnType) -> pl.Series:
        """Adds the values of texts in an unusual form: `5.0` is a whole number."""
        if kind is not ColumnType.INT:
            return value
        text = pl.col("text")
        whole = pl.when(text.str.contains(_WHOLE)).then(text.str.replace(r"\.0*$", ""))
        return value.fill_null(given.to_frame("text").select_seq(cast(whole, ColumnType.TEXT, kind)).to_series())


def _documents(texts: pl.Series, kind: ColumnType) -> pl.Series:
    """Returns JSON and arrays as the engine holds them; NULL for texts that are neither."""
    return pl.Series(texts.name, [None if text is None else nested_text(text, kind) for text in texts], dtype=pl.String)


def _trimmed(text: pl.Expr) -> pl.Expr:
    """Returns a text without blanks around it; NULL if nothing is left."""
    text = text.str.strip_chars()
    return pl.when(text != "").then(text)
