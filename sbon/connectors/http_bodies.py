"""Reads bodies of HTTP messages as rows of a source: NDJSON, one JSON array or object, or CSV with a header.

Rows that do not fit are first counted for each body, so that its answer reports only its own rows, and then for the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import polars as pl

from sbon.connectors.ahead import AheadGuard
from sbon.connectors.interface import Polled
from sbon.connectors.required import NullFilter
from sbon.connectors.row_batches import RowBatches, Rows, no_rows
from sbon.errors import ConnectorError
from sbon.formats.csv_rows import CsvRows, first_record_end, header_names
from sbon.formats.json_blocks import lines_of
from sbon.formats.json_documents import dense, of_array, of_object
from sbon.formats.json_rows import FEW_BYTES_MAX, JsonRows
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfit, Misfits
from sbon.operators.frames import frame_of_values
from sbon.operators.values import FEW_ROWS, Values
from sbon.options import Options
from sbon.query.params.source import SourceParams
from sbon.schema import Schema

FORMATS = ("ndjson", "json", "csv")
MEDIA_TYPES = {
    "application/x-ndjson": "ndjson",
    "application/ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "application/x-jsonlines": "ndjson",
    "application/json": "json",
    "text/csv": "csv",
}
CURLS_OWN = "application/x-www-form-urlencoded"
KINDS_MAX = 8
"""Most reasons that are reported for one body."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BodyError(ConnectorError):
    """A body of which no row can be read; the message says why in one line."""


class Body(NamedTuple):
    """The rows of a body, and the rows that did not fit."""

    rows: Rows
    left_out: int
    """Rows that did not fit."""
    why: tuple[Misfit, ...]


def format_of(content_type: str | None, given: str | None) -> str:
    """Returns the format of a body.

    Parameters
    ----------
    content_type : header of the message; None if there is none
    given : option `format` of the source, which overrides the header

    Raises
    ------
    BodyError
        Neither gives the format, or the header names another charset than UTF-8.
    """
    media, _, parameters = (content_type or "").partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "charset" and value.strip('"').lower() not in ("utf-8", "utf8", "us-ascii"):
            raise BodyError(f"charset is {value[:40]}, expected utf-8")
    known = given or MEDIA_TYPES.get(media.strip().lower())
    if known is None:
        said = f"Content-Type is '{media.strip()[:60]}'" if content_type else "there is no Content-Type"
        if media.strip().lower() == CURLS_OWN:
            said += " (the default of curl: add -H 'Content-Type: application/x-ndjson')"
        raise BodyError(f"{said}, expected application/x-ndjson, application/json or text/csv (or set the source's option format)")
    return known


class BodyReader:
    """Reads the bodies of one source, one after the other.

    Parameters
    ----------
    options : has `time_format`, `time_unit`, `ahead_max` and `separator`
    misfits : misfits of the source; counts the rows that are left out
    """

    def __init__(self, params: SourceParams, options: Options, misfits: Misfits) -> None:
        self._schema: Schema = params.columns
        self._misfits = misfits
        self._own = Misfits()
        """Misfits of the body that is being read."""
        self._times = TimeFormat.read(options)
        self._separator = options.text("separator", ",")
        if len(self._separator) != 1 or not self._separator.isascii():
            raise options.refuse("separator", self._separator, "one character")
        time_place = next((place for place, field in enumerate(params.columns) if field.name == params.time_column), None)
        self._ahead = AheadGuard(options, params.columns, time_place, self._own)
        self._nulls = NullFilter(params, self._own)
        self._json = JsonRows(params.columns, self._times, self._own)
        self._csv: tuple[bytes, CsvRows] | None = None
        """The latest header, and the reader of rows with this header."""
        self._batches = RowBatches(params)

    @property
    def remark(self) -> str:
        """Returns the note about rows from the future; empty if there were none."""
        return self._ahead.remark

    @property
    def none(self) -> Rows:
        """Returns no rows."""
        return no_rows(self._schema)

    def read(self, kind: str, data: bytes, wall: float) -> Body:
        """Returns the rows of a body, maybe none.

        Parameters
        ----------
        kind : one of FORMATS
        wall : unix seconds

        Raises
        ------
        BodyError
            The body is not of that format. No row was counted.
        """
        data = data.removeprefix(_BYTE_ORDER_MARK)
        read = self._read_csv(data) if kind == "csv" else self._read_ndjson(data if kind == "ndjson" else _lines_of_document(data))
        rows = self._taken(read, wall)
        body = Body(rows, self._own.rows, self._own.told(KINDS_MAX))
        self._own.move_to(self._misfits)
        return body

    def read_together(self, bodies: Sequence[bytes], wall: float) -> tuple[Rows, list[int]] | None:
        """Returns the rows of several bodies of NDJSON, and the number of rows of each body.

        Returns None if a row does not fit. Then each body must be read by itself, because its answer gives the reason.
        """
        blocks = [dense(data.removeprefix(_BYTE_ORDER_MARK)) for data in bodies]
        rows = self._taken(self._read_ndjson(b"\n".join([block.data for block in blocks if block.rows])), wall)
        if self._own.rows:
            self._own.clear()
            return None
        return rows, [block.rows for block in blocks]

    def _taken(self, rows: Rows, wall: float) -> Rows:
        """Returns the rows that are not too far ahead and have no NULL in NOT NULL columns."""
        if isinstance(rows, Values):
            return self._nulls.kept(self._ahead.taken(rows, wall))
        return self._nulls.kept_of_many(self._ahead.taken_of_many(rows, wall))

    def polled(self, parts: Sequence[Rows], next_poll: float | None) -> Polled:
        """Returns rows of several bodies as the result of a poll; there may be none."""
        return self._batches.polled(parts, next_poll)

    def _read_ndjson(self, data: bytes) -> Rows:
        is_small = len(data) <= FEW_BYTES_MAX and data.count(b"\n") <= FEW_ROWS
        few = self._json.read_few(lines_of(data)) if is_small else None
        return self._json.read_block(data) if few is None else few

    def _read_csv(self, data: bytes) -> pl.DataFrame:
        end = first_record_end(data)
        header = data[:end]
        if self._csv is None or self._csv[0] != header:
            names = header_names(header, self._separator)
            missing = [field.name for field in self._schema if field.name not in names]
            if missing:
                raise BodyError(f"the CSV header has no column {missing[0]}, it has {', '.join(names)[:300]}")
            self._csv = header, CsvRows(self._schema, names, self._separator, self._times, self._own)
        if not data[end:].strip():
            return pl.DataFrame(schema=frame_of_values(Values(0, tuple(() for _ in self._schema)), self._schema).schema)
        return self._csv[1].read(data[end:])


def _lines_of_document(data: bytes) -> bytes:
    """Returns the rows of a JSON document as lines."""
    text = data.strip()
    if not text.startswith((b"[", b"{")):
        raise BodyError("the body is neither a JSON array nor a JSON object")
    try:
        return of_object(text) if text.startswith(b"{") else of_array(text).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        detail = "it is nested too deep" if isinstance(error, RecursionError) else str(error).removeprefix("JSON is malformed: ")
        hint = "; for one object per line, use the Content-Type application/x-ndjson (format = 'ndjson')" if "trailing" in detail else ""
        raise BodyError(f"the body is not JSON: {detail}{hint}") from None
