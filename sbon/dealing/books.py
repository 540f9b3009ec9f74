"""A splitter's knowledge of its instances: their open windows, the rows of these, and the reports of the instances.

It holds all numbers that dealers read, so that the splitter of the overlay and the evaluation in virtual time feed the same dealers.
"""

from array import array
from collections import deque

import msgspec

from sbon.cost.overlap import OverlapFit, OverlapLaw
from sbon.errors import ShapeError

INSTANCES_MAX = 256
FINISHED_MAX = 65_536
REFIT = 64
"""Finished rows after which the law is fitted again."""


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
    """The same with each window's number squared: what costs in single windows differ by."""
    cost_s: float


class Book:
    """One instance: its open windows and what waits there."""

    def __init__(self) -> None:
        self.windows: deque[Window] = deque()
        """Open windows, in the order in which they opened."""
        self.closes_s = array("d")
        """When each of them should close; beside the windows, so that a dealer copies numbers rather than reads objects."""
        self.marks_of = array("q")
        """The mark of each of them."""
        self.open = 0
        self.marks = 0
        """Sum of the marks of its open windows."""
        self.squares = 0
        """Sum of their squares."""
        self.until_s = float("-inf")
        """When the last of its windows should close."""
        self.busy_until_s = float("-inf")
        """When it will have finished all that it has been sent, by its latest report."""
        self.latency_s = 0.0
        """Latency of the row that it finished last."""
        self.waiting: deque[Finished] = deque()
        """Rows that it has not finished: all of them if the dealer needs queues, else a sample."""

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
        """Returns the counted rows that its windows have seen, summed over the windows, after so many in the whole stream."""
        return self.open * seen - self.marks

    def spread(self, seen: int) -> int:
        """Returns the sum over its windows of the squared number of counted rows that each has seen."""
        return self.open * seen * seen - 2 * seen * self.marks + self.squares

    def backlog_s(self, now: float) -> float:
        """Returns the work that waits there, in s."""
        return max(0.0, self.busy_until_s - now)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the operator that a dealer is told."""

    instances: int
    bound_s: float
    """Longest time that a row may wait and be worked on at an instance (LB)."""
    scope_s: float
    """Seconds for which a window is open, about."""
    opens: tuple[bool, ...]
    """Which kinds of rows open a window."""
    closes: tuple[bool, ...]
    """Which kinds of rows are the end of a window: as many come as windows close."""
    counted: tuple[bool, ...]
    """Kinds of rows that windows remember."""
    law: OverlapLaw | None = None
    """Costs of rows, if they are known beforehand; else they are fitted."""

    def __post_init__(self) -> None:
        if not 1 <= self.instances <= INSTANCES_MAX:
            raise ShapeError(f"{self.instances} instances, expected 1 to {INSTANCES_MAX}")
        if not 0 < self.scope_s < float("inf"):
            raise ShapeError(f"windows of {self.scope_s} s, expected above 0")
        if not 0 < self.bound_s < float("inf"):
            raise ShapeError(f"a bound of {self.bound_s} s, expected above 0")
        if not len(self.opens) == len(self.closes) == len(self.counted):
            raise ShapeError("kinds that open, close and count windows differ in number")


class Books:
    """All instances of one operator, and what its rows cost.

    Parameters
    ----------
    setting : what is known of the operator; its law, if it has one, is taken as it is
    """

    def __init__(self, setting: Setting) -> None:
        self.of = [Book() for _ in range(setting.instances)]
        self.seen = 0
        """Counted rows of the whole stream so far."""
        self.finished: deque[Finished] = deque(maxlen=FINISHED_MAX)
        """Rows whose cost has been reported and that nobody has read yet."""
        self.law = setting.law
        """Costs of rows; None until enough rows of each kind have been measured."""
        self._fit = OverlapFit(setting.counted) if setting.law is None else None
        self._next = 0

    def settle(self, now: float) -> None:
        """Moves rows that are finished by now from the queues to `finished`."""
        for book in self.of:
            waiting = book.waiting
            while waiting and waiting[0].done_s <= now:
                row = waiting.popleft()
                book.latency_s = row.done_s - row.arrived_s
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
