"""The rows of a batch in their several forms: a polars frame for operators, Arrow IPC bytes for links, and plain values for a few rows, if
no operator needs a frame of them.

Each form is made once from another when first needed, preferably on an executor thread. polars is imported only to make a frame.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sbon.compression import SMALL_BYTES, Codec
from sbon.errors import LocalProtocolError
from sbon.links.frames import Buffer
from sbon.operators.values import FEW_ROWS, Values, decode_values, encode_values
from sbon.query.plan import Part
from sbon.schema import ColumnType, Schema, held_type

if TYPE_CHECKING:
    import polars as pl

HEADER_BYTES = 64
"""Bytes counted for each batch beside its columns, so that a watermark is not free."""
PART_BYTES_MAX = 4 * 2**20
"""Bytes of a batch above which it leaves its host in parts."""
FRAME_BYTES = 96
COLUMN_BYTES = 80
TEXT_COLUMN_BYTES = 64
TEXT_BYTES = 8
"""Bytes that Arrow IPC adds to the values: for a frame, for a column, more for a column of texts, and for each text. Fitted to the results
of `encode_batch` for 1 to 4,000 rows."""


class Packed(msgspec.Struct, frozen=True):
    """Rows as bytes."""

    codec: Codec
    data: Buffer
    seconds: float
    """Time it took to pack them; 0 if unknown."""


class Rows:
    """Rows of a batch; implements `sbon.links.batch.Payload`.

    `size_bytes` is their unpacked size, the same on every host, because the rates of all links of an operator together decide its
    placement.
    """

    __slots__ = ("_dealt", "_frame", "_noted", "_packed", "_parts", "_schema", "_values", "rows", "size_bytes")

    def __init__(self, rows: int, size_bytes: int, schema: Schema, frame: "pl.DataFrame | None") -> None:
        self.rows = rows
        self.size_bytes = size_bytes
        self._schema = schema
        self._frame = frame
        self._packed: dict[Codec, Packed] = {}
        self._parts: tuple[Rows, ...] = ()
        self._values: Values | None = None
        self._dealt: tuple[Rows | None, ...] = ()
        self._noted: str | None = None
        """Column whose text in the first row is a note for the consumer: each piece of the rows has it in its first row."""

    @classmethod
    def of_frame(cls, frame: "pl.DataFrame", schema: Schema) -> "Rows":
        """Makes rows from a frame computed here.

        The frame is made contiguous, which copies nothing if it is already: expressions over chunked frames are not safe
        (`sbon.operators.frames.evaluated`).
        """
        frame = frame.rechunk()
        texts = 0
        for place, field in enumerate(schema):
            if held_type(field.type) is ColumnType.TEXT:
                texts += _text_bytes(frame.to_series(place))
        return cls(frame.height, _size_bytes(frame.height, schema, texts), schema, frame)

    @classmethod
    def of_values(cls, values: Values, schema: Schema) -> "Rows":
        """Makes rows from a few plain values that entered here."""
        texts = 0
        for field, column in zip(schema, values.columns, strict=True):
            if held_type(field.type) is ColumnType.TEXT:
                texts += _bytes_of_few(column)
        made = cls(values.rows, _size_bytes(values.rows, schema, texts), schema, None)
        made._values = values
        return made

    @classmethod
    def of_frames(cls, frames: "Sequence[pl.DataFrame]", schema: Schema) -> "Rows":
        """Makes rows from several frames computed here, at least one."""
        if len(frames) == 1:
            return cls.of_frame(frames[0], schema)
        import polars

        return cls.of_frame(polars.concat(frames, rechunk=True), schema)

    @classmethod
    def dealt(cls, frames: "Sequence[pl.DataFrame]", schema: Schema, noted: str | None = None) -> "Rows":
        """Makes rows that links carry in parts, from the frame of each part; at least one row.

        Parameters
        ----------
        noted : column with a note in the first row of each part
        """
        parts = tuple(cls.of_frame(frame, schema) if frame.height else None for frame in frames)
        for part in parts:
            if part is not None:
                part._noted = noted
        there = [part for part in parts if part is not None]
        made = cls(sum(part.rows for part in there), sum(part.size_bytes for part in there), schema, None)
        made._dealt = parts
        return made

    def of_part(self, part: Part | None) -> "Rows | None":
        """Returns the rows that a link with this part carries, all rows for a link without a part; None if the part has no rows.

        Raises
        ------
        LocalProtocolError
            The rows are dealt and the link has no such part, or the other way round.
        """
        if part is None and not self._dealt:
            return self
        if part is None or part.of != len(self._dealt):
            raise LocalProtocolError(f"a link with part {part} of rows in {len(self._dealt)} parts")
        return self._dealt[part.index]

    def rows_by_part(self) -> tuple[int, ...]:
        """Returns the rows of each part, if they are dealt; all of them otherwise."""
        return tuple([part.rows if part is not None else 0 for part in self._dealt]) or (self.rows,)

    @classmethod
    def joined(cls, rows: "Sequence[Rows]", schema: Schema) -> "Rows":
        """Joins the rows of several batches of one schema, at least one, in order."""
        return rows[0] if len(rows) == 1 else cls.of_frames([one.frame() for one in rows], schema)

    @classmethod
    def of_bytes(cls, data: Buffer, rows: int, schema: Schema, size_bytes: int = 0, codec: Codec = Codec.NONE) -> "Rows":
        """Makes rows from the bytes of a link, where they count for `size_bytes`. Their number is checked when they are decoded."""
        made = cls(rows, max(size_bytes, HEADER_BYTES + len(data)), schema, None)
        made._packed[codec] = Packed(codec, data, 0.0)
        return made

    def frame(self) -> "pl.DataFrame":
        """Returns the rows as a frame.

        Raises
        ------
        RemoteProtocolError
            The bytes are not a frame of the schema and the number of rows that were announced.
        """
        if self._frame is None:
            from sbon.operators.frames import decode_batch, frame_of_values

            if self._dealt:
                raise LocalProtocolError(f"rows in {len(self._dealt)} parts have no one frame")
            if self._values is not None:
                self._frame = frame_of_values(self._values, self._schema)
            else:
                self._frame = decode_batch(next(iter(self._packed.values())).data, self._schema, self.rows)
        return self._frame

    def values(self) -> Values | None:
        """Returns the rows as plain values if they are few and not a frame yet, else None: making a frame would take longer than processing
        them.

        Raises
        ------
        RemoteProtocolError
            The same as for `frame`.
        """
        if self._values is None and self._frame is None and self.rows <= FEW_ROWS and Codec.NONE in self._packed:
            self._values = decode_values(self._packed[Codec.NONE].data, self._schema, self.rows)
        return self._values

    def behind(self, rows: int) -> "Rows":
        """Returns the rows after the first `rows` ones; there must be more than these."""
        return self._piece(self.frame().slice(rows))

    def _piece(self, frame: "pl.DataFrame") -> "Rows":
        """Returns some of these rows, with the note of all."""
        if self._noted is not None:
            import polars

            note = polars.Series(self._noted, [self.frame()[self._noted].first()], polars.String)
            frame = frame.with_columns_seq(note.extend_constant(None, frame.height - 1))
        made = Rows.of_frame(frame, self._schema)
        made._noted = self._noted
        return made

    def parts(self) -> "Sequence[Rows]":
        """Cuts the rows into parts for a link to another host, in order: a network frame has a maximum size, and occupies the event loop
        while it is encrypted. Rows that came over a link are passed on uncut.
        """
        if self.size_bytes <= PART_BYTES_MAX or (self._frame is None and self._values is None):  # also for dealt rows
            return (self,)
        if not self._parts:
            frame, rows = self.frame(), max(1, self.rows * (PART_BYTES_MAX - 4096) // self.size_bytes)
            pieces = (self._piece(frame[first : first + rows]) for first in range(0, self.rows, rows))
            # A part with many long rows is cut once more; a single row is never cut.
            self._parts = tuple(part for piece in pieces for part in (piece.parts() if piece.rows > 1 else (piece,)))
        return self._parts

    def is_packed(self, codec: Codec) -> bool:
        """Tells whether `pack` has nothing to do: the rows are packed, came packed, or are bytes already and too small to compress."""
        if codec in self._packed:
            return True
        came_packed = self._frame is None and Codec.NONE not in self._packed
        return bool(self._packed) and (came_packed or codec is Codec.NONE or self.size_bytes < SMALL_BYTES)

    def pack(self, codec: Codec, clock: Callable[[], float]) -> None:
        """Makes `packed(codec)` ready, on an executor thread. Rows that came packed stay as they are, whichever the codec.

        Raises
        ------
        LocalProtocolError
            The frame's columns differ from its schema: a bug of the operator that made it.
        """
        if self.is_packed(codec):
            return
        if self.size_bytes < SMALL_BYTES:
            codec = Codec.NONE
        began = clock()
        data: Buffer
        if self._values is not None and codec is Codec.NONE:
            data = encode_values(self._values, self._schema)
        else:
            from sbon.operators.frames import encode_batch

            data = encode_batch(self.frame(), self._schema, codec)
        self._packed[codec] = Packed(codec, data, clock() - began)

    def packed(self, codec: Codec) -> Packed:
        """Returns the rows as bytes: packed with this codec if `pack` was called for it, else in the form they have."""
        found = self._packed.get(codec) or next(iter(list(self._packed.values())), None)
        if found is None:
            self.pack(Codec.NONE, lambda: 0.0)
            found = self._packed[Codec.NONE]
        return found

    def data(self) -> Buffer:
        """Returns the rows as Arrow IPC; packed if they came packed."""
        return self.packed(Codec.NONE).data


def _text_bytes(column: "pl.Series") -> int:
    """Returns the bytes of all texts of a column, each counted as often as it is there."""
    if column.len() <= FEW_ROWS:
        return _bytes_of_few(column.to_list())
    # Not the column's own size estimate: it counts a text shared by all rows, such as a constant, only once.
    return int(column.str.len_bytes().sum())


def _bytes_of_few(texts: Iterable[str | None]) -> int:
    return sum(len(text.encode()) for text in texts if text)


def _size_bytes(rows: int, schema: Schema, texts: int) -> int:
    """Estimates the Arrow IPC size of rows with `texts` bytes of text."""
    size = HEADER_BYTES + FRAME_BYTES + COLUMN_BYTES * len(schema) + texts
    for field in schema:
        if held_type(field.type) is ColumnType.TEXT:
            size += TEXT_COLUMN_BYTES + TEXT_BYTES * rows
        else:
            size += (rows + 7) // 8 if field.type is ColumnType.BOOL else 8 * rows
    return size
