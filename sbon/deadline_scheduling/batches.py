"""Policies that process whole batches: in the order of arrival, or the earliest deadline first (section 4.1)."""

import heapq
from collections import deque

from sbon.deadline_scheduling.interface import NOTHING, Lost
from sbon.types import FloatArray, IntArray


class InOrder:
    """Processes batches in the order of arrival; leaves no row out."""

    def __init__(self) -> None:
        self._batches: deque[IntArray] = deque()

    def release(self, rows: IntArray, deadline_s: FloatArray, cost_class: IntArray, now_s: float) -> None:
        """Appends a batch."""
        if rows.size:
            self._batches.append(rows)

    def next(self, now_s: float) -> IntArray:
        """Returns the oldest batch."""
        return self._batches.popleft() if self._batches else NOTHING

    def take_lost(self) -> IntArray:
        """Returns nothing."""
        return NOTHING


class BatchEdf:
    """Processes the batch with the earliest deadline; leaves out batches of which no row can be in time."""

    def __init__(self) -> None:
        self._batches: list[tuple[float, int, float, IntArray]] = []
        self._count = 0
        self._lost = Lost()

    def release(self, rows: IntArray, deadline_s: FloatArray, cost_class: IntArray, now_s: float) -> None:
        """Adds a batch; its deadline is the earliest of its rows."""
        if rows.size:
            self._count += 1
            heapq.heappush(self._batches, (float(deadline_s.min()), self._count, float(deadline_s.max()), rows))

    def next(self, now_s: float) -> IntArray:
        """Returns the most urgent batch that has a row which may be in time."""
        while self._batches:
            _, _, latest_s, rows = heapq.heappop(self._batches)
            if latest_s > now_s:
                return rows
            self._lost.add(rows)
        return NOTHING

    def take_lost(self) -> IntArray:
        """Returns rows of batches that came too late."""
        return self._lost.take()
