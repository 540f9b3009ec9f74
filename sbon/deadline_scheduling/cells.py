"""Algorithm 1 over a table of counts, with coarse deadlines and classes of costs. Decides for a whole batch at once, in some ns a row.

A cell holds the rows of one class whose deadlines fall into the same unit of time. The tree of `sbon.deadline_scheduling.tree` decides row
by row. Here, a running sum over at most some dozens of deadlines replaces it: if the work up to a deadline exceeds the time until then, as
many rows of the most expensive class up to that deadline are left out as needed. Deadlines are rounded down, so that no row gets too much
time.

`fairness` limits the losses of a class. Suppose that all classes lost the same share of their rows due by a deadline: each class then keeps
a certain share. With `fairness`, each class keeps at least `fairness` times that share.

The order is not by deadline alone, unlike in the paper. For the rows that are here, all orders that keep all deadlines are equally good.
For rows that may still come, it is better to have done cheap rows and to have expensive rows left, which can still be left out. And while
rows have been lost lately, expensive rows that must run now or never are left out if cheaper rows wait: otherwise a backlog of cheap rows
would last until the next burst, and each expensive row would then cost several cheap ones.
"""

import math
from collections import deque

import numpy as np

from sbon.deadline_scheduling.interface import NOTHING, Costs, Lost
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

_WATCHED_UNITS = 12.0
"""Units of time over which arriving work is averaged."""
_SMALL_MAX = 2**15
_REMEMBERED_UNITS = 100.0
"""Units of time for which a loss counts as a sign that more rows come than there is time for."""


