"""Virtual time: a heap of events, and a clock that jumps from one to the next.

Instants are whole nanoseconds, so that sums and comparisons are exact and a run is the same on every machine. Events of one instant happen
in the order in which they were scheduled. No event can be scheduled in the past.
"""

import heapq
import math
from collections.abc import Callable

NS = 1_000_000_000
"""Nanoseconds in a second."""


class Event:
    """A scheduled callback. Satisfies `sbon.ports.Timer`."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Cancels the callback; does nothing if it has run already."""
        self.callback = None


class VirtualTime:
    """The heap and the clock of one world."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        """Number of callbacks so far, as a cheap measure of activity."""
        self._heap: list[tuple[int, int, Event]] = []
        self._order = 0

    @property
    def now_s(self) -> float:
        """Returns the seconds since the world began."""
        return self.now_ns / NS

    def at(self, when_ns: int, callback: Callable[[], None]) -> Event:
        """Schedules a callback at `when_ns`; if that time has passed, now, after the callbacks already due."""
        event = Event(callback)
        self._order += 1
        heapq.heappush(self._heap, (when_ns if when_ns > self.now_ns else self.now_ns, self._order, event))
        return event

    def after(self, delay_ns: int, callback: Callable[[], None]) -> Event:
        """Schedules a callback `delay_ns` from now."""
        return self.at(self.now_ns + delay_ns, callback)

    def step(self, until_ns: int) -> bool:
        """Runs the next callback, if it is due by `until_ns`; otherwise sets the clock to `until_ns` and returns False.

        Exceptions of callbacks propagate: in a virtual world a bug must stop the run, not fill a log.
        """
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            when_ns, _, event = heapq.heappop(heap)
            callback = event.callback
            if callback is None:
                continue
            event.callback = None
            self.now_ns = when_ns
            self.events += 1
            callback()
            return True
        self.now_ns = max(self.now_ns, until_ns)
        return False

    def run_until(self, until_s: float) -> None:
        """Runs every callback due by `until_s` seconds since the start."""
        until_ns = ns(until_s)
        while self.step(until_ns):
            pass

    def run_while(self, condition: Callable[[], bool], until_s: float) -> bool:
        """Runs callbacks as long as `condition()`, checked after each, holds; returns False if it still holds at `until_s`."""
        until_ns = ns(until_s)
        while condition():
            if not self.step(until_ns):
                return not condition()
        return True


def ns(seconds: float) -> int:
    """Converts seconds to whole nanoseconds."""
    return round(seconds * NS)


def ns_not_before(seconds: float) -> int:
    """Returns the first nanosecond whose value in seconds is not below `seconds`.

    A state machine woken early by a rounding error would not be due yet, and would request the same time again.
    """
    value = math.ceil(seconds * NS)
    while value / NS < seconds:
        value += 1
    return value
