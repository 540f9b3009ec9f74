"""The rows of a sink that others listen to: numbered, framed as they will be sent, and kept until there is no room."""

from __future__ import annotations


class Feed:
    """The newest rows, the same bytes for every client. A client that wants rows which are not kept any more has missed them.

    Parameters
    ----------
    rows_max, bytes_max : kept; the newest row is kept whatever its size
    """

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self.first = 1
        """Number of the oldest row that is kept; one more than `last` where none is."""
        self.last = 0
        """Number of the newest row; 0 before the first."""
        self.size_bytes = 0
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._frames: list[bytes] = []
        self._begin = 0
        """Place of the first frame that counts; those before it are cut off now and then."""

    def add(self, frames: list[bytes]) -> None:
        """Takes further rows."""
        self._frames += frames
        self.last += len(frames)
        self.size_bytes += sum(map(len, frames))

    def trim(self) -> None:
        """Lets go of the oldest rows; after the newest have been offered to the clients."""
        while self.first < self.last and (self.size_bytes > self._bytes_max or self.last - self.first >= self._rows_max):
            self.size_bytes -= len(self._frames[self._begin])
            self._begin += 1
            self.first += 1
        if self._begin > len(self._frames) // 2:
            del self._frames[: self._begin]
            self._begin = 0

    def since(self, number: int, bytes_max: int) -> tuple[bytes, int]:
        """Returns frames from a row on, at least one, and the number of the row behind them.

        Parameters
        ----------
        number : from `first` to `last`
        bytes_max : about so many
        """
        place = begin = self._begin + number - self.first
        size = 0
        while place < len(self._frames) and size < bytes_max:
            size += len(self._frames[place])
            place += 1
        return b"".join(self._frames[begin:place]), number + place - begin
