"""The rows of a sink that others listen to: numbered, framed as they will be sent, and kept up to a limit."""

from __future__ import annotations


class Feed:
    """The newest rows, the same bytes for every client. A client that asks for rows that are no longer kept has missed them.

    Parameters
    ----------
    rows_max, bytes_max : most rows and bytes kept; the newest row is kept whatever its size
    """

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.first = 1
        """Number of the oldest row that is kept; `last` + 1 if none is."""
        self.last = 0
        """Number of the newest row; 0 before the first."""
        self.size_bytes = 0
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._frames: list[bytes] = []
        self._begin = 0
        """Index of the first frame that counts; earlier frames are removed from time to time."""

    def add(self, frames: list[bytes]) -> None:
        """Adds rows."""
        self._frames += frames
        self.last += len(frames)
        self.size_bytes += sum(map(len, frames))

    def trim(self) -> None:
        """Drops the oldest rows beyond the limits; called after the newest have been offered to the clients."""
        while self.first < self.last and (self.size_bytes > self._bytes_max or self.last - self.first >= self._rows_max):
            self.size_bytes -= len(self._frames[self._begin])
            self._begin += 1
            self.first += 1
        if self._begin > len(self._frames) // 2:
            del self._frames[: self._begin]
            self._begin = 0

    def since(self, number: int, bytes_max: int) -> tuple[bytes, int]:
        """Returns frames from a row on, at least one, and the number of the row after them.

        Parameters
        ----------
        number : number of the first row, from `first` to `last`
        bytes_max : approximate size of the frames
        """
        place = begin = self._begin + number - self.first
        size = 0
        while place < len(self._frames) and size < bytes_max:
            size += len(self._frames[place])
            place += 1
        return b"".join(self._frames[begin:place]), number + place - begin
