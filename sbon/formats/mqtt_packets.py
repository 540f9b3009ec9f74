"""Reads MQTT 5 for a subscriber: messages (PUBLISH) and their releases (PUBREL) from the bytes of a socket. Also makes the answers.

The client library reads a packet's head octet by octet, and makes an object with a dozen members for each message. At thousands of
messages a second this is most of the work, so messages are read here, all of one `recv` together. The library reads all other packets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sbon.errors import RemoteProtocolError

PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x30, 0x40, 0x50, 0x60, 0x70
_LENGTH_OCTETS_MAX = 4


class Message(NamedTuple):
    """A message from the broker."""

    topic: bytes
    payload: bytes
    qos: int
    mid: int
    """Packet id, by which the message is acknowledged; 0 at QoS 0."""
    is_repeated: bool
    """The broker says that it has sent the message before (DUP)."""


class Packets(NamedTuple):
    """Whole packets, each kind in the order in which it came."""

    messages: list[Message]
    released: list[int]
    """Packet ids of messages at QoS 2 that the broker will not send again."""
    others: list[bytes]


class PacketReader:
    """Cuts the bytes of one connection into packets.

    Parameters
    ----------
    packet_bytes_max : largest packet that the broker has been allowed to send
    """

    def __init__(self, packet_bytes_max: int) -> None:
        self._packet_bytes_max = packet_bytes_max
        self._held = bytearray()
        """Beginning of a packet that is not complete."""
        self._wanted = 0
        """Length of that packet; 0 while it is unknown."""

    def take(self, data: bytes) -> Packets:
        """Takes bytes; returns the packets that are now complete.

        Raises
        ------
        RemoteProtocolError
            The bytes are not MQTT 5, or a packet is too large.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._wanted:
                return Packets([], [], [])
            data = bytes(self._held)
            self._held = bytearray()
        packets = Packets([], [], [])
        try:
            end = self._cut(data, packets)
        except IndexError:
            raise RemoteProtocolError("the broker has sent a packet that ends within its head") from None
        if end < len(data):
            self._held += data[end:] if end else data
        return packets

    def _cut(self, data: bytes, into: Packets) -> int:
        """Adds the complete packets to `into`; returns the offset after the last of them."""
        messages, released, others = into
        size, begin = len(data), 0
        self._wanted = 0
        while size - begin >= 2:
            head = data[begin]
            length, body = data[begin + 1], begin + 2
            if length > 127:
                length, body = _length(data, begin + 1)
                if not body:
                    break
            end = body + length
            if end - begin > self._packet_bytes_max:
                raise RemoteProtocolError(f"the broker has sent a packet of {end - begin} bytes, expected at most {self._packet_bytes_max}")
            if end > size:
                self._wanted = end - begin
                break
            kind = head & 0xF0
            if kind == PUBLISH:
                messages.append(_message(head, data, body, end))
            elif kind == PUBREL:
                if length < 2:
                    raise RemoteProtocolError("the broker has released a message without its number")
                released.append(data[body] << 8 | data[body + 1])
            else:
                others.append(data[begin:end])
            begin = end
        return begin


def _message(head: int, data: bytes, begin: int, end: int) -> Message:
    """Returns the message of a PUBLISH packet with the first octet `head`, whose body goes from `begin` to `end`."""
    then = begin + 2 + (data[begin] << 8 | data[begin + 1])
    topic = data[begin + 2 : then]
    qos, mid = head >> 1 & 3, 0
    if qos:
        mid = data[then] << 8 | data[then + 1]
        then += 2
        if not mid or qos > 2:
            raise RemoteProtocolError(f"the broker has sent a message at QoS {qos} with number {mid}")
    properties, then = (data[then], then + 1) if data[then] < 128 else _length(data, then)
    then += properties
    if then > end:
        raise RemoteProtocolError("the broker has sent a message that ends before its payload")
    if not topic:  # topics may be replaced by numbers (aliases) only for clients that have asked for it
        raise RemoteProtocolError("the broker has sent a message without a topic")
    return Message(topic, data[then:end], qos, mid, bool(head & 8))


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number of one to four octets, and the offset after it, which is 0 if octets are missing."""
    value = 0
    for place in range(_LENGTH_OCTETS_MAX):
        if at + place >= len(data):
            return 0, 0
        octet = data[at + place]
        value |= (octet & 127) << 7 * place
        if octet < 128:
            return value, at + place + 1
    raise RemoteProtocolError("the broker has sent a length of more than four octets")


def answers(kind: int, mids: Iterable[int]) -> bytes:
    """Returns packets of a kind (PUBACK, PUBREC, PUBCOMP) that report success.

    Examples
    --------
    >>> answers(PUBACK, [1, 258]).hex(" ")
    '40 02 00 01 40 02 01 02'
    """
    head = bytes((kind, 2))
    return b"".join([head + mid.to_bytes(2, "big") for mid in mids])
