"""Arrow IPC as bytes: removes and restores the schema of a stream, and checks a record batch from a peer before it is read.

An IPC stream is a schema message, record batch messages and an end mark; each message is ::

    0xFFFFFFFF | length of the metadata 4 | metadata: a flatbuffer | body

(Arrow columnar format, "Encapsulated message format"). Both ends of a link know its schema, so that only record batches travel. The reader
trusts sizes in its input and allocates without limit for wrong ones, so a peer's bytes must be checked first. `check` reads the metadata
of one record batch with every offset checked, and compares it with the schema, with the number of rows announced and with the number of
bytes received. The reader itself checks the body (texts are validated, codecs report damage).
"""

import struct
from collections.abc import Sequence
from typing import Any

from sbon.errors import RemoteProtocolError
from sbon.links.frames import Buffer
from sbon.links.ipc_layout import Columns, Metadata, Pairs
from sbon.schema import ColumnType

END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end mark of a stream."""
UNPACKED_BYTES_MAX = 2**28
"""Most bytes that the buffers of one batch may take when decompressed."""

_CONTINUATION = 0xFFFFFFFF
_MESSAGE = struct.Struct("<II")
_RECORD_BATCH = 3
_CODECS = (0, 1)  # LZ4_FRAME, ZSTD
_PAIR = struct.Struct("<qq")
_I64 = struct.Struct("<q")
_PAIRS_MAX = 4096 * 3
"""Most nodes or buffers of a batch, for more columns than any stream has."""


def schema_bytes(stream: bytes | memoryview) -> int:
    """Returns the length of a stream's first message, the schema, which has no body. The stream must be our own."""
    continuation, length = _MESSAGE.unpack_from(stream)
    assert continuation == _CONTINUATION
    return _MESSAGE.size + int(length)


def check(message: Buffer, columns: Columns, rows: int) -> Metadata | None:
    """Checks that a message is one record batch of `rows` rows with these columns.

    Returns
    -------
    Metadata | None
        None if the batch is compressed, or has another layout than `Columns` knows.

    Raises
    ------
    RemoteProtocolError
        The message is not such a batch.
    """
    head = bytes(message[: columns.body_at])
    found = columns.known.get(head)
    if found is not None and found.rows == rows and found.message_bytes == len(message):
        return found
    found = columns.read(message)
    if found is None:
        _check_any(message, columns, rows)
        return None
    body = memoryview(message)[columns.body_at :]
    _check_batch(body, rows, found.rows, found.message_bytes - columns.body_at)
    _check_buffers(body, columns.kinds, rows, found.nodes, found.buffers, packed=False)
    columns.believe(head, found)
    return found


def _check_any(message: Buffer, columns: Columns, rows: int) -> None:
    """Checks a message of any layout, by following its metadata as a flatbuffer."""
    try:
        continuation, length = _MESSAGE.unpack_from(message)
        if continuation != _CONTINUATION or length % 8 or length + _MESSAGE.size > len(message):
            raise RemoteProtocolError(f"record batch of {len(message)} bytes with metadata of {length} bytes")
        view = memoryview(message)
        _check_tables(view[_MESSAGE.size : _MESSAGE.size + length], view[_MESSAGE.size + length :], columns, rows)
    except (struct.error, IndexError) as problem:
        raise RemoteProtocolError(f"record batch of {len(message)} bytes with an offset beyond its end") from problem


def _check_tables(head: memoryview, body: memoryview, columns: Columns, rows: int) -> None:
    table = _Table.root(head)
    if (kind := table.scalar(1, "<B", 0)) != _RECORD_BATCH:
        raise RemoteProtocolError(f"message of kind {kind}, expected a record batch ({_RECORD_BATCH})")
    batch = table.table(2)
    _check_batch(body, rows, -1 if batch is None else batch.scalar(0, "<q", 0), table.scalar(3, "<q", 0))
    assert batch is not None
    nodes, buffers = batch.pairs(1), batch.pairs(2)
    if len(nodes) != len(columns.kinds) or len(buffers) != columns.buffers or batch.scalar(4, "<I", 0):
        wanted = f"{len(columns.kinds)} and {columns.buffers}"
        raise RemoteProtocolError(f"record batch of {len(nodes)} columns and {len(buffers)} buffers, expected {wanted}")
    packed = batch.table(3)
    if packed is not None and (packed.scalar(0, "<b", 0) not in _CODECS or packed.scalar(1, "<b", 0) != 0):
        raise RemoteProtocolError("record batch with an unknown compression, expected LZ4 frames or zstd")
    _check_buffers(body, columns.kinds, rows, nodes, buffers, packed is not None)


