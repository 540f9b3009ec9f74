"""A few rows as plain values, for batches too small to be worth a frame.

A lone row pays for a frame, its Arrow IPC writer and its reader more than for everything else on its way. As plain values it goes into the
same bytes (`encode_values` writes what `sbon.operators.frames.encode_batch` writes) and out of them without polars.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sbon.query.schema import ColumnType, Schema

FEW_ROWS = 32
"""A batch of more rows is read as a frame."""

_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_WHOLE = (ColumnType.INT, ColumnType.TIME, ColumnType.INTERVAL)


class Values(NamedTuple):
    """Rows as plain values."""

    rows: int
    columns: tuple[Sequence[Any], ...]
    """A column for each field of the schema, each of `rows` values: bool, int, float, str or None; TIME and INTERVAL in whole microseconds
    (int)."""


def fits(values: Values, schema: Schema) -> bool:
    """Whether every number has a place in its column: ints within 64 bits."""
    for column, field in zip(values.columns, schema, strict=True):
        if field.type in _WHOLE:
            for value in column:
                if value is not None and not _INT_MIN <= value <= _INT_MAX:
                    return False
    return True


def encode_values(values: Values, schema: Schema) -> bytes:
    """The rows as an Arrow IPC record batch, for `decode_values` and `sbon.operators.frames.decode_batch`.

    Raises
    ------
    LocalProtocolError
        A value does not fit its column.
    """
    from sbon.operators.frames import encode_batch, frame_of_values

    return bytes(encode_batch(frame_of_values(values, schema), schema))


def decode_values(data: bytes | bytearray | memoryview, schema: Schema, rows: int) -> Values | None:
    """The values of a record batch; None if it is one that only `sbon.operators.frames.decode_batch` reads: of more than `FEW_ROWS` rows,
    packed by a codec, or laid out in an unusual way.

    Raises
    ------
    RemoteProtocolError
        The bytes are not a record batch of so many rows with these columns.
    """
    if rows > FEW_ROWS:
        return None
    from sbon.operators.frames import decode_batch, polars_type

    frame = decode_batch(data, schema, rows)
    return Values(
        rows,
        tuple(
            (frame[field.name].cast(polars_type(ColumnType.INT)) if field.type in _WHOLE else frame[field.name]).to_list()
            for field in schema
        ),
    )
