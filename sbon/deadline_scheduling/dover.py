"""D-over: the on-line scheduler with the best guarantee in overload (Koren and Shasha, RTSS 1992), for rows that are worth 1 each.

Admitted (privileged) rows are processed by deadline while all of them fit. A row that does not fit waits. When it must begin or be lost, it
takes the processor only if it is worth more than (1 + sqrt(k)) times all admitted rows, where k is the greatest ratio of value densities.
With rows of equal value this never happens, so a row that did not fit at its arrival runs only if the processor becomes idle. A row that
has begun is always finished, because rows take microseconds.
"""

import heapq
import math

import numpy as np

from sbon.deadline_scheduling.interface import NOTHING, Costs, Lost
from sbon.types import FloatArray, IntArray


class Dover:
    """Admits rows that fit, in the order of arrival. Other rows wait for an idle processor until their latest start."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._admitted: list[tuple[float, int, float, float]] = []
        """Heap of deadline, row, cost, and time available to other rows before it."""
        self._others: list[tuple[float, int, float]] = []
        """Heap of deadline, row and cost."""
        self._latest_starts: list[tuple[float, int]] = []
        self._available_s = math.inf
        """Time for which the admitted rows can be put off."""
        self._at_s = 0.0
        self._gone: set[int] = set()
        self._lost = Lost()

    @property
    def factor(self) -> float:
        """Returns the factor by which a waiting row must be worth more than all admitted rows to take the processor."""
        ratio = float(self._costs.of_class.max() / self._costs.of_class.min())
        return 1 + math.sqrt(ratio)

    def release(self, rows: IntArray, deadline_s: FloatArray, cost_class: IntArray, now_s: float) -> None:
        """Admits rows that fit besides the admitted ones; the others wait."""
        for deadline, row, cost in zip(deadline_s.tolist(), rows.tolist(), self._costs.of_class[cost_class].tolist(), strict=True):
            slack = deadline - now_s - cost
            if slack < 0:
                self._gone.add(row)
                self._lost.add(np.array([row], dtype=np.int64))
            elif not self._admitted:
                self._available_s = slack
                heapq.heappush(self._admitted, (deadline, row, cost, slack))
            elif deadline < self._admitted[0][0] and self._available_s >= cost:
                self._available_s = min(self._available_s - cost, slack)
                heapq.heappush(self._admitted, (deadline, row, cost, self._available_s))
            else:
                heapq.heappush(self._others, (deadline, row, cost))
                heapq.heappush(self._latest_starts, (deadline - cost, row))

    def next(self, now_s: float) -> IntArray:
        """Returns the admitted row with the earliest deadline; if there is none, the earliest waiting row that can still be in time."""
        self._expire(now_s)
        self._drop_gone()
        if self._admitted:
            # A waiting row runs first if it is more urgent and all admitted rows can wait for it.
            if self._others and self._others[0][0] < self._admitted[0][0]:
                deadline, row, cost = self._others[0]
                if self._slack(now_s) >= cost and deadline - now_s >= cost:
                    heapq.heappop(self._others)
                    self._gone.add(row)
                    return np.array([row], dtype=np.int64)
            _, row, _, _ = heapq.heappop(self._admitted)
            if self._admitted:
                self._available_s = self._slack(now_s)
            return np.array([row], dtype=np.int64)
        if self._others:
            _, row, _ = heapq.heappop(self._others)
            self._gone.add(row)
            return np.array([row], dtype=np.int64)
        self._available_s = math.inf
        return NOTHING

    def _slack(self, now_s: float) -> float:
        """Returns the time for which the most urgent admitted row can wait. Each was admitted only if the later ones could wait for it."""
        deadline, _, cost, available = self._admitted[0]
        return min(deadline - now_s - cost, available)

    def _expire(self, now_s: float) -> None:
        """Leaves out waiting rows whose latest start has passed. Each is worth 1, so never `factor` times the admitted rows."""
        lost = []
        while self._latest_starts and self._latest_starts[0][0] < now_s:
            _, row = heapq.heappop(self._latest_starts)
            if row not in self._gone:
                self._gone.add(row)
                lost.append(row)
        self._lost.add(np.array(lost, dtype=np.int64))

    def _drop_gone(self) -> None:
        while self._others and self._others[0][1] in self._gone:
            heapq.heappop(self._others)

    def take_lost(self) -> IntArray:
        """Returns the rows whose latest start has passed since the last call."""
        return self._lost.take()
