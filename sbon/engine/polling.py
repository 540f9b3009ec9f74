"""Decides when sources are polled, and for how many rows. `sbon.engine.execution` uses it."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from sbon.batching import pause_s
from sbon.connectors.interface import Polled
from sbon.engine.leads import Leads
from sbon.execution.ends import Output
from sbon.execution.instance import Instance, is_threaded
from sbon.execution.life import State
from sbon.execution.settings import EngineConfig
from sbon.ports import Executor

UNANSWERED_MAX = 4
"""Most batches of one source whose acknowledgement is awaited at a time."""
USE_CALM = 0.6
USE_FULL = 0.95
"""Processor utilisation up to which sources get their full share, and from which on they get the least."""
AHEAD_QUANTA = 4
AHEAD_ROWS_QUANTA = 2
"""Most quanta of time, and of rows, in a batch that a source makes ahead. Each batch costs about the same work under Python's lock, so
larger batches make two threads wait less for each other."""
SHARE_LEAST = 0.02
"""Smallest share of a core for all sources together, however busy the machine is, so that rare rows still leave at once."""
MANY_ROWS = 8192
"""If a source gave at least this many rows since its last pause, the next pause is the shortest. A pause gathers rows to share the fixed
cost of a batch, which is small for so many rows. A longer pause would only delay, for example, a peer that posts its next large body over
HTTP when the last one is answered."""
ANSWER_S_MAX = 1.0
"""Seconds after which an acknowledgement is no longer awaited; the link may be gone."""
ANSWER_SHARE = 1 / 3
"""Share of the measured time until acknowledgement that a source pauses. The time is read only at the end of a pause, so it is too long by
up to a pause. With a third of it, two or three batches are in transit."""
ANSWER_WEIGHT = 0.25
"""Weight of the latest acknowledgement time in the smoothed one."""


class Polling:
    """Timers of this host's sources. Calls `due(instance)` when it is time to poll a source.

    Parameters
    ----------
    joins : returns the joins on this host that the rows of a source reach
    """

    def __init__(
        self,
        host: Executor,
        config: EngineConfig,
        due: Callable[[Instance], None],
        joins: Callable[[Instance], Iterable[Instance]] = lambda source: (),
    ) -> None:
        self._host = host
        self._config = config
        self._due = due
        self._leads = Leads(joins)
        self._asked: dict[Instance, float] = {}
        self._active = 1
        self._counted_at = float("-inf")
        self._spare = 1.0

    def at(self, instance: Instance, when: float) -> None:
        """Schedules a poll at an instant, but not before the pause after the last batch is over."""
        if instance.state is not State.RUNNING:
            return
        if instance.timer is not None:
            instance.timer.cancel()
        when = max(when, instance.polls.polled_at + self._pause_s(instance))
        instance.timer = self._host.call_at(when, partial(self._fire, instance))

    def allow(self, instance: Instance, now: float, *, ahead: bool = False) -> int | None:
        """Limits the rows that a source may give now, if the source has such a limit.

        A batch made `ahead` has as many rows as the operators behind the source process in a quantum, even if making it takes longer.

        Returns the most rows that the source will give, or None if the source does not know how many are due.
        """
        source: Any = instance.source
        due_rows = getattr(source, "due_rows", None)
        due = None if due_rows is None else max(1, int(due_rows(now)))
        if hasattr(source, "batch_rows"):
            quantum_s, rows_max = self._config.quantum_s, self._config.quantum_rows
            most = instance.cost.rows_within(quantum_s, rows_max)
            if ahead:
                made = instance.figures.step_cost.rows_within(AHEAD_QUANTA * quantum_s, AHEAD_ROWS_QUANTA * rows_max)
                most = max(most, instance.polls.behind_cost.rows_within(quantum_s, made))
            most = self._leads.rows_max(instance, most)
            # No more than the source announced, even if it finds more: this bounds the time on the event loop.
            source.batch_rows = most if due is None else min(most, due)
            due = None if due is None else min(most, due)
        return due

    def again(self, instance: Instance, polled: Polled, asked_at: float) -> None:
        """Schedules the next poll after a source has answered and `has_more` is known."""
        waiting, instance.polls.due = instance.polls.due, False
        self._leads.polled(instance)
        instance.polls.rows += polled.rows
        self._look_around()  # now, so that it does not delay the next row
        if instance.polls.has_more:
            # More rows wait: only credit limits the source. Other operators run between two batches.
            if is_threaded(instance):
                self._due(instance)
            else:
                self._host.call_soon(lambda: self._due(instance))
            return
        instance.polls.polled_at = self._asked[instance] = asked_at
        instance.polls.stretch_rows, instance.polls.rows = instance.polls.rows, 0
        if polled.next_poll is not None or waiting:
            self.at(instance, self._host.now() if waiting or polled.next_poll is None else polled.next_poll)

    def urgency_s(self, instance: Instance) -> float:
        """Returns the urgency of a source's turn that comes now; later for a source that is ahead of one that it is joined with
        (`sbon.engine.leads`)."""
        return self._host.wall() + self._leads.put_off_s(instance) + instance.users.urgent_within_s

    def _fire(self, instance: Instance) -> None:
        instance.timer = None
        self._due(instance)

    def _pause_s(self, instance: Instance) -> float:
        config = self._config
        self.look_for_acknowledgements(instance)
        cost_s = instance.polls.batch_cost.per_batch_s * self._active
        least_s = max(config.batch_interval_min_s, instance.polls.answered_s * ANSWER_SHARE)
        if instance.polls.stretch_rows >= MANY_ROWS:
            return min(least_s, config.batch_interval_s)
        # Squared, so that agents that share a machine and see the same load leave most of the idle time to each other.
        share = max(min(SHARE_LEAST, config.batch_share), config.batch_share * self._spare**2)
        return pause_s(cost_s, share, least_s, config.batch_interval_s)

    def _look_around(self) -> None:
        """Counts the recently polled sources, and reads how much of the machine is idle; at most once in the longest pause."""
        now, longest_s = self._host.now(), self._config.batch_interval_s
        if now - self._counted_at >= longest_s:
            self._counted_at = now
            self._asked = {instance: at for instance, at in self._asked.items() if now - at <= 2 * longest_s}
            self._active = max(1, len(self._asked))
            self._spare = min(1.0, max(0.0, (USE_FULL - self._host.processors().use) / (USE_FULL - USE_CALM)))

    def offered(self, instance: Instance, output: Output) -> None:
        """Starts to await the acknowledgement of the last batch of an output, of the source or of an operator in the same task."""
        if len(instance.polls.unanswered) < UNANSWERED_MAX:
            instance.polls.unanswered.append((output.sender, output.sender.offered, self._host.now()))

    def forget_half(self, instance: Instance) -> None:
        """Halves the time until acknowledgement. Used when all rows are late, so that nothing is sent and nothing can be measured."""
        instance.polls.answered_s /= 2

    def look_for_acknowledgements(self, instance: Instance) -> None:
        """Updates the smoothed time until acknowledgement. A batch that has waited longer than this time raises it at once."""
        now, slowest_s, waiting = self._host.now(), 0.0, []
        for sender, sequence, at in instance.polls.unanswered:
            if sender.offered - sender.held >= sequence:
                slowest_s = max(slowest_s, now - at)
            elif now - at < ANSWER_S_MAX:
                waiting.append((sender, sequence, at))
        if slowest_s:
            instance.polls.answered_s += ANSWER_WEIGHT * (min(slowest_s, ANSWER_S_MAX) - instance.polls.answered_s)
        if waiting:
            instance.polls.answered_s = max(instance.polls.answered_s, now - waiting[0][2])
        instance.polls.unanswered = waiting
