"""An array that grows at its end."""

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", bound=np.generic)

_SIZE_MIN = 1_024
_LARGE = 2**20
"""From so many values on, memory counts more than how often they are copied."""


class Grown(Generic[T]):
    """An array with room behind its last value."""

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
            room = np.empty(max(2 * self._room.size, size) if size < _LARGE else size + size // 8, self._room.dtype)
            room[: self.size] = self.values
            self._room = room
        self._room[self.size : size] = values
        self.size = size

    def fill(self, count: int, value: int) -> None:
        """Appends a value so many times."""
        self.extend(np.full(count, value, self._room.dtype))

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        """Keeps only some values."""
        kept = self.values[which]
        if 2 * kept.size < self._room.size:
            self.replace(kept)
        else:
            self._room[: kept.size], self.size = kept, kept.size

    def replace(self, values: npt.NDArray[T]) -> None:
        """Takes other values instead."""
        room = np.empty(max(_SIZE_MIN, values.size + values.size // 8), self._room.dtype)
        room[: values.size] = values
        self._room, self.size = room, values.size
