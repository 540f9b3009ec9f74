"""Encrypts datagrams so that only holders of the cluster key can read or write them.

Layout of a sealed datagram::

    version 1 | key id 4 | nonce 24 | ciphertext, ends in a 16-byte tag

The version and key id are authenticated with the rest. Keyed BLAKE2b derives a key for this datagram alone from the cluster key and the
first 12 bytes of the nonce; the other 12 bytes are ChaCha20-Poly1305's nonce (RFC 8439). Random 96-bit nonces under one key would allow a
whole overlay only about 2^32 datagrams before a repeat becomes too likely (NIST SP 800-38D, section 8.3). 192 random bits have no such
limit, so a cluster key never *must* be changed.

A ring holds one primary key, which seals, and others that are still accepted. To change the key, add the new key everywhere, make it
primary everywhere, then remove the old one. The four-byte key id says which key opens the datagram; it tells an observer only whether two
datagrams have the same key.

Replayed datagrams can be opened, but change nothing: the membership protocol orders its news by incarnation and matches answers by sequence
number. Streams (`sbon.framing`) refuse replays.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sbon.errors import ConfigError, RemoteProtocolError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEY_BYTES = 32
KEY_ID_BYTES = 4
NONCE_BYTES = 24
OVERHEAD_BYTES = 1 + KEY_ID_BYTES + NONCE_BYTES + 16
"""Bytes that sealing adds to a datagram."""
KEYS_MAX = 8
"""Most keys of a ring, more than any rotation needs. Each key may have to be tried, and all ids are in a stream's first message."""

_VERSION = 1
_VERSION_BYTE = bytes([_VERSION])
_HEADER_BYTES = 1 + KEY_ID_BYTES + NONCE_BYTES


def generate_key(random_bytes: bytes) -> str:
    """Returns a new cluster key as base64 text, made from the caller's 32 random bytes.

    Raises
    ------
    ValueError
        There are not exactly 32 bytes.

    Examples
    --------
    >>> generate_key(bytes(32))
    'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA='
    """
    if len(random_bytes) != KEY_BYTES:
        raise ValueError(f"{len(random_bytes)} random bytes for a key, expected {KEY_BYTES}")
    return base64.b64encode(random_bytes).decode("ascii")


def key_id(key: bytes) -> bytes:
    """Returns four bytes that identify a key without revealing it."""
    return hashlib.blake2b(key, digest_size=KEY_ID_BYTES, person=b"sbon key id").digest()


