"""A recogniser that waits for as long as a story says that a row takes in its windows, in place of one that computes.

Eight instances that compute do not fit on the cores of one machine; eight that wait do. The law of costs is that of the story, divided by
the speed-up, and the windows are those that the instance really has.
"""

import time
from collections import deque
from collections.abc import Callable

from sbon.cost.overlap import OverlapLaw
from sbon.dealing.instance_records import InstanceRecord, Window

WAIT_S_MIN = 0.0005
"""Time that is owed before the recogniser waits, because a shorter wait takes longer than asked for."""


class Recognition:
    """The windows of one instance, and what a row costs in them.

    Parameters
    ----------
    law : costs of rows by kind; kinds beyond these cost nothing and open no window
    opening : kind of the rows that open windows
    within_us : length of a window, in microseconds; a row at its very end is not in it
    speed : costs are divided by this
    """

    def __init__(self, law: OverlapLaw, opening: int, within_us: int, speed: float) -> None:
        self._law, self._opening, self._within_us, self._speed = law, opening, within_us, speed
        self._windows = InstanceRecord()
        self._open: deque[tuple[int, Window]] = deque()
        """Windows with the instant in microseconds at which each is over, in the order in which they opened."""
        self._seen = 0

    def cost_s(self, at_us: int, kind: int, *, may_open: bool) -> float:
        """Returns the cost in s of the next row; rows come in the order of their event times.

        Parameters
        ----------
        may_open : whether a window that the row opens is dealt to this instance
        """
        while self._open and self._open[0][0] <= at_us:
            self._windows.closed(self._open.popleft()[1])
        if kind >= len(self._law.kinds):
            return 0.0
        opens = may_open and kind == self._opening
        if opens:
            window = Window(at_us / 1e6, (at_us + self._within_us) / 1e6, self._seen)
            self._windows.opened(window)
            self._open.append((at_us + self._within_us, window))
        cost_s = 0.0
        if self._windows.open:
            cost_s = self._law.kinds[kind].cost_s(opens, self._windows.open, self._windows.pairs(self._seen)) / self._speed
        if self._law.counted[kind]:
            self._seen += 1
        return cost_s


class Debt:
    """Waits for the time that rows owe. A wait that took too long is taken off the next ones.

    Parameters
    ----------
    sleep, clock : as in `time`
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic) -> None:
        self._sleep, self._clock = sleep, clock
        self._owed_s = 0.0

    def pay(self, cost_s: float) -> float:
        """Owes a cost more, and waits if enough is owed; returns the clock afterwards."""
        self._owed_s += cost_s
        now_s = self._clock()
        if self._owed_s >= WAIT_S_MIN:
            began_s = now_s
            self._sleep(self._owed_s)
            now_s = self._clock()
            self._owed_s -= now_s - began_s
        return now_s
