"""Properties of sealed datagrams and streams for any content, any chunking and any damage."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.framing import Frame, SecureStream, Send
from sbon.sealing import NONCE_BYTES, KeyRing

RING = KeyRing([bytes(range(32))])
LIMIT = 4096
RINGS = st.sampled_from([None, RING])
MESSAGES = st.lists(st.tuples(st.integers(1, 255), st.integers(0, 2**32 - 1), st.binary(max_size=300)), min_size=1, max_size=8)


def make_stream(*, dialler, ring):
    return SecureStream(dialler=dialler, name="ab"[dialler], key_ring=ring, random_bytes=bytes([7 + dialler]) * 32, frame_bytes_max=LIMIT)


def open_pair(ring):
    dialler, acceptor = make_stream(dialler=True, ring=ring), make_stream(dialler=False, ring=ring)
    to_acceptor, to_dialler = dialler.start(), b""
    while to_acceptor:
        to_dialler = b"".join(e.data for e in acceptor.receive(to_acceptor) if isinstance(e, Send))
        to_acceptor = b"".join(e.data for e in dialler.receive(to_dialler) if isinstance(e, Send))
    assert dialler.is_open
    assert acceptor.is_open
    return dialler, acceptor


def receive_to_the_end(stream, data, got):
    got.extend(stream.receive(data))
    stream.end()


def chunks(data, cuts):
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(ring=RINGS, messages=MESSAGES, cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_any_chunking_gives_the_same_messages(ring, messages, cuts):
    dialler, acceptor = open_pair(ring)
    wire = b"".join(piece for message in messages for piece in dialler.send(*message))
    got = [event for chunk in chunks(wire, cuts) for event in acceptor.receive(chunk)]

    assert got == [Frame(*message) for message in messages]
    acceptor.end()


@given(ring=RINGS, cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_any_chunking_of_the_handshake_ends_open(ring, cuts):
    dialler, acceptor = make_stream(dialler=True, ring=ring), make_stream(dialler=False, ring=ring)
    answer = b"".join(e.data for c in chunks(dialler.start(), cuts) for e in acceptor.receive(c) if isinstance(e, Send))
    finish = b"".join(e.data for c in chunks(answer, cuts) for e in dialler.receive(c) if isinstance(e, Send))
    for chunk in chunks(finish, cuts):
        list(acceptor.receive(chunk))

    assert dialler.is_open
    assert acceptor.is_open


@given(messages=MESSAGES, where=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_one_flipped_bit_is_detected_and_only_what_came_before_it_is_believed(messages, where, bit):
    dialler, acceptor = open_pair(RING)
    frames = [b"".join(dialler.send(*message)) for message in messages]
    wire = bytearray(b"".join(frames))
    where %= len(wire)
    wire[where] ^= 1 << bit
    got = []
    with pytest.raises(RemoteProtocolError):
        receive_to_the_end(acceptor, bytes(wire), got)  # after a length grew, the stream waits for more; its end is the error
    intact = next(i for i in range(len(frames)) if sum(map(len, frames[: i + 1])) > where)

    assert [event for event in got if isinstance(event, Frame)] == [Frame(*m) for m in messages[: len(got)]]
    assert len(got) <= intact


@given(messages=MESSAGES, data=st.data())
def test_a_repeated_dropped_or_swapped_frame_is_detected(messages, data):
    dialler, acceptor = open_pair(RING)
    frames = [b"".join(dialler.send(*message)) for message in [*messages, (1, 1, b"last")]]
    i = data.draw(st.integers(0, len(frames) - 2))
    harmed = data.draw(
        st.sampled_from(
            [[*frames[: i + 1], *frames[i:]], frames[:i] + frames[i + 1 :], [*frames[:i], frames[i + 1], frames[i], *frames[i + 2 :]]]
        )
    )
    with pytest.raises(RemoteProtocolError):
        list(acceptor.receive(b"".join(harmed)))


@given(messages=MESSAGES, cut=st.integers(1, 10_000))
def test_truncation_within_a_frame_is_detected_at_the_end(messages, cut):
    dialler, acceptor = open_pair(RING)
    frames = [b"".join(dialler.send(*message)) for message in messages]
    wire = b"".join(frames)[: -(1 + cut % len(frames[-1]))]
    got = list(acceptor.receive(wire))
    if len(wire) == sum(map(len, frames[:-1])):
        acceptor.end()
    else:
        with pytest.raises(RemoteProtocolError, match="ended within a frame"):
            acceptor.end()

    assert got == [Frame(*m) for m in messages[:-1]]


@given(
    ring=RINGS,
    dialler=st.booleans(),
    data=st.one_of(
        st.binary(max_size=400),
        st.binary(max_size=100).map(lambda b: b"sbon\x01" + b),
        st.binary(max_size=100).map(lambda b: b"sbon\x01\x01\x00\x24" + b),
    ),
    cuts=st.lists(st.integers(0, 10_000), max_size=5),
)
def test_random_bytes_in_a_handshake_raise_nothing_else_and_keep_nothing_large(ring, dialler, data, cuts):
    stream = make_stream(dialler=dialler, ring=ring)
    try:
        for chunk in chunks(data, cuts):
            list(stream.receive(chunk))
            assert len(stream._buffer) <= 400
    except RemoteProtocolError:
        assert not stream.is_open


@given(ring=RINGS, data=st.binary(min_size=1, max_size=400))
def test_random_bytes_in_an_open_stream_raise_nothing_else(ring, data):
    _, acceptor = open_pair(ring)
    try:
        list(acceptor.receive(data))
        acceptor.end()
    except RemoteProtocolError:
        assert not acceptor.is_open


@given(plain=st.binary(max_size=1500), nonce=st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_every_datagram_opens_to_itself(plain, nonce):
    assert RING.open(RING.seal(plain, nonce)) == plain


@given(plain=st.binary(max_size=100), where=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_datagram_with_one_flipped_bit_does_not_open(plain, where, bit):
    sealed = bytearray(RING.seal(plain, bytes(NONCE_BYTES)))
    sealed[where % len(sealed)] ^= 1 << bit
    with pytest.raises(RemoteProtocolError):
        RING.open(bytes(sealed))


@given(data=st.binary(max_size=200))
def test_random_datagrams_raise_nothing_else(data):
    with pytest.raises(RemoteProtocolError):
        RING.open(data)
