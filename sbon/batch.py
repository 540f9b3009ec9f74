"""What travels on a link: rows with their stimulus time and the watermark that holds after them."""

import zlib
from typing import Protocol

import msgspec

from sbon.types import OperatorId


class Payload(Protocol):
    """Rows of a batch, in whatever form; the machines only count them."""

    @property
    def rows(self) -> int:
        """How many rows."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes in memory or on the wire."""


class Batch(msgspec.Struct, frozen=True):
    """Rows (or none) with their stimulus time and the watermark that holds after them."""

    sequence: int
    stimulus_s: float
    watermark_us: int
    payload: Payload | None
    path: int = 0
    """The way from a source to here (`way`): of the batch that led to this one, the last of them where several did."""

    @property
    def rows(self) -> int:
        """Rows; 0 for a watermark alone."""
        return self.payload.rows if self.payload is not None else 0

    @property
    def size_bytes(self) -> int:
        """Bytes, counting something for the header, so that watermarks are not free."""
        return 64 + (self.payload.size_bytes if self.payload is not None else 0)


def way(before: int, operator: OperatorId) -> int:
    """The path of what an operator makes of a batch that came by the path `before`; 0 before a source. 32 bits, the same on every host.

    Examples
    --------
    >>> way(way(0, "source"), "filter") == way(way(0, "source"), "filter") != way(way(0, "other"), "filter")
    True
    """
    return zlib.crc32(operator.encode("utf-8"), before)
