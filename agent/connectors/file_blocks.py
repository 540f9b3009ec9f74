"""Reads a text file in blocks of whole records. `file_reader` uses it.

In a plain file, a block ends at the last line end in the 64 KiB before its wanted end; the block is then read into memory of exactly its
size, without a copy. A CSV block with quotes may end only where the number of quotes since its begin, which is certain, is even; otherwise
its end moves back.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Generator
from typing import IO

from sbon.errors import ConnectorError

BLOCK_BYTES = 4 << 20
"""Bytes read at once."""
RECORD_BYTES_MAX = 16 << 20
"""Longest record; a longer one means that the file has another format than its source says."""
_LOOK_BYTES = 1 << 16
"""Bytes that are searched for a line end."""


def blocks(file: IO[bytes], what: str, *, zipped: bool, quoted: bool, begin: int = 0) -> Generator[bytes, None, None]:
    """Yields whole records, about `BLOCK_BYTES` at a time; the last one may lack its line end.

    Parameters
    ----------
    what : file and source, for messages
    quoted : whether a line break between quotes is part of the record
    begin : byte of the first block, at which a record must begin; only for plain files

    Raises
    ------
    ConnectorError
        A record is too long.
    """
    return _unzipped(file, what, quoted) if zipped else _plain(file, what, quoted, begin)


def _plain(file: IO[bytes], what: str, quoted: bool, begin: int) -> Generator[bytes, None, None]:
    descriptor, offset, wanted = file.fileno(), begin, BLOCK_BYTES
    while True:
        size = _line_end(descriptor, offset, offset + wanted) - offset
        data = os.pread(descriptor, size, offset)
        end = _last_record_end(data, quoted)
        if end:
            yield data[:end]
            offset, wanted = offset + end, BLOCK_BYTES
        elif len(data) < size:  # the end of the file
            if data.strip():
                yield data
            return
        else:
            _check_length(data, what)
            wanted += BLOCK_BYTES


def _line_end(descriptor: int, offset: int, wanted: int) -> int:
    """Returns the last line end shortly before `wanted`; `wanted` if there is none."""
    first = max(offset, wanted - _LOOK_BYTES)
    end = os.pread(descriptor, wanted - first, first).rfind(b"\n") + 1
    return first + end if end else wanted


def _unzipped(file: IO[bytes], what: str, quoted: bool) -> Generator[bytes, None, None]:
    held = b""
    with gzip.open(file, "rb") as unzipped:
        while data := unzipped.read(BLOCK_BYTES):
            held += data
            end = _last_record_end(held, quoted)
            if end:
                yield held[:end]
                held = held[end:]
            else:
                _check_length(held, what)
    if held.strip():
        yield held


def _check_length(data: bytes, what: str) -> None:
    if len(data) > RECORD_BYTES_MAX:
        raise ConnectorError(f"{what} has a record of more than {RECORD_BYTES_MAX} bytes, expected lines (is a quote unclosed?)")


def _last_record_end(data: bytes, quoted: bool) -> int:
    """Returns where the last whole record ends; 0 if none does."""
    end = data.rfind(b"\n") + 1
    # Looking for one quote is much faster than counting them.
    quotes = data.count(b'"', 0, end) if quoted and b'"' in data else 0
    while end and quotes % 2:
        before = data.rfind(b"\n", 0, end - 1) + 1
        quotes -= data.count(b'"', before, end)
        end = before
    return end
