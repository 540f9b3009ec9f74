"""A queue of named timers with quick access to the earliest."""

import heapq
from typing import TypeAlias

Key: TypeAlias = tuple[str, str | int]

_SLACK = 64
"""The heap may have as many stale entries (of moved or cancelled timers) as there are timers, plus this number."""


class Timers:
    """Timers by key. Setting a key again moves it. Timers of equal times come due in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._current: dict[Key, int] = {}
        self._count = 0

    def set(self, key: Key, when: float) -> None:
        """Sets `key` to come due at `when`, replacing its earlier time."""
        self._count += 1
        self._current[key] = self._count
        heapq.heappush(self._heap, (when, self._count, key))
        if len(self._heap) > 2 * len(self._current) + _SLACK:
            self._tidy()

    def cancel(self, key: Key) -> None:
        """Cancels `key`; nothing happens if it is not set."""
        self._current.pop(key, None)

    def __contains__(self, key: Key) -> bool:
        return key in self._current

    def next(self) -> float | None:
        """Returns the earliest time, or None."""
        heap = self._heap
        while heap and self._current.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)  # moved or cancelled since
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> Key | None:
        """Removes and returns one key that is due, earliest first."""
        when = self.next()
        if when is None or when > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._current[key]
        return key

    def delay(self, kinds: frozenset[str], by_s: float) -> None:
        """Postpones all keys of these kinds."""
        self._heap = [
            (when + by_s if key[0] in kinds else when, count, key) for when, count, key in self._heap if self._current.get(key) == count
        ]
        heapq.heapify(self._heap)

    def _tidy(self) -> None:
        """Drops stale entries. Otherwise a timer a day ahead would leave an entry for a day each time it is moved."""
        self._heap = [entry for entry in self._heap if self._current.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)

    def clear(self) -> None:
        """Cancels all timers."""
        self._heap.clear()
        self._current.clear()
