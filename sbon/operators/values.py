"""Batches of a few rows as plain values, for which a frame would cost too much.

For a single row, creating, writing and reading a frame costs more than everything else on its way. Plain values are encoded into the same
bytes (`encode_values` writes what `sbon.operators.frames.encode_batch` writes) and decoded without polars. Little code runs, which matters
because after a pause loading code into the caches dominates the cost.
"""

import struct
from collections.abc import Sequence
from itertools import chain, pairwise
from operator import le
from typing import Any

import msgspec

from sbon.errors import LocalProtocolError, RemoteProtocolError
from sbon.links.frames import Buffer
from sbon.links.ipc_layout import NUMBERS, PAD_BYTES, Columns, Metadata, Shape, columns_of
from sbon.operators.ipc import check
from sbon.schema import ColumnType, Schema, held_type

FEW_ROWS = 32
"""Most rows of a batch that are read as plain values; larger ones are read as a frame."""

_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


class Values(msgspec.Struct, frozen=True):
    """Rows as plain values."""

    rows: int
    columns: tuple[Sequence[Any], ...]
    """A column for each field of the schema, each of `rows` values: bool, int, float, str or None; TIME and INTERVAL in whole microseconds
    (int)."""


def fits(values: Values, schema: Schema) -> bool:
    """Tells whether every integer fits its column of 64 bits."""
    for column, field in zip(values.columns, schema, strict=True):
        if NUMBERS.get(field.type) == "q":
            for value in column:
                if value is not None and not _INT_MIN <= value <= _INT_MAX:
                    return False
    return True


def encode_values(values: Values, schema: Schema) -> bytes:
    """Encodes rows as an Arrow IPC record batch, for `decode_values` and `sbon.operators.frames.decode_batch`.

    Raises
    ------
    LocalProtocolError
        A value does not fit its column.
    """
    layout = columns_of(schema)
    plain = layout.plain.get(values.rows)
    if plain is not None:
        try:
            return plain.form.pack(plain.head, *chain.from_iterable(values.columns))
        except (struct.error, OverflowError):
            pass  # a NULL, or a value that does not fit
    try:
        return _encode(values, layout)
    except (struct.error, OverflowError, TypeError, ValueError, AttributeError) as error:
        raise LocalProtocolError(_misfit(values, schema)) from error


def _encode(values: Values, layout: Columns) -> bytes:
    """Encodes values of any columns, with NULLs or without."""
    rows = values.rows
    sizes = [rows]
    pieces: list[Any] = []
    for kind, column in zip(layout.kinds, values.columns, strict=True):
        nulls = column.count(None)
        sizes.append(nulls)
        if nulls:
            pieces.append(_bits([value is not None for value in column]))
        if kind in NUMBERS:
            pieces += [0 if value is None else value for value in column] if nulls else column
        elif kind is ColumnType.TEXT:
            texts = [b"" if value is None else value.encode() for value in column]
            end = 0
            pieces.append(end)
            for text in texts:
                end += len(text)
                pieces.append(end)
            pieces.append(b"".join(texts))
            sizes.append(end)
        else:
            pieces.append(_bits(column))
    key = tuple(sizes)
    shape = layout.shapes.get(key) or _shape(layout, key)
    return shape.form.pack(shape.head, *pieces)


def _shape(layout: Columns, key: tuple[int, ...]) -> Shape:
    """Returns the shape of a batch of these sizes. `key` has its rows, then for each column the number of NULLs and, for texts, their
    bytes.
    """
    sizes = iter(key)
    rows = next(sizes)
    bits = (rows + 7) // 8
    buffers: list[int] = []
    nodes: list[int] = []
    form: list[str] = []
    end = 0
    for kind in layout.kinds:
        nulls = next(sizes)
        nodes += (rows, nulls)
        wanted = [(bits, f"{bits}s") if nulls else (0, "")]
        if kind in NUMBERS:
            wanted.append((8 * rows, f"{rows}{NUMBERS[kind]}"))
        elif kind is ColumnType.TEXT:
            size = next(sizes)
            wanted += [(8 * (rows + 1), f"{rows + 1}q"), (size, f"{size}s")]
        else:
            wanted.append((bits, f"{bits}s"))
        for size, code in wanted:
            buffers += (end, size)
            pad = -size % PAD_BYTES
            form.append(f"{code}{pad}x")
            end += size + pad
    head = layout.head(rows, end, buffers, nodes)
    return layout.remember(key, Shape(head, struct.Struct(f"<{len(head)}s{''.join(form)}")))


