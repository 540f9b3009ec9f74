"""Summary of the operators that a member may host, in at most 256 bytes: a Bloom filter over their signatures.

A reader that finds a signature asks the member itself; a false positive costs one question, and there are no false negatives.

Source: Bloom, CACM 13(7), 1970. With 12 bits and 4 hashes an entry, about 1 in 150 lookups is a false positive. With more than 170
signatures the filter stays at 2048 bits, and false positives grow.
"""

from collections.abc import Iterable
from hashlib import blake2b

from sbon.membership.messages import DIGEST_BYTES_MAX

HASHES = 4
BITS_PER_ENTRY = 12
BYTES_MIN = 8


def make_digest(signatures: Iterable[str]) -> bytes:
    """Returns the digest of a set of operator signatures, which does not depend on their order; empty for no signatures.

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
    """Tells whether the digest's member may host this signature; False is certain."""
    return bool(digest) and all(digest[bit >> 3] & (1 << (bit & 7)) for bit in _bits(signature, len(digest) * 8))


def _bits(signature: str, size: int) -> list[int]:
    """Returns the bits of a signature. Python's own hash differs from process to process and cannot be used."""
    hashed = blake2b(signature.encode(), digest_size=4 * HASHES).digest()
    return [int.from_bytes(hashed[4 * i : 4 * i + 4], "little") % size for i in range(HASHES)]
