"""What runs next: the operator that holds the batch with the earliest stimulus time.

Stimulus-time scheduling (Mace, section III-D) orders work by when the tuples behind it entered the overlay, on whatever machine that
was. No other order on one node has a lower worst-case latency. Ties go to whoever has waited longest, so that the order is the same in
every run.

The queue is that of section VI-A, whose cost does not depend on how much waits: batches stand in one FIFO for each way that leads to an
operator (`StimulusFifo`), and only the FIFOs' heads are compared, in a heap of as many entries as there are ways
(`EarliestStimulusFirst`) - among the inputs of an operator, then among the operators of a host. A way is a link: whatever source paths
meet before it, the batches of a link have one order, that of their numbers, which no scheduler may change (`sbon.links`).
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")

_SPARE = 16
"""Entries out of date that are never worth tidying up."""


class Stimulated(Protocol):
    """What waits in a FIFO."""

    @property
    def stimulus_s(self) -> float:
        """When the latest source tuple behind it entered the overlay."""


B = TypeVar("B", bound=Stimulated)


class StimulusFifo(Generic[B]):
    """Batches that came one way, first in, first out. Adding and taking cost the same however many wait.

    They mostly come in the order of their stimulus times. Where sources meet before the way it can be otherwise: then whatever stands
    before an older batch is as urgent as that one, which cannot run before it.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> fifo = StimulusFifo()
    >>> for stimulus_s in (10.0, 30.0, 20.0):
    ...     fifo.append(SimpleNamespace(stimulus_s=stimulus_s))
    >>> fifo.popleft().stimulus_s, fifo.earliest_s, fifo.head.stimulus_s
    (10.0, 20.0, 30.0)
    """

    __slots__ = ("_batches", "_least")

    def __init__(self) -> None:
        self._batches: deque[B] = deque()
        self._least: deque[float] = deque()
        """Stimulus times than which no later batch has an earlier one, in order: the first is the least of all."""

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[B]:
        return iter(self._batches)

    @property
    def head(self) -> B:
        """Who is first; IndexError where nobody is."""
        return self._batches[0]

    @property
    def earliest_s(self) -> float:
        """The earliest stimulus time of all that wait; infinite where nothing does."""
        return self._least[0] if self._least else math.inf

    def append(self, batch: B) -> None:
        """Put at the end."""
        stimulus_s, least = batch.stimulus_s, self._least
        while least and least[-1] > stimulus_s:
            least.pop()
        least.append(stimulus_s)
        self._batches.append(batch)

    def popleft(self) -> B:
        """Take out the first; IndexError where there is none."""
        batch = self._batches.popleft()
        if batch.stimulus_s == self._least[0]:
            self._least.popleft()
        return batch


class EarliestStimulusFirst(Generic[K]):
    """Which of some keys - inputs of an operator, operators of a host - has the earliest stimulus time.

    A heap with one entry for each key that waits: a change costs the logarithm of their number. An entry that is out of date stays until
    it comes up, or until there are more such than others; then the heap is made anew. (A tree of winners, without such entries, took
    twice as long in Python; heapq is in C.)

    Examples
    --------
    >>> queue = EarliestStimulusFirst[str]()
    >>> queue.push("late", 20.0), queue.push("early", 10.0)
    (None, None)
    >>> queue.first(), queue.pop(), queue.pop(), queue.pop()
    ('early', 'early', 'late', None)
    """

    __slots__ = ("_count", "_entry", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, K]] = []
        self._entry: dict[K, tuple[float, int, K]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._entry)

    def push(self, key: K, stimulus_s: float) -> None:
        """`key` has something of this stimulus time; an earlier word on the same key is replaced."""
        known = self._entry.get(key)
        if known is not None and known[0] == stimulus_s:
            return
        self._count += 1
        entry = self._entry[key] = (stimulus_s, self._count, key)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entry) + _SPARE:
            self._tidy()

    def remove(self, key: K) -> None:
        """`key` has nothing any more."""
        if self._entry.pop(key, None) is not None and len(self._heap) > 2 * len(self._entry) + _SPARE:
            self._tidy()

    def first(self) -> K | None:
        """The key whose turn it is; None when nothing waits."""
        heap, entry = self._heap, self._entry
        while heap:
            candidate = heap[0]
            if entry.get(candidate[2]) is candidate:
                return candidate[2]
            heapq.heappop(heap)
        return None

    def pop(self) -> K | None:
        """Take out the key whose turn it is; None when nothing waits."""
        key = self.first()
        if key is not None:
            heapq.heappop(self._heap)
            del self._entry[key]
        return key

    def _tidy(self) -> None:
        """Throw out what is out of date, which is most of the heap: paid for by the pushes that brought it."""
        self._heap = list(self._entry.values())
        heapq.heapify(self._heap)
