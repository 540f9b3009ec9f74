"""Lines that several connections send, kept in the order in which they came until somebody takes them.

The event loop's thread adds, any one other thread takes. Pieces are kept as they were received: what is done to each of them here is done
to every byte of a stream, on the event loop.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from sbon.misfits import Misfits
from sbon_agent.connectors.lines import Connection

SMALL_BYTES_MAX = 4096
"""Pieces up to this size become one, so that what is held takes hardly more memory than its octets. In larger ones the columnar library
counts the line ends: for small ones, a call of it takes longer than counting."""


class LineBuffer:
    """Whole lines, each with its end.

    Parameters
    ----------
    line_bytes_max : longer ones are left out
    misfits : counts those; on the event loop's thread
    """

    def __init__(self, line_bytes_max: int, misfits: Misfits) -> None:
        self._line_bytes_max = line_bytes_max
        self._misfits = misfits
        self._lock = threading.Lock()
        """Of all that follows."""
        self._pieces: deque[tuple[bytes, int]] = deque()
        """With how many lines there are (left) in each."""
        self._begin = 0
        """How much of the first piece has been taken."""
        self.lines = self.size_bytes = 0

    def received(self, connection: Connection, data: bytes) -> bool:
        """Keep what a connection has sent, up to its last line end. Returns whether there were no lines before, and are some now."""
        begin, end = 0, data.rfind(b"\n") + 1
        if end and connection.skipping:
            connection.skipping, begin = False, data.index(b"\n") + 1
        whole = b"".join((connection.tail, memoryview(data)[begin:end])) if end else b""
        if end:
            connection.tail = bytearray()
        if not connection.skipping:
            connection.tail += memoryview(data)[end:]
            if len(connection.tail) > self._line_bytes_max:
                self._leave_out(bytes(connection.tail))
                connection.skipping, connection.tail = True, bytearray()
        return self._keep(self._without_long(whole) if len(whole) > self._line_bytes_max else whole)

    def closed(self, connection: Connection) -> bool:
        """The same for the last line of a connection, which may lack its end."""
        last, connection.tail, connection.skipping = bytes(connection.tail), bytearray(), False
        return bool(last.strip()) and self._keep(last + b"\n")

    def take(self, bytes_max: int) -> bytes:
        """The next lines, about so many bytes; no longer held."""
        pieces: list[bytes | memoryview] = []
        size = lines = 0
        with self._lock:
            while self._pieces and size < bytes_max:
                piece, count = self._pieces.popleft()
                pieces.append(memoryview(piece)[self._begin :] if self._begin else piece)
                size += len(pieces[-1])
                lines += count
                self._begin = 0
            self.lines -= lines
            self.size_bytes -= size
        return b"".join(pieces)

    def take_lines(self, count: int, bytes_max: int) -> bytes:
        """The next lines, at most so many and about so many bytes; no longer held. For few: each line end is looked for."""
        pieces = []
        size = lines = 0
        with self._lock:
            while self._pieces and lines < count and size < bytes_max:
                piece, held = self._pieces[0]
                end, before = self._begin, lines
                while lines < count and end < len(piece) and size + end - self._begin < bytes_max:
                    end = piece.index(b"\n", end) + 1
                    lines += 1
                pieces.append(piece[self._begin : end])
                size += end - self._begin
                self._begin, self._pieces[0] = end, (piece, held - (lines - before))
                if end == len(piece):
                    self._pieces.popleft()
                    self._begin = 0
            self.lines -= lines
            self.size_bytes -= size
        return b"".join(pieces)

    def clear(self) -> None:
        """Forget all lines."""
        with self._lock:
            self._pieces.clear()
            self._begin = self.lines = self.size_bytes = 0

    def _keep(self, whole: bytes) -> bool:
        if not whole:
            return False
        lines = line_count(whole)
        with self._lock:
            begins = not self.lines
            self.lines += lines
            if self._pieces and len(self._pieces[-1][0]) + len(whole) <= SMALL_BYTES_MAX:
                last, count = self._pieces.pop()
                self._pieces.append((last + whole, count + lines))
            else:
                self._pieces.append((whole, lines))
            self.size_bytes += len(whole)
        return begins

    def _without_long(self, data: bytes) -> bytes:
        """Whole lines without those that are too long."""
        # A line that is too long has one of these parts to itself: as good as always it is enough to find a line end in each.
        step = self._line_bytes_max // 2
        if all(data.find(b"\n", at, at + step) >= 0 for at in range(0, len(data) - step + 1, step)):
            return data
        kept = []
        for line in data[:-1].split(b"\n"):
            if len(line) > self._line_bytes_max:
                self._leave_out(line)
            else:
                kept.append(line + b"\n")
        return b"".join(kept)

    def _leave_out(self, line: bytes) -> None:
        text = f"the line is longer than {self._line_bytes_max} bytes (line_bytes_max)"
        self._misfits.add("", "is too long", text=text, line=line)


def line_count(data: bytes) -> int:
    """How many line ends there are."""
    if len(data) <= SMALL_BYTES_MAX:
        return data.count(b"\n")
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))
