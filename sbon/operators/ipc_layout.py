"""How polars lays out an Arrow IPC record batch: the metadata is always the same but for the numbers in it.

A flatbuffer may order its tables in many ways, and a reader has to follow its offsets (`sbon.operators.ipc` does). One writer always
orders them in one way, given how many columns and buffers there are: metadata of ours is packed, recognised and read as one `struct`, and
the body of a small batch is another.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from sbon.link_frames import Buffer
from sbon.query.schema import ColumnType, Schema

Pairs: TypeAlias = Sequence[tuple[int, int]]

PAD_BYTES = 64
"""Buffers of a body begin at multiples of this."""
NUMBERS = {ColumnType.INT: "q", ColumnType.FLOAT: "d", ColumnType.TIME: "q", ColumnType.INTERVAL: "q"}
"""How values of 8 bytes are packed."""

_CONTINUATION = 0xFFFFFFFF
_MESSAGE_BYTES = 8
_SHAPES_MAX = 128
_SHAPE_BYTES_MAX = 1024


class Shape(NamedTuple):
    """How a batch of certain sizes is packed."""

    head: bytes
    """All of the message before its body."""
    form: struct.Struct
    """The whole message: the head and what the body has of each column, in order."""


class Columns:
    """The layout of record batches of columns of these kinds.

    Attributes
    ----------
    body_at
        Where the body of a message begins.
    buffers
        How many buffers the body has.
    shapes, plain
        What `remember` was told: by sizes, and of numbers without NULLs by rows.
    """

    __slots__ = ("_constants", "_metadata", "body_at", "buffers", "kinds", "plain", "shapes")

    def __init__(self, kinds: Sequence[ColumnType]) -> None:
        self.kinds = tuple(kinds)
        self.buffers = sum(3 if kind is ColumnType.TEXT else 2 for kind in self.kinds)
        self.shapes: dict[tuple[int, ...], Shape] = {}
        self.plain: dict[int, Shape] = {}
        size = 80 + 16 * (len(self.kinds) + self.buffers)
        self.body_at = _MESSAGE_BYTES + size
        # What lies between the numbers: the tables of the flatbuffer and how many buffers and columns there are.
        self._constants = (
            struct.pack("<IIIi", _CONTINUATION, size, 4, -20),
            bytes.fromhex("14000000 04000300 0c001300 10001200 0c000400 eaffffff"),
            struct.pack("<I16sI", 28 + 16 * self.buffers, bytes.fromhex("10000000 00000a00 14000400 0c001000"), self.buffers),
            struct.pack("<II", 0, len(self.kinds)),
        )
        self._metadata = struct.Struct(f"<16sq24sq24s{2 * self.buffers}q8s{2 * len(self.kinds)}q")

    def head(self, rows: int, body_bytes: int, buffers: Sequence[int], nodes: Sequence[int]) -> bytes:
        """All of a message before its body.

        Parameters
        ----------
        buffers
            Offset and length of each, one after the other.
        nodes
            Rows and NULLs of each column, one after the other.
        """
        first, second, third, fourth = self._constants
        return self._metadata.pack(first, body_bytes, second, rows, third, *buffers, fourth, *nodes)

    def remember(self, sizes: tuple[int, ...], shape: "Shape") -> "Shape":
        """Keep how a batch of these sizes is packed: its rows, then for each column its NULLs and, of texts, their bytes."""
        if self.body_at > _SHAPE_BYTES_MAX:
            return shape
        if len(self.shapes) >= _SHAPES_MAX:
            self.shapes.clear()
            self.plain.clear()
        self.shapes[sizes] = shape
        if not any(sizes[1:]) and all(kind in NUMBERS for kind in self.kinds):
            self.plain[sizes[0]] = shape
        return shape

    def read(self, message: Buffer) -> "Metadata | None":
        """What a message says before its body, as it says it; None if it is laid out in another way."""
        if len(message) < self.body_at:
            return None
        first, body_bytes, second, rows, third, *numbers = self._metadata.unpack_from(message)
        end = 2 * self.buffers
        if (first, second, third, numbers[end]) != self._constants:
            return None
        buffers = tuple(zip(numbers[:end:2], numbers[1:end:2], strict=True))
        nodes = tuple(zip(numbers[end + 1 :: 2], numbers[end + 2 :: 2], strict=True))
        return Metadata(self.kinds, rows, body_bytes, nodes, buffers)


class Metadata:
    """What stands before the body of a batch that is not packed.

    Attributes
    ----------
    body_bytes
        How long the body is.
    nodes
        Rows and NULLs of each column.
    buffers
        Offset and length of each.
    reader
        For `sbon.operators.values`: what reads the body at one go, once it has been made.
    """

    __slots__ = ("body_bytes", "buffers", "kinds", "nodes", "reader", "rows")

    def __init__(self, kinds: Sequence[ColumnType], rows: int, body_bytes: int, nodes: Pairs, buffers: Pairs) -> None:
        self.kinds, self.rows, self.body_bytes, self.nodes, self.buffers = kinds, rows, body_bytes, nodes, buffers
        self.reader: BodyReader | None = None


class BodyReader:
    """How the buffers of a batch are read one after the other.

    Attributes
    ----------
    form
        Of each column: its validity as bytes, if it has NULLs; then its numbers, or BOOL as bytes, or the offsets of texts (one more than
        rows) and then the texts as bytes. None: buffers overlap, or come in another order.
    numbers_only
        There is one number for each row of each column, and nothing else.
    """

    __slots__ = ("form", "numbers_only")

    def __init__(self, metadata: Metadata) -> None:
        self.numbers_only = True
        self.form: struct.Struct | None = None
        pieces, end = ["<"], 0
        for (offset, length), piece, size in self._pieces(metadata):
            if length and offset < end:
                return
            if length:
                pieces.append(f"{offset - end}x")
                end = offset + size
            pieces.append(piece)
        self.form = struct.Struct("".join(pieces))

    def _pieces(self, metadata: Metadata) -> "list[tuple[tuple[int, int], str, int]]":
        """Of each buffer that is read: where it is, how it is read, and how much of it."""
        rows, buffers, found = metadata.rows, iter(metadata.buffers), []
        for kind, (_, nulls) in zip(metadata.kinds, metadata.nodes, strict=True):
            validity, values = next(buffers), next(buffers)
            if nulls:
                self.numbers_only = False
                found.append((validity, f"{validity[1]}s", validity[1]))
            if kind in NUMBERS:
                found.append((values, f"{rows}{NUMBERS[kind]}", 8 * rows))
                continue
            self.numbers_only = False
            if kind is ColumnType.TEXT:
                found.append((values, f"{rows + 1}q", 8 * (rows + 1)))
                values = next(buffers)
            found.append((values, f"{values[1]}s", values[1]))
        return found


@lru_cache(maxsize=256)
def columns_of(schema: Schema) -> Columns:
    """How the record batches of a schema are laid out."""
    return Columns([field.type for field in schema])
