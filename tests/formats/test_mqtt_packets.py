"""Packets of MQTT 5 as a subscriber reads them, compared with the client library's reading."""

import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from sbon.errors import RemoteProtocolError
from sbon.formats.mqtt_packets import PUBACK, Message, PacketReader, Packets, answers

PACKET_BYTES_MAX = 1 << 20
PINGRESP, SUBACK = b"\xd0\x00", b"\x90\x04\x00\x01\x00\x01"


def length(value: int) -> bytes:
    octets = b""
    while True:
        value, octet = value >> 7, value & 127
        octets += bytes([octet | (128 if value else 0)])
        if not value:
            return octets


def packed(message: Message, properties: bytes = b"\x00") -> bytes:
    head = 0x30 | message.qos << 1 | message.is_repeated << 3
    number = message.mid.to_bytes(2, "big") if message.qos else b""
    body = len(message.topic).to_bytes(2, "big") + message.topic + number + properties + message.payload
    return bytes([head]) + length(len(body)) + body


def properties(*user: tuple[str, str]) -> bytes:
    """Returns properties after their length, as the client library writes them."""
    made = Properties(PacketTypes.PUBLISH)
    made.ContentType = "application/json"
    for pair in user:
        made.UserProperty = pair
    return made.pack()


MESSAGES = st.builds(
    Message,
    topic=st.text(min_size=1, max_size=20).map(str.encode),
    payload=st.one_of(st.binary(max_size=40), st.integers(100, 40_000).map(bytes)),
    qos=st.just(0),
    mid=st.just(0),
    is_repeated=st.just(False),
) | st.builds(
    Message,
    topic=st.just(b"plant/ams"),
    payload=st.binary(max_size=10),
    qos=st.integers(1, 2),
    mid=st.integers(1, 65_535),
    is_repeated=st.booleans(),
)


def read(reader: PacketReader, pieces: list[bytes]) -> Packets:
    whole = Packets([], [], [])
    for piece in pieces:
        for into, found in zip(whole, reader.take(piece), strict=True):
            into.extend(found)
    return whole


@given(st.lists(st.one_of(MESSAGES, st.integers(1, 65_535), st.sampled_from([PINGRESP, SUBACK])), max_size=8), st.data())
def test_packets_are_the_same_however_the_bytes_come(sent, data):
    stream = b""
    for one in sent:
        if isinstance(one, Message):
            stream += packed(one, data.draw(st.sampled_from([b"\x00", properties(("a", "b")), properties(("k", "v" * 200))])))
        else:
            stream += b"\x62\x02" + one.to_bytes(2, "big") if isinstance(one, int) else one
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = Packets(
        [one for one in sent if isinstance(one, Message)],
        [one for one in sent if isinstance(one, int)],
        [one for one in sent if isinstance(one, bytes)],
    )
    assert read(PacketReader(PACKET_BYTES_MAX), pieces) == expected


def test_a_packet_of_which_one_octet_came_does_not_wait_for_the_length_of_the_one_before():
    reader, stream = PacketReader(PACKET_BYTES_MAX), packed(Message(b"plant/ams", b"payload", 1, 7, False), b"\x00")
    assert reader.take(stream[:2]).messages == []
    assert len(reader.take(stream[2:] + b"\x62").messages) == 1
    assert reader.take(b"\x02\x00\x09").released == [9]


@given(st.lists(MESSAGES.filter(lambda one: one.qos < 2), max_size=5))
def test_messages_are_those_that_the_client_library_reads(sent):
    stream = left = b"".join(packed(one, properties(("a", "b"))) for one in sent)
    found = []
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5, manual_ack=True)
    client.on_message = lambda _client, _userdata, one: found.append(Message(one.topic.encode(), one.payload, one.qos, one.mid, one.dup))

    def octets(size: int) -> bytes:
        nonlocal left
        given, left = left[:size], left[size:]
        return given

    client._sock_recv = octets
    with socket.socket() as client._sock:
        while left:
            assert client.loop_read() == 0
    assert found == PacketReader(PACKET_BYTES_MAX).take(stream).messages


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x30\xff\xff\xff\xff\x01", "a length of more than four octets"),
        (b"\x30" + length(PACKET_BYTES_MAX) + b"xx", "expected at most 1048576"),
        (b"\x36\x08\x00\x01a\x00\x07\x00xx", "at QoS 3 with number 7"),
        (b"\x32\x08\x00\x01a\x00\x00\x00xx", "at QoS 1 with number 0"),
        (b"\x30\x06\x00\x00\x00xyz", "a message without a topic"),
        (b"\x30\x04\x00\x09ab" + PINGRESP * 9, "ends before its payload"),
        (b"\x30\x05\x00\x01a\x09x" + PINGRESP * 9, "ends before its payload"),
        (b"\x30\x02\x00\x09", "ends within its head"),
        (b"\x62\x01\x00", "released a message without its number"),
    ],
)
def test_what_no_broker_may_send_is_refused_in_one_line(data, said):
    with pytest.raises(RemoteProtocolError, match=said):
        PacketReader(PACKET_BYTES_MAX).take(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_packets_or_refused(data):
    with contextlib.suppress(RemoteProtocolError):
        PacketReader(PACKET_BYTES_MAX).take(data)


def test_acknowledgements_are_one_piece():
    assert answers(PUBACK, [1, 65_535]) == b"\x40\x02\x00\x01\x40\x02\xff\xff"
    assert answers(PUBACK, []) == b""
