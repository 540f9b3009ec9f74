"""Batches of links survive encoding into frames. Damaged or invented frames raise RemoteProtocolError."""

import io
import struct
from datetime import datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from sbon.compression import Codec
from sbon.errors import LocalProtocolError, RemoteProtocolError, UnpackableError
from sbon.links.frames import HEAD, LINKS_MAX, Data, LinkFrameReader, LinkFrameWriter
from sbon.links.ipc_layout import columns_of
from sbon.operators import ipc
from sbon.operators.frames import decode_batch, encode_batch, polars_schema
from sbon.schema import PLAIN_TYPES, Field
from tests.examples import examples

SCHEMA = tuple(Field(kind.value, kind) for kind in PLAIN_TYPES)
COLUMNS = columns_of(SCHEMA)

batches = st.builds(
    Data,
    link=st.sampled_from(["a -> b", "b -> c", "ü"]),
    sequence=st.integers(1, 2**61),
    stimulus_s=st.floats(allow_nan=False, allow_infinity=False),
    watermark_us=st.integers(-(2**62), 2**62),
    rows=st.integers(1, 2**32 - 1),
    payload=st.binary(min_size=1, max_size=50),
    size_bytes=st.integers(0, 2**40),
    codec=st.sampled_from(Codec),
    path=st.integers(0, 2**32 - 1),
)


def frame_of(writer: LinkFrameWriter, data: Data) -> tuple[int, bytes]:
    number, head = writer.head(data)
    return number, head + bytes(data.payload)


@pytest.mark.parametrize("checksum", [False, True])
@given(sent=st.lists(batches, max_size=8))
def test_batches_come_back_as_they_were_and_a_link_is_named_once(checksum: bool, sent: list[Data]) -> None:
    writer, reader = LinkFrameWriter(checksum=checksum, frame_bytes_max=2**26), LinkFrameReader(checksum=checksum)
    named: set[str] = set()
    for data in sent:
        number, frame = frame_of(writer, data)
        assert len(frame) == HEAD.size + len(data.payload) + (0 if data.link in named else len(data.link.encode()))
        named.add(data.link)
        assert reader.read(number, frame) == data


def test_a_watermark_alone_is_a_head_and_nothing_else() -> None:
    writer, reader = LinkFrameWriter(checksum=False, frame_bytes_max=2**26), LinkFrameReader(checksum=False)
    for sequence in (1, 2):
        data = Data("a -> b", sequence, 5.0, 7, 0, b"")
        assert reader.read(*frame_of(writer, data)) == data
    assert len(frame_of(writer, data)[1]) == HEAD.size


def test_numbers_begin_anew_when_there_are_too_many_links() -> None:
    writer, reader = LinkFrameWriter(checksum=False, frame_bytes_max=2**26), LinkFrameReader(checksum=False)
    for index in [*range(LINKS_MAX + 2), 0, 1]:
        data = Data(f"link {index}", 1, 0.0, 0, 0, b"")
        assert reader.read(*frame_of(writer, data)) == data


@given(st.integers(0, 2**32 - 1), st.binary(max_size=120))
def test_random_bytes_are_refused(number: int, frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        LinkFrameReader(checksum=True).read(number, frame)


@given(batches, st.data())
def test_a_flipped_bit_behind_the_head_of_a_plain_frame_is_noticed(data: Data, draw: st.DataObject) -> None:
    number, frame = frame_of(LinkFrameWriter(checksum=True, frame_bytes_max=2**26), data)
    place = draw.draw(st.integers(HEAD.size, len(frame) - 1))
    damaged = frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]
    with pytest.raises(RemoteProtocolError, match="checksum"):
        LinkFrameReader(checksum=True).read(number, damaged)


def test_a_link_that_was_not_named_is_refused() -> None:
    writer = LinkFrameWriter(checksum=False, frame_bytes_max=2**26)
    frame_of(writer, Data("a -> b", 1, 0.0, 0, 0, b""))
    with pytest.raises(RemoteProtocolError, match="not been named"):
        LinkFrameReader(checksum=False).read(*frame_of(writer, Data("a -> b", 2, 0.0, 0, 0, b"")))


