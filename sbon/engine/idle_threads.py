"""Remembers when a thread of the engine had nothing to do. `sbon.engine.execution` uses it."""

import math

from sbon.chaining import PART_S_MIN

IDLE_RECENTLY_S = 0.5
"""If a thread was idle within this time, it may be idle again while a task runs, so the task's chain is cut to give it a part. Longer:
chains are cut although no thread is idle any more. Shorter: chains stay whole more often while a thread has nothing to do."""


class IdleThreads:
    """The last time when a thread was idle for as long as a part of a chain takes. Instants are monotonic, in seconds."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._at_s = -math.inf

    def note(self, now: float, *, is_idle: bool) -> None:
        """Notes whether a thread has nothing to do from now on."""
        if self._since_s is not None and now - self._since_s >= PART_S_MIN:
            self._at_s = now
        if not is_idle:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now

    def was_recently(self, now: float) -> bool:
        """Tells whether a thread was idle lately, so that it may be idle again soon."""
        return now - self._at_s < IDLE_RECENTLY_S
