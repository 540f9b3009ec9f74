"""Executor threads: long work runs on them, off the event loop, at a lower priority than it. The asyncio host owns them.

Brief work runs on the event loop while that has time for it: two threads that wake each other cost more than many a small batch.

Results are passed to the event loop with one wake-up for any number of them, and for a limited time at once, so that probes and timers get
their turn in between.
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

from sbon_agent.cpu_meter import thread_ns

T = TypeVar("T")

NICENESS = 5
"""Niceness of executor threads relative to the event loop's thread (Linux; polars threads inherit it)."""
DELIVERY_S_MAX = 0.002
"""Seconds for which results are passed on at a time; then other callbacks come first."""


BRIEF_SHARE = 0.25
"""Share of the event loop's time for brief work; beyond it, brief work goes to the threads too."""
BRIEF_S_MAX = 0.005
"""Seconds of brief work that may run at once after a rest."""


class Executor:
    """Threads that are started when needed: the first with the first work, another only while all are busy.

    The thread that was idle for the shortest time gets the next work, because its core's caches hold what it needs. Two threads that took
    turns cost benchmark W1 a quarter of its rows.

    Parameters
    ----------
    deliver
        Calls a callback on the event loop's thread and catches its exceptions.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, workers: int, deliver: Callable[[Callable[[], None]], object]) -> None:
        self.workers = workers
        self._loop = loop
        self._deliver = deliver
        self._threads: list[ThreadPoolExecutor] = []
        """Executors of one thread each."""
        self._native_ids: list[int] = []
        self._lock = threading.Lock()
        """Guards the attributes below."""
        self._idle: list[ThreadPoolExecutor] = []
        """Idle threads; the last one was busy most recently."""
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._spare: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._done: deque[Callable[[], None]] = deque()
        self._woken = False
        self._spare_s = BRIEF_S_MAX
        self._spare_at = time.monotonic()

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, brief: bool = False, spare: bool = False) -> None:
        """Runs `work` on a thread, or here if it is brief and the event loop has time for it; then, later, `done` on the event loop's
        thread.

        `spare` work starts only on a thread that would otherwise be idle.
        """
        if brief and self._may_run_here():
            self._run_here(work, done)
            return
        with self._lock:
            if not self._idle:
                if len(self._threads) >= self.workers:
                    (self._spare if spare else self._waiting).append((work, done))
                    return
                self._idle.append(ThreadPoolExecutor(1, f"operator-{len(self._threads)}", self._begin_thread))
                self._threads += self._idle
            thread = self._idle.pop()
        thread.submit(self._run, thread, work, done)

    def processor_ns(self) -> int:
        """Returns the processor time that the threads have used so far."""
        return sum(map(thread_ns, self._native_ids))

    def _begin_thread(self) -> None:
        self._native_ids.append(threading.get_native_id())
        _stand_behind()

    def close(self, *, wait: bool = False) -> None:
        """Drops waiting work; results of work in progress are not reported. `wait`: returns only when that work has ended."""
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
                    self._idle.append(thread)  # before the event loop is told, so that the work it gives next comes here
            self._done.append(told)
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop closed while the work ran: nobody is left to tell
                    self._loop.call_soon_threadsafe(self._tell)
            if more is None:
                return
            work, done = more

    def _tell(self) -> None:
        # First: what is added from now on is either seen below or wakes the loop again.
        self._woken = False
        until = time.monotonic() + DELIVERY_S_MAX
        while self._done:
            self._deliver(self._done.popleft())
            if self._done and time.monotonic() > until:
                self._woken = True
                self._loop.call_soon(self._tell)
                return


APART_MAX = 16
"""Most threads for work that may hang; each that hangs is lost for as long as it does."""


class ApartThreads:
    """Threads for work that may hang, one each, so that it blocks neither the event loop nor the executor's threads.

    Parameters
    ----------
    deliver
        Calls a callback on the event loop's thread and catches its exceptions.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Callable[[], None]], object]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._running = 0

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], limit_s: float) -> None:
        """Runs `work` on a thread, then `done` on the event loop's thread, with the result, the exception, or a TimeoutError after
        `limit_s`.
        """
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
        # A daemon thread: the process must be able to end although it hangs.
        threading.Thread(target=run, name="apart", daemon=True).start()


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:  # a panic of polars is no Exception
        return error


def _stand_behind() -> None:
    """Lowers the priority of this thread. Linux has one per thread; elsewhere it would be that of the whole process."""
    if sys.platform == "linux":
        me = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, min(19, os.getpriority(os.PRIO_PROCESS, me) + NICENESS))
