"""Frames as bytes: what a batch looks like on a link, and what rows look like in a snapshot.

On a link (`encode_batch`) a frame is one Arrow IPC record batch and nothing else: both ends know its schema, the connection authenticates
or sums it up. In a snapshot (`encode`) it is a whole Arrow IPC stream behind a head of twelve bytes: a mark, the number of rows and a
CRC-32 of the rest. The checksum lets nonsense be refused before a reader that trusts its input sees it.
"""

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import polars as pl

from sbon.compression import Codec
from sbon.errors import LocalProtocolError, RemoteProtocolError
from sbon.operators import ipc
from sbon.operators.ipc_layout import columns_of
from sbon.operators.values import Values, encode_values
from sbon.query.schema import ColumnType, Schema, held_type

ROWS_MAX = 2**26
"""A frame that claims more rows than this is nonsense."""

_HEAD = struct.Struct(">4sII")
_MARK = b"SBF1"

_DTYPES: dict[ColumnType, pl.DataType] = {
    ColumnType.BOOL: pl.Boolean(),
    ColumnType.INT: pl.Int64(),
    ColumnType.FLOAT: pl.Float64(),
    ColumnType.TEXT: pl.String(),
    ColumnType.TIME: pl.Datetime("us"),
    ColumnType.INTERVAL: pl.Duration("us"),
}
_TYPES: dict[Any, ColumnType] = {dtype: kind for kind, dtype in _DTYPES.items()}
_DTYPES |= {kind: _DTYPES[held_type(kind)] for kind in ColumnType}


def polars_type(kind: ColumnType) -> pl.DataType:
    """How polars holds a column of this type."""
    return _DTYPES[kind]


def column_type(dtype: pl.DataType) -> ColumnType:
    """The type of a column that polars holds as `dtype`.

    Raises
    ------
    RemoteProtocolError
        No column of a stream is held so.
    """
    try:
        return _TYPES[dtype]
    except KeyError:
        raise RemoteProtocolError(f"column of type {dtype}, expected one of {', '.join(map(str, _TYPES))}") from None


def polars_schema(schema: Schema) -> dict[str, pl.DataType]:
    """Column names and polars types, in order."""
    return {field.name: _DTYPES[field.type] for field in schema}


def arranged(frame: pl.DataFrame, columns: Sequence[tuple[str, str]] | None) -> pl.DataFrame:
    """The frame with these columns, as (name, name in the frame), in this order; None: as it is.

    Raises
    ------
    RemoteProtocolError
        A column is not in the frame.
    """
    if columns is None:
        return frame
    missing = [found for _, found in columns if found not in frame.columns]
    if missing:
        raise RemoteProtocolError(f"column {missing[0]!r} is not among the input columns {', '.join(frame.columns)}")
    return frame.select(pl.col(found).alias(name) for name, found in columns)


def evaluated(frame: pl.DataFrame, value: pl.Expr) -> pl.Series:
    """The value of an expression for each row of a frame, which is made one piece first.

    In pieces, polars 2.1 gives a computed constant a row for each piece and pairs these with the wrong rows of other columns, without an
    error. In one piece it gives a value for each row, or a single one where no column matters: of constants, or of columns that it knows to
    have one value, such as a CASE without ELSE that is NULL for all rows.

    Raises
    ------
    LocalProtocolError
        The expression gives another number of values than the frame has rows, or a single one that is not that of the last row.
    """
    frame = frame.rechunk()
    made = frame.select(value).to_series()
    if made.len() == frame.height:
        return made
    if made.len() != 1 or not made.equals(frame.tail(1).select(value).to_series(), null_equal=True):
        raise LocalProtocolError(f"an expression gave {made.len()} values for {frame.height} rows, expected as many: {str(value)[:200]}")
    return made.new_from_index(0, frame.height)


def computed(frame: pl.DataFrame, columns: Sequence[pl.Expr]) -> pl.DataFrame:
    """Columns computed of a frame, with as many rows. Where polars makes fewer rows of some of them, each is computed for itself.

    Raises
    ------
    LocalProtocolError
        A column would have another number of rows than the frame; see `evaluated`.
    """
    frame = frame.rechunk()
    try:
        made = frame.select(columns)
        if made.height == frame.height:
            return made
    except (pl.exceptions.ShapeError, pl.exceptions.InvalidOperationError):
        pass
    return pl.DataFrame([evaluated(frame, column) for column in columns])


def empty(schema: Schema) -> pl.DataFrame:
    """No rows of this schema."""
    return pl.DataFrame(schema=polars_schema(schema))


def frame_of_values(values: Values, schema: Schema) -> pl.DataFrame:
    """Plain values as a frame: what `decode_batch` makes of their bytes, which is faster than from Python's objects.

    Raises
    ------
    LocalProtocolError
        A value does not fit its column.
    """
    return decode_batch(encode_values(values, schema), schema, values.rows)


