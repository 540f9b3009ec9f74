"""Executor threads: what takes long runs here, off the event loop, at a lower priority than it.

What is done is told to the event loop in one wake-up however many pieces of work it was, and a limited time at once, so that probes and
timers get their turn in between.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

NICENESS = 5
"""By how much executor threads stand behind the event loop's thread when both want a core (Linux; threads of polars inherit it)."""
DELIVERY_S_MAX = 0.002
"""Results are told for so long at once; then other callbacks come first."""


class Executor:
    """Threads that are started when the first work comes.

    Parameters
    ----------
    deliver
        Calls what it is given on the event loop's thread, and lets no exception out.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: int, deliver: Callable[[Callable[[], None]], object]) -> None:
        self.workers = workers
        self._loop = loop
        self._deliver = deliver
        self._pool: ThreadPoolExecutor | None = None
        self._done: deque[Callable[[], None]] = deque()
        self._woken = False

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` on a thread, then `done` on the event loop's."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="operator", initializer=_stand_behind)
        self._pool.submit(self._run, work, done)

    def close(self, *, wait: bool = False) -> None:
        """Forget what waits; what is under way ends, untold. `wait`: until it has."""
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            outcome = work()
        except BaseException as error:  # a panic of polars is no Exception
            outcome = error
        self._done.append(partial(done, outcome))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop closed while the work ran: nobody is left to tell
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        # First: what is added from here on either is seen below or wakes the loop again.
        self._woken = False
        until = time.monotonic() + DELIVERY_S_MAX
        while self._done:
            self._deliver(self._done.popleft())
            if self._done and time.monotonic() > until:
                self._woken = True
                self._loop.call_soon(self._tell)
                return


def _stand_behind() -> None:
    """Lower the priority of this thread. Linux knows one for each thread; elsewhere it would be the whole process's."""
    if sys.platform == "linux":
        me = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, min(19, os.getpriority(os.PRIO_PROCESS, me) + NICENESS))
