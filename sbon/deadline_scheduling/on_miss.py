"""Handles rows that would be late: `finish`, `defer` or `shed`.

- finish: every row is processed, in order of deadlines.
- defer: rows that would be late go to a log and are processed when nothing else waits, the oldest first. All rows are processed in the end,
  but out of order: only for functions whose updates commute.
- shed: rows that would be late are dropped, and counted by cost class.
"""

import heapq
from collections import deque
from enum import StrEnum

import numpy as np

from sbon.deadline_scheduling.cells import Cells
from sbon.deadline_scheduling.interface import NOTHING, Costs
from sbon.types import FloatArray, IntArray

UNITS = 50
"""Deadlines that are told apart within one bound."""


class OnMiss(StrEnum):
    """A query's choice for rows that would be late."""

    FINISH = "finish"
    DEFER = "defer"
    SHED = "shed"


class DeadlineQueue:
    """Rows that wait at one operator, with a bound of their latency.

    Parameters
    ----------
    on_miss : what happens to rows that would be late
    costs : of a row of each class
    latency_s : bound of the query
    fairness : of what classes lose, as for `Cells`
    """

    def __init__(self, on_miss: OnMiss, costs: Costs, latency_s: float, *, quantum_s: float = 0.0, fairness: float = 0.0) -> None:
        self.on_miss = on_miss
        self._cells = Cells(costs, latency_s / UNITS, quantum_s=quantum_s, fairness=fairness)
        self._batches: list[tuple[float, int, IntArray]] = []
        self._count = 0
        self._late: deque[IntArray] = deque()
        self.late_by_class = np.zeros(len(costs.of_class), dtype=np.int64)
        """Rows that were left out (shed), or put off (defer), since the beginning."""
        self._shed: deque[IntArray] = deque()

    def release(self, rows: IntArray, deadline_s: FloatArray, cost_class: IntArray, now_s: float) -> None:
        """Takes a batch of rows that have arrived."""
        if self.on_miss is OnMiss.FINISH:
            if rows.size:
                self._count += 1
                heapq.heappush(self._batches, (float(deadline_s.min()), self._count, rows))
            return
        self._cells.release(rows, deadline_s, cost_class, now_s)
        self._put_off()

    def next(self, now_s: float) -> IntArray:
        """Returns rows to work on now; deferred ones only if nothing else waits."""
        if self.on_miss is OnMiss.FINISH:
            return heapq.heappop(self._batches)[2] if self._batches else NOTHING
        found = self._cells.next(now_s)
        self._put_off()
        if not found.size and self._late:
            return self._late.popleft()
        return found

    def take_lost(self) -> IntArray:
        """Returns the rows that were shed since this was asked last."""
        taken = np.concatenate(list(self._shed)) if self._shed else NOTHING
        self._shed.clear()
        return taken

    @property
    def deferred(self) -> int:
        """Returns the rows in the log."""
        return sum(one.size for one in self._late)

    def _put_off(self) -> None:
        lost = self._cells.take_lost()
        if lost.size:
            self.late_by_class = self._cells.lost_by_class.copy()
            (self._late if self.on_miss is OnMiss.DEFER else self._shed).append(lost)
