"""Reads the row groups of a Parquet file and the bounds of their columns from its footer (Thrift, compact protocol).

`file_reader` uses it to skip row groups.

polars reads the footer too, but does not report row groups. If anything here is not as expected, the result is None: the file is then read
without this knowledge, and polars reports what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

FOOTER_BYTES_MAX = 4 << 20
"""Largest footer that is read: about 30,000 column chunks, half a second."""
_DEPTH_MAX = 32
_MARK = b"PAR1"
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)


class Bounds(NamedTuple):
    """Statistics of a column in a row group. They bound its values that are neither NULL nor NaN, and may be wider than the values."""

    kind: int
    """Physical type: 1 INT32, 2 INT64, 4 FLOAT, 5 DOUBLE, 6 BYTE_ARRAY."""
    least: bytes
    greatest: bytes
    is_exact: bool
    """True if the bounds are values of the column."""
    nulls: int | None
    """Number of NULLs; None if the file does not say."""


class RowGroup(NamedTuple):
    """Part of the file that can be read by itself."""

    rows: int
    bounds: Mapping[str, Bounds]
    """Bounds by column, for columns that have them; nested ones are left out."""


def row_groups(file: IO[bytes]) -> list[RowGroup] | None:
    """Returns the row groups in order; None if the footer is too large or not understood."""
    try:
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MARK or not 0 < length <= min(FOOTER_BYTES_MAX, size - 8):
            return None
        file.seek(size - 8 - length)
        meta = _Thrift(file.read(length)).structure()
        groups = [_row_group(group) for group in meta[4]]
        return groups if all(group.rows >= 0 for group in groups) and sum(group.rows for group in groups) == meta[3] else None
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, struct.error):  # a damaged footer can cause any of these
        return None


def _row_group(group: dict[int, Any]) -> RowGroup:
    bounds = {}
    for chunk in group[1]:
        column = chunk.get(3, {})
        statistics = column.get(12, {})
        if len(column.get(3, ())) == 1 and isinstance(statistics.get(5), bytes) and isinstance(statistics.get(6), bytes):
            is_exact = statistics.get(7) is not False and statistics.get(8) is not False
            bounds[column[3][0].decode()] = Bounds(column[1], statistics[6], statistics[5], is_exact, statistics.get(3))
    return RowGroup(group[3], bounds)


class _Thrift:
    """Reads values of the compact protocol. A structure is a dictionary by field id."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        """Reads a structure.

        Raises
        ------
        ValueError, IndexError, struct.error
            The bytes are not a structure.
        """
        if depth > _DEPTH_MAX:
            raise ValueError("too deep")
        fields: dict[int, Any] = {}
        field = 0
        while True:
            head = self._data[self._at]
            self._at += 1
            if head == 0:
                return fields
            field = field + (head >> 4) if head >> 4 else self._number()
            kind = head & 15
            fields[field] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _INTEGERS:
            return self._number()
        if kind == _BINARY:
            length = self._count()
            self._at += length
            return self._data[self._at - length : self._at]
        if kind == _STRUCT:
            return self.structure(depth + 1)
        if kind in (_LIST, _SET):
            head = self._data[self._at]
            self._at += 1
            count = head >> 4 if head >> 4 != 15 else self._count()
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind in (_TRUE, _FALSE, _BYTE):  # in a list, a boolean takes a byte
            self._at += 1
            return self._data[self._at - 1]
        if kind == _DOUBLE:
            self._at += 8
            return struct.unpack_from("<d", self._data, self._at - 8)[0]
        raise ValueError(f"type {kind}")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            octet = self._data[self._at]
            self._at += 1
            value |= (octet & 127) << shift
            if octet < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _number(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _count(self) -> int:
        """Reads the number of bytes or items that follow, which cannot exceed the bytes left."""
        count = self._varint()
        if count > len(self._data) - self._at:
            raise IndexError("beyond the end")
        return count