class Cells:
    """Processes a largest set of rows that can be in time, cell by cell.

    Parameters
    ----------
    costs : cost of a row of each class
    unit_s : unit to which deadlines are rounded: a tenth of the bound or less
    quantum_s : most work that `next` returns at once; 0: an eighth of a unit
    expects_more : whether a loss is a sign that more rows come than there is time for; if False, only rows that are here count
    fairness : 0: the most expensive classes lose first; 1: all classes lose the same share

    Raises
    ------
    ShapeError
        A number is out of range.
    """

    def __init__(self, costs: Costs, unit_s: float, *, quantum_s: float = 0.0, fairness: float = 0.0, expects_more: bool = True) -> None:
        if not 0 < unit_s < math.inf or not 0 <= quantum_s < math.inf or not 0 <= fairness <= 1:
            raise ShapeError(f"unit {unit_s} s, quantum {quantum_s} s, fairness {fairness}, expected above 0, and 0 to 1")
        self._costs, self._unit_s, self._quantum_s, self._fairness = costs, unit_s, quantum_s or unit_s / 8, fairness
        self._classes = len(costs.of_class)
        self._expects_more = expects_more
        self._first = 0
        """Number of the deadline in the table's first row."""
        self._cells: deque[list[deque[IntArray]]] = deque()
        self._table = np.zeros((3, 0, self._classes), dtype=np.int64)
        """Numbers of rows that wait, that have arrived, and that have been returned for processing, by deadline and class."""
        self._deadlines_s = np.zeros(0)
        self._lost_at_s = -math.inf
        self._work_per_s = self._fresh_s = self._watched_s = 0.0
        self._lost = Lost()

    @property
    def _counts(self) -> IntArray:
        counts: IntArray = self._table[0]
        return counts

    @property
    def waiting(self) -> int:
        """Returns the number of rows that wait."""
        return int(self._counts.sum())

    def release(self, rows: IntArray, deadline_s: FloatArray, cost_class: IntArray, now_s: float) -> None:
        """Sorts rows into their cells, and leaves out rows that do not fit."""
        if rows.size:
            self._watch(cost_class, now_s)
            least, greatest = int(deadline_s.min() * (1 / self._unit_s)), int(deadline_s.max() * (1 / self._unit_s))
            self._cover(least, greatest)
            cell = cost_class
            if greatest > least:
                cell = ((deadline_s * (1 / self._unit_s)).astype(np.int64) - least) * self._classes + cost_class
            counts = np.bincount(cell, minlength=(greatest - least + 1) * self._classes)
            if int(counts.max()) == rows.size:
                ordered = rows.copy()
            else:
                # A stable sort of small integers is a radix sort, which takes linear time.
                ordered = rows[np.argsort(cell.astype(np.int16 if counts.size < _SMALL_MAX else np.int64), kind="stable")]
            at, offset = 0, least - self._first
            for place in np.flatnonzero(counts).tolist():
                size = int(counts[place])
                self._cells[offset + place // self._classes][place % self._classes].append(ordered[at : at + size])
                at += size
            table = counts.reshape(-1, self._classes)
            self._table[:2, offset : offset + len(table)] += table
        self._leave_out(now_s)

    def next(self, now_s: float) -> IntArray:
        """Returns at most a quantum of work: the cheapest rows that leave all others enough time, the earliest deadline first."""
        costs = self._costs.of_class
        while True:
            self._drop_empty()
            if not self._cells:
                return NOTHING
            slack_s = self._deadlines_s - now_s - (self._counts @ costs).cumsum()
            if slack_s.min() < -1e-12:
                self._leave_out(now_s)
                continue
            chosen = self._chosen(slack_s)
            if chosen is None:
                return NOTHING
            place, cost_class, most = chosen
            if self._is_in_the_way(place, cost_class, now_s):
                continue
            taken = self._taken(place, cost_class, most)
            self._table[2, place, cost_class] += taken.size
            return taken

    def take(self, first: int, end: int, deadline_s: float, now_s: float) -> IntArray:
        """Removes and returns those of the rows from `first` to below `end` that can be in time.

        For callers that process rows in their own order instead of calling `next`.

        Parameters
        ----------
        first, end : numbers of rows that were released together, with the same deadline
        """
        self._leave_out(now_s)
        place = int(deadline_s * (1 / self._unit_s)) - self._first
        if not 0 <= place < len(self._cells):
            return NOTHING  # no row with this deadline is left
        found = []
        for cost_class, cell in enumerate(self._cells[place]):
            for _ in range(len(cell)):
                rows = cell.popleft()
                begin, until = np.searchsorted(rows, (first, end))
                if begin < until:
                    found.append(rows[begin:until])
                    self._table[:, place, cost_class] += (begin - until, 0, until - begin)
                    rows = np.concatenate([rows[:begin], rows[until:]])
                if rows.size:
                    cell.append(rows)
        if place == 0:
            self._drop_empty()
        return np.sort(np.concatenate(found)) if found else NOTHING

    def _drop_empty(self) -> None:
        """Removes the first deadlines without waiting rows."""
        empty = 0
        while empty < len(self._cells) and not any(self._cells[empty]):
            empty += 1
        if empty:
            self._drop(empty)

    def _chosen(self, slack_s: FloatArray) -> tuple[int, int, int] | None:
        """Returns the deadline, the class and the greatest number of the rows to process."""
        costs = self._costs.of_class.tolist()
        for cost_class in sorted(range(self._classes), key=costs.__getitem__):
            place = next((place for place, cells in enumerate(self._cells) if cells[cost_class]), None)
            if place is None:
                continue
            if place == 0:
                return place, cost_class, max(1, int((self._quantum_s + 1e-12) / costs[cost_class]))
            # As many rows as the earlier deadlines can wait for.
            most = int((max(0.0, min(self._quantum_s, float(slack_s[:place].min()))) + 1e-12) / costs[cost_class])
            if most > 0:
                return place, cost_class, most
        return None

    def _is_in_the_way(self, place: int, cost_class: int, now_s: float) -> bool:
        """Leaves out expensive rows that must run now or never, if cheaper rows wait and rows have been lost lately."""
        if not self._expects_more or now_s - self._lost_at_s > _REMEMBERED_UNITS * self._unit_s:
            return False
        costs = self._costs.of_class.tolist()
        cheaper = [other for other in range(self._classes) if costs[other] < costs[cost_class]]
        if not any(cells[other] for other in cheaper for cells in self._cells):
            return False
        most = int(self._spare(place)[place, cost_class])
        if most <= 0:
            return False
        self._lost.add(self._taken(place, cost_class, most))
        return True

    def take_lost(self) -> IntArray:
        """Returns the rows that were left out since the last call."""
        return self._lost.take()

    def _watch(self, cost_class: IntArray, now_s: float) -> None:
        """Measures how much work arrives in a second, averaged over some units of time."""
        if not self._fairness:
            return
        self._fresh_s += float((np.bincount(cost_class, minlength=self._classes) * self._costs.of_class).sum())
        passed_s = now_s - self._watched_s
        if passed_s > 0:
            share = 1 - math.exp(-passed_s / (_WATCHED_UNITS * self._unit_s))
            self._work_per_s += share * (self._fresh_s / passed_s - self._work_per_s)
            self._fresh_s, self._watched_s = 0.0, now_s

    # ---- the table

    def _cover(self, least: int, greatest: int) -> None:
        """Makes the table long enough for deadlines of these numbers."""
        if not self._cells:
            self._first = least
        before = max(0, self._first - least)
        after = max(0, greatest - self._first - len(self._cells) + 1)
        for _ in range(before):
            self._cells.appendleft([deque() for _ in range(self._classes)])
        for _ in range(after):
            self._cells.append([deque() for _ in range(self._classes)])
        self._first -= before
        if before or after:
            empty = np.zeros((3, before + after, self._classes), dtype=np.int64)
            self._table = np.concatenate([empty[:, :before], self._table, empty[:, before:]], axis=1)
            self._number()

    def _drop(self, places: int) -> None:
        """Removes the first `places` deadlines, for which no row waits."""
        for _ in range(places):
            self._cells.popleft()
        self._first += places
        self._table = self._table[:, places:]
        self._number()

    def _number(self) -> None:
        self._deadlines_s = (self._first + np.arange(len(self._cells), dtype=np.float64)) * self._unit_s

    def _taken(self, place: int, cost_class: int, most: int) -> IntArray:
        """Removes and returns rows of a cell, the oldest first."""
        parts, cell, left = [], self._cells[place][cost_class], most
        while cell and left > 0:
            if cell[0].size <= left:
                part = cell.popleft()
            else:
                part, cell[0] = cell[0][:left], cell[0][left:]
            parts.append(part)
            left -= part.size
        taken = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NOTHING
        self._counts[place, cost_class] -= taken.size
        return taken

    def _leave_out(self, now_s: float) -> None:
        """Leaves out rows until all others fit: algorithm 1 over counts."""
        costs = self._costs.of_class
        ends_s = now_s + (self._counts @ costs).cumsum()
        deadlines_s, freed_s = self._deadlines_s, 0.0
        for place in np.flatnonzero(ends_s > deadlines_s).tolist():
            excess_s = float(ends_s[place]) - freed_s - float(deadlines_s[place])
            if excess_s > 1e-12:
                freed_s += self._free(place, excess_s, now_s)

    def _free(self, place: int, excess_s: float, now_s: float) -> float:
        """Leaves out rows up to a deadline until their work is at least `excess_s`; returns that work in seconds."""
        costs, freed_s = self._costs.of_class, 0.0
        self._lost_at_s = now_s
        spare = self._spare(place)
        for table in (spare, self._counts) if self._fairness else (spare,):
            for cost_class in np.argsort(-costs, kind="stable").tolist():
                wanted = math.ceil((excess_s - freed_s) / float(costs[cost_class]) - 1e-9)
                for earlier in np.flatnonzero(table[: place + 1, cost_class]).tolist():
                    if wanted <= 0:
                        break
                    lost = self._taken(earlier, cost_class, min(wanted, int(table[earlier, cost_class])))
                    self._lost.add(lost)
                    wanted -= lost.size
                    freed_s += lost.size * float(costs[cost_class])
                if freed_s >= excess_s - 1e-12:
                    return freed_s
        return freed_s

    def _spare(self, place: int) -> FloatArray:
        """Returns how many rows of each cell up to a deadline may be left out under `fairness`, (place + 1, classes)."""
        counts, arrived, done = self._table[:, : place + 1]
        if not self._fairness:
            return np.asarray(counts, dtype=np.float64)
        share = self._fairness / max(1.0, self._work_per_s)  # of the rows kept if all classes lost the same share
        return np.asarray(np.clip(counts - np.round(share * arrived - done), 0, counts))