@pytest.mark.parametrize("bad", [Data("a -> b", 1, 0.0, 0, 3, b"x" * 100), Data("a -> b", 1, 0.0, 0, 2**32, b"x")])
def test_batch_that_no_frame_holds_is_refused_and_the_next_one_still_names_its_link(bad: Data) -> None:
    writer, reader = LinkFrameWriter(checksum=False, frame_bytes_max=HEAD.size + 50), LinkFrameReader(checksum=False)
    with pytest.raises(UnpackableError, match="batch"):
        writer.head(bad)
    good = Data("a -> b", 1, 0.0, 0, 3, b"x" * (50 - len("a -> b")))
    assert reader.read(*frame_of(writer, good)) == good


def sample(repeat: int = 1) -> pl.DataFrame:
    rows = [
        (True, 1, 0.5, "a", datetime(2020, 1, 1), timedelta(seconds=1)),
        (None, None, None, None, None, None),
        (False, -(2**63), float("inf"), "a text longer than twelve bytes", datetime(1900, 1, 1), timedelta(microseconds=-1)),
    ]
    return pl.DataFrame(rows * repeat, schema=polars_schema(SCHEMA), orient="row")


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("repeat", [1, 5, 500])
def test_a_frame_survives_the_journey(codec: Codec, repeat: int) -> None:
    data = encode_batch(sample(repeat), SCHEMA, codec)
    assert_frame_equal(decode_batch(bytes(data), SCHEMA, 3 * repeat), sample(repeat))


def test_the_schema_does_not_travel() -> None:
    data = bytes(encode_batch(sample(), SCHEMA))
    assert b"interval" not in data
    buffer = io.BytesIO()
    sample().write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    assert buffer.getvalue().endswith(data + ipc.END)


def test_a_frame_of_other_columns_than_its_schema_does_not_leave() -> None:
    with pytest.raises(LocalProtocolError, match="columns"):
        encode_batch(sample().with_columns(pl.col(SCHEMA[1].name).cast(pl.Float64)), SCHEMA)


@pytest.mark.parametrize("codec", list(Codec))
@examples(150)
@given(data=st.data())
def test_a_damaged_batch_is_refused_or_still_a_batch(codec: Codec, data: st.DataObject) -> None:
    """Without the connection's seal, a damaged batch raises RemoteProtocolError or has the announced columns and row count."""
    whole = bytearray(encode_batch(sample(5), SCHEMA, codec))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    try:
        frame = decode_batch(bytes(whole), SCHEMA, 15)
    except RemoteProtocolError:
        return
    assert frame.schema == polars_schema(SCHEMA)
    assert frame.height == 15
    frame.sort(frame.columns).hash_rows()


def test_what_is_known_of_one_batch_is_not_believed_of_another() -> None:
    """Known metadata skips the check only with the same body length, columns and row count."""
    data = bytes(encode_batch(sample(), SCHEMA))
    for _ in range(2):
        assert decode_batch(data, SCHEMA, 3).height == 3
    for other, schema, rows in ((data[:-8], SCHEMA, 3), (data, SCHEMA, 2), (data, SCHEMA[:-1], 3), (data, SCHEMA[::-1], 3)):
        with pytest.raises(RemoteProtocolError):
            ipc.check(other, columns_of(schema), rows)


@pytest.mark.parametrize("claim", [2**40, -2, 2**28 + 1])
def test_a_batch_that_claims_to_unpack_to_too_much_is_refused_before_it_is_read(claim: int) -> None:
    whole = bytearray(encode_batch(sample(5000), SCHEMA, Codec.LZ4))
    place = whole.index(struct.pack("<q", 8 * 15_000))
    whole[place : place + 8] = struct.pack("<q", claim)
    with pytest.raises(RemoteProtocolError, match="packed buffer"):
        ipc.check(whole, COLUMNS, 15_000)


@given(st.binary(max_size=300), st.integers(0, 10))
def test_random_bytes_are_no_batch(data: bytes, rows: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_batch(data, SCHEMA, rows)


def test_other_numbers_of_rows_or_columns_are_refused() -> None:
    data = bytes(encode_batch(sample(), SCHEMA))
    for rows, schema in ((2, SCHEMA), (3, SCHEMA[:-1]), (3, (*SCHEMA, SCHEMA[0])), (3, tuple(reversed(SCHEMA)))):
        with pytest.raises(RemoteProtocolError):
            decode_batch(data, schema, rows)
