"""Parts of a stream's handshake: hellos, refusals, keys from the key exchange, and their ciphers.

`sbon.framing` explains the design.
"""

import enum
import hashlib
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from sbon.errors import RemoteProtocolError
from sbon.links.frames import Buffer
from sbon.sealing import KEY_ID_BYTES, KEYS_MAX

RANDOM_BYTES = 32
"""Random bytes that a stream needs for its half of the key exchange."""
NAME_BYTES_MAX = 255
PUBLIC_BYTES = 32
TAG_BYTES = 16
JOIN_BYTES_MAX = 16 * 1024
"""Frames up to this size are joined into one piece, because that costs less than a second write or cipher call."""
MAGIC = b"sbon"
HELLO = struct.Struct(">4sBBH")
HELLO_BODY_BYTES_MAX = KEYS_MAX * KEY_ID_BYTES + PUBLIC_BYTES


class Versions(NamedTuple):
    """The versions of the protocol that one end speaks, from the lowest to the highest."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"version {self.lowest}" if self.lowest == self.highest else f"versions {self.lowest} to {self.highest}"

    def common(self, other: "Versions") -> int | None:
        """Returns the highest version that both speak; None if there is none."""
        highest = min(self.highest, other.highest)
        return highest if highest >= max(self.lowest, other.lowest) else None

    def pack(self) -> int:
        """Packs into one byte: the highest version, and in the upper bits the number of lower ones. A single version is its own number."""
        return (self.highest - self.lowest) << 4 | self.highest

    @classmethod
    def unpack(cls, byte: int) -> "Versions":
        """Unpacks the byte of `pack`."""
        highest = byte & 0x0F
        return cls(max(0, highest - (byte >> 4)), highest)


ORIGINS = 3
"""The first version whose batches have the origin of their rows."""
ORIGINS_PASSED_ON = 4
"""The first version whose operators with one input pass origins on."""
FULL_FRAMES = 5
"""The first version whose `OVER` leaves out rows whose frames a crash has cut."""
SPOKEN = Versions(2, 5)
"""Versions of this release. Numbers end at 14; 15 is reserved for a hello that needs more room."""


class Mode(enum.IntEnum):
    """The mode of the later frames, or a refusal."""

    PLAIN = 0
    SEALED = 1
    REFUSED = 2


class Refusal(enum.IntEnum):
    """Reason why an acceptor closes the connection. It is sent unencrypted as a code, so that no stranger's text reaches our logs."""

    VERSION = 1
    MODE = 2
    KEY = 3


_REFUSAL_TEXT = {
    Refusal.VERSION: "we speak no common protocol version",
    Refusal.MODE: "one of us has a cluster key and the other has none",
    Refusal.KEY: "we hold no cluster key in common",
}


class Cipher(Protocol):
    """Seals and opens the frames of one direction."""

    def seal(self, header: bytes, pieces: Sequence[Buffer]) -> list[Buffer]:
        """Returns the next frame with its header, in pieces to be written in order. The frame's body consists of the given pieces."""

    def open(self, body: memoryview, header: bytes) -> bytes:
        """Returns the payload of the next frame; raises RemoteProtocolError if this is not the next frame, or it was modified."""


class Plain:
    """No encryption, for loopback."""

    def seal(self, header: bytes, pieces: Sequence[Buffer]) -> list[Buffer]:
        """Returns the pieces, joined if that costs less than writing each."""
        if sum(map(len, pieces)) <= JOIN_BYTES_MAX:
            return [b"".join((header, *pieces))]
        return [header, *pieces]

    def open(self, body: memoryview, header: bytes) -> bytes:
        """Returns the body."""
        return bytes(body)


class Sealed:
    """Encryption of one direction: its key, and the number of frames so far."""

    def __init__(self, key: bytes) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aead = AESGCM(key)
        algorithm = algorithms.AES(key)

        def encryptor(nonce: bytes) -> Any:
            return Cipher(algorithm, modes.GCM(nonce)).encryptor()

        self._encryptor = encryptor
        self._invalid_tag = InvalidTag
        self._frames = 0

    def _nonce(self) -> bytes:
        nonce = self._frames.to_bytes(12, "big")
        self._frames += 1
        return nonce

    def seal(self, header: bytes, pieces: Sequence[Buffer]) -> list[Buffer]:
        """Implements `Cipher`. A large frame is sealed piece by piece in place, a small one in the single call that costs least."""
        size = sum(map(len, pieces))
        if size <= JOIN_BYTES_MAX:
            return [header + self._aead.encrypt(self._nonce(), b"".join(pieces), header)]
        encryptor = self._encryptor(self._nonce())
        encryptor.authenticate_additional_data(header)
        frame = bytearray(len(header) + size + TAG_BYTES)
        frame[: len(header)] = header
        with memoryview(frame) as view:
            place = len(header)
            for piece in pieces:
                # The cipher needs one block more room than it writes; the room for the tag serves as that block.
                encryptor.update_into(piece, view[place:])
                place += len(piece)
            encryptor.finalize()
            view[place:] = encryptor.tag
        return [frame]

    def open(self, body: memoryview, header: bytes) -> bytes:
        """Implements `Cipher`."""
        frame = self._frames
        try:
            return self._aead.decrypt(self._nonce(), body, header)
        except self._invalid_tag:
            text = "the peer does not hold the cluster key it named" if frame == 0 else f"frame {frame} was damaged, repeated or reordered"
            raise RemoteProtocolError(f"authentication failed: {text}") from None


def hello(versions: Versions, mode: Mode, body: bytes) -> bytes:
    """Returns the hello of an end: the dialler names all its versions, the acceptor the version that it has chosen."""
    return HELLO.pack(MAGIC, versions.pack(), mode, len(body)) + body


def public_key(private: bytes) -> bytes:
    """Returns the public half of the key exchange."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def derive_keys(private: bytes, peer_public: bytes, cluster_key: bytes, hellos: bytes) -> tuple[bytes, bytes]:
    """Derives the keys of the two directions, the dialler's first.

    Parameters
    ----------
    hellos
        Both hellos as sent, the dialler's first.

    Raises
    ------
    RemoteProtocolError
        The peer's public key would make the exchange predictable.

    Source
    ------
    X25519: RFC 7748, section 6.1, with its check for an all-zero result; HKDF: RFC 5869.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError as error:
        raise RemoteProtocolError("hello with an unusable public key") from error
    salt = hashlib.sha256(hellos).digest()
    keys = HKDF(algorithm=SHA256(), length=64, salt=salt, info=b"sbon stream 1").derive(shared + cluster_key)
    return keys[:32], keys[32:]


def refusal_text(body: bytes) -> str:
    """Describes an acceptor's refusal for people."""
    code = body[0] if len(body) == 1 else 0
    return _REFUSAL_TEXT[Refusal(code)] if code in _REFUSAL_TEXT else f"for a reason this release does not know ({body.hex()})"


def name_problem(name: str) -> str | None:
    """Returns the reason why a name cannot be sent, or None. Names appear in logs and tables, so control characters are refused."""
    if not name or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        return f"has {len(name)} characters, expected 1 to {NAME_BYTES_MAX} bytes of UTF-8"
    return None if name.isprintable() else "has unprintable characters"
