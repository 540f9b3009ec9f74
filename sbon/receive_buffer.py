"""A buffer into which a connection reads directly, and from which messages are taken without copies."""

from sbon.errors import LocalProtocolError

READ_BYTES_MIN = 64 * 1024
"""Least room for one read. A smaller read would cost as much as a larger one."""
KEPT_BYTES_MAX = 4 * 2**20
"""Largest buffer that is kept when it becomes empty."""


class ReceiveBuffer:
    """A queue of contiguous bytes. `room` returns the memory to read into, `added` records how many bytes came, `drop` removes bytes from
    the front."""

    __slots__ = ("_begin", "_data", "_end")

    def __init__(self) -> None:
        self._data = bytearray()
        self._begin = self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    def room(self) -> memoryview:
        """Returns the memory for the next bytes; valid until the next call of any other method."""
        if len(self._data) - self._end < READ_BYTES_MIN:
            self.reserve(len(self) + READ_BYTES_MIN)
        return memoryview(self._data)[self._end :]

    def added(self, count: int) -> None:
        """Records that so many bytes have been written to the start of `room`."""
        if not 0 <= count <= len(self._data) - self._end:
            raise LocalProtocolError(f"{count} bytes read, expected 0 to {len(self._data) - self._end}")
        self._end += count

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Appends bytes that were received in another way."""
        self.reserve(len(self) + len(data))
        self._data[self._end : self._end + len(data)] = data
        self._end += len(data)

    def reserve(self, total_bytes: int) -> None:
        """Makes room for so many bytes in total, present ones included."""
        if len(self._data) - self._begin >= total_bytes:
            return
        held = memoryview(self._data)[self._begin : self._end]
        # Moves the bytes to a new, larger buffer, or to the front of the old one. No view from `room` may be in use.
        data = bytearray(max(total_bytes, READ_BYTES_MIN)) if total_bytes > len(self._data) else self._data
        data[: len(held)] = bytes(held) if data is self._data else held
        self._data, self._begin, self._end = data, 0, len(held)

    def view(self) -> memoryview:
        """Returns the bytes present; release the view before any other call."""
        return memoryview(self._data)[self._begin : self._end]

    def peek(self, count: int) -> bytes:
        """Returns the first `count` bytes, or fewer."""
        return bytes(self._data[self._begin : min(self._end, self._begin + count)])

    def drop(self, count: int) -> None:
        """Removes the first `count` bytes."""
        self._begin += count
        if self._begin == self._end:
            self._begin = self._end = 0
            if len(self._data) > KEPT_BYTES_MAX:
                self._data = bytearray()

    def clear(self) -> None:
        """Removes all bytes."""
        self._data = bytearray()
        self._begin = self._end = 0
