"""Encodes batches of links as frames of a connection: a head of fixed size, then Arrow IPC.

A frame's number says which link it belongs to. The sender numbers the links of a connection as it first uses them, and puts each link's
name into the link's first frame. The stream keeps order, so the receiver always knows the name. The head, in little-endian::

    flags 1 | codec 1 | length of the name 2 | CRC-32 4 | sequence 8 | stimulus time 8 | watermark 8 | rows 4 | path 4 | size 8

The name follows if this is the first frame of its link, then the rows. `flags` is 1 if there is a checksum, plus twice the origin of the
rows (`Batch.origin`), which agents of protocol 2 neither send nor take. Only frames on plain connections have the checksum (of the name and
the rows), because sealed frames are authenticated. `size` is the batch's uncompressed size, as its sender counts it. The rows contain
their codec, too; `codec` gives it without parsing them.
"""

import math
import struct
import zlib
from typing import TypeAlias

import msgspec

from sbon.compression import Codec
from sbon.errors import RemoteProtocolError, UnpackableError
from sbon.message_limits import ORIGINS_MAX
from sbon.types import LinkId

Buffer: TypeAlias = bytes | bytearray | memoryview

HEAD = struct.Struct("<BBHIQdqIIQ")
LINKS_MAX = 65_536
"""Most numbered links on one connection; then the numbers start again at 0."""
LINK_NAME_BYTES_MAX = 4096
SIZE_BYTES_MAX = 2**40
_CHECKED = 1
_CODECS = tuple(Codec)


class Data(msgspec.Struct, frozen=True):
    """One numbered batch of a link: rows and a watermark, or a watermark alone."""

    link: LinkId
    sequence: int
    stimulus_s: float
    """Wall clock at the source when the latest tuple behind this batch entered the overlay, seconds."""
    watermark_us: int
    rows: int
    payload: Buffer
    """An Arrow IPC record batch; empty without rows."""
    size_bytes: int = 0
    """Size of the rows at the sender for flow control and rates: approximately their uncompressed bytes."""
    codec: Codec = Codec.NONE
    path: int = 0
    """Path id of the rows (`sbon.links.batch.way`)."""
    origin: int = 0
    """Number of the input that the rows were made of (`sbon.links.batch.Batch`); 0: unknown."""


class LinkFrameWriter:
    """The sending side of one connection.

    Parameters
    ----------
    checksum
        Adds a checksum to every frame, because the connection is not sealed.
    frame_bytes_max
        Longest frame, head included.
    """

    def __init__(self, *, checksum: bool, frame_bytes_max: int) -> None:
        self._checksum = checksum
        self.tells_origins = False
        """True if the other end accepts origins."""
        self._frame_bytes_max = frame_bytes_max
        self._numbers: dict[LinkId, int] = {}

    def head(self, data: Data) -> tuple[int, bytes]:
        """Returns the frame's number, and the bytes that precede `data.payload` in it. Send the frames in the order of these calls.

        Raises
        ------
        UnpackableError
            The batch is too large for a frame, or a number does not fit into the head. The numbers of links are unchanged.
        """
        number = self._numbers.get(data.link)
        name = b""
        if number is None:
            name = data.link.encode("utf-8")
        size = HEAD.size + len(name) + len(data.payload)
        if size > self._frame_bytes_max:
            raise UnpackableError(
                f"batch of {data.rows} rows in {size} bytes, expected at most {self._frame_bytes_max} (peers.frame_bytes_max)"
            )
        checksum = zlib.crc32(data.payload, zlib.crc32(name)) if self._checksum else 0
        flags = (_CHECKED if self._checksum else 0) | (data.origin << 1 if self.tells_origins else 0)
        codec = _CODECS.index(data.codec)
        try:
            head = HEAD.pack(
                flags, codec, len(name), checksum, data.sequence, data.stimulus_s, data.watermark_us, data.rows, data.path, data.size_bytes
            )
        except struct.error as problem:
            raise UnpackableError(f"batch {data.sequence} of {data.rows} rows: {problem}") from problem
        if number is None:
            if len(self._numbers) >= LINKS_MAX:
                self._numbers.clear()
            number = self._numbers[data.link] = len(self._numbers)
        return number, head + name


class LinkFrameReader:
    """The receiving side of one connection.

    Parameters
    ----------
    checksum
        Requires a checksum in every frame.
    """

    def __init__(self, *, checksum: bool) -> None:
        self._flags = _CHECKED if checksum else 0
        self._names: dict[int, LinkId] = {}

    def read(self, number: int, payload: Buffer) -> Data:
        """Decodes the batch in a frame.

        Raises
        ------
        RemoteProtocolError
            The frame is not a valid batch.
        """
        if len(payload) < HEAD.size:
            raise RemoteProtocolError(f"batch of {len(payload)} bytes, expected at least {HEAD.size}")
        flags, codec, named, checksum, sequence, stimulus_s, watermark_us, rows, path, size = HEAD.unpack_from(payload)
        if (
            flags & _CHECKED != self._flags
            or flags >> 1 > ORIGINS_MAX
            or codec >= len(_CODECS)
            or named > LINK_NAME_BYTES_MAX
            or number >= LINKS_MAX
            or HEAD.size + named > len(payload)
        ):
            raise RemoteProtocolError(f"batch of link {number} with flags {flags}, codec {codec} and a name of {named} bytes")
        view = memoryview(payload)
        if self._flags and zlib.crc32(view[HEAD.size :]) != checksum:
            raise RemoteProtocolError(f"batch of {len(payload)} bytes does not match its checksum")
        if named:
            try:
                self._names[number] = str(view[HEAD.size : HEAD.size + named], "utf-8")
            except UnicodeDecodeError as problem:
                raise RemoteProtocolError("a link's name is not UTF-8") from problem
        link = self._names.get(number)
        body = view[HEAD.size + named :]
        if link is None:
            raise RemoteProtocolError(f"batch of link {number}, which has not been named")
        if sequence < 1 or sequence >= 2**62 or not math.isfinite(stimulus_s) or bool(rows) != bool(len(body)) or size > SIZE_BYTES_MAX:
            raise RemoteProtocolError(f"batch {sequence} of {rows} rows in {len(body)} bytes, of {size} unpacked, at {stimulus_s} s")
        return Data(link, sequence, stimulus_s, watermark_us, rows, body, size, _CODECS[codec], path, flags >> 1)
