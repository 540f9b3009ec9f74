"""Processor time of work on this thread, with what polars does for it on threads of its own.

The thread's own clock is not enough: polars runs lazy queries and groupings on its threads, while the one that asked sleeps. So the clocks
of those are read too. What they do at one time for several askers is split evenly among them; nothing is charged more than the time that
went by.
"""

import sys
import threading
import time
from pathlib import Path

HELPERS = ("polars-", "async-executor", "tokio-rt")
"""How the names of polars' threads begin."""
SEARCH_INTERVAL_S = 1.0
"""Helpers are started when first needed; a new one is found within this time."""


class CpuMeter:
    """Counts for all threads that work at present."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working = 0
        self._clocks: tuple[int, ...] = ()
        self._searched_s = -SEARCH_INTERVAL_S

    def begin(self) -> "Lap":
        """This thread begins to work; `Lap.end` must follow on it."""
        now_s = time.monotonic()
        with self._lock:
            self._working += 1
            if now_s - self._searched_s >= SEARCH_INTERVAL_S:
                self._searched_s = now_s
                self._clocks = _helpers()
        return Lap(self)

    def ended(self) -> None:
        """A thread does not work any more."""
        with self._lock:
            self._working -= 1

    def helpers(self) -> tuple[int, int]:
        """Nanoseconds that polars' threads have worked so far, and for how many askers they work now."""
        return sum(map(_read, self._clocks)), max(1, self._working)


class Lap:
    """One piece of work on one thread. Satisfies `sbon_agent.host.Meter`."""

    __slots__ = ("_helped_ns", "_meter", "_own_ns", "_wall_ns")

    def __init__(self, meter: CpuMeter) -> None:
        self._meter = meter
        self._helped_ns, _ = meter.helpers()
        self._own_ns, self._wall_ns = time.thread_time_ns(), time.perf_counter_ns()

    def lap(self, rows: int) -> int:
        """Nanoseconds of processor time since the last call or the beginning; `rows` does not matter here."""
        own_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        helped_ns, askers = self._meter.helpers()
        used_ns = own_ns - self._own_ns + max(0, helped_ns - self._helped_ns) // askers
        used_ns = min(used_ns, wall_ns - self._wall_ns)
        self._own_ns, self._wall_ns, self._helped_ns = own_ns, wall_ns, helped_ns
        return used_ns

    def end(self) -> None:
        """The work is done."""
        self._meter.ended()


class OwnLap:
    """One piece of work that nobody helps with. Satisfies `sbon_agent.host.Meter`."""

    __slots__ = ("_own_ns",)

    def __init__(self) -> None:
        self._own_ns = time.thread_time_ns()

    def lap(self, rows: int) -> int:
        """Nanoseconds of this thread's processor time since the last call or the beginning; `rows` does not matter here."""
        before_ns, self._own_ns = self._own_ns, time.thread_time_ns()
        return self._own_ns - before_ns

    def end(self) -> None:
        """The work is done."""


def _helpers() -> tuple[int, ...]:
    """Clocks of polars' threads, where the system has such."""
    if sys.platform != "linux":
        return ()
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if name.startswith(HELPERS):
            found.append(~int(task.name) << 3 | 6)  # as the kernel makes a thread's clock of its number (CPUCLOCK_SCHED, per thread)
    return tuple(found)


def _read(clock: int) -> int:
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return 0  # the thread has ended
