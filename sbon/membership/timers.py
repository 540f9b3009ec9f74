"""Many named instants, the earliest of which is known at once."""

import heapq
from typing import TypeAlias

Key: TypeAlias = tuple[str, str | int]

_SLACK = 64
"""Instants that may lie about, moved or cancelled, beside as many as there are."""


class Timers:
    """Instants by key. Setting a key again moves it; equal instants come due in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._current: dict[Key, int] = {}
        self._count = 0

    def set(self, key: Key, when: float) -> None:
        """Let `key` come due at `when`, and not before."""
        self._count += 1
        self._current[key] = self._count
        heapq.heappush(self._heap, (when, self._count, key))
        if len(self._heap) > 2 * len(self._current) + _SLACK:
            self._tidy()

    def cancel(self, key: Key) -> None:
        """Let `key` not come due; nothing happens if it was not to."""
        self._current.pop(key, None)

    def __contains__(self, key: Key) -> bool:
        return key in self._current

    def next(self) -> float | None:
        """The earliest instant, or None."""
        heap = self._heap
        while heap and self._current.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)  # moved or cancelled since
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> Key | None:
        """Take out one key that is due, earliest first."""
        when = self.next()
        if when is None or when > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._current[key]
        return key

    def delay(self, kinds: frozenset[str], by_s: float) -> None:
        """Put off all keys of these kinds."""
        self._heap = [
            (when + by_s if key[0] in kinds else when, count, key) for when, count, key in self._heap if self._current.get(key) == count
        ]
        heapq.heapify(self._heap)

    def _tidy(self) -> None:
        """Drop what was moved or cancelled: an instant a day ahead would otherwise stay for a day, each time that it is moved."""
        self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
        self._current.clear()
