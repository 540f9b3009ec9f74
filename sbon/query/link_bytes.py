"""Estimates the bytes a second of a stream on a link between two agents, from the layout of its batches there.

A batch is one frame of the connection: the frame's header and seal, the head of `sbon.links.frames`, and an Arrow IPC record batch, whose
metadata and padding (`sbon.links.ipc_layout`) are most of a batch of few rows. So the bytes depend on the number of batches. Sizes are
before compression, because whether and how a link compresses depends on its line. Texts count as TEXT_BYTES each and NULLs as values.
Headers of TCP and IP, and acknowledgements, are not counted.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sbon.framing import FRAME_HEADER_BYTES
from sbon.handshake import TAG_BYTES
from sbon.links.frames import HEAD
from sbon.links.ipc_layout import columns_of
from sbon.query.params.joined import WindowJoinParams
from sbon.query.params.source import SourceParams
from sbon.query.params.windowed import AssignParams, WindowParams
from sbon.schema import ELEMENT_TYPES, ColumnType, Schema, family

FRAME_BYTES = FRAME_HEADER_BYTES + HEAD.size + TAG_BYTES
"""Bytes of a frame around a record batch. A watermark that travels alone has no other bytes."""
TEXT_BYTES = 8.0
"""Assumed length of a text."""
SOURCE_BATCHES_PER_S = 100.0
"""Assumed batches a second of a source with more rows than that. The pause between two batches is 1 to 50 ms (`engine.batch_interval_min_s`
and `engine.batch_interval_s`)."""
VALUE_BYTES = {
    ColumnType.BOOL: 1 / 8,
    ColumnType.INT: 8.0,
    ColumnType.FLOAT: 8.0,
    ColumnType.TEXT: 8.0 + TEXT_BYTES,
    ColumnType.TIME: 8.0,
    ColumnType.INTERVAL: 8.0,
    **dict.fromkeys((ColumnType.JSON, *ELEMENT_TYPES), 8.0 + TEXT_BYTES),
}
"""Bytes of one more value in a batch; for a text, its offset and its characters."""


class Pace(NamedTuple):
    """Frames a second that an operator sends on each of its links."""

    batches_per_s: float
    """Frames with rows."""
    watermarks_per_s: float
    """Frames with a watermark alone."""


def row_bytes(schema: Schema) -> float:
    """Returns the bytes that one more row adds to a batch; at least 1."""
    return max(1.0, sum(VALUE_BYTES[family(column.type)] for column in schema))


def batch_bytes(schema: Schema, rows: float) -> float:
    """Returns the bytes of a sealed, uncompressed frame with a batch of so many rows; a fractional number of rows is interpolated.

    Examples
    --------
    >>> from sbon.schema import Field
    >>> batch_bytes((Field("price", ColumnType.FLOAT),), 1.0)
    273.0
    """
    whole = math.floor(rows)
    columns = columns_of(schema)
    below = columns.message_bytes(whole, TEXT_BYTES)
    above = columns.message_bytes(whole + 1, TEXT_BYTES)
    return FRAME_BYTES + below + (rows - whole) * (above - below)


def link_bytes_per_s(schema: Schema, rows_per_s: float, pace: Pace) -> float:
    """Returns the bytes a second of rows sent at this pace."""
    watermarks = pace.watermarks_per_s * FRAME_BYTES
    if rows_per_s <= 0 or pace.batches_per_s <= 0:
        return watermarks
    return watermarks + pace.batches_per_s * batch_bytes(schema, rows_per_s / pace.batches_per_s)


def expected_pace(params: object, rows_per_s: float, inputs: Sequence[Pace], source_batches_per_s: float = SOURCE_BATCHES_PER_S) -> Pace:
    """Returns the frames a second that an operator sends.

    Parameters
    ----------
    params : the operator's parameters
    rows_per_s : rows a second that it gives
    inputs : the pace of each link that leads to it
    source_batches_per_s : batches a second of a source with more rows than that
    """
    arriving = sum(pace.batches_per_s + pace.watermarks_per_s for pace in inputs)
    match params:
        case SourceParams():
            return Pace(min(rows_per_s, source_batches_per_s), 0.0)
        case WindowParams(slide_us=slide_us) | WindowJoinParams(slide_us=slide_us):
            # Rows and watermarks leave when a window closes. Windows of one instant close with every watermark.
            return _pace(min(arriving, 1e6 / slide_us), rows_per_s)
        case AssignParams(slide_us=slide_us):
            # Rows leave as they arrive, watermarks only when a window closes.
            batches_per_s, others_per_s = _pace(arriving, rows_per_s)
            return Pace(batches_per_s, min(others_per_s, 1e6 / slide_us))
        case _:
            return _pace(arriving, rows_per_s)


def _pace(frames_per_s: float, rows_per_s: float) -> Pace:
    """Splits frames into those with rows and those without, as if the rows were spread over the frames at random."""
    if frames_per_s <= 0:
        return Pace(0.0, 0.0)
    batches_per_s = -frames_per_s * math.expm1(-rows_per_s / frames_per_s)
    return Pace(batches_per_s, frames_per_s - batches_per_s)
