"""The control socket's codec."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.control import REQUEST_BYTES_MAX, ControlReply, ControlRequest, FrameReader, decode, encode, refusal
from sbon.errors import LinkError, QueryError, RemoteProtocolError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
REQUESTS = st.builds(ControlRequest, st.integers(0, 2**31), st.text(max_size=20), st.dictionaries(st.text(max_size=9), PLAIN, max_size=3))


@given(st.lists(REQUESTS, max_size=5), st.integers(1, 50))
def test_requests_arrive_as_they_were_sent_however_the_stream_is_cut(requests, chunk):
    stream = b"".join(map(encode, requests))
    reader = FrameReader(REQUEST_BYTES_MAX)

    bodies = [body for start in range(0, len(stream), chunk) for body in reader.receive(stream[start : start + chunk])]

    assert [decode(body, ControlRequest) for body in bodies] == requests


@given(st.binary(max_size=200))
def test_nonsense_raises_nothing_but_a_remote_protocol_error(data):
    understood: list[object] = []
    with contextlib.suppress(RemoteProtocolError):
        understood += [decode(body, ControlRequest) for body in FrameReader(1000).receive(data)]

    assert all(isinstance(message, ControlRequest) for message in understood)


def test_oversized_frame_is_refused_by_its_length_alone():
    reader = FrameReader(bytes_max=100)

    with pytest.raises(RemoteProtocolError, match="frame of 101 bytes, expected at most 100"):
        reader.receive((101).to_bytes(4, "big"))


def test_unknown_fields_are_refused():
    with pytest.raises(RemoteProtocolError, match="unknown field"):
        decode(encode(ControlReply(1, final=True, error="x"))[4:], ControlRequest)


def test_query_error_keeps_its_place_and_hint():
    problem = QueryError("no column regoin", line=2, column=8, hint="did you mean region?")

    assert refusal(7, problem) == ControlReply(7, final=True, error="no column regoin; did you mean region?", place=(2, 8))


def test_other_errors_are_told_as_they_are():
    assert refusal(7, LinkError("gone")) == ControlReply(7, final=True, error="gone")
