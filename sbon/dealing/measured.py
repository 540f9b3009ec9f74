"""Measures, while a query runs, what rows cost at the instances of a splitter, how long they wait there, and how fast event time goes."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np

from sbon.cost.least_squares import least_squares_from_zero
from sbon.cost.overlap import RowLaw

ROWS_MIN = 64
"""Rows between two reports of an instance below which its cost is not measured."""
KEPT = 0.97
"""Share of its weight that a measurement keeps at each later one. Each is a mean of many rows, so few of them are enough, and costs change
while a query begins."""
SAMPLES_MIN = 8
_RIDGE = np.array([0.03, 1e-6])
"""Penalty on both costs. If instances always have equally many turns, the cost is attributed to the turns, as it is divided then."""
PEAK_S = 60.0
"""Time for which a wait counts as the peak."""
PACE_S_MIN = 1.0
"""Least time over which a rate is measured."""


class InstanceTold(msgspec.Struct, frozen=True):
    """The report of an instance, about once a second."""

    rows: int
    """Rows that it has taken since it began."""
    cpu_ns: int
    """Processor time for these."""
    waiting: int
    """Rows that wait at it."""
    wait_s: float
    """For how long the oldest of them has been in the overlay; 0 if none waits."""


class Measured:
    """Statistics of reports."""

    def __init__(self) -> None:
        self._squares, self._products, self._samples = np.zeros((2, 2)), np.zeros(2), 0
        self.row: RowLaw | None = None
        """Cost of a row; a window is an open turn. None until enough is measured."""
        self.rate = 0.0
        """Rows per second."""
        self.speed = 1.0
        """Event time per time of the clock, at least 1."""
        self._told: dict[int, tuple[float, InstanceTold]] = {}
        """The report since which the next cost is measured, with the clock."""
        self._begun: tuple[float, float, int] | None = None
        """Clock, event time and rows when the rate was last measured."""
        self._waits: deque[tuple[float, float]] = deque()

    def costs(
        self, clock_s: float, reports: Mapping[int, InstanceTold], turns: Callable[[int], float]
    ) -> Iterator[tuple[int, float, float]]:
        """Takes reports by instance; yields instances with the mean cost in s of their rows since they were yielded last, and the mean
        number of turns that were open for these rows.

        Parameters
        ----------
        turns : returns that number for the rows that an instance has taken since the last call
        """
        for number, report in reports.items():
            self._waits.append((clock_s, report.wait_s))
            before_s, before = self._told.setdefault(number, (clock_s, report))
            rows = report.rows - before.rows
            if rows < 0 or report.cpu_ns < before.cpu_ns:  # it was made again
                self._told[number] = clock_s, report
                turns(number)
            elif rows >= ROWS_MIN:
                self._told[number] = clock_s, report
                cost_s = (report.cpu_ns - before.cpu_ns) / 1e9 / rows
                if report.wait_s >= clock_s - before_s:
                    # It has never been idle since. It may get less than a processor, as others use the machine, too.
                    cost_s = max(cost_s, (clock_s - before_s) / rows)
                open_turns = turns(number)
                self._took(rows, open_turns, cost_s)
                yield number, cost_s, open_turns
        while self._waits and self._waits[0][0] < clock_s - PEAK_S:
            self._waits.popleft()

    def _took(self, rows: int, turns: float, cost_s: float) -> None:
        """Fits both costs to the mean cost of rows. Errors count by rows, not by their ratio to the cost, so that the mean is right: queues
        follow it."""
        inputs = np.array([1.0, turns])
        self._squares = KEPT * self._squares + rows * inputs[:, None] * inputs
        self._products = KEPT * self._products + rows * cost_s * inputs
        self._samples += 1
        if self._samples >= SAMPLES_MIN:
            scale = np.sqrt(np.diag(self._squares))
            matrix = self._squares / np.outer(scale, scale) + np.diag(_RIDGE)
            row_s, turn_s = (least_squares_from_zero(matrix, self._products / scale) / scale).tolist()
            self.row = RowLaw(row_s=row_s, window_s=turn_s)

    def pace(self, clock_s: float, event_s: float, rows: int) -> None:
        """Takes the clock, the event time, and the number of rows so far."""
        if self._begun is None:
            self._begun = clock_s, event_s, rows
        clock_before, event_before, rows_before = self._begun
        if clock_s - clock_before >= PACE_S_MIN:
            self.speed = max(1.0, (event_s - event_before) / (clock_s - clock_before))
            self.rate = (rows - rows_before) / (clock_s - clock_before)
            self._begun = clock_s, event_s, rows

    @property
    def way_s(self) -> float:
        """Returns the least age of waiting rows lately: the time that they take to get to an instance, at least."""
        return min((wait_s for _, wait_s in self._waits if wait_s > 0), default=0.0)

    @property
    def peak_s(self) -> float:
        """Returns the longest wait lately."""
        return max((wait_s for _, wait_s in self._waits), default=0.0)
