"""Rows of a batch in the two forms they take: a polars frame where they are worked on, Arrow IPC bytes where they travel.

Either form is made from the other once, when first asked for, preferably on an executor thread. polars is imported only then.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sbon.query.schema import ColumnType, Schema

if TYPE_CHECKING:
    import polars as pl

HEADER_BYTES = 64
"""Counted for each batch beside its columns, so that a watermark is not free."""
FRAME_BYTES = 190
COLUMN_BYTES = 105
TEXT_COLUMN_BYTES = 110
TEXT_BYTES = 8
"""What Arrow IPC adds to the values of a frame, of a column, more of one of texts, and of a text: fitted to what `encode` makes of 1 to
4,000 rows. A batch must count alike wherever it is: the rates of an operator's links decide together where it goes."""


class Rows:
    """A `sbon.links.Payload`."""

    __slots__ = ("_data", "_frame", "_schema", "rows", "size_bytes")

    def __init__(self, rows: int, size_bytes: int, schema: Schema, frame: "pl.DataFrame | None", data: bytes | None) -> None:
        self.rows = rows
        self.size_bytes = size_bytes
        self._schema = schema
        self._frame = frame
        self._data = data

    @classmethod
    def of_frame(cls, frame: "pl.DataFrame", schema: Schema) -> "Rows":
        """Rows that were computed here."""
        texts = sum(field.type is ColumnType.TEXT for field in schema)
        added = HEADER_BYTES + FRAME_BYTES + COLUMN_BYTES * len(schema) + texts * (TEXT_COLUMN_BYTES + TEXT_BYTES * frame.height)
        return cls(frame.height, added + int(frame.estimated_size()), schema, frame, None)

    @classmethod
    def of_frames(cls, frames: "Sequence[pl.DataFrame]", schema: Schema) -> "Rows":
        """Rows that were computed here in several pieces, at least one."""
        if len(frames) == 1:
            return cls.of_frame(frames[0], schema)
        import polars

        return cls.of_frame(polars.concat(frames), schema)

    @classmethod
    def of_bytes(cls, data: bytes, rows: int, schema: Schema) -> "Rows":
        """Rows that came over a link; their number is checked when they are decoded."""
        return cls(rows, HEADER_BYTES + len(data), schema, None, data)

    def frame(self) -> "pl.DataFrame":
        """As a frame.

        Raises
        ------
        RemoteProtocolError
            The bytes are not a frame of the schema and the number of rows that were announced.
        """
        if self._frame is None:
            from sbon.errors import RemoteProtocolError
            from sbon.operators.frames import decode

            assert self._data is not None
            frame = decode(self._data, self._schema)
            if frame.height != self.rows:
                raise RemoteProtocolError(f"batch of {frame.height} rows, {self.rows} announced")
            self._frame = frame
        return self._frame

    def data(self) -> bytes:
        """As Arrow IPC."""
        if self._data is None:
            from sbon.operators.frames import encode

            assert self._frame is not None
            self._data = encode(self._frame)
        return self._data
