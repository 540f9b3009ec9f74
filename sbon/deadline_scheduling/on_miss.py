"""Chooses which rows of the batches that wait at an operator would be late, for queries with `on_miss = 'shed'` or `'defer'`.

The rows are processed in the order of their links; this module only decides which are left out, by `Cells` over all waiting rows.

The cost of a row is measured: the time from one task to the next while rows wait, divided by the rows processed. So it includes the time of
the host's other operators and the waits for a slow consumer. With several classes (for example rows whose state is in memory and rows whose
state is on disk), their relative costs are those that best explain the times of some hundred tasks: least squares, pulled a little towards
one cost for all. If no row of a class has been processed for long, its cost is pulled to the others' cost, so that the class is tried
again.

If all rows were left out because a cost was wrong, nothing would correct that cost. So a cost is halved if no row has been processed for as
long as the bound.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sbon.deadline_scheduling.cells import Cells
from sbon.deadline_scheduling.interface import Costs
from sbon.types import IntArray, LinkId

UNITS = 50
"""Number of different deadlines within one bound."""
_COST_S_MIN = 1e-12
_MARGIN = 0.1
"""Rows should be done this share of the bound early: some work takes longer than expected."""
_WEIGHT = 0.125
"""Weight of the latest task in the cost of a row."""
_SLOW_WEIGHT = 1 / 64
"""Weight of the latest task in the relative costs of classes."""
_DAMPING = 2e-4
"""Weight of one cost for all classes, relative to the weight of the tasks. More: less noise, but classes are distinguished later if all
tasks are alike."""
_RATIO_MIN = 0.01
"""Least cost of a class, relative to the mean of all rows."""


class _Batch(msgspec.Struct, eq=False):
    """A batch that waits."""

    first: int
    """Number of its first row."""
    deadline_s: float
    cost_class: IntArray
    """Class of each row."""
    late: npt.NDArray[np.bool_]
    """True for rows that are left out, and for rows that are not decided yet."""


class LateRows:
    """Decides which of the rows that wait at one operator would exceed the query's bound.

    Parameters
    ----------
    latency_s : the query's bound
    fairness : limits the losses of a class (`Cells`)
    classes : number of cost classes

    Examples
    --------
    Three batches of ten rows, 1 ms a row, must be done within 28 ms less a tenth: six rows cannot be.

    >>> late = LateRows(0.028)
    >>> late.took(0.010, [10], now_s=0.0)
    >>> for number in (1, 2, 3):
    ...     late.wait("link", number, 10, stimulus_s=0.0, now_s=0.0)
    >>> [late.of("link", number, 0, 10, now_s=0.0)[0].size for number in (1, 2, 3)]
    [6, 0, 0]
    """

    def __init__(self, latency_s: float, fairness: float = 0.0, *, classes: int = 1) -> None:
        self._costs = Costs([_COST_S_MIN] * classes)
        self._cells = Cells(self._costs, latency_s / UNITS, fairness=fairness)
        self._latency_s = latency_s
        self._tasks, self._worked_at_s = 0, -math.inf
        self._took_s = 0.0
        self._rows = np.zeros(classes)
        self._products = np.zeros((classes, classes))
        self._seconds = np.zeros(classes)
        """Means over tasks of the products of the rows of two classes, and of rows and seconds."""
        self._begin: dict[tuple[LinkId, int], _Batch] = {}
        self._next = 0
        self.since_s: float | None = None
        """When the last task ended, if rows were waiting then."""

    def knows(self, link: LinkId, batch: int) -> bool:
        """Tells whether `wait` was called for a batch that has not left yet."""
        return (link, batch) in self._begin

    def wait(self, link: LinkId, batch: int, rows: int, stimulus_s: float, now_s: float, cost_class: IntArray | None = None) -> None:
        """Adds the rows of a waiting batch, with their cost classes if there are several."""
        if cost_class is None:
            cost_class = np.zeros(rows, dtype=np.int64)
        deadline_s = stimulus_s + (1 - _MARGIN) * self._latency_s
        self._begin[link, batch] = _Batch(self._next, deadline_s, cost_class, np.ones(rows, dtype=np.bool_))
        numbers = np.arange(self._next, self._next + rows)
        self._next += rows
        self._cells.release(numbers, np.full(rows, deadline_s), cost_class, now_s)
        self._cells.take_lost()

    def of(self, link: LinkId, batch: int, begin: int, end: int, now_s: float) -> tuple[IntArray, IntArray]:
        """Returns which of the rows from `begin` to below `end` of a batch are left out, as places, and their classes. None of these rows
        waits any more.

        A repeated call for the same rows returns the same result, because a task may have to be repeated.
        """
        waiting = self._begin[link, batch]
        kept = self._cells.take(waiting.first + begin, waiting.first + end, waiting.deadline_s, now_s)
        self._cells.take_lost()
        waiting.late[kept - waiting.first] = False
        places = begin + np.flatnonzero(waiting.late[begin:end])
        return places, waiting.cost_class[places]

    def counted(self, kinds: Sequence[IntArray]) -> IntArray:
        """Returns the number of rows of each cost class."""
        return np.bincount(np.concatenate(kinds), minlength=len(self._costs.of_class))

    def classes(self, link: LinkId, batch: int, begin: int, end: int) -> IntArray:
        """Returns the number of rows of each class among the rows from `begin` to below `end` of a waiting batch."""
        return self.counted([self._begin[link, batch].cost_class[begin:end]])

    def left(self, link: LinkId, batches: Iterable[int]) -> None:
        """Forgets batches that have been processed."""
        for batch in batches:
            self._begin.pop((link, batch), None)

    def took(self, seconds: float, rows: Sequence[int] | IntArray, now_s: float) -> None:
        """Records the duration of a task that ends now, and the rows that it processed of each class (0 for missing classes)."""
        self._tasks, self._worked_at_s = self._tasks + 1, now_s
        counts = np.zeros(len(self._rows))
        counts[: len(rows)] = rows
        weight, slow = max(_WEIGHT, 1 / self._tasks), max(_SLOW_WEIGHT, 1 / self._tasks)
        self._took_s += weight * (seconds - self._took_s)
        self._rows += weight * (counts - self._rows)
        if len(counts) > 1:
            self._products += slow * (np.outer(counts, counts) - self._products)
            self._seconds += slow * (counts * seconds - self._seconds)
        self._estimate()

    def gave_none(self, now_s: float) -> bool:
        """Halves the costs if all rows have been left out for as long as the bound; returns True if it did."""
        if now_s - self._worked_at_s <= self._latency_s:
            return False
        self._worked_at_s = now_s
        self._took_s /= 2
        self._estimate()
        return True

    def _estimate(self) -> None:
        rows = float(self._rows.sum())
        if not rows:
            return
        costs = np.ones(len(self._rows))
        if len(costs) > 1:
            mean_s = float(self._seconds.sum() / self._products.sum())
            weight = _DAMPING * self._products.trace() * np.eye(len(costs))
            costs += np.linalg.solve(self._products + weight, self._seconds / mean_s - self._products @ costs)
            costs = np.maximum(costs, _RATIO_MIN)
        self._costs.of_class[:] = np.maximum(costs * (self._took_s / (costs @ self._rows)), _COST_S_MIN)