class KeyRing:
    """The cluster's keys: the primary key seals, all keys open.

    Parameters
    ----------
    keys
        1 to 8 different keys of 32 bytes each, the primary key first.

    Raises
    ------
    ConfigError
        There is no key, there are too many, or a key occurs twice or has another length.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        # Imported here so that an agent on loopback without a key never loads the library.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        if not 1 <= len(keys) <= KEYS_MAX:
            raise ConfigError(f"{len(keys)} cluster keys, expected 1 to {KEYS_MAX}")
        for number, key in enumerate(keys, start=1):
            if len(key) != KEY_BYTES:
                raise ConfigError(f"cluster key {number} has {len(key)} bytes, expected {KEY_BYTES}")
        if len(set(keys)) != len(keys):
            raise ConfigError("a cluster key is given twice; name each once, the primary one first")
        self._keys = tuple((key_id(key), bytes(key)) for key in keys)
        self._cipher: type[ChaCha20Poly1305] = ChaCha20Poly1305
        self._invalid_tag = InvalidTag

    @classmethod
    def parse(cls, text: str) -> "KeyRing":
        """Reads a key file: one base64 key a line, the primary one first; empty lines and `#` comments are skipped.

        Raises
        ------
        ConfigError
            A line is not a 32-byte key (the message gives its number but never its text), or the keys do not form a ring.
        """
        keys = []
        for number, line in enumerate(text.splitlines(), start=1):
            content = line.partition("#")[0].strip()
            if not content:
                continue
            try:
                key = base64.b64decode(content, validate=True)
            except (binascii.Error, ValueError):
                # `from None`: the cause would put the text of the key into logs.
                raise ConfigError(f"key file, line {number}: not base64; expected a key as `sbon keygen` prints it") from None
            if len(key) != KEY_BYTES:
                raise ConfigError(f"key file, line {number}: a key of {len(key)} bytes, expected {KEY_BYTES} in base64")
            keys.append(key)
        if not keys:
            raise ConfigError("key file: no key in it; `sbon keygen` prints one")
        return cls(keys)

    def print(self) -> str:
        """Returns the key file for `parse`. It is secret: write it with mode 0600."""
        return "".join(base64.b64encode(key).decode("ascii") + "\n" for _, key in self._keys)

    def with_key(self, key: bytes) -> "KeyRing":
        """Returns a ring that also opens with this key; the same ring if it has the key already.

        Raises
        ------
        ConfigError
            The ring is full, the key has another length, or another key of the ring has its id.
        """
        keys = [known for _, known in self._keys]
        if key in keys:
            return self
        if key_id(key).hex() in self.ids:
            raise ConfigError(f"another key already has the id {key_id(key).hex()}; make a new key with `sbon keygen`")
        if len(keys) >= KEYS_MAX:
            raise ConfigError(f"the ring holds {len(keys)} keys already, which is the most; remove one with `sbon keys remove ID`")
        return KeyRing([*keys, key])

    def with_primary(self, name: str) -> "KeyRing":
        """Returns the ring that seals with the key of this id.

        Raises
        ------
        ConfigError
            The ring does not have the key.
        """
        self._must_hold(name)
        first = [key for known, key in self._keys if known.hex() == name]
        return KeyRing([*first, *(key for known, key in self._keys if known.hex() != name)])

    def without(self, name: str) -> "KeyRing":
        """Returns the ring without the key of this id; the same ring if it does not have it.

        Raises
        ------
        ConfigError
            The key is the primary one.
        """
        if name == self.ids[0]:
            raise ConfigError(f"key {name} is the primary key, which seals; `sbon keys use` another one first")
        return KeyRing([key for known, key in self._keys if known.hex() != name]) if name in self.ids else self

    def _must_hold(self, name: str) -> None:
        if name not in self.ids:
            raise ConfigError(f"there is no key {name} here, only {', '.join(self.ids)}; `sbon keys install` it first")

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(self.ids)})"

    @property
    def ids(self) -> tuple[str, ...]:
        """Returns the keys' ids in hexadecimal, the primary one's first: safe for logs and for comparing two agents' rings."""
        return tuple(name.hex() for name, _ in self._keys)

    @property
    def named_keys(self) -> tuple[tuple[bytes, bytes], ...]:
        """Returns (id, key) of every key, the primary one first; for the stream handshake."""
        return self._keys

    def seal(self, datagram: bytes, nonce: bytes) -> bytes:
        """Seals a datagram with the primary key.

        Parameters
        ----------
        nonce
            24 fresh random bytes. Using them twice would reveal both datagrams.

        Raises
        ------
        ValueError
            The nonce has another length.
        """
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce of {len(nonce)} bytes, expected {NONCE_BYTES}")
        name, key = self._keys[0]
        head = _VERSION_BYTE + name
        return head + nonce + self._one_time(key, nonce).encrypt(nonce[12:], datagram, head)

    def open(self, datagram: bytes) -> bytes:
        """Returns the plain datagram, if a holder of one of the ring's keys sealed it and it was not modified.

        Raises
        ------
        RemoteProtocolError
            The datagram is too short, of another version, under an unknown key, or modified.
        """
        if len(datagram) < OVERHEAD_BYTES:
            raise RemoteProtocolError(f"sealed datagram of {len(datagram)} bytes, expected at least {OVERHEAD_BYTES}")
        if datagram[0] != _VERSION:
            raise RemoteProtocolError(f"sealed datagram of version {datagram[0]}, expected {_VERSION}")
        head, nonce, body = datagram[: 1 + KEY_ID_BYTES], datagram[1 + KEY_ID_BYTES : _HEADER_BYTES], datagram[_HEADER_BYTES:]
        known = False
        for name, key in self._keys:
            if name != head[1:]:
                continue
            known = True
            try:
                return self._one_time(key, nonce).decrypt(nonce[12:], body, head)
            except self._invalid_tag:
                continue  # two keys of the ring may share an id
        if known:
            raise RemoteProtocolError("sealed datagram fails authentication: damaged or forged")
        raise RemoteProtocolError(f"datagram sealed with key {head[1:].hex()}, expected one of {', '.join(self.ids)}")

    def _one_time(self, key: bytes, nonce: bytes) -> "ChaCha20Poly1305":
        return self._cipher(hashlib.blake2b(nonce[:12], key=key, digest_size=KEY_BYTES, person=b"sbon datagram").digest())
