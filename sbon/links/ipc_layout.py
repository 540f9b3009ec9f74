"""The layout of Arrow IPC record batches as polars writes them, whose metadata differs only in its numbers.

A flatbuffer may order its tables in many ways, and a reader has to follow its offsets (`sbon.operators.ipc` does). A given writer always
orders them in the same way for a given number of columns and buffers. So one `struct` packs, recognises and reads the metadata that sbon
writes, and another one the body of a small batch.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from sbon.links.frames import Buffer
from sbon.schema import ColumnType, Schema, held_type

Pairs: TypeAlias = Sequence[tuple[int, int]]

PAD_BYTES = 64
"""Alignment of the buffers of a body, in bytes."""
NUMBERS = {ColumnType.INT: "q", ColumnType.FLOAT: "d", ColumnType.TIME: "q", ColumnType.INTERVAL: "q"}
"""`struct` format characters of 8-byte values."""

_CONTINUATION = 0xFFFFFFFF
_MESSAGE_BYTES = 8
_REMEMBERED_MAX = 64
_REMEMBERED_BYTES_MAX = 1024


class Shape(NamedTuple):
    """The layout of a packed batch of certain sizes."""

    head: bytes
    """All bytes of the message before its body."""
    form: struct.Struct
    """The whole message: the head, then the buffers of each column, in order."""


class Columns:
    """The layout of record batches with columns of given kinds.

    Attributes
    ----------
    body_at
        Offset of a message's body.
    buffers
        Number of buffers in the body.
    shapes, plain
        Shapes that `remember` keeps: by sizes, and by rows for numbers without NULLs.
    known
        Checked metadata, by the bytes of a message before its body. Many small batches share these bytes, which fully describe an
        uncompressed body.
    """

    __slots__ = ("_constants", "_metadata", "body_at", "buffers", "kinds", "known", "plain", "shapes")

    def __init__(self, kinds: Sequence[ColumnType]) -> None:
        self.kinds = tuple(kinds)
        self.buffers = sum(3 if kind is ColumnType.TEXT else 2 for kind in self.kinds)
        self.shapes: dict[tuple[int, ...], Shape] = {}
        self.plain: dict[int, Shape] = {}
        self.known: dict[bytes, Metadata] = {}
        size = 80 + 16 * (len(self.kinds) + self.buffers)
        self.body_at = _MESSAGE_BYTES + size
        # The constant bytes between the numbers: flatbuffer tables and the counts of buffers and columns.
        self._constants = (
            struct.pack("<IIIi", _CONTINUATION, size, 4, -20),
            bytes.fromhex("14000000 04000300 0c001300 10001200 0c000400 eaffffff"),
            struct.pack("<I16sI", 28 + 16 * self.buffers, bytes.fromhex("10000000 00000a00 14000400 0c001000"), self.buffers),
            struct.pack("<II", 0, len(self.kinds)),
        )
        self._metadata = struct.Struct(f"<16sq24sq24s{2 * self.buffers}q8s{2 * len(self.kinds)}q")

    def head(self, rows: int, body_bytes: int, buffers: Sequence[int], nodes: Sequence[int]) -> bytes:
        """Returns all bytes of a message before its body.

        Parameters
        ----------
        buffers
            Offset and length of each buffer, flattened.
        nodes
            Rows and NULLs of each column, flattened.
        """
        first, second, third, fourth = self._constants
        return self._metadata.pack(first, body_bytes, second, rows, third, *buffers, fourth, *nodes)

    def message_bytes(self, rows: int, text_bytes: float) -> int:
        """Returns the length of an uncompressed message of `rows` rows without NULLs, whose texts have `text_bytes` bytes on average."""
        body = 0
        for kind in self.kinds:
            if kind is ColumnType.TEXT and rows:
                body += _padded(8 * (rows + 1)) + _padded(math.ceil(rows * text_bytes))
            else:
                body += _padded((rows + 7) // 8 if kind is ColumnType.BOOL else 8 * rows)
        return self.body_at + body

    def remember(self, sizes: tuple[int, ...], shape: "Shape") -> "Shape":
        """Keeps the shape of a batch by its sizes: the rows, then the NULLs of each column and, for texts, their bytes."""
        if self.body_at > _REMEMBERED_BYTES_MAX:
            return shape
        if len(self.shapes) >= _REMEMBERED_MAX:
            self.shapes.clear()
            self.plain.clear()
        self.shapes[sizes] = shape
        if not any(sizes[1:]) and all(kind in NUMBERS for kind in self.kinds):
            self.plain[sizes[0]] = shape
        return shape

    def believe(self, head: bytes, metadata: "Metadata") -> None:
        """Keeps checked metadata by the bytes that encode it."""
        if self.body_at > _REMEMBERED_BYTES_MAX:
            return
        if len(self.known) >= _REMEMBERED_MAX:
            self.known.clear()
        self.known[head] = metadata

    def read(self, message: Buffer) -> "Metadata | None":
        """Returns the metadata before a message's body, unchecked; None if it has another layout."""
        if len(message) < self.body_at:
            return None
        first, body_bytes, second, rows, third, *numbers = self._metadata.unpack_from(message)
        end = 2 * self.buffers
        if (first, second, third, numbers[end]) != self._constants:
            return None
        buffers = tuple(zip(numbers[:end:2], numbers[1:end:2], strict=True))
        nodes = tuple(zip(numbers[end + 1 :: 2], numbers[end + 2 :: 2], strict=True))
        return Metadata(self, rows, body_bytes, nodes, buffers)


