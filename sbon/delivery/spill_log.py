"""Batches of one link on disk: appended at one end and read from the other, in segment files with checksums.

`sbon.delivery.spilling` uses it.

A record is a header and the rows, encoded as on the wire. The header has: length of the rows in bytes, checksum of everything behind it,
sequence number, stimulus time, watermark, row count, path id, origin. A segment is removed when its last record has been read. All methods
run on executor threads, one call at a time.
"""

import struct
import zlib
from collections import deque
from collections.abc import Iterator, Sequence

from sbon.errors import SpillError
from sbon.execution.rows import Rows
from sbon.links.batch import Batch
from sbon.links.frames import Buffer
from sbon.ports import Disk
from sbon.schema import Schema

SUFFIX = ".spill"
"""Suffix of the files' names."""

_SUMS = struct.Struct(">II")
_FACTS = struct.Struct(">qdqIIB")
_HEADER_BYTES = _SUMS.size + _FACTS.size


class _Segment:
    __slots__ = ("name", "read_to", "sealed", "size_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.size_bytes = self.read_to = 0
        self.sealed = False


class SpillLog:
    """Segment files of one link.

    Parameters
    ----------
    name : prefix of the files' names
    schema : columns of the rows
    segment_bytes : a segment of at least this size takes no further records
    """

    def __init__(self, disk: Disk, name: str, schema: Schema, segment_bytes: int) -> None:
        self._disk, self._name, self._schema, self._segment_bytes = disk, name, schema, segment_bytes
        self._segments: deque[_Segment] = deque()
        self._made = 0

    def append(self, batches: Sequence[Batch]) -> int:
        """Writes batches; returns their size on disk in bytes.

        Raises
        ------
        OSError
            None of the batches was written.
        """
        if not self._segments or self._segments[-1].sealed or self._segments[-1].size_bytes >= self._segment_bytes:
            self._made += 1
            self._segments.append(_Segment(f"{self._name}-{self._made:06}{SUFFIX}"))
        segment = self._segments[-1]
        pieces = [piece for batch in batches for piece in _record(batch)]
        size_bytes = sum(map(len, pieces))
        try:
            self._disk.append(segment.name, pieces)
        except OSError:
            segment.sealed = True  # it may end with part of a record, which is never read
            if not segment.size_bytes:
                self._drop(self._segments.pop())
            raise
        segment.size_bytes += size_bytes
        return size_bytes

    def read(self, batches_max: int, bytes_max: int) -> tuple[list[Batch], int]:
        """Reads the oldest batches, at least one, until one of the limits is reached. Returns them and the bytes of a removed segment.

        Raises
        ------
        SpillError
            Nothing is on disk, or the segment cannot be read, or is damaged.
        """
        if not self._segments:
            raise SpillError(f"{self._name}: no batches are on disk")
        segment = self._segments[0]
        left = segment.size_bytes - segment.read_to
        data = self._part(segment, min(left, max(bytes_max, _HEADER_BYTES)))
        needed = _HEADER_BYTES + _SUMS.unpack_from(data)[0]
        if needed > len(data):
            data = self._part(segment, min(left, needed))
        batches = []
        taken = 0
        for batch, end in self._records(segment, data):
            batches.append(batch)
            taken = end
            if len(batches) >= batches_max or taken >= bytes_max:
                break
        if not batches:
            raise self._damaged(segment, "a record is longer than the file")
        segment.read_to += taken
        if segment.read_to < segment.size_bytes:
            return batches, 0
        self._drop(self._segments.popleft())
        return batches, segment.size_bytes

    def remove(self) -> None:
        """Deletes all files."""
        while self._segments:
            self._drop(self._segments.popleft())

    # ------------------------------------------------------------------------------------------------------ inside

    def _part(self, segment: _Segment, size_bytes: int) -> bytes:
        try:
            data = self._disk.read(segment.name, segment.read_to, size_bytes)
        except OSError as problem:
            raise SpillError(f"spilled batches in {segment.name} cannot be read: {problem.strerror or problem}") from problem
        if len(data) < size_bytes:
            raise self._damaged(segment, f"read {len(data)} bytes, expected {size_bytes}")
        return data

    def _records(self, segment: _Segment, data: bytes) -> Iterator[tuple[Batch, int]]:
        """Yields the batches of the complete records in `data`, each with the position of its end."""
        at = 0
        while at + _HEADER_BYTES <= len(data):
            length, checksum = _SUMS.unpack_from(data, at)
            begin, end = at + _HEADER_BYTES, at + _HEADER_BYTES + length
            if end > len(data):
                return
            rest = memoryview(data)[at + _SUMS.size : end]
            if zlib.crc32(rest) != checksum:
                raise self._damaged(segment, f"the checksum at byte {segment.read_to + at} is wrong")
            sequence, stimulus_s, watermark_us, rows, path, origin = _FACTS.unpack_from(data, at + _SUMS.size)
            payload = Rows.of_bytes(data[begin:end], rows, self._schema) if rows else None
            yield Batch(sequence, stimulus_s, watermark_us, payload, path, origin), end
            at = end

    def _damaged(self, segment: _Segment, what: str) -> SpillError:
        return SpillError(f"spilled batches in {segment.name} are damaged: {what}; their rows are lost, submit the query again")

    def _drop(self, segment: _Segment) -> None:
        try:
            self._disk.remove(segment.name)
        except OSError:
            return  # files that cannot be removed now are removed when the agent starts again


def _record(batch: Batch) -> tuple[bytes, Buffer]:
    data = batch.payload.data() if isinstance(batch.payload, Rows) else b""
    facts = _FACTS.pack(batch.sequence, batch.stimulus_s, batch.watermark_us, batch.rows, batch.path, batch.origin)
    return _SUMS.pack(len(data), zlib.crc32(data, zlib.crc32(facts))) + facts, data
