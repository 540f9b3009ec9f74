"""Batches of sources that are made before it is their turn, on threads that would have nothing to do otherwise.

A source that has more than the operators behind it take, and whose rows take work to make, promises its next batches (`prefetch` of
`sbon_agent.connectors.base.SourceConnector`). Threads make them beside each other while the chain works on the batch before; the engine
hands them on in the order of the promises. Where no thread has been free for it, the task that wants the batch makes it itself, as if
nothing had been promised.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from sbon_agent.connectors.base import Polled
from sbon_agent.engine.instance import Instance, State
from sbon_agent.engine.sources import Polling, can_promise
from sbon_agent.host import Host

BATCHES_MAX = 4
"""Batches of one source that are made at a time, or fewer where there are fewer threads; one more may wait for the operators."""
MAKING_S_MIN = 0.0004
"""Processor time that a source needs for a batch before it is worth a thread: several times what the hand-over between threads takes."""


LOAD_MAX = 1.5
"""Load of the machine (`Host.load_fraction`) up to which one query is given several threads. Two threads of one query, with the event
loop, make others wait for a moment now and then, about a quarter of the time; beyond that, others want the cores, and rows that change
cores cost more than they gain."""


def may_spread(host: Host) -> bool:
    """Tells whether the machine has cores to spare for a query that has a thread already."""
    return host.workers > 1 and host.load_fraction() <= LOAD_MAX


class Fetch:
    """One promised batch."""

    __slots__ = ("_begun", "_work", "cpu_ns", "now", "polled", "problem", "spent_s", "wall")

    def __init__(self, work: Callable[[], Polled], now: float, wall: float) -> None:
        self._work = work
        self._begun = threading.Lock()
        self.now = now
        self.wall = wall
        """The instants at which it was promised."""
        self.polled: Polled | None = None
        self.problem: BaseException | None = None
        self.spent_s = 0.0
        self.cpu_ns = 0

    def begin(self) -> bool:
        """Tells the first who asks, on whichever thread, to make it; everybody else that it is in other hands."""
        return self._begun.acquire(blocking=False)

    def make(self) -> Polled:
        """The rows. Whatever the source raises goes on."""
        return self._work()

    @property
    def is_made(self) -> bool:
        """The rows are here, or the reason why they are not."""
        return self.polled is not None or self.problem is not None


class Prefetching:
    """The promised batches of the sources of this host.

    Parameters
    ----------
    due : called when the batch whose turn it is has been made
    """

    def __init__(self, host: Host, polling: Polling, due: Callable[[Instance], None]) -> None:
        self._host = host
        self._polling = polling
        self._due = due
        self._most = min(host.workers, BATCHES_MAX) + 1

    def look(self, instance: Instance) -> None:
        """Let more batches of a source be made, where that pays and there is room. Nobody else may be asking the source meanwhile."""
        if not can_promise(instance) or not instance.has_more or instance.state is not State.RUNNING:
            return
        if instance.task is not None or instance.step_cost.per_batch_s < MAKING_S_MIN or not may_spread(self._host):
            return
        source: Any = instance.source
        while len(instance.fetches) < self._most:
            now, wall = self._host.now(), self._host.wall()
            self._polling.allow(instance, now)
            work = source.prefetch(now, wall)
            if work is None:
                return
            fetch = Fetch(work, now, wall)
            instance.fetches.append(fetch)
            self._host.execute(partial(self._make, fetch), partial(self._made, instance, fetch), rows=0, spare=True)

    def _make(self, fetch: Fetch) -> None:
        """Make a batch, on an executor thread, unless that is in other hands by now."""
        if not fetch.begin():
            return
        began, meter = self._host.stopwatch(), self._host.meter()
        try:
            polled = fetch.make()
        finally:
            fetch.cpu_ns = meter.lap(0)
            meter.end()
            fetch.spent_s = self._host.stopwatch() - began
        fetch.polled = polled

    def _made(self, instance: Instance, fetch: Fetch, result: object) -> None:
        if isinstance(result, BaseException):
            fetch.problem = result
        if instance.fetches and instance.fetches[0] is fetch and fetch.is_made:
            self._due(instance)
