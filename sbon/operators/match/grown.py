"""An array that grows at its end."""

import mmap
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=np.generic)

_SIZE_MIN = 1_024
_LARGE = 2**20
"""Number of values from which saving memory matters more than avoiding copies."""
_PIECE = 2**16
"""Values that are moved at once, so that no second array of the whole size is needed."""


def _room(size: int, dtype: npt.DTypeLike) -> npt.NDArray[T]:
    """Returns an array. The memory of a large one is mapped: it is not taken until it is used, and goes back to the system at once."""
    if size < _LARGE:
        return np.empty(size, dtype)
    return np.frombuffer(mmap.mmap(-1, size * np.dtype(dtype).itemsize), dtype)


class Grown(Generic[T]):
    """An array with room after its last value."""

    def __init__(self, dtype: type[T]) -> None:
        self._room: npt.NDArray[T] = np.empty(_SIZE_MIN, dtype)
        self.size = 0

    @property
    def values(self) -> npt.NDArray[T]:
        """Returns the values; a view that the next `extend` may replace."""
        return self._room[: self.size]

    def extend(self, values: npt.NDArray[T]) -> None:
        """Appends values."""
        size = self.size + values.size
        if size > self._room.size:
            self._move(max(2 * self._room.size, size) if size < _LARGE else size + size // 8)
        self._room[self.size : size] = values
        self.size = size

    def fill(self, count: int, value: int) -> None:
        """Appends a value `count` times."""
        self.extend(np.full(count, value, self._room.dtype))

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        """Keeps only some values."""
        end = 0
        for begin in range(0, self.size, _PIECE):
            kept = self.values[begin : begin + _PIECE].compress(which[begin : begin + _PIECE])
            self._room[end : end + kept.size] = kept
            end += kept.size
        self.size = end
        if 2 * end < self._room.size:
            self._move(max(_SIZE_MIN, end + end // 8))

    def replace(self, values: npt.NDArray[T]) -> None:
        """Replaces all values."""
        room: npt.NDArray[T] = _room(max(_SIZE_MIN, values.size + values.size // 8), self._room.dtype)
        room[: values.size] = values
        self._room, self.size = room, values.size

    def _move(self, size: int) -> None:
        """Moves the values to an array of another size."""
        room: npt.NDArray[T] = _room(size, self._room.dtype)
        room[: self.size] = self.values
        self._room = room
