"""Chooses which rows of the batches that wait at an operator would be late, for queries with `on_miss = 'shed'` or `'defer'`.

The rows are taken in the order of their links, as always; only which of them are left out is decided here, by `Cells` over all that waits.
The cost of a row is measured: time from one task to the next while rows wait, divided by the rows worked on. So it has in it what other
operators of the host take, and what a slow consumer makes this one wait. With several classes, such as rows whose state is in memory and
rows whose state is on disk, their costs relative to each other are those that explain the times of some hundred tasks best (least squares,
drawn a little towards one cost for all). A class of which no row has been worked on for long is drawn to the others' cost, so that it is
tried again.

If all rows were left out because a cost was wrong, nothing would ever correct that cost: so where none has been worked on for as long as
the bound, the cost is halved.
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
"""Deadlines that are told apart within one bound."""
_COST_S_MIN = 1e-12
_MARGIN = 0.1
"""Share of the bound before its end at which rows should be done: as many wait as can be done by then, and some work takes longer."""
_WEIGHT = 0.125
"""Weight of the latest task in the cost of a row."""
_SLOW_WEIGHT = 1 / 64
"""Weight of the latest task in what classes cost relative to each other."""
_DAMPING = 2e-4
"""Weight of one cost for all classes, relative to that of the tasks. More: less noise, and later told apart where all tasks are alike."""
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
    """Rows that are left out; those for which it is not decided yet, too."""


class LateRows:
    """Rows that wait at one operator, with a bound of their latency.

    Parameters
    ----------
    latency_s : bound of the query
    fairness : of what classes lose, as for `Cells`
    classes : of costs

    Examples
    --------
    Three batches of ten rows, of 1 ms each, that must be done within 28 ms of their entry, less a tenth: six of them cannot be.

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
        """Means over tasks: products of the rows of each two classes, and of rows and seconds."""
        self._begin: dict[tuple[LinkId, int], _Batch] = {}
        self._next = 0
        self.since_s: float | None = None
        """When the last task ended, if rows waited then."""

    def knows(self, link: LinkId, batch: int) -> bool:
        """Tells whether `wait` was called for a batch that has not left yet."""
        return (link, batch) in self._begin

    def wait(self, link: LinkId, batch: int, rows: int, stimulus_s: float, now_s: float, cost_class: IntArray | None = None) -> None:
        """Takes the rows of a batch that waits now, with their cost classes if there are several."""
        if cost_class is None:
            cost_class = np.zeros(rows, dtype=np.int64)
        deadline_s = stimulus_s + (1 - _MARGIN) * self._latency_s
        self._begin[link, batch] = _Batch(self._next, deadline_s, cost_class, np.ones(rows, dtype=np.bool_))
        numbers = np.arange(self._next, self._next + rows)
        self._next += rows
        self._cells.release(numbers, np.full(rows, deadline_s), cost_class, now_s)
        self._cells.take_lost()

    def of(self, link: LinkId, batch: int, begin: int, end: int, now_s: float) -> tuple[IntArray, IntArray]:
        """Returns the places of the rows `begin` to `end` of a batch that are left out, and their classes; none of the rows waits on.

        The same is returned again for rows that were asked for before, since a task may have to be repeated.
        """
        waiting = self._begin[link, batch]
        kept = self._cells.take(waiting.first + begin, waiting.first + end, waiting.deadline_s, now_s)
        self._cells.take_lost()
        waiting.late[kept - waiting.first] = False
        places = begin + np.flatnonzero(waiting.late[begin:end])
        return places, waiting.cost_class[places]

    def counted(self, kinds: Sequence[IntArray]) -> IntArray:
        """Returns how many of rows with these cost classes there are of each."""
        return np.bincount(np.concatenate(kinds), minlength=len(self._costs.of_class))

    def classes(self, link: LinkId, batch: int, begin: int, end: int) -> IntArray:
        """Returns how many of the rows `begin` to `end` of a batch that waits there are of each class."""
        return self.counted([self._begin[link, batch].cost_class[begin:end]])

    def left(self, link: LinkId, batches: Iterable[int]) -> None:
        """Forgets batches that have been worked on."""
        for batch in batches:
            self._begin.pop((link, batch), None)

    def took(self, seconds: float, rows: Sequence[int] | IntArray, now_s: float) -> None:
        """Records how long a task took that ends now, and how many rows of each class it worked on; of classes without a number, none."""
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
        """Takes costs to be half of what they seemed, if for as long as the bound all rows have been left out; tells whether it did."""
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
