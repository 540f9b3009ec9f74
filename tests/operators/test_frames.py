"""Frames are equal after encoding and decoding; bytes that are no frame are refused."""

import gc
import tracemalloc
from datetime import datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from sbon.errors import RemoteProtocolError
from sbon.operators.frames import decode, decode_batch, empty, encode, encode_batch, polars_schema
from sbon.schema import PLAIN_TYPES, ColumnType, Field
from tests.examples import examples

SCHEMA = tuple(Field(kind.value, kind) for kind in PLAIN_TYPES)


def sample() -> pl.DataFrame:
    rows = [
        (True, 1, 0.5, "a", datetime(2020, 1, 1), timedelta(seconds=1)),
        (None, None, None, None, None, None),
        (False, -(2**63), float("inf"), "a text longer than twelve bytes", datetime(1900, 1, 1), timedelta(microseconds=-1)),
    ]
    return pl.DataFrame(rows, schema=polars_schema(SCHEMA), orient="row")


def test_a_frame_survives_the_journey():
    assert_frame_equal(decode(encode(sample()), SCHEMA), sample())


def test_a_frame_without_rows_survives_too():
    assert_frame_equal(decode(encode(empty(SCHEMA)), SCHEMA), empty(SCHEMA))


def test_a_slice_does_not_drag_the_whole_frame_along():
    large = pl.DataFrame({"text": [f"a text longer than twelve bytes {i}" for i in range(100_000)]})
    assert len(encode(large.filter(pl.col("text").str.ends_with(" 7")))) < 2000


def test_equal_frames_are_equal_bytes_however_they_are_held():
    in_pieces = pl.concat([sample(), sample().head(1), sample()], rechunk=False).filter(pl.col("int").is_not_null())
    in_one = pl.DataFrame(in_pieces.rows(), schema=in_pieces.schema, orient="row")
    assert encode(in_pieces) == encode(in_one)


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"bool": [True]}),
        sample().select(reversed(sample().columns)),
        sample().with_columns(pl.col("int").cast(pl.Float32)),
        sample().rename({"int": "integer"}),
    ],
)
def test_other_columns_than_the_plans_are_refused(frame: pl.DataFrame):
    with pytest.raises(RemoteProtocolError, match="columns"):
        decode(encode(frame), SCHEMA)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes):
    with pytest.raises(RemoteProtocolError):
        decode(data, SCHEMA)


@examples(200)
@given(st.data())
def test_a_damaged_frame_is_refused(data: st.DataObject):
    whole = encode(sample())
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:place] if data.draw(st.booleans()) else whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :]
    with pytest.raises(RemoteProtocolError):
        decode(damaged, SCHEMA)


@pytest.mark.parametrize("way", ["batch", "snapshot"])
def test_reading_leaves_nothing_behind(way: str):
    """The daemon decodes every batch, for months."""
    columns = (Field("k", ColumnType.INT), Field("s", ColumnType.TEXT))
    frame = pl.DataFrame({"k": [1, 2, 3], "s": ["a", None, "c"]})
    data = bytes(encode_batch(frame, columns)) if way == "batch" else encode(frame)

    def growth() -> int:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(1000):
            decode_batch(data, columns, 3) if way == "batch" else decode(data, columns)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        growth()  # fills caches
        # The traced memory is that of the whole process, so other threads and earlier tests disturb it. A leak shows in every round.
        assert min(growth() for _ in range(5)) < 5_000
    finally:
        tracemalloc.stop()
