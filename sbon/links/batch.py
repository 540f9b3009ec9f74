"""Batches on a link: rows with their stimulus time and the watermark that holds after them."""

import zlib
from typing import Protocol

import msgspec

from sbon.types import OperatorId


class Payload(Protocol):
    """Rows of a batch in any form; the machines only count them."""

    @property
    def rows(self) -> int:
        """Returns the number of rows."""

    @property
    def size_bytes(self) -> int:
        """Returns the approximate bytes in memory or on the wire."""


class Batch(msgspec.Struct, frozen=True):
    """Rows (or none) with their stimulus time and the watermark that holds after them."""

    sequence: int
    stimulus_s: float
    watermark_us: int
    payload: Payload | None
    path: int = 0
    """Path id of the batch (`way`): the path from a source through all operators. If this batch was made of several, the path of the last
    one counts."""
    origin: int = 0
    """Number of the input whose rows a stateless operator with several inputs made this batch of (`sbon.links.origins`); 0: unknown."""

    @property
    def rows(self) -> int:
        """Returns the number of rows; 0 for a watermark alone."""
        return self.payload.rows if self.payload is not None else 0

    @property
    def size_bytes(self) -> int:
        """Returns the size in bytes, with 64 for the header, so that watermarks count, too."""
        return 64 + (self.payload.size_bytes if self.payload is not None else 0)


def way(before: int, operator: OperatorId) -> int:
    """Returns the path id of an operator's output for input with the path id `before` (0 before a source). 32 bits, the same on every host.

    Examples
    --------
    >>> way(way(0, "source"), "filter") == way(way(0, "source"), "filter") != way(way(0, "other"), "filter")
    True
    """
    return zlib.crc32(operator.encode("utf-8"), before)
