"""Chooses which rows of the batches that wait at an operator would be late, for queries with `on_miss = 'shed'` or `'defer'`.

The rows are taken in the order of their links, as always; only which of them are left out is decided here, by `Cells` over all that waits.
The cost of a row is measured: time from one task to the next while rows wait, divided by the rows worked on. So it has in it what other
operators of the host take, and what a slow consumer makes this one wait.

If all rows were left out because a cost was wrong, nothing would ever correct that cost: so where none has been worked on for as long as
the bound, the cost is halved.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from sbon.deadline_scheduling.cells import Cells
from sbon.deadline_scheduling.interface import NOTHING, Costs
from sbon.types import IntArray, LinkId

UNITS = 50
"""Deadlines that are told apart within one bound."""
_COST_S_MIN = 1e-12
_MARGIN = 0.1
"""Share of the bound before its end at which rows should be done: as many wait as can be done by then, and some work takes longer."""
_WEIGHT = 0.125
"""Weight of the latest task in the cost of a row."""


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
        self._took_s = np.zeros(classes)
        self._rows = np.zeros(classes)
        self._begin: dict[tuple[LinkId, int], tuple[int, float, IntArray]] = {}
        """For each batch that waits: number of its first row, deadline, and classes of its rows."""
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
        self._begin[link, batch] = (self._next, deadline_s, cost_class)
        numbers = np.arange(self._next, self._next + rows)
        self._next += rows
        self._cells.release(numbers, np.full(rows, deadline_s), cost_class, now_s)
        self._cells.take_lost()

    def of(self, link: LinkId, batch: int, begin: int, end: int, now_s: float) -> tuple[IntArray, IntArray]:
        """Returns the places of the rows `begin` to `end` of a batch that are left out, and their classes; none of the rows waits on."""
        first, deadline_s, cost_class = self._begin[link, batch]
        kept = self._cells.take(first + begin, first + end, deadline_s, now_s)
        self._cells.take_lost()
        late = np.ones(end - begin, dtype=bool)
        late[kept - first - begin] = False
        places = begin + np.flatnonzero(late) if kept.size < late.size else NOTHING
        return places, cost_class[places]

    def counted(self, kinds: Sequence[IntArray]) -> IntArray:
        """Returns how many of rows with these cost classes there are of each."""
        return np.bincount(np.concatenate(kinds), minlength=len(self._costs.of_class))

    def left(self, link: LinkId, batches: Iterable[int]) -> None:
        """Forgets batches that have been worked on."""
        for batch in batches:
            self._begin.pop((link, batch), None)

    def took(self, seconds: float, rows: Sequence[int], now_s: float) -> None:
        """Records how long a task took that ends now, and how many rows of each class it worked on."""
        self._tasks, self._worked_at_s = self._tasks + 1, now_s
        weight = max(_WEIGHT, 1 / self._tasks)
        self._took_s += weight * (seconds * np.array(rows) / sum(rows) - self._took_s)
        self._rows += weight * (np.array(rows) - self._rows)
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
        known = self._rows > 0
        self._costs.of_class[known] = np.maximum(self._took_s[known] / self._rows[known], _COST_S_MIN)
