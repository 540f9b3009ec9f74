"""Measures how busy this machine's processors are, and how much work waits for them. The asyncio host reads it.

load = use + pressure

`use` is the busy share, since the last reading, of the cores that this process may use, 0 to 1. `pressure` is the share of the last ten
seconds in which some task was ready and waited for a core, 0 to 1 ("some avg10" of PSI, Documentation/accounting/psi.rst of Linux). `use`
alone is 1 for a machine with one busy thread per core and for one with ten, although work waits only on the second; and on a machine with
bursts, work waits long before `use` is 1. The sum tells these cases apart: up to 1 if nothing waits, up to 2 if something always does.
Kernels without PSI provide `use` alone.

`free_cores` is the number of cores that other programs leave to this process; the process's own threads do not reduce it.
"""

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from sbon.cost.resources import kernel
from sbon.ports import ProcessorUse
from sbon_agent.logs import structlog

PRESSURE_FILE = Path("/proc/pressure/cpu")
PERIOD_S = 0.5
"""Shortest time between two readings, in seconds: below it the kernel's ticks of 10 ms make the use jump."""

BUSY_NS = 20_000_000
"""Processor time, several of the scheduler's time slices, for which `share_of_core` works."""
SCHEDULE_FILE = Path("/proc/thread-self/schedstat")
REAL_TIME_FILES = Path("/proc/sys/kernel/sched_rt_runtime_us"), Path("/proc/sys/kernel/sched_rt_period_us")
"""Time in each period that the kernel leaves to threads of real-time classes, as long as others wait; -1: all of it."""

log = structlog.get_logger("cpu")


def usable_cores() -> list[int]:
    """Returns the numbers of the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _use_percent() -> float:
    import psutil  # here, because the first load is read a second after the start

    return mean_use(psutil.cpu_percent(None, percpu=True), usable_cores())


def scheduled_ns() -> tuple[int, int] | None:
    """Returns the ns for which this thread has run, and for which it has waited for a core; None if the system does not count them."""
    try:
        ran, waited, _ = SCHEDULE_FILE.read_text(encoding="ascii").split()
        return int(ran), int(waited)
    except (OSError, ValueError):
        return None


def share_of_class(policy: int | None = None, files: tuple[Path, Path] = REAL_TIME_FILES) -> float:
    """Returns the share of a core that threads of a scheduling class may have at most: below 1 for real-time classes, beside
    which other programs must not starve.

    Parameters
    ----------
    policy : scheduling class; None: that of this thread
    """
    if policy is None:
        policy = os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None
    if policy is None or policy not in (os.SCHED_FIFO, os.SCHED_RR):
        return 1.0
    try:
        time_us, period_us = (int(file.read_text(encoding="ascii")) for file in files)
    except (OSError, ValueError):
        return 1.0
    return time_us / period_us if 0 < time_us < period_us else 1.0


def mean_use(percents: Sequence[float], mine: Collection[int]) -> float:
    """Returns the mean use of the cores that this process may use; of all cores if the system numbers them differently.

    Examples
    --------
    >>> mean_use([10.0, 90.0, 50.0], {0, 2}), mean_use([10.0, 90.0], {7})
    (30.0, 50.0)
    """
    kept = [percent for core, percent in enumerate(percents) if core in mine] or list(percents)
    return sum(kept) / len(kept) if kept else 0.0


def share_of_core(
    scheduled_ns: Callable[[], tuple[int, int] | None] = scheduled_ns,
    work: Callable[[], object] = kernel,
    used_ns: Callable[[], int] = time.thread_time_ns,
) -> float | None:
    """Works on this thread for `BUSY_NS` of processor time, and returns the share of a core that it got; None if the system does not tell.

    The waits of mostly idle operators do not show this share, because the scheduler gives precedence to threads that have slept. So little
    work does not meet the limit of its scheduling class, which the share never exceeds.

    Parameters
    ----------
    scheduled_ns : returns the ns for which this thread has run so far, and for which it was ready and waited; None if the system does not
        tell
    work : a piece of work much shorter than `BUSY_NS`
    used_ns : returns the processor time of this thread
    """
    before = now = scheduled_ns()
    until_ns = used_ns() + 2 * BUSY_NS  # some kernels have the file but count nothing
    while before is not None and now is not None and now[0] - before[0] < BUSY_NS and used_ns() < until_ns:
        work()
        now = scheduled_ns()
    if before is None or now is None or now[0] - before[0] < BUSY_NS:
        return None
    ran_ns, waited_ns = now[0] - before[0], now[1] - before[1]
    return min(ran_ns / (ran_ns + waited_ns), share_of_class())


class CpuLoad:
    """Reads use and pressure, at most twice a second.

    Parameters
    ----------
    use_percent : returns the use of the cores since its last call, 0 to 100
    pressure_file : PSI of the processors; a missing or unreadable file counts as no pressure
    own_s : returns the processor seconds that this process has used
    cores : number of cores that this process may use; 0 to find out
    """

    def __init__(
        self,
        use_percent: Callable[[], float] = _use_percent,
        pressure_file: Path = PRESSURE_FILE,
        clock: Callable[[], float] = time.monotonic,
        own_s: Callable[[], float] = time.process_time,
        cores: int = 0,
    ) -> None:
        self._use_percent, self._file, self._clock, self._own_s = use_percent, pressure_file, clock, own_s
        self._cores = cores or len(usable_cores())
        self._own_read_s = 0.0
        self._has_pressure = True
        self._read_at = -math.inf
        self._last = ProcessorUse(0.0, 0.0, 0.0)

    def read(self) -> ProcessorUse:
        """Returns load, use, and the cores that other programs left to this process between the last two readings (0 before the second)."""
        now = self._clock()
        elapsed_s = now - self._read_at
        if elapsed_s >= PERIOD_S:
            use = min(1.0, max(0.0, self._use_percent() / 100))
            own_s = self._own_s()
            others = max(0.0, use * self._cores - max(0.0, own_s - self._own_read_s) / elapsed_s)
            free = self._cores - others if math.isfinite(elapsed_s) else 0.0
            self._read_at, self._own_read_s, self._last = now, own_s, ProcessorUse(use + self._pressure(), use, free)
        return self._last

    def _pressure(self) -> float:
        if not self._has_pressure:
            return 0.0
        try:
            return parse_pressure(self._file.read_text(encoding="ascii"))
        except FileNotFoundError:
            self._has_pressure = False  # an older kernel, or psi=0: it will not appear while this process runs
        except (OSError, ValueError) as problem:
            self._has_pressure = False
            log.info("pressure.unreadable", path=str(self._file), reason=str(problem), doing="reporting the use of the processors only")
        return 0.0


def parse_pressure(text: str) -> float:
    """Reads the share of the last ten seconds in which some task waited from the text of a PSI file.

    Raises
    ------
    ValueError
        The text is not that of a PSI file.

    Examples
    --------
    >>> parse_pressure("some avg10=12.50 avg60=3.00 avg300=0.66 total=4211\\n")
    0.125
    """
    for line in text.splitlines():
        kind, *values = line.split()
        if kind == "some":
            given = dict(value.split("=", 1) for value in values)
            percent = float(given.get("avg10", "nan"))
            if 0 <= percent <= 100:
                return percent / 100
    raise ValueError(f"pressure file without `some avg10=` of 0 to 100: {text[:80]!r}")
