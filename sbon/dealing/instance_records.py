"""A splitter's knowledge of its instances: their open windows with their rows, and their reports.

It holds all numbers that dealers read, so that a query's splitter and the evaluation in virtual time can use the same dealers.
"""

from array import array
from collections import deque

import msgspec

from sbon.cost.overlap import OverlapFit, OverlapLaw
from sbon.errors import ShapeError

INSTANCES_MAX = 256
FINISHED_MAX = 65_536
REFIT = 64
"""Number of finished rows after which the law of costs is fitted again."""


class Window(msgspec.Struct, frozen=True, array_like=True):
    """An open window."""

    opened_s: float
    closes_s: float
    """When it should close."""
    mark: int
    """Counted rows of the whole stream before it opened."""


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A row that an instance has been sent, with what it costs there."""

    done_s: float
    """When the instance has finished it."""
    arrived_s: float
    kind: int
    opens: bool
    windows: int
    pairs: float
    """Counted rows that its windows had seen, summed over the windows."""
    spread: float
    """Counted rows that each of its windows had seen, squared and then summed. It shows how much costs in single windows differ."""
    cost_s: float


class InstanceRecord:
    """One instance: its open windows and what waits there."""

    def __init__(self) -> None:
        self.windows: deque[Window] = deque()
        """Open windows, in the order in which they opened."""
        self.closes_s = array("d")
        """When each open window should close. Kept apart from the windows, so that a dealer copies numbers instead of reading objects."""
        self.marks_of = array("q")
        """The mark of each open window."""
        self.open = 0
        self.marks = 0
        """Sum of the marks of its open windows."""
        self.squares = 0
        """Sum of the squares of these marks."""
        self.until_s = float("-inf")
        """When the last of its windows should close."""
        self.busy_until_s = float("-inf")
        """When the instance will have finished all rows sent to it, by its latest report."""
        self.latency_s = 0.0
        """Latency of the row that the instance finished last."""
        self.waiting: deque[Finished] = deque()
        """Rows that the instance has not finished: all of them if the dealer needs queues, otherwise a sample."""

    def opened(self, window: Window) -> None:
        """Notes a window that is dealt to the instance."""
        self.windows.append(window)
        self.closes_s.append(window.closes_s)
        self.marks_of.append(window.mark)
        self.open += 1
        self.marks += window.mark
        self.squares += window.mark * window.mark
        self.until_s = max(self.until_s, window.closes_s)

    def closed(self, window: Window) -> None:
        """Notes that one of its windows has closed."""
        place = 0 if self.windows[0] is window else self.windows.index(window)
        del self.windows[place], self.closes_s[place], self.marks_of[place]
        self.open -= 1
        self.marks -= window.mark
        self.squares -= window.mark * window.mark
        if not self.open:
            self.until_s = float("-inf")

    def pairs(self, seen: int) -> int:
        """Returns the counted rows that its windows have seen, summed over the windows, after `seen` counted rows in the whole stream."""
        return self.open * seen - self.marks

    def spread(self, seen: int) -> int:
        """Returns the sum over its windows of the squared number of counted rows that each has seen."""
        return self.open * seen * seen - 2 * seen * self.marks + self.squares

    def backlog_s(self, now: float) -> float:
        """Returns the work that waits there, in s."""
        return max(0.0, self.busy_until_s - now)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Facts and settings of the operator that a dealer reads."""

    instances: int
    bound_s: float
    """Longest time that a row may spend at an instance, waiting and being processed (LB)."""
    scope_s: float
    """Approximate time for which a window is open."""
    opens: tuple[bool, ...]
    """For each kind of rows, True if it opens a window."""
    closes: tuple[bool, ...]
    """For each kind of rows, True if it ends a window: as many such rows come as windows close."""
    counted: tuple[bool, ...]
    """For each kind of rows, True if windows remember its rows, which are then counted."""
    law: OverlapLaw | None = None
    """Costs of rows, if they are known beforehand; None: they are fitted."""

    def __post_init__(self) -> None:
        if not 1 <= self.instances <= INSTANCES_MAX:
            raise ShapeError(f"{self.instances} instances, expected 1 to {INSTANCES_MAX}")
        if not 0 < self.scope_s < float("inf"):
            raise ShapeError(f"windows of {self.scope_s} s, expected above 0")
        if not 0 < self.bound_s < float("inf"):
            raise ShapeError(f"a bound of {self.bound_s} s, expected above 0")
        if not len(self.opens) == len(self.closes) == len(self.counted):
            raise ShapeError("opens, closes and counted have different numbers of kinds, expected equal numbers")


class InstanceRecords:
    """All instances of one operator, and what its rows cost.

    Parameters
    ----------
    setting : facts and settings of the operator; if it has a law, none is fitted
    """

    def __init__(self, setting: Setting) -> None:
        self.of = [InstanceRecord() for _ in range(setting.instances)]
        self.seen = 0
        """Counted rows of the whole stream so far."""
        self.finished: deque[Finished] = deque(maxlen=FINISHED_MAX)
        """Rows whose cost has been reported, but not read yet."""
        self.law = setting.law
        """Costs of rows; None until enough rows of each kind have been measured."""
        self._fit = OverlapFit(setting.counted) if setting.law is None else None
        self._next = 0

    def settle(self, now: float) -> None:
        """Moves rows that are finished by now from the queues to `finished`."""
        for record in self.of:
            waiting = record.waiting
            while waiting and waiting[0].done_s <= now:
                row = waiting.popleft()
                record.latency_s = row.done_s - row.arrived_s
                self.finished.append(row)

    def learn(self, now: float) -> OverlapLaw | None:
        """Fits the law to the rows that have been finished, and returns it."""
        if self._fit is not None:
            self.settle(now)
            for row in self.finished:
                self._fit.took(row.kind, row.opens, row.windows, row.pairs, row.cost_s)
            self.finished.clear()
            if self._fit.is_known and self._fit.taken >= self._next:
                self.law = self._fit.law()
                self._next = self._fit.taken + min(REFIT, 1 + self._fit.taken // 4)
        return self.law
