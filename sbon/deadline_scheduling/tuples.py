"""Algorithm 1: finds a largest set of rows that can all be in time, by removing the most expensive row up to a deadline that does not fit.

This is the rule of Moore and Hodgson (1968), in its plain form over a list, O(m^2). Tests compare the tree and the cells with it.

Source: Latency-constrained analytics, section 4.2, algorithm 1 and proposition 4.1.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sbon.deadline_scheduling.interface import NOTHING, Costs, Lost
from sbon.types import FloatArray, IntArray


class Waiting(NamedTuple):
    """A row that waits."""

    deadline_s: float
    row: int
    cost_s: float


def is_schedulable(rows: Iterable[Waiting], now_s: float) -> bool:
    """Tells whether all rows can be in time: processed in the order of their deadlines, each ends by its deadline."""
    at_s = now_s
    for one in sorted(rows):
        at_s += one.cost_s
        if at_s > one.deadline_s:
            return False
    return True


def largest_schedulable_subset(rows: Sequence[Waiting], now_s: float) -> list[Waiting]:
    """Returns a largest subset whose rows can all be in time, in the order of their deadlines.

    Examples
    --------
    The expensive row is left out, although its deadline is the first.

    >>> [one.row for one in largest_schedulable_subset([Waiting(3.0, 1, 3.0), Waiting(4.0, 2, 2.0), Waiting(4.0, 3, 2.0)], 0.0)]
    [2, 3]
    """
    kept: list[Waiting] = []
    end_s = now_s
    for one in sorted(rows):
        kept.append(one)
        end_s += one.cost_s
        while end_s > one.deadline_s and kept:
            dearest = max(range(len(kept)), key=lambda place: (kept[place].cost_s, -place))
            end_s -= kept.pop(dearest).cost_s
    return kept


class Tuples:
    """Processes a largest set of rows that can be in time, row by row."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._kept: list[Waiting] = []
        self._lost = Lost()

    def release(self, rows: IntArray, deadline_s: FloatArray, cost_class: IntArray, now_s: float) -> None:
        """Adds rows, and leaves out those that do not fit."""
        cost_s = self._costs.of_class[cost_class]
        both = [*self._kept, *map(Waiting, deadline_s.tolist(), rows.tolist(), cost_s.tolist())]
        self._kept = largest_schedulable_subset(both, now_s)
        kept = {one.row for one in self._kept}
        self._lost.add(np.array([one.row for one in both if one.row not in kept], dtype=np.int64))

    def next(self, now_s: float) -> IntArray:
        """Returns the row with the earliest deadline."""
        return np.array([self._kept.pop(0).row], dtype=np.int64) if self._kept else NOTHING

    def take_lost(self) -> IntArray:
        """Returns the rows that were left out since the last call."""
        return self._lost.take()
