"""Converts the columns of a Parquet file to those of a source.

A column of another type is converted through its text, like a column of CSV. `file_reader` uses it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from functools import partial

import polars as pl

from sbon.errors import ConnectorError
from sbon.formats.text_rows import TextRows
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfits
from sbon.operators.frames import polars_schema
from sbon.query.params.source import SourceParams
from sbon.schema import ELEMENT_TYPES, ColumnType, Schema, family, type_name

_INTEGERS = (pl.Int64, pl.Int32, pl.Int16, pl.Int8, pl.UInt32, pl.UInt16, pl.UInt8)
_NEAR: dict[ColumnType, tuple[type[pl.DataType], ...]] = {
    ColumnType.BOOL: (pl.Boolean,),
    ColumnType.INT: _INTEGERS,
    ColumnType.FLOAT: (pl.Float64, pl.Float32, pl.UInt64, *_INTEGERS),
    ColumnType.TEXT: (pl.String, pl.Categorical, pl.Enum, pl.Binary),
    ColumnType.TIME: (pl.Datetime, pl.Date),
    ColumnType.INTERVAL: (pl.Duration,),
    **dict.fromkeys((ColumnType.JSON, *ELEMENT_TYPES), ()),
}
"""Types that are converted directly, not through text."""
_ALWAYS_CONVERTS = _NEAR | {
    ColumnType.FLOAT: (pl.Float64, pl.Float32, *_INTEGERS),
    ColumnType.TEXT: (pl.String, pl.Categorical, pl.Enum),
    ColumnType.TIME: (pl.Datetime,),
}
"""Types whose every value converts to one of the source."""
_OF_NESTED = (ColumnType.TEXT, ColumnType.JSON, *ELEMENT_TYPES)
"""Types that take lists and structs, as JSON."""


def always_converts(kind: ColumnType, found: pl.DataType) -> bool:
    """Tells whether every value of such a column of a file converts to one of the source."""
    if isinstance(found, pl.Datetime | pl.Duration) and found.time_unit != "us":  # some of these times are outside the source's range
        return False
    return isinstance(found, _ALWAYS_CONVERTS[family(kind)])


def needed_columns(params: SourceParams, found: pl.Schema) -> list[str]:
    """Returns the columns of a file that a source has to read, in the source's order.

    These are the columns that its query uses, its event time, its NOT NULL columns, and columns with values that may not convert, because
    rows with such values are left out for every query.
    """
    names = [field.name for field in params.columns]
    if params.reads is None:
        return names
    used = {*params.reads.columns, *params.not_null, params.time_column}
    used.update(field.name for field in params.columns if not always_converts(field.type, found[field.name]))
    return [name for name in names if name in used] or names[:1]


class ParquetRows:
    """Converts frames of one file.

    Parameters
    ----------
    what : the connector and file in messages
    found : names and types of the file's columns
    misfits : counts rows that are left out
    names : columns that the frames have; the source's other columns become NULL

    Raises
    ------
    ConnectorError
        A column's type cannot be converted to that of the source's column.
    """

    def __init__(self, what: str, schema: Schema, found: pl.Schema, times: TimeFormat, misfits: Misfits, names: Sequence[str]) -> None:
        types = polars_schema(schema)
        self._whole = [pl.col(name) if name in names else pl.lit(None, dtype=types[name]).alias(name) for name in types]
        schema = tuple(field for field in schema if field.name in names)
        wanted = polars_schema(schema)
        texts = [field.name for field in schema if not isinstance(found[field.name], _NEAR[family(field.type)])]
        numbers = [field.name for field in schema if field.type is ColumnType.TIME and times.text is None]
        self._columns = [
            pl.col(name).cast(pl.Int64())
            if name in numbers and isinstance(found[name], _INTEGERS)
            else _text(name, found[name])
            if name in texts
            else _near(name, found[name], wanted[name])
            for name in wanted
        ]
        for field, column in zip(schema, self._columns, strict=True):
            try:
                if (found[field.name].is_nested() or isinstance(found[field.name], pl.Binary)) and family(field.type) not in _OF_NESTED:
                    raise ConnectorError(f"its values are no {type_name(field.type)}")
                pl.DataFrame(schema=found).select_seq(column)
            except (pl.exceptions.PolarsError, ConnectorError) as error:
                held = f"column {field.name} of the file is of type {found[field.name]}"
                raise ConnectorError(f"{what}: {held}, expected one that converts to {type_name(field.type)}") from error
        self._rows = TextRows(schema, times, misfits, texts)
        self._octets = [field.name for field in schema if isinstance(found[field.name], pl.Binary)]
        self._converted = [field for field in schema if field.name not in texts or field.type is ColumnType.TEXT]

    def counting(self, misfits: Misfits) -> ParquetRows:
        """Returns a reader that shares what this one learns, but counts left-out rows in `misfits`."""
        other = copy(self)
        other._rows = self._rows.counting(misfits)
        return other

    def read(self, raw: pl.DataFrame) -> pl.DataFrame:
        """Converts a frame with the columns that are read."""
        frame = raw.with_columns_seq(_texts(raw[name]) for name in self._octets).select_seq(self._columns)
        for field in self._converted:
            if frame[field.name].null_count() != raw[field.name].null_count():
                lost = frame[field.name].is_null() & raw[field.name].is_not_null()
                self._rows.leave_out(field, int(lost.sum()), lost.arg_max() or 0, partial(_shown, raw))
                frame, raw = frame.filter(~lost), raw.filter(~lost)
        rows = self._rows.convert(frame, partial(_shown, raw))[0]
        return rows if len(self._whole) == rows.width else rows.select_seq(self._whole)


def _texts(octets: pl.Series) -> pl.Series:
    """Decodes UTF-8 to text; invalid bytes become NULL."""
    try:
        return octets.cast(pl.String())
    except pl.exceptions.PolarsError:
        values = [None if value is None else value.decode("utf-8", "replace") for value in octets]
        good = [None if value is None or value.encode() != octet else value for value, octet in zip(values, octets, strict=True)]
        return pl.Series(octets.name, good, dtype=pl.String())


def _near(name: str, found: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if isinstance(found, pl.Datetime) and found.time_zone is not None:
        column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return column.cast(wanted, strict=False)


def _text(name: str, found: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if not found.is_nested():
        return column.cast(pl.String(), strict=False)
    document = pl.struct(column.alias("v")).struct.json_encode()
    return pl.when(column.is_not_null()).then(document.str.strip_prefix('{"v":').str.slice(0, document.str.len_chars() - 6)).alias(name)


def _shown(raw: pl.DataFrame, row: int, column: str) -> tuple[str, str]:
    line = raw.row(row, named=True)
    return json.dumps(line[column], default=str, ensure_ascii=False), json.dumps(line, default=str, ensure_ascii=False)
