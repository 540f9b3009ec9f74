"""Messages between testbed and router, over a pair of Unix sockets: MessagePack after four bytes of length.

The testbed first sends `Setup`, and the router answers with the descriptors of the namespaces. It answers each further message with `Done`
or `Report`. The router ends when the connection does.
"""

import socket
from typing import TypeAlias

import msgspec

from sbon.errors import SbonError
from sbon_testbed.simulator.network import NetworkConfig

MESSAGE_BYTES_MAX = 1 << 26
DESCRIPTORS_MAX = 250
"""Most descriptors in one message of a Unix socket."""


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """The first message."""

    run: str
    """Name of the run, part of every device's name."""
    sites: int
    plain: int
    seed: int
    network: NetworkConfig


class Paths(msgspec.Struct, frozen=True, kw_only=True, tag="paths"):
    """Sets new paths; see `sbon_testbed.netns.schedule.Schedule.set_paths`."""

    delay_ms: list[list[float]]
    group: list[int]
    off: list[int]


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Asks for a `Report`."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """Answers `Paths`: they are in force."""


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Counters of the router since its start."""

    counters: dict[str, int]
    """Packets by their fate, and how late they were delivered."""
    cpu_s: float
    """Processor time of the router."""


Message: TypeAlias = Setup | Paths | Ask | Done | Report

_DECODER = msgspec.msgpack.Decoder(Message)


def send(connection: socket.socket, message: Message) -> None:
    """Sends a message; raises OSError if the connection is closed."""
    data = msgspec.msgpack.encode(message)
    connection.sendall(len(data).to_bytes(4, "big") + data)


def receive(connection: socket.socket) -> Message | None:
    """Waits for the next message; returns None at the end of the connection.

    Raises
    ------
    SbonError
        The message is too long.
    """
    head = _exactly(connection, 4)
    if head is None:
        return None
    length = int.from_bytes(head, "big")
    if length > MESSAGE_BYTES_MAX:
        raise SbonError(f"a message of {length} bytes between testbed and router, expected at most {MESSAGE_BYTES_MAX}")
    data = _exactly(connection, length)
    return None if data is None else _DECODER.decode(data)


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)
