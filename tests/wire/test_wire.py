"""Messages between agents survive encoding; decoding invalid bytes raises RemoteProtocolError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.wire.keys import KeyInstall, KeysAsk, KeysHeld
from sbon.wire.links import Acknowledge, Moved
from sbon.wire.messages import Message, decode, encode
from sbon.wire.reports import OperatorsAsk

texts = st.text(max_size=30)
numbers, epochs = st.integers(0, 2**62), st.integers(0, 2**40)
messages = st.one_of(
    st.builds(Acknowledge, link=texts, processed=numbers, credit=numbers, resume=st.booleans()),
    st.builds(Moved, operator=texts, node=texts, epoch=epochs),
    st.builds(OperatorsAsk, operators=st.lists(texts, max_size=5).map(tuple)),
    st.builds(KeysAsk),
    st.builds(KeyInstall, key=st.binary(max_size=64)),
    st.builds(KeysHeld, ids=st.lists(texts, max_size=8).map(tuple)),
)


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(data)


@given(messages, st.data())
def test_a_message_cut_short_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    with pytest.raises(RemoteProtocolError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_a_key_on_its_way_does_not_show_in_logs() -> None:
    secret = b"0123456789abcdef0123456789abcdef"
    assert repr(KeyInstall(key=secret)) == "KeyInstall(32 bytes)"
    assert "0123" not in f"{[KeyInstall(key=secret)]}"
