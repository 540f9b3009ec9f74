"""The protocol on an agent's control socket: requests and replies as length-prefixed MessagePack.

A client sends requests. For each it gets one or more replies with the request's id; the last has `final` set. A frame is a length in four
bytes, big-endian, then that many bytes of MessagePack. Lengths are checked before a frame is buffered, so that a wrong or hostile peer
costs no more memory than one frame. `COMMANDS` lists the commands.
"""

import struct
from typing import Any, TypeVar

import msgspec

from sbon.errors import QueryError, RemoteProtocolError, SbonError

DEFAULT_DATA_DIR = "~/.local/state/sbon"
"""Folder where an agent keeps its state, and where the command line looks for its socket, unless told otherwise."""

SOCKET_NAME = "control.sock"
"""Name of the control socket within the data directory."""

REQUEST_BYTES_MAX = 1 << 20
"""Larger requests are refused. SQL texts that people write are far smaller."""

REPLY_BYTES_MAX = 64 << 20
"""Larger replies are refused by the client."""

COMMANDS = (
    "status",
    "members",
    "functions",
    "rtt",
    "operators",
    "queries",
    "names",
    "submit",
    "explain",
    "plan",
    "tail",
    "drop",
    "keys",
    "migrate",
    "replan",
    "leave",
    "reload",
    "shape",
)

_LENGTH = struct.Struct(">I")


class ControlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of a client."""

    id: int
    """Number chosen by the client; unique among its open requests."""
    command: str
    """One of `COMMANDS`."""
    arguments: dict[str, Any] = {}


class ControlReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reply to a request, which may have several."""

    id: int
    """Id of the request; 0 if the request could not be read."""
    final: bool
    """No further reply to this request follows."""
    result: Any = None
    """Plain values: numbers, text, lists, dictionaries."""
    error: str | None = None
    """Why the request failed, as a sentence that says what to do. Such a reply is always final."""
    place: tuple[int, int] | None = None
    """Line and column of the error in the SQL text, from 1."""


Message = TypeVar("Message", ControlRequest, ControlReply)

_encoder = msgspec.msgpack.Encoder()


def refusal(request_id: int, problem: SbonError) -> ControlReply:
    """Returns the final reply that reports an error, with its place in the SQL text if it has one."""
    if isinstance(problem, QueryError):
        text = problem.message + (f"; {problem.hint}" if problem.hint else "")
        place = (problem.line, problem.column) if problem.line else None
        return ControlReply(request_id, final=True, error=text, place=place)
    return ControlReply(request_id, final=True, error=str(problem) or type(problem).__name__)


def encode(message: ControlRequest | ControlReply) -> bytes:
    """Encodes a message as one frame."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes, kind: type[Message]) -> Message:
    """Decodes the message in the body of one frame.

    Raises
    ------
    RemoteProtocolError
        The bytes are not such a message.
    """
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise RemoteProtocolError(f"not a {kind.__name__}: {problem}") from problem


class FrameReader:
    """Splits a stream of bytes into the bodies of its frames.

    Parameters
    ----------
    bytes_max : longest body accepted
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def receive(self, data: bytes) -> list[bytes]:
        """Takes bytes in chunks of any size; returns the bodies that they complete.

        Raises
        ------
        RemoteProtocolError
            A frame is longer than allowed. The next frame cannot be found: close the stream.
        """
        self._buffer += data
        bodies = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self._bytes_max:
                raise RemoteProtocolError(f"frame of {length} bytes, expected at most {self._bytes_max}")
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return bodies