def _check_batch(body: memoryview, rows: int, claimed_rows: int, claimed_bytes: int) -> None:
    if claimed_bytes != len(body):
        raise RemoteProtocolError(f"record batch with a body of {claimed_bytes} bytes, expected {len(body)}")
    if claimed_rows != rows:
        raise RemoteProtocolError(f"record batch with another number of rows than the {rows} announced")


def _check_buffers(
    body: memoryview,
    kinds: Sequence[ColumnType],
    rows: int,
    nodes: Pairs,
    buffers: Pairs,
    packed: bool,
) -> None:
    bits = (rows + 7) // 8
    total = 0
    place = iter(buffers)
    for kind, (count, nulls) in zip(kinds, nodes, strict=True):
        if count != rows or not 0 <= nulls <= rows:
            raise RemoteProtocolError(f"column of {count} rows with {nulls} NULLs in a batch of {rows} rows")
        validity = _unpacked(body, next(place), packed)
        if validity < bits and (nulls or validity):
            raise RemoteProtocolError(f"validity of {validity} bytes, expected {bits} for {rows} rows")
        values = _unpacked(body, next(place), packed)
        least = bits if kind is ColumnType.BOOL else 8 * (rows + 1) if kind is ColumnType.TEXT else 8 * rows
        if values < least:
            raise RemoteProtocolError(f"column of {values} bytes, expected {least} for {rows} rows")
        total += validity + values + (_unpacked(body, next(place), packed) if kind is ColumnType.TEXT else 0)
    if total > UNPACKED_BYTES_MAX:
        raise RemoteProtocolError(f"record batch of {total} bytes unpacked, expected at most {UNPACKED_BYTES_MAX}")


def _unpacked(body: memoryview, buffer: tuple[int, int], packed: bool) -> int:
    """Returns the length of a buffer after decompression."""
    offset, length = buffer
    if offset < 0 or length < 0 or offset % 8 or offset + length > len(body):
        raise RemoteProtocolError(f"buffer of {length} bytes at {offset}, in a body of {len(body)} bytes")
    if not packed or length == 0:
        return length
    if length < _I64.size:
        raise RemoteProtocolError(f"packed buffer of {length} bytes, expected at least {_I64.size}")
    (unpacked,) = _I64.unpack_from(body, offset)
    if unpacked == -1:  # stored uncompressed, because compression would not have made it smaller
        return length - _I64.size
    if not 0 <= unpacked <= UNPACKED_BYTES_MAX:
        raise RemoteProtocolError(f"packed buffer of {unpacked} bytes, expected at most {UNPACKED_BYTES_MAX}")
    return int(unpacked)


class _Table:
    """A table of a flatbuffer; every offset is checked against the length of the bytes."""

    __slots__ = ("_at", "_data", "_fields")

    def __init__(self, data: memoryview, at: int) -> None:
        vtable = at - _at(data, at, "<i")
        if vtable < 0:
            raise RemoteProtocolError("record batch with an offset before its beginning")
        size = _at(data, vtable, "<H")
        self._data, self._at = data, at
        self._fields = [_at(data, vtable + 4 + 2 * slot, "<H") for slot in range((min(size, 20) - 4) // 2)]

    @classmethod
    def root(cls, data: memoryview) -> "_Table":
        return cls(data, _at(data, 0, "<I"))

    def _place(self, slot: int) -> int | None:
        offset = self._fields[slot] if slot < len(self._fields) else 0
        return self._at + offset if offset else None

    def scalar(self, slot: int, form: str, default: int) -> int:
        place = self._place(slot)
        return default if place is None else _at(self._data, place, form)

    def table(self, slot: int) -> "_Table | None":
        place = self._place(slot)
        return None if place is None else _Table(self._data, place + _at(self._data, place, "<I"))

    def pairs(self, slot: int) -> list[tuple[int, int]]:
        """Returns a vector of structs of two 64-bit numbers."""
        place = self._place(slot)
        if place is None:
            return []
        place += _at(self._data, place, "<I")
        count = _at(self._data, place, "<I")
        piece = self._data[place + 4 : place + 4 + count * _PAIR.size]
        if count > _PAIRS_MAX or len(piece) != count * _PAIR.size:
            raise RemoteProtocolError(f"record batch with a list of {count} columns or buffers")
        return list(_PAIR.iter_unpack(piece))


def _at(data: memoryview, place: int, form: str) -> Any:
    return struct.unpack_from(form, data, place)[0]
