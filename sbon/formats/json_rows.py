"""Reads NDJSON lines, one object a line, as rows of a source.

A line whose members have the types of their columns is decoded at once. Any other line is read member by member: a member of another type
is converted through its text if that has a meaning; otherwise the row is left out, with a reason. A handful of lines with plain times
becomes plain values without polars, whose every call costs more than such a batch. A block of many lines is read by polars at once; if
polars refuses the block, it is read in smaller ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import polars as pl

from sbon.arrays import nested_text
from sbon.formats.json_blocks import JsonBlocks, lines_of
from sbon.formats.text_rows import TextRows
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfits
from sbon.operators.frames import frame_of_values, polars_schema, polars_type
from sbon.operators.values import FEW_ROWS, Values, fits
from sbon.schema import ELEMENT_TYPES, ColumnType, Schema, family, held_type

FEW_BYTES_MAX = 64 * 1024
"""Most bytes of a handful of lines."""
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?Z?")
"""Times in UTC, with or without Z, which all readers read alike. Other forms of ISO 8601 are left to polars."""
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_DIGITS_MAX = 400
"""Largest exponent of a whole number: beyond that of any float."""

_TYPES: dict[ColumnType, tuple[Any, Any]] = {
    ColumnType.BOOL: (bool | None, None),
    ColumnType.INT: (int | None, None),
    ColumnType.FLOAT: (float | None, None),
    ColumnType.TEXT: (str | None, None),
    ColumnType.TIME: (str | int | float | None, None),
    ColumnType.INTERVAL: (str | int | float | None, None),
    **dict.fromkeys((ColumnType.JSON, *ELEMENT_TYPES), (msgspec.Raw, msgspec.Raw())),
}
"""Type as which a member is read, and the value for a missing member."""
_TEXTS = (ColumnType.TIME, ColumnType.INTERVAL, ColumnType.JSON, *ELEMENT_TYPES)
"""Types whose members are read through their text."""
_NULL = b"null"
_REFUSED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NO_VALUE = "\0"
"""Text for members that the column's type cannot hold: objects, arrays, and truths where no truth is wanted. No such column accepts it."""
_PARTS = 8
"""Number of parts into which a refused block is cut, down to `LINES_BYTES_MAX`."""
LINES_BYTES_MAX = 64 * 1024
"""Refused blocks of at most so many bytes are read line by line."""
_PLACE = "\0place"
"""Name of an additional column, which no column of a schema can have."""


class Placed(NamedTuple):
    """Rows, and the lines that they come from."""

    frame: pl.DataFrame
    places: pl.Series | None
    """Number of each row's line among those that are not blank; None: every line has its row."""


