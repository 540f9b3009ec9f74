"""Reads CSV records (RFC 4180) as rows of a source.

polars parses a whole block at once. It does not tell an empty field from a missing one, and it accepts misplaced quotes, so separators and
quotes are counted to find both. If some are found, or polars refuses the block, its records are read one by one. Numbers and truths are
read with their types at once. A block with one in an unusual form is read as texts, and so is that column from then on.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy

import numpy as np
import numpy.typing as npt
import polars as pl

from sbon.formats.text_rows import Shown, TextRows
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfits
from sbon.schema import Schema

csv.field_size_limit(1 << 30)  # for the whole process; the length of a record is limited elsewhere, for both ways of reading
_ESCAPED = re.compile("[\udc80-\udcff]")
"""Octets that are not UTF-8, as `surrogateescape` decodes them."""
_QUOTE, _LINE_END, _RETURN = b'"\n\r'


class CsvRows:
    """Reads records; their header has been taken off.

    Parameters
    ----------
    header : names of the fields, in order
    misfits : counts rows that are left out
    """

    def __init__(self, schema: Schema, header: Sequence[str], separator: str, times: TimeFormat, misfits: Misfits) -> None:
        self._width = len(header)
        self._raw: dict[str, pl.DataType] = {f"f{i}": pl.String() for i in range(self._width)}
        self._pick = [pl.col(f"f{list(header).index(field.name)}").alias(field.name) for field in schema]
        self._places = {field.name: list(header).index(field.name) for field in schema}
        self._separator = separator
        self._misfits = misfits
        self._rows = TextRows(schema, times, misfits, self._places)
        end = re.escape(separator)
        self._field = re.compile(rf'("(?:[^"]|"")*"|[^"\r\n{end}]*)(?:{end}|\r?\n?$)')

    def counting(self, misfits: Misfits) -> CsvRows:
        """Returns a reader that shares what this one learns, but counts left-out rows in `misfits`."""
        other = copy(self)
        other._misfits = misfits
        other._rows = self._rows.counting(misfits)
        return other

    def read(self, data: bytes) -> pl.DataFrame:
        """Returns the rows of whole records; ignores blank lines."""
        types = self._rows.plain_types()
        plain = self._read_at_once(data, self._raw | {f"f{self._places[name]}": kind for name, kind in types.items()}) if types else None
        if plain is not None:
            return self._rows.convert(plain.select_seq(self._pick), self._shown_of(lambda: self._read_as_texts(data)))[0]
        raw = self._read_as_texts(data)
        return self._rows.convert(raw.select_seq(self._pick), self._shown_of(lambda: raw))[0]

    def _shown_of(self, texts: Callable[[], pl.DataFrame]) -> Shown:
        def shown(row: int, column: str) -> tuple[str, str]:
            raw = texts()
            return json.dumps(raw[row, self._places[column]], ensure_ascii=False), self._line(raw.row(row))

        return shown

    def _read_as_texts(self, data: bytes) -> pl.DataFrame:
        raw = self._read_at_once(data, self._raw)
        return self._read_one_by_one(data) if raw is None else raw

    def _read_at_once(self, data: bytes, types: dict[str, pl.DataType]) -> pl.DataFrame | None:
        """Returns columns of these types; None if a value has another type, or the block is not regular."""
        try:
            raw = pl.read_csv(data, has_header=False, schema=types, separator=self._separator)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return None
        return raw if self._is_regular(data, raw) else None

    def _is_regular(self, data: bytes, raw: pl.DataFrame) -> bool:
        """Tells whether every record has all its fields, and quotes only around fields and, doubled, within quoted ones."""
        if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
            return False
        quotes = None
        if b'"' in data:
            quotes = _quotes(data, ord(self._separator))
            if quotes is None:
                return False
        # A record that is too short has nothing in its last field; a longer one has been refused.
        if raw.to_series(self._width - 1).null_count() == 0:
            return True
        if self._width == 1:
            return False
        if quotes is None:
            separators = data.count(self._separator.encode())
        else:
            places = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(self._separator))
            before = np.searchsorted(places, quotes)
            separators = len(places) - int((before[1::2] - before[::2]).sum())  # without those between quotes
        return separators == raw.height * (self._width - 1)

    def _read_one_by_one(self, data: bytes) -> pl.DataFrame:
        columns: list[list[str | None]] = [[] for _ in range(self._width)]
        for record, text in self._records(data):
            if not record:
                continue
            if len(record) != self._width:
                fields = f"{len(record)} field{'' if len(record) == 1 else 's'}"
                said = f"the line has {fields}, expected {self._width}"
                self._misfits.add("", "has another number of fields", text=said, line=_bytes(text))
            elif _ESCAPED.search(text):
                self._misfits.add("", "is not UTF-8", text="the line is not UTF-8", line=_bytes(text))
            else:
                for column, value in zip(columns, self._values(record, text), strict=True):
                    column.append(value)
        return pl.DataFrame(dict(zip(self._raw, columns, strict=True)), schema=self._raw)

    def _records(self, data: bytes) -> Iterator[tuple[list[str], str]]:
        """Yields records with their text; counts those that cannot be read at all."""
        begun: list[str] = []

        def lines() -> Iterator[str]:
            for line in io.StringIO(data.decode("utf-8", "surrogateescape"), newline="\n"):
                begun.append(line)
                yield line

        reader = csv.reader(lines(), delimiter=self._separator, strict=False)
        while True:
            begun.clear()
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                self._misfits.add("", "is not CSV", text=f"the line is not CSV: {error}", line=_bytes("".join(begun)))
                continue
            yield record, "".join(begun)

    def _values(self, record: list[str], text: str) -> Sequence[str | None]:
        """Returns the fields of a record; None for an empty field without quotes."""
        if '""' not in text or "" not in record:
            return [value or None for value in record]
        values: list[str | None] = []
        place = 0
        for value in record:
            field = self._field.match(text, place)
            if field is None:
                return [value or None for value in record]
            values.append(value if field[1] else None)
            place = field.end()
        return values

    def _line(self, record: Sequence[str | None]) -> str:
        line = io.StringIO()
        csv.writer(line, delimiter=self._separator, lineterminator="").writerow(["" if value is None else value for value in record])
        return line.getvalue()


def first_record_end(data: bytes) -> int:
    """Returns the offset after the first record and its line end; a line break between quotes does not end a record."""
    end = data.find(b"\n") + 1
    quotes = data.count(b'"', 0, end)
    while end and quotes % 2:
        after = data.find(b"\n", end) + 1
        quotes += data.count(b'"', end, after)
        end = after
    return end or len(data)


def header_names(record: bytes, separator: str) -> list[str]:
    """Returns the names of the fields from a header."""
    text = record.decode("utf-8", errors="replace").strip("\r\n")
    return [name.strip().removeprefix('"').removesuffix('"') for name in text.split(separator)]


def _quotes(data: bytes, separator: int) -> npt.NDArray[np.int64] | None:
    """Returns the places of the quotes in a block; None if one is misplaced."""
    octets = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(octets == _QUOTE)
    if len(quotes) % 2:
        return None
    opening, closing = quotes[::2], quotes[1::2]
    may_stand_before, may_stand_behind = np.zeros((2, 256), bool)
    may_stand_before[[separator, _LINE_END, _QUOTE]] = True
    may_stand_behind[[separator, _LINE_END, _RETURN, _QUOTE]] = True
    begun_well = may_stand_before[octets[opening - 1]] | (opening == 0)
    ended_well = may_stand_behind[octets[np.minimum(closing + 1, len(octets) - 1)]] | (closing == len(octets) - 1)
    return quotes if begun_well.all() and ended_well.all() else None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
