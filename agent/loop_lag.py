"""Measures how late the event loop is: how long probes, timers and acknowledgements wait while the loop, or another holder of the
interpreter's lock, is busy.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from sbon.digest import RecentDigest

INTERVAL_S = 0.05
"""Seconds between two samples. Twenty a second are enough for a 99th percentile in half a minute, and take a thousandth of a core."""
RESOLUTION_S = 0.001
"""Lateness that uvloop's timers have even on an idle event loop."""


class LoopLag:
    """Records how late each of its timers fires.

    Parameters
    ----------
    loop : watched from `start` to `stop`
    clock : monotonic seconds
    tell : called with the lateness of each timer, in seconds, beyond `RESOLUTION_S`
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[float], None] = lambda late_s: None,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._tell = tell
        self._lag = RecentDigest()
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts to measure."""
        self._due_s = self._clock() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._look)

    def stop(self) -> None:
        """Stops measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def told(self) -> dict[str, Any]:
        """Returns quantiles of the last 30 to 60 s, in ms, and the number of samples by bucket since the start."""
        return self._lag.told(self._clock())

    def _look(self) -> None:
        now = self._clock()
        self._lag.add(now, (now - self._due_s) * 1000)
        self._tell(max(0.0, now - self._due_s - RESOLUTION_S))
        self.start()