class JsonRows:
    """Reads lines. Ignores blank lines and members that are no column; columns without a member are NULL.

    Parameters
    ----------
    misfits : counts rows that are left out
    """

    def __init__(self, schema: Schema, times: TimeFormat, misfits: Misfits) -> None:
        self._schema = schema
        self._misfits = misfits
        self._slots = [f"f{i}" for i in range(len(schema))]
        names = {slot: field.name for slot, field in zip(self._slots, schema, strict=True)}
        typed = [(slot, *_TYPES[family(field.type)]) for slot, field in zip(self._slots, schema, strict=True)]
        self._decode = msgspec.json.Decoder(msgspec.defstruct("Row", typed, rename=names, gc=False)).decode
        untyped = [(slot, msgspec.Raw, msgspec.Raw()) for slot in self._slots]
        self._decode_odd = msgspec.json.Decoder(msgspec.defstruct("OddRow", untyped, rename=names, gc=False)).decode
        self._raw = polars_schema(schema) | {field.name: polars_type(ColumnType.TEXT) for field in schema if family(field.type) in _TEXTS}
        self._rows = TextRows(schema, times, misfits, [field.name for field in schema if family(field.type) in _TEXTS])
        self._odd_rows = TextRows(schema, times, misfits, [field.name for field in schema])
        self._blocks = JsonBlocks(schema, self._raw)
        self._times = [place for place, field in enumerate(schema) if field.type is ColumnType.TIME]
        self._documents = [(place, field.type) for place, field in enumerate(schema) if held_type(field.type) is not field.type]
        self._plain = times.text is None and all(field.type is not ColumnType.INTERVAL for field in schema)

    def counting(self, misfits: Misfits) -> JsonRows:
        """Returns a reader that shares what this one learns, but counts left-out rows in `misfits`."""
        other = copy(self)
        other._misfits = misfits
        other._rows, other._odd_rows = self._rows.counting(misfits), self._odd_rows.counting(misfits)
        return other

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        """Returns the rows of lines."""
        few = self.read_few(lines)
        return self.read_many(lines) if few is None else frame_of_values(few, self._schema)

    def read_few(self, lines: Sequence[bytes]) -> Values | None:
        """Returns the rows of a few lines as plain values; None if the lines are many, or not simple enough."""
        if not self._plain or len(lines) > FEW_ROWS or sum(map(len, lines)) > FEW_BYTES_MAX:
            return None
        try:
            rows = [msgspec.structs.astuple(self._decode(line)) for line in lines if line.strip()]
        except _REFUSED:
            return None
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [() for _ in self._slots]
        try:
            for place in self._times:
                columns[place] = [None if value is None else _plain_time_us(value) for value in columns[place]]
            for place, kind in self._documents:
                columns[place] = [_document(value, kind) for value in columns[place]]
        except ValueError:
            return None
        values = Values(len(rows), tuple(columns))
        return values if fits(values, self._schema) else None

    def read_block(self, data: bytes) -> pl.DataFrame:
        """Returns the rows of a block of whole lines."""
        return self.read_block_placed(data).frame

    def read_block_placed(self, data: bytes) -> Placed:
        """Returns the rows of a block of whole lines, with the places of their lines in the block."""
        if len(data) <= LINES_BYTES_MAX and data.count(b"\n") <= FEW_ROWS:
            lines = lines_of(data)
            few = self.read_few(lines)
            return self._read_many(lines) if few is None else Placed(frame_of_values(few, self._schema), None)
        frame = self._blocks.read(data, self._rows.numbers)
        if frame is not None:
            converted, kept = self._rows.convert(frame, lambda row, column: self._shown(lines_of(data)[row], column))
            return Placed(converted, None if kept is None else kept.arg_true())
        parts = [] if len(data) <= LINES_BYTES_MAX else list(_parts(data))
        return self._read_parts(parts) if len(parts) > 1 else self._read_many(lines_of(data))

    def read_many(self, lines: Sequence[bytes]) -> pl.DataFrame:
        """Returns the rows of any number of lines, by polars."""
        return self._read_many([line for line in lines if line.strip()]).frame

    def _read_parts(self, parts: Sequence[bytes]) -> Placed:
        read = [self.read_block_placed(part) for part in parts]
        frame = pl.concat([part.frame for part in read])
        if all(part.places is None for part in read):
            return Placed(frame, None)
        places, first = [], 0
        for part, block in zip(read, parts, strict=True):
            places.append((pl.arange(part.frame.height, eager=True) if part.places is None else part.places).cast(pl.Int64()) + first)
            first += len(lines_of(block))
        return Placed(frame, pl.concat(places))

    def _read_many(self, lines: Sequence[bytes]) -> Placed:
        rows, odd = self._decoded(lines)
        try:
            frame = pl.DataFrame(self._columns(rows), schema=self._raw)
        except (pl.exceptions.PolarsError, OverflowError, TypeError):
            rows, odd = self._without_large(rows, odd, len(lines))
            frame = pl.DataFrame(self._columns(rows), schema=self._raw)
        if not odd:
            converted, kept = self._rows.convert(frame, lambda row, column: self._shown(lines[row], column))
            return Placed(converted, None if kept is None else kept.arg_true())
        refused = set(odd)
        usual = [place for place in range(len(lines)) if place not in refused]
        converted, kept = self._rows.convert(frame, lambda row, column: self._shown(lines[usual[row]], column))
        placed, odd_rows = _placed(converted, usual, kept), self._read_odd(lines, odd)
        if not odd_rows.is_empty():
            placed = pl.concat([placed, odd_rows]).sort(_PLACE)
        return Placed(placed.drop(_PLACE), placed[_PLACE])

    def _decoded(self, lines: Sequence[bytes]) -> tuple[list[Any], list[int]]:
        """Decodes the lines whose members have the right types; returns their rows, and the places of the other lines."""
        decode = self._decode
        try:
            return [decode(line) for line in lines], []
        except _REFUSED:
            pass
        rows, odd = [], []
        for place, line in enumerate(lines):
            try:
                rows.append(decode(line))
            except _REFUSED:
                odd.append(place)
        return rows, odd

    def _without_large(self, rows: list[Any], odd: list[int], count: int) -> tuple[list[Any], list[int]]:
        """Moves rows with integers of more than 64 bits, which JSON allows, to the odd ones."""
        slots = [slot for slot, field in zip(self._slots, self._schema, strict=True) if field.type is ColumnType.INT]
        refused = set(odd)
        usual = [place for place in range(count) if place not in refused]
        kept = []
        for place, row in zip(usual, rows, strict=True):
            values = (getattr(row, slot) for slot in slots)
            if all(value is None or -(2**63) <= value < 2**63 for value in values):
                kept.append(row)
            else:
                refused.add(place)
        return kept, sorted(refused)

    def _columns(self, rows: list[Any]) -> dict[str, list[Any]]:
        columns = {}
        for slot, field in zip(self._slots, self._schema, strict=True):
            values = [getattr(row, slot) for row in rows]
            if family(field.type) in _TEXTS:
                values = [_member_text(value) for value in values]
            columns[field.name] = values
        return columns

    # ------------------------------------------------------------------------------------------- lines that are odd

    def _read_odd(self, lines: Sequence[bytes], odd: Sequence[int]) -> pl.DataFrame:
        """Returns the rows of refused lines, with their places."""
        columns: list[list[str | None]] = [[] for _ in self._schema]
        places = []
        for place in odd:
            texts = self._texts(lines[place])
            if texts is not None:
                places.append(place)
                for column, text in zip(columns, texts, strict=True):
                    column.append(text)
        names = [field.name for field in self._schema]
        frame = pl.DataFrame(dict(zip(names, columns, strict=True)), schema=dict.fromkeys(names, pl.String()))
        converted, kept = self._odd_rows.convert(frame, lambda row, column: self._shown(lines[places[row]], column))
        return _placed(converted, places, kept)

    def _texts(self, line: bytes) -> list[str | None] | None:
        """Returns a text for each column; None if the line cannot be used, which is counted."""
        try:
            row = self._decode_odd(line)
        except msgspec.ValidationError:
            self._misfits.add("", "is not a JSON object", text="the line is not a JSON object", line=line)
            return None
        except _REFUSED as error:
            detail = "it is nested too deep" if isinstance(error, RecursionError) else str(error).removeprefix("JSON is malformed: ")
            self._misfits.add("", "is not JSON", text=f"the line is not JSON: {detail}", line=line)
            return None
        texts = []
        for slot, field in zip(self._slots, self._schema, strict=True):
            try:
                texts.append(_text(bytes(getattr(row, slot)), field.type))
            except _REFUSED:
                self._odd_rows.leave_out(field, 1, 0, lambda _, column: self._shown(line, column))
                return None
        return texts

    def _shown(self, line: bytes, column: str) -> tuple[str, bytes]:
        """Returns a member as it is written in a line, and the line."""
        slot = next(slot for slot, field in zip(self._slots, self._schema, strict=True) if field.name == column)
        try:
            return bytes(getattr(self._decode_odd(line), slot)).decode("utf-8", "backslashreplace"), line
        except _REFUSED:
            return "", line


