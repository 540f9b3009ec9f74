"""Lets idle threads make batches of a source before their turn. `sbon.engine.execution` uses it.

A source whose rows are costly to make, and which has more rows than the operators behind it take, promises its next batches (`prefetch` of
`sbon_agent.connectors.base.SourceConnector`). Several threads make these batches while the chain of operators works on an earlier one. The
engine passes the batches on in the order of the promises. If no thread was free, the task that needs a batch makes it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sbon.connectors.interface import Polled
from sbon.engine.polling import Polling
from sbon.execution.ahead import Ahead, Behind, computed_ahead, rows_of
from sbon.execution.instance import Instance, can_promise
from sbon.execution.life import State
from sbon.execution.rows import Rows
from sbon.ports import Executor, Meter
from sbon.schema import Schema

BATCHES_MAX = 4
"""Most batches of a source that are made at the same time; fewer if there are fewer threads. One more may wait for the operators."""
MAKING_S_MIN = 0.0004
"""Processor time for a batch above which a source is worth a thread, in seconds: several times the cost of a hand-over between threads."""
FREE_CORES_MIN = 1.5
"""A query gets several threads if other programs leave at least this many cores (`Executor.processors`). With fewer, moving rows between
cores costs more than it gains. The use of this agent does not count, because two threads and the event loop alone keep two cores busy."""


def may_spread(host: Executor) -> bool:
    """Tells whether the machine has cores to spare for a second thread of a query."""
    return host.workers > 1 and host.processors().free_cores >= FREE_CORES_MIN


class Fetch:
    """One promised batch."""

    __slots__ = ("_behind", "_free", "_schema", "_work", "ahead", "cpu_ns", "given", "now", "polled", "problem", "spent_s", "wall")

    def __init__(self, work: Callable[[], Polled], now: float, wall: float, schema: Schema = (), behind: Sequence[Behind] = ()) -> None:
        self._work = work
        self._schema = schema
        self._behind = behind
        self._free = [self]
        """Empty once a thread has claimed it."""
        self.now = now
        self.wall = wall
        """Monotonic and wall-clock time of the promise."""
        self.polled: Polled | None = None
        self.problem: BaseException | None = None
        self.spent_s = 0.0
        self.cpu_ns = 0
        self.given: Rows | None = None
        self.ahead: Sequence[Ahead] = ()
        """If a thread has made the batch ahead: the results of the operators behind the source."""

    def begin(self) -> bool:
        """Claims the batch. Returns True to the first caller only, which must make it."""
        try:
            self._free.pop()  # atomic in the interpreter: only one of two threads gets the item
        except IndexError:
            return False
        return True

    def make(self) -> Polled:
        """Makes the batch; raises the source's exception."""
        return self._work()

    def pass_on(self, polled: Polled, clock: Callable[[], float], meter: Meter) -> None:
        """Passes the rows through the operators behind the source that may run ahead."""
        self.given = rows_of(polled, self._schema) if self._behind else None
        if self.given is not None:
            self.ahead = computed_ahead(self.given, self._behind, clock, meter)

    @property
    def is_made(self) -> bool:
        """True if the batch has been made, or has failed."""
        return self.polled is not None or self.problem is not None


class Prefetching:
    """Promised batches of the sources of this host.

    Parameters
    ----------
    due : called when the next batch in order has been made
    behind : returns the operators that may process a batch of a source before its turn
    """

    def __init__(
        self, host: Executor, polling: Polling, due: Callable[[Instance], None], behind: Callable[[Instance], Sequence[Behind]]
    ) -> None:
        self._host = host
        self._polling = polling
        self._due = due
        self._behind = behind
        self._most = min(host.workers, BATCHES_MAX) + 1

    def look(self, instance: Instance) -> None:
        """Lets threads make more batches of a source if that pays and there is room. The source must not be polled at the same time."""
        if not can_promise(instance) or not instance.polls.has_more or instance.state is not State.RUNNING:
            return
        if instance.task is not None or instance.figures.step_cost.per_batch_s < MAKING_S_MIN or not may_spread(self._host):
            return
        source: Any = instance.source
        while len(instance.polls.fetches) < self._most:
            now, wall = self._host.now(), self._host.wall()
            self._polling.allow(instance, now, ahead=True)
            work = source.prefetch(now, wall)
            if work is None:
                return
            fetch = Fetch(work, now, wall, instance.spec.schema, self._behind(instance))
            instance.polls.fetches.append(fetch)
            self._host.execute(partial(self._make, fetch), partial(self._made, instance, fetch), rows=0, spare=True)

    def _make(self, fetch: Fetch) -> None:
        """Makes a batch on an executor thread, unless another thread has claimed it, and passes it on."""
        if not fetch.begin():
            return
        began, meter = self._host.stopwatch(), self._host.meter()
        try:
            try:
                polled = fetch.make()
            finally:
                fetch.cpu_ns = meter.lap(0)
                fetch.spent_s = self._host.stopwatch() - began
            fetch.pass_on(polled, self._host.stopwatch, meter)
        finally:
            meter.end()
        fetch.polled = polled

    def _made(self, instance: Instance, fetch: Fetch, result: object) -> None:
        if isinstance(result, BaseException):
            fetch.problem = result
        if instance.polls.fetches and instance.polls.fetches[0] is fetch and fetch.is_made:
            self._due(instance)
