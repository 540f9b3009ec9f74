"""Measures the processor time of work on a thread, including the work of polars' own threads for it.

The thread's own clock is not enough: polars runs lazy queries and groupings on its threads while the calling thread sleeps. So the clocks
of polars' threads are read too. If they work for several callers at a time, their time is split evenly among the callers; no caller is
charged more than the elapsed time.
"""

import sys
import threading
import time
from pathlib import Path

HELPERS = ("polars-", "async-executor", "tokio-rt")
"""Prefixes of the names of polars' threads."""
SEARCH_INTERVAL_S = 1.0
"""Seconds within which a new polars thread is found; they are started when first needed."""


class CpuMeter:
    """Clocks of polars' threads, and the number of threads that work at present."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working = 0
        self._clocks: tuple[int, ...] = ()
        self._searched_s = -SEARCH_INTERVAL_S

    def begin(self) -> "Lap":
        """Starts to measure this thread; `Lap.end` must follow."""
        now_s = time.monotonic()
        with self._lock:
            self._working += 1
            if now_s - self._searched_s >= SEARCH_INTERVAL_S:
                self._searched_s = now_s
                self._clocks = _helpers()
        return Lap(self)

    def ended(self) -> None:
        """Counts a thread as no longer working."""
        with self._lock:
            self._working -= 1

    def processor_ns(self) -> int:
        """Returns the nanoseconds of processor time of polars' threads so far."""
        return sum(map(_read, _helpers()))

    def helpers(self) -> tuple[int, int]:
        """Returns the nanoseconds of processor time of polars' threads so far, and the number of callers that they work for now, at least
        1."""
        return sum(map(_read, self._clocks)), max(1, self._working)


class Lap:
    """One piece of work on one thread; implements `sbon.ports.Meter`."""

    __slots__ = ("_helped_ns", "_meter", "_own_ns", "_wall_ns")

    def __init__(self, meter: CpuMeter) -> None:
        self._meter = meter
        self._helped_ns, _ = meter.helpers()
        self._own_ns, self._wall_ns = time.thread_time_ns(), time.perf_counter_ns()

    def lap(self, rows: int) -> int:
        """Returns the nanoseconds of processor time since the last call or the beginning; `rows` is not used."""
        own_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        helped_ns, askers = self._meter.helpers()
        used_ns = own_ns - self._own_ns + max(0, helped_ns - self._helped_ns) // askers
        used_ns = min(used_ns, wall_ns - self._wall_ns)
        self._own_ns, self._wall_ns, self._helped_ns = own_ns, wall_ns, helped_ns
        return used_ns

    def end(self) -> None:
        """Ends the lap."""
        self._meter.ended()


class OwnLap:
    """One piece of work without polars threads; implements `sbon.ports.Meter`."""

    __slots__ = ("_own_ns",)

    def __init__(self) -> None:
        self._own_ns = time.thread_time_ns()

    def lap(self, rows: int) -> int:
        """Returns the nanoseconds of this thread's processor time since the last call or the beginning; `rows` is not used."""
        before_ns, self._own_ns = self._own_ns, time.thread_time_ns()
        return self._own_ns - before_ns

    def end(self) -> None:
        """Does nothing."""


def _helpers() -> tuple[int, ...]:
    """Returns the clocks of polars' threads; none if the system has no thread clocks."""
    if sys.platform != "linux":
        return ()
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if name.startswith(HELPERS):
            found.append(_clock(int(task.name)))
    return tuple(found)


def thread_ns(native_id: int) -> int:
    """Returns the nanoseconds of processor time of a thread of this process; 0 if it has ended or the system has no thread clocks."""
    return _read(_clock(native_id)) if sys.platform == "linux" else 0


def _clock(native_id: int) -> int:
    return ~native_id << 3 | 6  # the kernel's clock id for a thread number (CPUCLOCK_SCHED, per thread)


def _read(clock: int) -> int:
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return 0  # the thread has ended
