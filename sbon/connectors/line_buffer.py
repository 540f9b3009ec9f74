"""Keeps the lines of several connections, in the order of their arrival, until they are taken. The `tcp` source uses it.

The event loop's thread adds lines; one other thread at a time takes them. Pieces are kept as received, because any work on them here would
run on the event loop for every byte of a stream.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager

import numpy as np

from sbon.connectors.line_endpoint import LineTail
from sbon.misfits import Misfits

SMALL_BYTES_MAX = 4096
"""Pieces up to this size are merged, so that the buffer takes hardly more memory than its bytes. numpy counts the line ends of larger
pieces; for small ones the call costs more than it saves."""


class LineBuffer:
    """Buffer of whole lines, each with its end.

    Parameters
    ----------
    line_bytes_max : longer lines are left out
    misfits : counts the lines left out, on the event loop's thread
    lock : guards the buffer if lines are taken on another thread than they are added
    """

    def __init__(self, line_bytes_max: int, misfits: Misfits, lock: AbstractContextManager[object]) -> None:
        self._line_bytes_max = line_bytes_max
        self._misfits = misfits
        self._lock = lock
        """Guards the attributes below."""
        self._pieces: deque[tuple[bytes, int]] = deque()
        """Pieces, each with the number of its lines that have not been taken."""
        self._begin = 0
        """Number of bytes of the first piece that have been taken."""
        self.lines = self.size_bytes = 0

    def received(self, connection: LineTail, data: bytes) -> bool:
        """Adds the whole lines that a connection has sent, and keeps the rest as its tail. Returns True if the buffer had no lines before
        and has some now."""
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

    def closed(self, connection: LineTail) -> bool:
        """Adds the last line of a closed connection, which may lack its end. Returns as `received` does."""
        last, connection.tail, connection.skipping = bytes(connection.tail), bytearray(), False
        return bool(last.strip()) and self._keep(last + b"\n")

    def take(self, bytes_max: int) -> bytes:
        """Takes out the next lines, about `bytes_max` bytes."""
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
        """Takes out the next lines, at most `count` and about `bytes_max` bytes.

        Meant for few lines, because it searches for each line end.
        """
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
        """Drops all lines."""
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
        """Removes lines that are too long from whole lines."""
        # A line that is too long contains at least one of these parts whole: usually it is enough to find a line end in each part.
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
    """Returns the number of line ends."""
    if len(data) <= SMALL_BYTES_MAX:
        return data.count(b"\n")
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))
