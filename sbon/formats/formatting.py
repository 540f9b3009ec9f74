"""Formats rows as lines: NDJSON and CSV, as the `file` and `tcp` sources read them. The sinks use it.

Times are ISO 8601 in UTC (`2018-01-31T01:49:59.650000Z`), intervals are numbers of seconds. NULL is `null` in NDJSON and an empty field in
CSV. NDJSON cannot express NaN and the infinities: they become `null`.

A few rows come as plain values. They give the same bytes without polars, whose every call costs more than such a batch.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec
import polars as pl

from sbon.operators.division import quotient
from sbon.operators.frames import frame_of_values
from sbon.operators.time_texts import format_times
from sbon.operators.times import TIME_MAX_US, TIME_MIN_US
from sbon.operators.values import Values
from sbon.schema import ELEMENT_TYPES, ColumnType, Schema, family, held_type

_SECOND_US = 1_000_000
_EXACT_MAX = 2**53
"""Every integer up to this one is a float."""
_EPOCH = datetime(1970, 1, 1)
_JSON = msgspec.json.Encoder()
_EXPONENT_FROM = 1e16
"""Magnitude from which polars writes an exponent as `e+16` and msgspec as `e16`; below it, and for the smallest numbers, they write the
same."""
_TO_QUOTE = re.compile('[",\r\n]')


class LineFormat:
    """Formats rows of one schema."""

    def __init__(self, kind: str, schema: Schema) -> None:
        self.kind, self._schema = kind, schema
        self._names = [field.name for field in schema]
        self._as_they_are = not any(family(field.type) in _JSON_MEMBERS for field in schema)
        self._floats = [place for place, field in enumerate(schema) if field.type is ColumnType.FLOAT]
        self._documents = {field.name for field in schema if held_type(field.type) is not field.type}
        self._convert = [(_CSV_TEXTS if kind == "csv" else _JSON_MEMBERS).get(family(field.type)) for field in schema]

    @property
    def header(self) -> bytes:
        """Returns the line before the first row: a header for CSV, else nothing."""
        return pl.DataFrame(schema=dict.fromkeys(self._names, pl.String())).write_csv().encode() if self.kind == "csv" else b""

    def lines(self, frame: pl.DataFrame) -> bytes:
        """Returns one line for each row, each with its end."""
        written = frame if self._as_they_are and frame.columns == self._names else self._plain(frame)
        buffer = io.BytesIO()
        if self.kind == "csv":
            written.write_csv(buffer, include_header=False)
        elif self._documents:
            return self._with_documents(written)
        else:
            written.write_ndjson(buffer)
        return buffer.getvalue()

    def _plain(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Returns the columns in order, times as texts and intervals as numbers."""
        return frame.select_seq(_plain_column(frame[field.name], field.type) for field in self._schema)

    def _with_documents(self, texts: pl.DataFrame) -> bytes:
        """Returns NDJSON: values of JSON columns unchanged, and between them runs of other columns as JSON objects without their braces."""
        members: list[pl.Expr] = []
        run: list[str] = []
        for name in [*self._names, None]:
            if name is not None and name not in self._documents:
                run.append(name)
                continue
            if run:
                document = pl.struct(run).struct.json_encode()
                members.append(document.str.slice(1, document.str.len_chars() - 2))
                run = []
            if name is not None:
                members.append(pl.concat_str(pl.lit(_JSON.encode(name).decode() + ":"), pl.col(name).fill_null("null")))
        lines = pl.concat_str([pl.lit("{"), pl.concat_str(members, separator=","), pl.lit("}\n")])
        return "".join(texts.select_seq(lines).to_series().to_list()).encode()

    def lines_of_values(self, values: Values) -> bytes:
        """Returns the same bytes as `lines`, for rows that are plain values."""
        columns = values.columns
        for place in self._floats:
            for value in columns[place]:
                if value is not None and not abs(value) < _EXPONENT_FROM:
                    return self.lines(frame_of_values(values, self._schema))
        null = "" if self.kind == "csv" else None
        written = [
            column if convert is None else [null if value is None else convert(value) for value in column]
            for column, convert in zip(columns, self._convert, strict=True)
        ]
        if self.kind == "csv":
            return "".join([",".join(row) + "\n" for row in zip(*written, strict=True)]).encode()
        return _JSON.encode_lines([dict(zip(self._names, row, strict=True)) for row in zip(*written, strict=True)])


def _plain_column(column: pl.Series, kind: ColumnType) -> pl.Expr:
    value = pl.col(column.name)
    if kind is ColumnType.TIME:
        return format_times(column)
    return _seconds(value.cast(pl.Int64)).alias(column.name) if kind is ColumnType.INTERVAL else value


def _seconds(us: pl.Expr) -> pl.Expr:
    """Converts microseconds to the nearest floats of seconds.

    Microseconds beyond 2^53 may be no floats, so their whole seconds and the rest are converted separately.
    """
    in_parts = (us // _SECOND_US).cast(pl.Float64) + (us % _SECOND_US).cast(pl.Float64) / pl.lit(float(_SECOND_US))
    return pl.when(us.is_between(-_EXACT_MAX, _EXACT_MAX)).then(quotient(us, _SECOND_US)).otherwise(in_parts)


def _time_text(us: int) -> str | None:
    if not TIME_MIN_US <= us <= TIME_MAX_US:
        return None
    second, part_us = divmod(us, 1_000_000)
    return f"{_second_text(second)}.{part_us:06}Z"


@lru_cache(256)
def _second_text(second: int) -> str:
    """Formats a second; cached because successive rows are often of the same few seconds."""
    return (_EPOCH + timedelta(seconds=second)).isoformat()


def _quoted(text: str) -> str:
    """Quotes a text if necessary. Quotes distinguish an empty text from NULL."""
    return '"{}"'.format(text.replace('"', '""')) if not text or _TO_QUOTE.search(text) else text


_JSON_MEMBERS: Mapping[ColumnType, Callable[[Any], object]] = {
    ColumnType.TIME: _time_text,
    ColumnType.INTERVAL: lambda us: us / _SECOND_US,
    **dict.fromkeys((ColumnType.JSON, *ELEMENT_TYPES), lambda text: msgspec.Raw(text.encode())),
}
"""Conversions for types that JSON does not have; values of other types are written unchanged."""
_CSV_TEXTS: Mapping[ColumnType, Callable[[Any], str]] = {
    ColumnType.BOOL: lambda value: "true" if value else "false",
    ColumnType.INT: str,
    ColumnType.FLOAT: lambda value: _JSON.encode(value).decode(),
    ColumnType.TEXT: _quoted,
    **dict.fromkeys((ColumnType.JSON, *ELEMENT_TYPES), _quoted),
    ColumnType.TIME: lambda us: _time_text(us) or "",
    ColumnType.INTERVAL: lambda us: _JSON.encode(us / _SECOND_US).decode(),
}
