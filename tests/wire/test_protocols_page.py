"""The library takes bytes that are made by hand after docs/protocols.md, without the library's layouts and ciphers."""

import hashlib
import struct
import zlib
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sbon.compression import Codec
from sbon.framing import Established, Frame, SecureStream, Send
from sbon.links.frames import Data, LinkFrameReader
from sbon.membership.messages import Ack, decode, unpack_vitals
from sbon.sealing import KeyRing
from sbon.wire import messages
from sbon.wire.links import Acknowledge

KEY = bytes(range(32))
KEY_ID = hashlib.blake2b(KEY, digest_size=4, person=b"sbon key id").digest()
RING = KeyRing([KEY])


def test_datagram_of_another_implementation_is_taken() -> None:
    vitals = struct.pack("<7fI", 3.0, -4.0, 0.0, 1.5, 0.25, 2.0, 0.5, 7)
    envelope = ["ams", 1, 99, 5, vitals, [[2, "fra", 3, "nyc"], [77, "news of a later release"]], []]
    message = b"\x01" + msgspec.msgpack.encode([2, envelope, 41, 1500, "an element of a later release"])
    nonce = bytes(range(100, 124))
    once = hashlib.blake2b(nonce[:12], key=KEY, digest_size=32, person=b"sbon datagram").digest()
    head = b"\x01" + KEY_ID

    opened = RING.open(head + nonce + ChaCha20Poly1305(once).encrypt(nonce[12:], message, head))
    ack = decode(opened)

    assert isinstance(ack, Ack)
    assert (ack.sequence, ack.held_us, ack.envelope.name, len(ack.envelope.news)) == (41, 1500, "ams", 1)
    coordinate, capacity = unpack_vitals(ack.envelope.data)
    assert (coordinate.vector, coordinate.height_ms, coordinate.error, coordinate.load_ms) == ((3.0, -4.0, 0.0), 1.5, 0.25, 2.0)
    assert (capacity.load, capacity.free_operators) == (0.5, 7)


class Dialler:
    """The dialling end of a sealed stream, as the page describes it."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.from_private_bytes(bytes([5]) * 32)
        public = self._private.public_key().public_bytes_raw()
        self.hello = b"sbon" + bytes([1 << 4 | 3, 1]) + struct.pack(">H", 4 + 32) + KEY_ID + public
        self._sent = self._taken = 0

    def take_hello(self, data: bytes) -> bytes:
        """Derives the keys from the acceptor's hello; returns the bytes after the hello."""
        assert data[:5] == b"sbon\x03"
        size = 8 + struct.unpack(">H", data[6:8])[0]
        secret = self._private.exchange(X25519PublicKey.from_public_bytes(data[size - 32 : size])) + KEY
        salt = hashlib.sha256(self.hello + data[:size]).digest()
        keys = HKDF(algorithm=SHA256(), length=64, salt=salt, info=b"sbon stream 1").derive(secret)
        self._ours, self._theirs = AESGCM(keys[:32]), AESGCM(keys[32:])
        return data[size:]

    def frame(self, kind: int, number: int, body: bytes) -> bytes:
        head = struct.pack(">IBI", len(body) + 16, kind, number)
        nonce = self._sent.to_bytes(12, "big")
        self._sent += 1
        return head + self._ours.encrypt(nonce, body, head)

    def open(self, data: bytes) -> tuple[int, int, bytes]:
        length, kind, number = struct.unpack(">IBI", data[:9])
        body = self._theirs.decrypt(self._taken.to_bytes(12, "big"), data[9 : 9 + length], data[:9])
        self._taken += 1
        return kind, number, body


def test_stream_of_another_implementation_is_opened_and_its_request_answered() -> None:
    acceptor = SecureStream(dialler=False, name="fra", key_ring=RING, random_bytes=bytes([9]) * 32, frame_bytes_max=1000)
    dialler = Dialler()
    [answer] = acceptor.receive(dialler.hello)
    assert isinstance(answer, Send)
    assert dialler.open(dialler.take_hello(answer.data)) == (0, 0, b"fra")
    assert list(acceptor.receive(dialler.frame(0, 0, b"ams"))) == [Established("ams")]

    asked = msgspec.msgpack.encode({"type": "ack", "link": "q.0>q.1:0", "processed": 3, "credit": 5, "resume": False})
    [request] = acceptor.receive(dialler.frame(1, 17, asked))

    assert isinstance(request, Frame)
    assert (request.kind, request.number) == (1, 17)
    assert messages.decode(request.payload) == Acknowledge("q.0>q.1:0", 3, 5, resume=False)
    assert dialler.open(b"".join(map(bytes, acceptor.send(3, 17, b"yes")))) == (3, 17, b"yes")


@pytest.mark.parametrize("is_plain", [False, True])
def test_batch_of_another_implementation_is_read(is_plain: bool) -> None:
    name, rows = b"q.0>q.1:0", b"an Arrow record batch"
    fields: tuple[Any, ...] = (zlib.crc32(name + rows) if is_plain else 0, 8, 1700000000.5, -3, 2, 6, 640)
    head = struct.pack("<BBHIQdqIIQ", int(is_plain) + 2 * 4, 2, len(name), *fields)

    read = LinkFrameReader(checksum=is_plain).read(12, head + name + rows)

    assert read == Data("q.0>q.1:0", 8, 1700000000.5, -3, 2, rows, 640, Codec.ZSTD, path=6, origin=4)
