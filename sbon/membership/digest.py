"""Which operators a member may host, in at most 256 bytes: a Bloom filter over their signatures.

A reader that finds a signature asks the member itself; a false hit costs one question, and there are no false misses.

Source: Bloom, CACM 13(7), 1970. With 12 bits and 4 hashes an entry, about 1 in 150 questions is in vain; a member with more than
170 signatures fills the 2048 bits further.
"""

from collections.abc import Iterable
from hashlib import blake2b

from sbon.membership.messages import DIGEST_BYTES_MAX

HASHES = 4
BITS_PER_ENTRY = 12
BYTES_MIN = 8


def make_digest(signatures: Iterable[str]) -> bytes:
    """The digest of a set of operator signatures; the same for any order; empty for none.

    Examples
    --------
    >>> may_contain(make_digest(["filter(a > 1)"]), "filter(a > 1)")
    True
    >>> may_contain(make_digest([]), "filter(a > 1)")
    False
    """
    distinct = sorted(set(signatures))
    if not distinct:
        return b""
    size = BYTES_MIN
    while size * 8 < BITS_PER_ENTRY * len(distinct) and size < DIGEST_BYTES_MAX:
        size *= 2
    filled = bytearray(size)
    for signature in distinct:
        for bit in _bits(signature, size * 8):
            filled[bit >> 3] |= 1 << (bit & 7)
    return bytes(filled)


def may_contain(digest: bytes, signature: str) -> bool:
    """Whether the digest's member may host this signature; False is certain."""
    return bool(digest) and all(digest[bit >> 3] & (1 << (bit & 7)) for bit in _bits(signature, len(digest) * 8))


def _bits(signature: str, size: int) -> list[int]:
    """Not Python's own hash: that differs from process to process."""
    hashed = blake2b(signature.encode(), digest_size=4 * HASHES).digest()
    return [int.from_bytes(hashed[4 * i : 4 * i + 4], "little") % size for i in range(HASHES)]
