"""Which operator runs next: the one holding the batch with the earliest stimulus time.

Stimulus-time scheduling (Mace, section III-D, VI-A) orders work by when the tuples behind it entered the overlay, on whatever machine that
was. No other order on one node has a lower worst-case latency. Ties go to the operator that has waited longest, so that the order
is the same in every run.
"""

import heapq
from typing import Generic, TypeVar

K = TypeVar("K")


class EarliestStimulusFirst(Generic[K]):
    """A queue of operators that are ready to run, by the stimulus time of the batch that each would take.

    Examples
    --------
    >>> queue = EarliestStimulusFirst[str]()
    >>> queue.push("late", 20.0), queue.push("early", 10.0)
    (None, None)
    >>> queue.pop(), queue.pop(), queue.pop()
    ('early', 'late', None)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._entry: dict[K, tuple[float, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._entry)

    def push(self, key: K, stimulus_s: float) -> None:
        """`key` is ready with a batch of this stimulus time; an earlier word on the same key is replaced."""
        known = self._entry.get(key)
        if known is not None and known[0] == stimulus_s:
            return
        self._count += 1
        self._entry[key] = (stimulus_s, self._count)
        heapq.heappush(self._heap, (stimulus_s, self._count, key))

    def remove(self, key: K) -> None:
        """`key` is no longer ready."""
        self._entry.pop(key, None)

    def pop(self) -> K | None:
        """Take out the key whose turn it is; None when nothing is ready."""
        while self._heap:
            stimulus_s, count, key = heapq.heappop(self._heap)
            if self._entry.get(key) == (stimulus_s, count):
                del self._entry[key]
                return key
        return None
