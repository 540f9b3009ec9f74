"""Scheduling by urgency: the operator runs next whose most urgent batch has the earliest stimulus time plus bound.

The bound is the least `max_latency` of the queries that use the operator. A query without a bound, or with a longer one, counts as if its
bound were `URGENT_WITHIN_S_MAX`. So its batches never run before an equally old batch of a query with a bound, and wait for younger batches
of such a query only until they are older by the difference of the bounds. If all queries have the same bound, or none has one, the order is
that of stimulus times.

Stimulus-time scheduling (Mace, section III-D) orders work by the time when the tuples behind it entered the overlay, on any machine. No
other order on one node has a lower worst-case latency. Among equal times, the batch that has waited longest runs first, so that the order
is the same in every run.

The queue is that of section VI-A. Its cost does not depend on the number of waiting batches: each input link of an operator has one FIFO
(`StimulusFifo`), and a heap with one entry per link (`EarliestStimulusFirst`) compares only the FIFOs' heads, first among the inputs of an
operator, then among the operators of a host. One FIFO per link is enough, even if several source paths meet upstream: no scheduler may
change the order of a link's batches, which is that of their numbers (`sbon.links`).
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")

URGENT_WITHIN_S_MAX = 10.0
"""The longest bound that makes a batch more urgent than a batch without a bound. Longer: queries with bounds delay those without for
longer. Shorter: more bounds are longer than this, and count as equal."""
_SPARE = 16
"""So many stale entries are never worth removing."""


class Stimulated(Protocol):
    """An item that waits in a FIFO."""

    @property
    def stimulus_s(self) -> float:
        """Returns when the latest source tuple behind the item entered the overlay."""


B = TypeVar("B", bound=Stimulated)


class StimulusFifo(Generic[B]):
    """Batches of one link, first in, first out. Adding and removing take constant time.

    Batches mostly come in the order of their stimulus times. If sources meet upstream of the link, they may not. Then a batch in front of
    an older batch is as urgent as the older one, which cannot run before it.

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
        """Stimulus times, ascending, of the batches that have no later batch with an earlier time; the first is the least of all."""

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[B]:
        return iter(self._batches)

    def __reversed__(self) -> Iterator[B]:
        return reversed(self._batches)

    @property
    def head(self) -> B:
        """Returns the first batch; raises IndexError if there is none."""
        return self._batches[0]

    @property
    def earliest_s(self) -> float:
        """Returns the earliest stimulus time of all waiting batches; infinite if there are none."""
        return self._least[0] if self._least else math.inf

    def append(self, batch: B) -> None:
        """Appends a batch."""
        stimulus_s, least = batch.stimulus_s, self._least
        while least and least[-1] > stimulus_s:
            least.pop()
        least.append(stimulus_s)
        self._batches.append(batch)

    def popleft(self) -> B:
        """Removes and returns the first batch; raises IndexError if there is none."""
        batch = self._batches.popleft()
        if batch.stimulus_s == self._least[0]:
            self._least.popleft()
        return batch


class EarliestStimulusFirst(Generic[K]):
    """Finds the key (an input of an operator, or an operator of a host) with the earliest stimulus time.

    A heap with one entry for each waiting key, so a change costs the logarithm of their number. A stale entry stays until it reaches the
    top, or until stale entries outnumber the others and the heap is rebuilt. (A tournament tree, without stale entries, took twice as long
    in Python; heapq is in C.)

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
        """Sets the stimulus time of `key`, replacing an earlier one."""
        known = self._entry.get(key)
        if known is not None and known[0] == stimulus_s:
            return
        self._count += 1
        entry = self._entry[key] = (stimulus_s, self._count, key)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entry) + _SPARE:
            self._tidy()

    def remove(self, key: K) -> None:
        """Removes `key`."""
        if self._entry.pop(key, None) is not None and len(self._heap) > 2 * len(self._entry) + _SPARE:
            self._tidy()

    def first(self) -> K | None:
        """Returns the key with the earliest time; None if no key waits."""
        heap, entry = self._heap, self._entry
        while heap:
            candidate = heap[0]
            if entry.get(candidate[2]) is candidate:
                return candidate[2]
            heapq.heappop(heap)
        return None

    def pop(self) -> K | None:
        """Removes and returns the key with the earliest time; None if no key waits."""
        key = self.first()
        if key is not None:
            heapq.heappop(self._heap)
            del self._entry[key]
        return key

    def _tidy(self) -> None:
        """Removes stale entries, which are most of the heap, so the cost is in proportion to the pushes that added them."""
        self._heap = list(self._entry.values())
        heapq.heapify(self._heap)
