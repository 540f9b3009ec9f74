"""Expected bytes of links, compared with real frames: rows are encoded, numbered and sealed as agents do it."""

from itertools import count

import polars as pl
import pytest

from sbon.framing import SecureStream, Send
from sbon.links.frames import Data, LinkFrameWriter
from sbon.operators.frames import encode_batch, polars_schema
from sbon.query.link_bytes import FRAME_BYTES, SOURCE_BATCHES_PER_S, Pace, batch_bytes, expected_pace, link_bytes_per_s
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SourceParams
from sbon.query.params.windowed import AssignParams, WindowParams
from sbon.schema import ColumnType, Field
from sbon.sealing import KeyRing

BOOL, INT, FLOAT, TEXT, TIME = ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT, ColumnType.TEXT, ColumnType.TIME
SCHEMAS = {
    "one number": (Field("n", INT),),
    "trades": (Field("ts", TIME), Field("symbol", TEXT), Field("price", FLOAT)),
    "flags and texts": (Field("a", BOOL), Field("b", TEXT), Field("c", TEXT), Field("d", BOOL)),
    "ten columns": tuple(Field(f"n{place}", (INT, FLOAT, TIME, TEXT, BOOL)[place % 5]) for place in range(10)),
}
VALUES = {BOOL: [True], INT: [7], FLOAT: [0.25], TIME: [1_790_000_000_000_000], TEXT: ["symbol-1", "12345678"]}
HANDSHAKE = 32


def sealed_stream():
    """Returns the dialler's end of an open sealed connection."""
    ring, numbers = KeyRing([bytes(range(32))]), count(1)
    dialler, acceptor = (
        SecureStream(dialler=d, name=name, key_ring=ring, random_bytes=bytes([next(numbers)]) * HANDSHAKE, frame_bytes_max=2**24)
        for d, name in ((True, "ada"), (False, "bob"))
    )
    answer = b"".join(event.data for event in acceptor.receive(dialler.start()) if isinstance(event, Send))
    list(dialler.receive(answer))
    return dialler


def sent_bytes(schema, batches):
    """Returns the bytes of batches with these numbers of rows, on a connection that has already carried the link's name."""
    stream, writer, total = sealed_stream(), LinkFrameWriter(checksum=False, frame_bytes_max=2**26), 0
    for sequence, rows in enumerate((1, *batches), 1):
        columns = {field.name: (VALUES[field.type] * rows)[:rows] for field in schema}
        frame = pl.DataFrame(columns, schema=None).cast(polars_schema(schema)) if rows else None
        payload = encode_batch(frame, schema) if frame is not None else b""
        number, head = writer.head(Data("a>b:0", sequence, 1.0, sequence, rows, payload))
        size = sum(len(piece) for piece in stream.send(1, number, head, payload))
        total += size if sequence > 1 else 0
    return total


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 63, 64, 65, 1000])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_batch_takes_as_many_bytes_as_expected(schema, rows):
    assert sent_bytes(schema, [rows]) == batch_bytes(schema, rows)


def test_a_watermark_alone_takes_a_frame():
    assert sent_bytes(SCHEMAS["trades"], [0]) == FRAME_BYTES


@pytest.mark.parametrize("rows_per_s", [1, 10, 100, 1000, 25_000])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_a_second_of_rows_takes_about_as_many_bytes_as_expected(schema, rows_per_s):
    """Batches leave at the expected pace. The tolerance is 5 %, because rows do not divide evenly among them."""
    batches = min(rows_per_s, int(SOURCE_BATCHES_PER_S))
    rows = [rows_per_s * (at + 1) // batches - rows_per_s * at // batches for at in range(batches)]
    expected = link_bytes_per_s(schema, rows_per_s, expected_pace(source(), rows_per_s, ()))
    assert sent_bytes(schema, rows) == pytest.approx(expected, rel=0.05)


def test_a_second_at_an_uneven_rate_is_within_a_twentieth():
    """333 rows in 100 batches make batches of 3 and of 4 rows."""
    rows = [3] * 67 + [4] * 33
    assert sent_bytes(SCHEMAS["trades"], rows) == pytest.approx(
        link_bytes_per_s(SCHEMAS["trades"], 333, expected_pace(source(), 333, ())), rel=0.05
    )  # fmt: skip


def source():
    return SourceParams(name="s", connector="datagen", options=(), columns=SCHEMAS["trades"], time_column="ts")


def test_a_filter_gives_a_watermark_where_no_row_is_left():
    few = expected_pace(MapParams(None, None), 1.0, [Pace(100.0, 0.0)])
    assert few.batches_per_s == pytest.approx(1.0, rel=0.01)
    assert few.batches_per_s + few.watermarks_per_s == pytest.approx(100.0)
    assert expected_pace(MapParams(None, None), 1e6, [Pace(100.0, 0.0)]) == pytest.approx((100.0, 0.0))


def test_a_window_gives_a_frame_for_each_window():
    window = WindowParams(keys=(), aggregates=(), time_column="ts", size_us=10_000_000, slide_us=2_000_000)
    assert sum(expected_pace(window, 50.0, [Pace(60.0, 40.0), Pace(100.0, 0.0)])) == pytest.approx(0.5)
    assert expected_pace(window, 0.0, [Pace(0.0, 0.0)]) == (0.0, 0.0)


def test_rows_put_into_windows_leave_at_once_and_watermarks_with_the_windows():
    assign = AssignParams(time_column="ts", size_us=10_000_000, slide_us=2_000_000)
    given = expected_pace(assign, 5.0, [Pace(100.0, 0.0)])
    assert given.batches_per_s == pytest.approx(4.877, abs=0.001)
    assert given.watermarks_per_s == 0.5


def test_nothing_travels_without_rows():
    assert link_bytes_per_s(SCHEMAS["trades"], 0.0, expected_pace(source(), 0.0, ())) == 0.0
