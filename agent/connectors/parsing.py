"""From lines to rows: CSV records and NDJSON lines in the columns of a source.

A row that cannot be read - no JSON, too many fields, a value that is not of its column's type - is left out and counted. The fast path
reads all lines at once; only where that fails are they taken one by one, to find the bad ones. A handful of lines with plain times is read
value by value, without the columnar library, whose every call costs more than such a batch.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import polars as pl

from agent.connectors.options import Options
from sbon.operators.casts import cast
from sbon.operators.frames import frame_of_values, polars_schema, polars_type
from sbon.operators.times import parse_time, parse_times, parse_timestamps
from sbon.operators.values import FEW_ROWS, Values, fits
from sbon.query.schema import ColumnType, Schema

FEW_BYTES_MAX = 64 * 1024
"""Lines with more in them are no handful, however few."""
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?Z?")
"""In UTC, said or not; every reader takes these alike. All other forms of ISO 8601 are left to the columnar one."""
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_UNITS_US = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0}


class TimeFormat(msgspec.Struct, frozen=True):
    """How times stand in lines: options `time_format` (strftime; default ISO 8601) and, for numbers, `time_unit` (`s`, `ms`, `us`)."""

    text: str | None
    unit_us: float

    @classmethod
    def read(cls, options: Options) -> TimeFormat:
        """From the WITH clause."""
        text = options.optional("time_format")
        if text is not None:
            try:
                pl.select(parse_time(pl.lit("2026-01-31 12:00:00"), text))
            except pl.exceptions.PolarsError as error:
                raise options.refuse("time_format", text, "a format such as '%d/%m/%Y %H:%M'") from error
        return cls(text, _UNITS_US[options.choice("time_unit", tuple(_UNITS_US), "s")])


class TextRows:
    """Turns columns of text into those of a schema. An empty text is NULL but in TEXT columns, where CSV tells `""` from nothing.

    Parameters
    ----------
    texts : types whose columns come as text; the others have their own already
    """

    def __init__(self, schema: Schema, times: TimeFormat, texts: Collection[ColumnType] = tuple(ColumnType)) -> None:
        self._times = times
        self._names = [field.name for field in schema]
        self._typed = [field for field in schema if field.type in texts and field.type is not ColumnType.TEXT]

    def convert(self, frame: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """The rows, and how many were left out because a value is not of its column's type."""
        values: list[pl.Series] = []
        fits: pl.Series | None = None
        for field in self._typed:
            text = pl.col(field.name).str.strip_chars()
            given = frame.select(pl.when(text != "").then(text)).to_series()
            value = self._value(given, field.type)
            if value.null_count() != given.null_count():
                good = value.is_not_null() | given.is_null()
                fits = good if fits is None else fits & good
            values.append(value.alias(field.name))
        rows = frame.select(self._names).with_columns(values)
        kept = rows if fits is None else rows.filter(fits)
        return kept, rows.height - kept.height

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


class CsvRows:
    """CSV records (RFC 4180) without their header.

    Parameters
    ----------
    header : names of the fields, in order
    """

    def __init__(self, schema: Schema, header: Sequence[str], separator: str, times: TimeFormat) -> None:
        self._names = [field.name for field in schema]
        self._places = [list(header).index(name) for name in self._names]
        self._width = len(header)
        self._raw = {f"f{i}": pl.String() for i in range(self._width)}
        self._pick = [pl.col(f"f{place}").alias(name) for place, name in zip(self._places, self._names, strict=True)]
        self._separator = separator
        self._rows = TextRows(schema, times)

    def read(self, data: bytes) -> tuple[pl.DataFrame, int]:
        """Rows of whole records, and how many were left out."""
        try:
            frame = pl.read_csv(data, has_header=False, schema=self._raw, separator=self._separator)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return self._read_one_by_one(data)
        return self._rows.convert(frame.select(self._pick))

    def _read_one_by_one(self, data: bytes) -> tuple[pl.DataFrame, int]:
        bad = 0
        columns: list[list[str | None]] = [[] for _ in self._names]
        reader = csv.reader(io.StringIO(data.decode("utf-8", errors="replace"), newline=""), delimiter=self._separator, strict=False)
        while True:
            try:
                record = next(reader)
            except StopIteration:
                break
            except csv.Error:
                bad += 1
                continue
            if not record:
                continue
            if len(record) > self._width or any("�" in value for value in record):
                bad += 1
                continue
            for column, place in zip(columns, self._places, strict=True):
                column.append(record[place] or None if place < len(record) else None)
        texts = pl.DataFrame(dict(zip(self._names, columns, strict=True)), schema=dict.fromkeys(self._names, pl.String()))
        rows, unfit = self._rows.convert(texts)
        return rows, bad + unfit


