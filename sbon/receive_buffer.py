"""Bytes as they come off a connection, read straight into the place from which they are taken."""

from sbon.errors import LocalProtocolError

READ_BYTES_MIN = 64 * 1024
"""Room for one read at least. Smaller reads cost as much each as larger ones."""
KEPT_BYTES_MAX = 4 * 2**20
"""An empty buffer larger than this is given back."""


class ReceiveBuffer:
    """A queue of bytes in one piece: `room` gives the place to read into, `added` says how much came, `drop` takes from the front."""

    __slots__ = ("_begin", "_data", "_end")

    def __init__(self) -> None:
        self._data = bytearray()
        self._begin = self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    def room(self) -> memoryview:
        """Where the next bytes may be written; valid until the next call of any other method."""
        if len(self._data) - self._end < READ_BYTES_MIN:
            self.reserve(len(self) + READ_BYTES_MIN)
        return memoryview(self._data)[self._end :]

    def added(self, count: int) -> None:
        """So many bytes have been written to the beginning of `room`."""
        if not 0 <= count <= len(self._data) - self._end:
            raise LocalProtocolError(f"{count} bytes read into room for {len(self._data) - self._end}")
        self._end += count

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes that came in another way."""
        self.reserve(len(self) + len(data))
        self._data[self._end : self._end + len(data)] = data
        self._end += len(data)

    def reserve(self, total_bytes: int) -> None:
        """Make room for so many bytes in all, those that are here included."""
        if len(self._data) - self._begin >= total_bytes:
            return
        held = memoryview(self._data)[self._begin : self._end]
        # A new piece rather than a move within the old one where it must grow; the old one may still be read into by nobody.
        data = bytearray(max(total_bytes, READ_BYTES_MIN)) if total_bytes > len(self._data) else self._data
        data[: len(held)] = bytes(held) if data is self._data else held
        self._data, self._begin, self._end = data, 0, len(held)

    def view(self) -> memoryview:
        """What is here; release it before any other call."""
        return memoryview(self._data)[self._begin : self._end]

    def peek(self, count: int) -> bytes:
        """The first `count` bytes, or fewer."""
        return bytes(self._data[self._begin : min(self._end, self._begin + count)])

    def drop(self, count: int) -> None:
        """The first `count` bytes have been taken."""
        self._begin += count
        if self._begin == self._end:
            self._begin = self._end = 0
            if len(self._data) > KEPT_BYTES_MAX:
                self._data = bytearray()

    def clear(self) -> None:
        """Forget all."""
        self._data = bytearray()
        self._begin = self._end = 0
