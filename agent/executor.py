"""Executor threads: what takes long runs here, off the event loop, at a lower priority than it.

What is brief is done on the event loop while that has time to spare: two threads that wake each other cost more than many a small batch.

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


BRIEF_SHARE = 0.25
"""Of the event loop's time for brief work; beyond it, that goes to the threads, too."""
BRIEF_S_MAX = 0.005
"""So much of it may come at once, after a rest."""


class Executor:
    """Threads that are started when the first work comes, and another only while all of them are at work.

    The thread that was at work last gets the next work: it has what it needs in the caches of its core. Two threads that took turns cost W1
    a quarter of its rows.

    Parameters
    ----------
    deliver
        Calls what it is given on the event loop's thread, and lets no exception out.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: int, deliver: Callable[[Callable[[], None]], object]) -> None:
        self.workers = workers
        self._loop = loop
        self._deliver = deliver
        self._threads: list[ThreadPoolExecutor] = []
        """One thread each."""
        self._lock = threading.Lock()
        """Of what follows."""
        self._idle: list[ThreadPoolExecutor] = []
        """The last one was at work last."""
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._spare: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._done: deque[Callable[[], None]] = deque()
        self._woken = False
        self._spare_s = BRIEF_S_MAX
        self._spare_at = time.monotonic()

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, brief: bool = False, spare: bool = False) -> None:
        """Run `work` on a thread, or here if it is brief and the event loop has time to spare; then, later, `done` on the event loop's.

        What is `spare` begins on a thread that would have nothing to do otherwise.
        """
        if brief and self._may_run_here():
            self._run_here(work, done)
            return
        with self._lock:
            if not self._idle:
                if len(self._threads) >= self.workers:
                    (self._spare if spare else self._waiting).append((work, done))
                    return
                self._idle.append(ThreadPoolExecutor(1, f"operator-{len(self._threads)}", _stand_behind))
                self._threads += self._idle
            thread = self._idle.pop()
        thread.submit(self._run, thread, work, done)

    def close(self, *, wait: bool = False) -> None:
        """Forget what waits; what is under way ends, untold. `wait`: until it has."""
        with self._lock:
            self._waiting.clear()
            self._spare.clear()
        for thread in self._threads:
            thread.shutdown(wait=wait, cancel_futures=True)

    def _may_run_here(self) -> bool:
        now = time.monotonic()
        self._spare_s = min(BRIEF_S_MAX, self._spare_s + BRIEF_SHARE * (now - self._spare_at))
        self._spare_at = now
        return self._spare_s > 0

    def _run_here(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        began = time.perf_counter()
        self._done.append(partial(done, _outcome(work)))
        self._spare_s -= time.perf_counter() - began
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._tell)

    def _run(self, thread: ThreadPoolExecutor, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        while True:
            told = partial(done, _outcome(work))
            with self._lock:
                queue = self._waiting or self._spare
                more = queue.popleft() if queue else None
                if more is None:
                    self._idle.append(thread)  # before the event loop is told: what it gives next comes here
            self._done.append(told)
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop closed while the work ran: nobody is left to tell
                    self._loop.call_soon_threadsafe(self._tell)
            if more is None:
                return
            work, done = more

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


APART_MAX = 16
"""Threads for work that may hang; each that does is lost for as long as it hangs."""


class ApartThreads:
    """Threads of their own for work that may hang, so that it keeps neither the event loop nor the executor's threads.

    Parameters
    ----------
    deliver
        Calls what it is given on the event loop's thread, and lets no exception out.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Callable[[], None]], object]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._running = 0

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Run `work` on a thread, then `done` on the event loop's: with what has come of it, or a TimeoutError after `limit_s`."""
        if self._running >= APART_MAX:
            problem = TimeoutError(f"{self._running} others have not come back yet")
            self._loop.call_soon(self._deliver, partial(done, problem))
            return
        self._running += 1
        waiting = True

        def end(outcome: T | BaseException) -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                timer.cancel()
                done(outcome)

        def returned(outcome: T | BaseException) -> None:
            self._running -= 1
            end(outcome)

        def run() -> None:
            outcome = _outcome(work)
            with contextlib.suppress(RuntimeError):  # the loop closed while the work ran: nobody is left to tell
                self._loop.call_soon_threadsafe(self._deliver, partial(returned, outcome))

        late = TimeoutError(f"it has not come back in {limit_s:g} s")
        timer = self._loop.call_later(limit_s, self._deliver, partial(end, late))
        # A daemon: the process must be able to end though its thread hangs.
        threading.Thread(target=run, name="apart", daemon=True).start()


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:  # a panic of polars is no Exception
        return error


def _stand_behind() -> None:
    """Lower the priority of this thread. Linux knows one for each thread; elsewhere it would be the whole process's."""
    if sys.platform == "linux":
        me = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, min(19, os.getpriority(os.PRIO_PROCESS, me) + NICENESS))