_JSON_TYPES: dict[ColumnType, Any] = {
    ColumnType.BOOL: bool | None,
    ColumnType.INT: int | None,
    ColumnType.FLOAT: float | None,
    ColumnType.TEXT: str | None,
    ColumnType.TIME: str | int | float | None,
    ColumnType.INTERVAL: str | int | float | None,
}
_JSON_TEXTS = (ColumnType.TIME, ColumnType.INTERVAL)
"""Types that have no form of their own in JSON."""


class JsonRows:
    """NDJSON: one object a line; members that are no column are ignored, columns without a member are NULL."""

    def __init__(self, schema: Schema, times: TimeFormat) -> None:
        self._schema = schema
        self._slots = [f"f{i}" for i in range(len(schema))]
        members = [(slot, _JSON_TYPES[field.type], None) for slot, field in zip(self._slots, schema, strict=True)]
        names = {slot: field.name for slot, field in zip(self._slots, schema, strict=True)}
        row = msgspec.defstruct("Row", members, rename=names, gc=False)
        self._one = msgspec.json.Decoder(row)
        self._many = msgspec.json.Decoder(list[row])  # type: ignore[valid-type]
        texts = {field.name: polars_type(ColumnType.TEXT) for field in schema if field.type in _JSON_TEXTS}
        self._raw = polars_schema(schema) | texts
        self._convert = TextRows(schema, times, _JSON_TEXTS)
        self._times = [place for place, field in enumerate(schema) if field.type is ColumnType.TIME]
        self._plain = times.text is None and all(field.type is not ColumnType.INTERVAL for field in schema)

    def read(self, lines: Sequence[bytes]) -> tuple[pl.DataFrame, int]:
        """Rows of lines, and how many were left out. Blank lines do not count."""
        few = self.read_few(lines)
        return self.read_many(lines) if few is None else (frame_of_values(few[0], self._schema), few[1])

    def read_many(self, lines: Sequence[bytes]) -> tuple[pl.DataFrame, int]:
        """The same for any lines, by the columnar library."""
        lines = [line for line in lines if line.strip()]
        rows = self._rows(lines)
        try:
            frame = pl.DataFrame(self._columns(rows), schema=self._raw)
        except (pl.exceptions.PolarsError, OverflowError, TypeError):
            frame = pl.DataFrame(self._columns([row for row in rows if self._fits(row)]), schema=self._raw)
        frame, _ = self._convert.convert(frame)
        return frame, len(lines) - frame.height

    def read_few(self, lines: Sequence[bytes]) -> tuple[Values, int] | None:
        """The same, as plain values; None: they are many, or not as simple as that."""
        if not self._plain or len(lines) > FEW_ROWS or sum(map(len, lines)) > FEW_BYTES_MAX:
            return None
        lines = [line for line in lines if line.strip()]
        rows = [msgspec.structs.astuple(row) for row in self._rows(lines)]
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [() for _ in self._slots]
        try:
            for place in self._times:
                columns[place] = [None if value is None else _plain_time_us(value) for value in columns[place]]
        except ValueError:
            return None
        values = Values(len(rows), tuple(columns))
        return (values, len(lines) - len(rows)) if fits(values, self._schema) else None

    def _rows(self, lines: Sequence[bytes]) -> list[Any]:
        """What can be read as JSON of the right types, in order."""
        try:
            if len(lines) == 1:
                return [self._one.decode(lines[0])]
            rows = self._many.decode(b"[" + b",".join(lines) + b"]")
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._one_by_one(lines)
        return rows if len(rows) == len(lines) else self._one_by_one(lines)  # a line that closes the list and opens another is bad, too

    def _one_by_one(self, lines: Sequence[bytes]) -> list[Any]:
        rows = []
        for line in lines:
            try:
                rows.append(self._one.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
        return rows

    def _fits(self, row: Any) -> bool:
        """Integers of JSON have no bound, ours have."""
        values = (getattr(row, slot) for slot, field in zip(self._slots, self._schema, strict=True) if field.type is ColumnType.INT)
        return all(value is None or -(2**63) <= value < 2**63 for value in values)

    def _columns(self, rows: list[Any]) -> dict[str, list[Any]]:
        columns = {}
        for slot, field in zip(self._slots, self._schema, strict=True):
            values = [getattr(row, slot) for row in rows]
            if field.type in _JSON_TEXTS:
                values = [None if value is None else str(value) for value in values]
            columns[field.name] = values
        return columns


def _plain_time_us(value: object) -> int:
    if not isinstance(value, str) or _PLAIN_TIME.fullmatch(value) is None:
        raise ValueError("not a plain time")
    return (datetime.fromisoformat(value.removesuffix("Z")) - _EPOCH) // _MICROSECOND
