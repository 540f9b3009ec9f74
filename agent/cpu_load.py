"""Measures how busy this machine's processors are, and how much work waits for them. The asyncio host reads it.

load = use + pressure

`use` is the share of the time of the cores that this process may use that was used since the last reading, 0 to 1, without that of other
programs at a lower priority, which give way. `pressure` is the kernel's share of the last ten seconds in which some task was ready and
waited for a core, 0 to 1 ("some avg10" of PSI, Documentation/accounting/psi.rst of Linux). `use` alone is
1 for a machine with one busy thread per core and for one with ten, although only on the second would one more operator make all others
wait; and a machine with bursts makes work wait long before it is fully used. The sum tells these cases apart: up to 1 where nothing waits,
up to 2 where something always does. Kernels without PSI provide `use` alone.

`free_cores` is what other programs leave to this process: an agent whose own threads keep all cores busy may go on doing so.
"""

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from sbon_agent.logs import structlog

PRESSURE_FILE = Path("/proc/pressure/cpu")
PERIOD_S = 0.5
"""Shortest time between two readings, in seconds: below it the kernel's ticks of 10 ms make the use jump."""

log = structlog.get_logger("cpu")


def _use_percent() -> float:
    import psutil  # here, because the first load is read a second after the start

    of_cores = psutil.cpu_times_percent(None, percpu=True)
    # Work at a lower priority gives way to this process.
    yields = hasattr(os, "getpriority") and os.getpriority(os.PRIO_PROCESS, 0) <= 0
    busy = [100.0 - one.idle - getattr(one, "iowait", 0.0) - (getattr(one, "nice", 0.0) if yields else 0.0) for one in of_cores]
    return mean_use(busy, os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None)


def mean_use(percents: Sequence[float], mine: Collection[int] | None) -> float:
    """Returns the use of the cores that this process may use; of all where that is not known, or the system numbers them otherwise.

    Examples
    --------
    >>> mean_use([10.0, 90.0, 50.0], {0, 2}), mean_use([10.0, 90.0], None)
    (30.0, 50.0)
    """
    kept = [percent for core, percent in enumerate(percents) if mine is None or core in mine] or list(percents)
    return sum(kept) / len(kept) if kept else 0.0


class CpuLoad:
    """Reads use and pressure, at most twice a second.

    Parameters
    ----------
    use_percent : use of the cores since its last call, 0 to 100
    pressure_file : PSI of the processors; one that is not there, or that the kernel refuses to read, counts as no pressure
    own_s : processor seconds that this process has used
    cores : of the machine
    """

    def __init__(
        self,
        use_percent: Callable[[], float] = _use_percent,
        pressure_file: Path = PRESSURE_FILE,
        clock: Callable[[], float] = time.monotonic,
        own_s: Callable[[], float] = time.process_time,
        cores: int = os.cpu_count() or 1,
    ) -> None:
        self._use_percent, self._file, self._clock, self._own_s, self._cores = use_percent, pressure_file, clock, own_s, cores
        self._own_read_s = math.inf
        self._has_pressure = True
        self._read_at = -math.inf
        self._load = 0.0
        self.use = 0.0
        """Use of the cores, without the pressure, as last read, 0 to 1."""
        self.free_cores = 0.0
        """Cores that other programs left idle or to this process between the last two readings; 0 before the second."""

    def fraction(self) -> float:
        """Returns the present load: 0 to 1, up to 2 if work waits."""
        now = self._clock()
        if now - self._read_at >= PERIOD_S:
            elapsed_s, self._read_at = now - self._read_at, now
            self.use = min(1.0, max(0.0, self._use_percent() / 100))
            before_s, self._own_read_s = self._own_read_s, self._own_s()
            others = max(0.0, self.use * self._cores - max(0.0, self._own_read_s - before_s) / elapsed_s)
            self.free_cores = self._cores - others if math.isfinite(elapsed_s) else 0.0
            self._load = self.use + self._pressure()
        return self._load

    def _pressure(self) -> float:
        if not self._has_pressure:
            return 0.0
        try:
            return parse_pressure(self._file.read_text(encoding="ascii"))
        except FileNotFoundError:
            self._has_pressure = False  # an older kernel, or psi=0: it will not appear while this process runs
        except (OSError, ValueError) as problem:
            self._has_pressure = False
            log.info("pressure.unreadable", path=str(self._file), reason=str(problem), doing="taking the use of the processors alone")
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
