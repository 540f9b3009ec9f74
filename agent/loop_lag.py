"""How late the event loop is: what probes, timers and acknowledgements wait while the loop, or whoever holds the interpreter, is busy."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from sbon.telemetry.digest import RecentDigest

INTERVAL_S = 0.05
"""Pause between two looks. Twenty a second are enough for a 99th percentile in half a minute, and take a thousandth of a core."""


class LoopLag:
    """Notes how late each of its timers comes. uvloop's timers have whole milliseconds: up to one of lag is theirs.

    Parameters
    ----------
    loop : watched from `start` to `stop`
    clock : monotonic seconds
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        self._loop = loop
        self._clock = clock
        self._lag = RecentDigest()
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._due_s = self._clock() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._look)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def told(self) -> dict[str, Any]:
        """Quantiles of the last half minute to minute, in ms, and looks by bucket since the start."""
        return self._lag.told(self._clock())

    def _look(self) -> None:
        now = self._clock()
        self._lag.add(now, (now - self._due_s) * 1000)
        self.start()
