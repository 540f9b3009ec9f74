"""Executor threads, which run long work at a lower priority than the event loop. The asyncio host owns them.

Brief work runs on the event loop while the loop has time for it, because waking a thread and being woken by it costs more than many a small
batch.

One wake-up of the event loop delivers any number of results, but for a limited time, so that probes and timers run in between.
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
"""Longest time for delivering results before other callbacks run."""


BRIEF_SHARE = 0.25
"""Share of the event loop's time for brief work; further brief work goes to the threads."""
BRIEF_S_MAX = 0.005
"""Longest brief work, in seconds, that may run without a pause."""


class Executor:
    """Threads that are started when needed: the first with the first work, another only while all are busy.

    The thread that has been idle for the shortest time gets the next work, because its core's caches are warm. With two threads taking
    turns, benchmark W1 lost a quarter of its rows.

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
        """Runs `work` on a thread (here if it is brief and the event loop has time), then, later, `done` on the event loop's thread.

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
        """Drops waiting work, and the results of work in progress. `wait`: returns only when work in progress has ended."""
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
                    self._idle.append(thread)  # before the event loop is told, so that this thread gets the loop's next work
            self._done.append(told)
            if not self._woken:
                self._woken = True
                with contextlib.suppress(RuntimeError):  # the loop closed while the work ran: nobody is left to tell
                    self._loop.call_soon_threadsafe(self._tell)
            if more is None:
                return
            work, done = more

    def _tell(self) -> None:
        # Reset first: a result added from now on is either seen below or wakes the loop again.
        self._woken = False
        until = time.monotonic() + DELIVERY_S_MAX
        while self._done:
            self._deliver(self._done.popleft())
            if self._done and time.monotonic() > until:
                self._woken = True
                self._loop.call_soon(self._tell)
                return


APART_MAX = 16
"""Most threads for work that may hang; a hanging thread counts until its work returns."""


class ApartThreads:
    """Threads for work that may hang, one for each call, so that it blocks neither the event loop nor the executor's threads.

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
        """Runs `work` on a thread, then calls `done` on the event loop's thread with the result, the exception, or a TimeoutError after
        `limit_s`.
        """
        if self._running >= APART_MAX:
            problem = TimeoutError(f"{self._running} others have not returned yet")
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

        late = TimeoutError(f"it has not returned in {limit_s:g} s")
        timer = self._loop.call_later(limit_s, self._deliver, partial(end, late))
        # A daemon thread, so that the process can end although the thread hangs.
        threading.Thread(target=run, name="apart", daemon=True).start()


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:  # a panic of polars is no Exception
        return error


def _stand_behind() -> None:
    """Lowers the priority of this thread. Only on Linux, because elsewhere this would change the whole process."""
    if sys.platform == "linux":
        me = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, me, min(19, os.getpriority(os.PRIO_PROCESS, me) + NICENESS))
