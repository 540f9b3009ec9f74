"""Snapshots of operators begin with the version of their format; other versions are refused."""

import msgspec
import pytest

from sbon.errors import RemoteProtocolError
from sbon.migration.snapshot import VERSION, Begin, Call, Calls, Head, Opaque, Part, Reader, Rest, Slice, Whole, Writer, decode_record

PARTS: list[Part] = [Begin(b"head"), Slice("rows", b"data"), Opaque(b"bytes"), Whole(), Calls((Call(0, 5, b"rows"),)), Rest(b"record")]


def head(version: int = VERSION, since: str = "") -> bytes:
    return msgspec.msgpack.encode(Head(version, msgspec.Raw(msgspec.msgpack.encode(Whole())), since))


def test_what_is_written_is_read_whatever_comes_first():
    for turn in range(len(PARTS)):
        parts = PARTS[turn:] + PARTS[:turn]
        writer, reader = Writer(), Reader()
        assert [reader.part(writer.piece(part)) for part in parts] == parts


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (head(VERSION + 1), rf"snapshot of version {VERSION + 1}, expected {VERSION}"),
        (head(0), "snapshot of version 0"),
        (head(since="q.1/41"), "snapshot since q.1/41, which is not here"),
        (msgspec.msgpack.encode(Whole()), "is not one of a snapshot"),
        (b"", "is not one of a snapshot"),
        (b"\xc1", "is not one of a snapshot"),
    ],
)
def test_a_first_piece_that_is_not_ours_is_refused(data: bytes, why: str):
    with pytest.raises(RemoteProtocolError, match=why):
        Reader().part(data)


def test_a_version_is_told_though_the_rest_of_the_piece_means_nothing_here():
    later = msgspec.msgpack.encode({"type": "head", "version": 9, "part": ["something", "new"], "more": 1})
    with pytest.raises(RemoteProtocolError, match="version 9"):
        Reader().part(later)


def test_later_pieces_have_no_head():
    reader = Reader()
    reader.part(head())
    with pytest.raises(RemoteProtocolError):
        reader.part(head())


@pytest.mark.parametrize(("size", "pieces"), [(0, 1), (1, 1), (10, 1), (11, 2), (30, 3)])
def test_bytes_are_cut_into_at_least_one_piece(size: int, pieces: int):
    reader, data = Reader(), bytes(range(size))
    parts = [reader.part(piece) for piece in Writer().cut(data, lambda: 10, Rest)]
    assert len(parts) == pieces
    assert b"".join(part.data for part in parts if isinstance(part, Rest)) == data


def test_bytes_that_are_no_record_are_refused():
    with pytest.raises(RemoteProtocolError, match="not one of an operator"):
        decode_record(b"\xc1")