def _bits(column: Sequence[bool | None]) -> bytes:
    """Packs one bit for each value, the first one lowest."""
    bits = 0
    for value in reversed(column):
        if value is not None and value is not True and value is not False:
            raise TypeError(f"no BOOL: {value!r}")
        bits = bits << 1 | (value is True)
    return bits.to_bytes((len(column) + 7) // 8, "little")


def _misfit(values: Values, schema: Schema) -> str:
    """Names the value that does not fit its column."""
    for field, column in zip(schema, values.columns, strict=False):
        if len(column) != values.rows:
            return f"column {field.name!r} of {len(column)} values in {values.rows} rows"
        for value in column:
            try:
                _encode(Values(1, ((value,),)), Columns((held_type(field.type),)))
            except (struct.error, OverflowError, TypeError, ValueError, AttributeError):
                return f"column {field.name!r} of type {field.type.value} cannot hold {repr(value)[:100]} ({type(value).__name__})"
    return f"{len(values.columns)} columns, expected {len(schema)}"


def decode_values(data: Buffer, schema: Schema, rows: int) -> Values | None:
    """Decodes the values of a record batch; None if only `sbon.operators.frames.decode_batch` can read it: more than `FEW_ROWS` rows,
    compressed, or in an unusual layout.

    Raises
    ------
    RemoteProtocolError
        The bytes are not a record batch of `rows` rows with these columns.
    """
    if not 0 < rows <= FEW_ROWS:
        return None
    layout = columns_of(schema)
    metadata = layout.known.get(bytes(data[: layout.body_at]))
    if metadata is None or metadata.rows != rows or metadata.message_bytes != len(data):
        metadata = check(data, layout, rows)
        if metadata is None:
            return None
    form = metadata.form or metadata.plan()
    if form is None:
        return None
    parts = form.unpack_from(data)
    if metadata.numbers_only:
        return Values(rows, tuple(zip(*(iter(parts),) * rows, strict=True)))
    return _decode(parts, metadata)


def _decode(parts: tuple[Any, ...], metadata: Metadata) -> Values | None:
    """Converts the values read in the form of `Metadata.plan`; None if the number of NULLs differs from that announced."""
    rows = metadata.rows
    columns: list[Sequence[Any]] = []
    place = 0
    for kind, (_, nulls) in zip(metadata.kinds, metadata.nodes, strict=True):
        validity = None
        if nulls:
            validity = _flags(parts[place], rows)
            place += 1
            if validity.count(False) != nulls:
                return None
        column: Sequence[Any]
        if kind in NUMBERS:
            column = parts[place : place + rows]
            place += rows
        elif kind is ColumnType.TEXT:
            column = _texts(parts[place : place + rows + 1], parts[place + rows + 1])
            place += rows + 2
        else:
            column = _flags(parts[place], rows)
            place += 1
        columns.append(
            column if validity is None else tuple(value if valid else None for value, valid in zip(column, validity, strict=True))
        )
    return Values(rows, tuple(columns))


def _flags(data: bytes, rows: int) -> tuple[bool, ...]:
    bits = int.from_bytes(data, "little")
    return tuple(bits >> row & 1 == 1 for row in range(rows))


def _texts(ends: tuple[int, ...], data: bytes) -> tuple[str, ...]:
    """Returns the texts between these ends.

    Raises
    ------
    RemoteProtocolError
        The ends are out of order or beyond the data, or a text is not UTF-8.
    """
    if ends[0] < 0 or ends[-1] > len(data) or not all(map(le, ends, ends[1:])):
        raise RemoteProtocolError(f"texts of {len(data)} bytes are damaged: they end at {', '.join(map(str, ends))[:100]}")
    try:
        whole = data.decode()
        if len(whole) == len(data):  # one byte per character
            return tuple(map(whole.__getitem__, map(slice, ends, ends[1:])))
        return tuple(data[begin:end].decode() for begin, end in pairwise(ends))
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"texts of {len(data)} bytes are damaged: {error}") from error
