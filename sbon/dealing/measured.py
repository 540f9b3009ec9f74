"""Measures, while a query runs, what rows cost at the instances of a splitter, how long they wait there, and how fast event time goes."""

from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from sbon.cost.overlap import OverlapFit, RowLaw

ROWS_MIN = 64
"""Rows between two reports of an instance below which its cost is not measured."""
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
        self._fit = OverlapFit((False,))
        self.row: RowLaw | None = None
        """Cost of a row; a window is an open turn. None until enough is measured."""
        self.rate = 0.0
        """Rows per second."""
        self.speed = 1.0
        """Event time per time of the clock, at least 1."""
        self._told: dict[int, InstanceTold] = {}
        self._begun: tuple[float, float, int] | None = None
        """Clock, event time and rows when the rate was last measured."""
        self._waits: deque[tuple[float, float]] = deque()

    def costs(self, clock_s: float, reports: Mapping[int, InstanceTold], turns: Mapping[int, int]) -> Iterator[tuple[int, float]]:
        """Takes reports by instance; yields instances with the mean cost in s of their rows since the report before.

        Parameters
        ----------
        turns : open turns of each instance
        """
        for number, report in reports.items():
            before = self._told.get(number)
            self._told[number] = report
            self._waits.append((clock_s, report.wait_s))
            if before is not None and report.rows - before.rows >= ROWS_MIN and report.cpu_ns > before.cpu_ns:
                cost_s = (report.cpu_ns - before.cpu_ns) / 1e9 / (report.rows - before.rows)
                self._fit.took(0, False, turns[number], 0.0, cost_s)
                yield number, cost_s
        while self._waits and self._waits[0][0] < clock_s - PEAK_S:
            self._waits.popleft()
        if self._fit.is_known:
            self.row = self._fit.law().kinds[0]

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
    def peak_s(self) -> float:
        """Returns the longest wait lately."""
        return max((wait_s for _, wait_s in self._waits), default=0.0)