def _stream_reader() -> Callable[[bytes], pl.DataFrame]:
    """What reads an Arrow IPC stream.

    The public function wraps bytes in a file, of which polars 2.1 loses some 40 bytes in each call: at 100 batches a second a third of a
    gigabyte a day. What stands behind it takes the bytes as they are, and does not. The public one, where a version of polars has no other.
    """
    try:
        from polars.io.ipc.functions import _read_ipc_stream_impl
    except ImportError:
        return pl.read_ipc_stream
    return _read_ipc_stream_impl


_read_stream = _stream_reader()


def encode(frame: pl.DataFrame) -> bytes:
    """A frame as bytes for `decode`; equal frames give equally many bytes. About 50 µs and 0.02 µs a row.

    How polars happens to hold a frame - in pieces, texts in shared buffers - depends on the machine and on hashes. In one piece, with
    texts end to end (the older of the two text layouts of Arrow), it is the same everywhere but for what lies unseen under a NULL, and
    no larger than it must be.
    """
    buffer = io.BytesIO()
    frame.rechunk().write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    body = buffer.getvalue()
    return _HEAD.pack(_MARK, frame.height, zlib.crc32(body)) + body


_COMPRESSION: dict[Codec, Literal["uncompressed", "lz4", "zstd"]] = {
    Codec.NONE: "uncompressed",
    Codec.LZ4: "lz4",
    Codec.ZSTD: "zstd",
}


def encode_batch(frame: pl.DataFrame, schema: Schema, codec: Codec = Codec.NONE) -> memoryview:
    """A frame with these columns as an Arrow IPC record batch, for `decode_batch`. About 15 µs, and 0.1 ns a byte unpacked.

    Equal frames give equally many bytes, as from `encode`.

    Raises
    ------
    LocalProtocolError
        The frame has other columns.
    """
    buffer = io.BytesIO()
    frame.rechunk().write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest(), compression=_COMPRESSION[codec])
    stream = buffer.getbuffer()
    head = _schema_message(schema)
    if stream[: len(head)] != head:
        raise LocalProtocolError(f"frame has columns {_told(frame.schema)}, expected {_told(polars_schema(schema))}")
    return stream[len(head) : -len(ipc.END)]


def decode_batch(data: bytes | bytearray | memoryview, schema: Schema, rows: int) -> pl.DataFrame:
    """The frame that `encode_batch` made of so many rows with these columns.

    Raises
    ------
    RemoteProtocolError
        The bytes are something else.
    """
    ipc.check(data, columns_of(schema), rows)
    try:
        return _read_stream(b"".join((_schema_message(schema), data, ipc.END)))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise RemoteProtocolError(f"batch of {len(data)} bytes is damaged: {str(error)[:100]}") from error


@lru_cache(maxsize=256)
def _schema_message(schema: Schema) -> bytes:
    """What an IPC stream of these columns begins with."""
    buffer = io.BytesIO()
    empty(schema).write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    stream = buffer.getvalue()
    return stream[: ipc.schema_bytes(stream)]


def decode(data: bytes, schema: Schema) -> pl.DataFrame:
    """The frame that `encode` made of a frame with these columns.

    Raises
    ------
    RemoteProtocolError
        The bytes are not a frame, or one with other columns.
    """
    frame = decode_any(data)
    expected = polars_schema(schema)
    if dict(frame.schema) != expected or frame.columns != list(expected):
        raise RemoteProtocolError(f"frame has columns {_told(frame.schema)}, expected {_told(expected)}")
    return frame


def decode_any(data: bytes) -> pl.DataFrame:
    """The frame that `encode` made, whatever its columns: for snapshots, whose owner checks them.

    Raises
    ------
    RemoteProtocolError
        The bytes are not a frame.
    """
    if len(data) < _HEAD.size:
        raise RemoteProtocolError(f"frame of {len(data)} bytes, expected at least {_HEAD.size}")
    mark, rows, checksum = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    if mark != _MARK:
        raise RemoteProtocolError(f"frame begins with {mark!r}, expected {_MARK!r}")
    if rows > ROWS_MAX:
        raise RemoteProtocolError(f"frame of {rows} rows, expected at most {ROWS_MAX}")
    if zlib.crc32(body) != checksum:
        raise RemoteProtocolError(f"frame of {len(data)} bytes does not match its checksum")
    try:
        frame = _read_stream(bytes(body))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise RemoteProtocolError(f"frame of {len(data)} bytes is no Arrow stream: {str(error)[:100]}") from error
    if frame.height != rows:
        raise RemoteProtocolError(f"frame of {frame.height} rows, expected the {rows} of its head")
    return frame


def _told(schema: Any) -> str:
    return "(" + ", ".join(f"{name} {dtype}" for name, dtype in schema.items())[:300] + ")"