def _parts(data: bytes) -> Iterator[bytes]:
    """Yields a block in pieces of whole lines."""
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin + len(data) // _PARTS) + 1 or len(data)
        yield data[begin:end]
        begin = end


def _text(raw: bytes, kind: ColumnType) -> str | None:
    """Returns a member of JSON as a text from which its column can be read; for TEXT, values that are no texts are returned as written.

    Raises
    ------
    UnicodeDecodeError
        The member is a text, and not UTF-8.
    """
    if not raw or raw == _NULL:
        return None
    if held_type(kind) is not kind:
        return raw.decode()
    first = raw[:1]
    if first == b'"':
        try:
            return str(msgspec.json.decode(raw, type=str))
        except _REFUSED:
            if kind is ColumnType.TEXT:
                raise
            return _NO_VALUE
    if kind is ColumnType.TEXT:
        return raw.decode()
    if first in b"tf":
        return raw.decode() if kind is ColumnType.BOOL else _NO_VALUE
    if first in b"{[":
        return _NO_VALUE
    return _number(raw, kind)


def _number(raw: bytes, kind: ColumnType) -> str:
    """Returns a number of JSON as text; for an integer column, a whole number without point and exponent."""
    text = raw.decode()
    if kind is ColumnType.INT:
        try:
            number = Decimal(text)
            if number.adjusted() <= _DIGITS_MAX and number == number.to_integral_value():
                return str(int(number))
        except ArithmeticError:
            pass
    elif kind is not ColumnType.BOOL:
        try:
            return str(msgspec.json.decode(raw, type=float if kind is ColumnType.FLOAT else int | float))
        except msgspec.MsgspecError:
            return _NO_VALUE  # out of range
    return text


def _placed(frame: pl.DataFrame, places: Sequence[int], kept: pl.Series | None) -> pl.DataFrame:
    """Adds the places of their lines to rows."""
    numbers = pl.Series(_PLACE, places, dtype=pl.Int64())
    return frame.with_columns_seq(numbers if kept is None else numbers.filter(kept))


def _member_text(value: object) -> str | None:
    """Returns the text of a member of a type in `_TEXTS`."""
    if isinstance(value, msgspec.Raw):
        raw = bytes(value)
        return raw.decode() if raw and raw != _NULL else None
    return None if value is None else str(value)


def _document(value: Any, kind: ColumnType) -> str | None:
    raw = bytes(value)
    if not raw or raw == _NULL:
        return None
    text = nested_text(raw, kind)
    if text is None:
        raise ValueError("no such JSON")
    return text


def _plain_time_us(value: object) -> int:
    if not isinstance(value, str) or _PLAIN_TIME.fullmatch(value) is None:
        raise ValueError("not a plain time")
    return (datetime.fromisoformat(value.removesuffix("Z")) - _EPOCH) // _MICROSECOND
