"""Rows of a batch in the two forms they take: a polars frame where they are worked on, Arrow IPC bytes where they travel.

Either form is made from the other once, when first asked for, preferably on an executor thread. polars is imported only then.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sbon.compression import SMALL_BYTES, Codec
from sbon.link_frames import Buffer
from sbon.query.schema import ColumnType, Schema

if TYPE_CHECKING:
    import polars as pl

HEADER_BYTES = 64
"""Counted for each batch beside its columns, so that a watermark is not free."""
PART_BYTES_MAX = 4 * 2**20
"""A larger batch leaves its host in parts."""
FRAME_BYTES = 96
COLUMN_BYTES = 80
TEXT_COLUMN_BYTES = 64
TEXT_BYTES = 8
"""What Arrow IPC adds to the values of a frame, of a column, more of one of texts, and of a text: fitted to what `encode_batch` makes of 1
to 4,000 rows."""


class Packed(NamedTuple):
    """Rows as bytes."""

    codec: Codec
    data: Buffer
    seconds: float
    """What it took to pack them; 0 where that is not known."""


class Rows:
    """A `sbon.batch.Payload`.

    `size_bytes` is what they take unpacked, and the same wherever they are: the rates of an operator's links decide together where it goes.
    """

    __slots__ = ("_frame", "_packed", "_parts", "_schema", "rows", "size_bytes")

    def __init__(self, rows: int, size_bytes: int, schema: Schema, frame: "pl.DataFrame | None") -> None:
        self.rows = rows
        self.size_bytes = size_bytes
        self._schema = schema
        self._frame = frame
        self._packed: dict[Codec, Packed] = {}
        self._parts: tuple[Rows, ...] = ()

    @classmethod
    def of_frame(cls, frame: "pl.DataFrame", schema: Schema) -> "Rows":
        """Rows that were computed here."""
        rows = frame.height
        size = HEADER_BYTES + FRAME_BYTES + COLUMN_BYTES * len(schema)
        for place, field in enumerate(schema):
            if field.type is ColumnType.TEXT:
                # Not what the column says of its own size: one text for all rows, such as a constant, counts only once there.
                size += TEXT_COLUMN_BYTES + TEXT_BYTES * rows + int(frame.to_series(place).str.len_bytes().sum())
            else:
                size += (rows + 7) // 8 if field.type is ColumnType.BOOL else 8 * rows
        return cls(rows, size, schema, frame)

    @classmethod
    def of_frames(cls, frames: "Sequence[pl.DataFrame]", schema: Schema) -> "Rows":
        """Rows that were computed here in several pieces, at least one."""
        if len(frames) == 1:
            return cls.of_frame(frames[0], schema)
        import polars

        return cls.of_frame(polars.concat(frames), schema)

    @classmethod
    def joined(cls, rows: "Sequence[Rows]", schema: Schema) -> "Rows":
        """The rows of several batches of one schema, at least one, in order."""
        return rows[0] if len(rows) == 1 else cls.of_frames([one.frame() for one in rows], schema)

    @classmethod
    def of_bytes(cls, data: Buffer, rows: int, schema: Schema, size_bytes: int = 0, codec: Codec = Codec.NONE) -> "Rows":
        """Rows that came over a link, where they counted for `size_bytes`; their number is checked when they are decoded."""
        made = cls(rows, max(size_bytes, HEADER_BYTES + len(data)), schema, None)
        made._packed[codec] = Packed(codec, data, 0.0)
        return made

    def frame(self) -> "pl.DataFrame":
        """As a frame.

        Raises
        ------
        RemoteProtocolError
            The bytes are not a frame of the schema and the number of rows that were announced.
        """
        if self._frame is None:
            from sbon.operators.frames import decode_batch

            self._frame = decode_batch(next(iter(self._packed.values())).data, self._schema, self.rows)
        return self._frame

    def parts(self) -> "Sequence[Rows]":
        """The rows in pieces for a link to another host, in order: a frame there has a greatest size, and keeps the event loop while it is
        sealed. What came over a link goes on as it came."""
        if self.size_bytes <= PART_BYTES_MAX or self._frame is None:
            return (self,)
        if not self._parts:
            rows = max(1, self.rows * (PART_BYTES_MAX - 4096) // self.size_bytes)
            self._parts = tuple(Rows.of_frame(self._frame[first : first + rows], self._schema) for first in range(0, self.rows, rows))
        return self._parts

    def is_packed(self, codec: Codec) -> bool:
        """`pack` has nothing to do: it has been done, they came packed, or they are too small for it and have been made bytes."""
        if codec in self._packed:
            return True
        came_packed = self._frame is None and Codec.NONE not in self._packed
        return bool(self._packed) and (came_packed or codec is Codec.NONE or self.size_bytes < SMALL_BYTES)

    def pack(self, codec: Codec, clock: Callable[[], float]) -> None:
        """Make `packed(codec)` ready, on an executor thread. What came packed stays as it came, by whichever codec.

        Raises
        ------
        LocalProtocolError
            The frame has other columns than its schema: a fault of the operator that made it.
        """
        if self.is_packed(codec):
            return
        if self.size_bytes < SMALL_BYTES:
            codec = Codec.NONE
        from sbon.operators.frames import encode_batch

        began = clock()
        data = encode_batch(self.frame(), self._schema, codec)
        self._packed[codec] = Packed(codec, data, clock() - began)

    def packed(self, codec: Codec) -> Packed:
        """As bytes: by this codec if that has been done, or else as they are."""
        found = self._packed.get(codec) or next(iter(list(self._packed.values())), None)
        if found is None:
            self.pack(Codec.NONE, lambda: 0.0)
            found = self._packed[Codec.NONE]
        return found

    def data(self) -> Buffer:
        """As Arrow IPC; packed if it came so."""
        return self.packed(Codec.NONE).data