class Metadata:
    """The metadata of an uncompressed batch.

    Attributes
    ----------
    message_bytes
        Length of the message with its body.
    nodes
        Rows and NULLs of each column.
    buffers
        Offset and length of each buffer.
    form
        The result of `plan`.
    numbers_only
        True if `form` reads one number for each row of each column, and nothing else.
    """

    __slots__ = ("body_at", "buffers", "form", "kinds", "message_bytes", "nodes", "numbers_only", "rows")

    def __init__(self, columns: Columns, rows: int, body_bytes: int, nodes: Pairs, buffers: Pairs) -> None:
        self.kinds, self.body_at = columns.kinds, columns.body_at
        self.rows, self.nodes, self.buffers = rows, nodes, buffers
        self.message_bytes = columns.body_at + body_bytes
        self.form: struct.Struct | None = None
        self.numbers_only = False

    def plan(self) -> struct.Struct | None:
        """Returns a struct that reads the message buffer by buffer. Check all numbers here first.

        Returns
        -------
        struct.Struct | None
            Reads for each column: its validity as bytes, if it has NULLs; then its numbers, its BOOL values as bytes, or its text offsets
            (one more than rows) and its texts as bytes. None if buffers overlap or come in another order.
        """
        pieces, end = [f"<{self.body_at}x"], 0
        for offset, length, size, code in self._pieces():
            if length and offset < end:
                return None
            if length:
                pieces.append(f"{offset - end}x")
                end = offset + size
            pieces.append(code)
        self.numbers_only = all(kind in NUMBERS for kind in self.kinds) and not any(nulls for _, nulls in self.nodes)
        self.form = struct.Struct("".join(pieces))
        return self.form

    def _pieces(self) -> Iterator[tuple[int, int, int, str]]:
        """Yields offset, length, number of bytes to read, and format of each buffer that is read."""
        buffers = iter(self.buffers)
        for kind, (rows, nulls) in zip(self.kinds, self.nodes, strict=True):
            offset, length = next(buffers)
            if nulls:
                yield offset, length, length, f"{length}s"
            offset, length = next(buffers)
            if kind in NUMBERS:
                yield offset, length, 8 * rows, f"{rows}{NUMBERS[kind]}"
                continue
            if kind is ColumnType.TEXT:
                yield offset, length, 8 * (rows + 1), f"{rows + 1}q"
                offset, length = next(buffers)
            yield offset, length, length, f"{length}s"


def _padded(size_bytes: int) -> int:
    """Returns the length of a buffer with the padding before the next one."""
    return size_bytes + -size_bytes % PAD_BYTES


@lru_cache(maxsize=256)
def columns_of(schema: Schema) -> Columns:
    """Returns the layout of record batches of a schema."""
    return Columns([held_type(field.type) for field in schema])
