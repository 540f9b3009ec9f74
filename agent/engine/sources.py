"""When sources are asked for rows, and for how many."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sbon.batching import pause_s
from sbon_agent.connectors.base import Polled
from sbon_agent.engine.ends import Output
from sbon_agent.engine.instance import Instance, State
from sbon_agent.engine.settings import EngineConfig
from sbon_agent.host import Host

UNANSWERED_MAX = 4
"""Batches of a source whose acknowledgement is watched for at a time."""
USE_CALM = 0.6
USE_FULL = 0.95
"""Use of the processors up to which sources take their whole share, and from which on they take the least."""
SHARE_LEAST = 0.02
"""Of a core, for all sources together however full the machine is: what comes now and then leaves at once even there."""
ANSWER_S_MAX = 1.0
"""What is not acknowledged after so long is watched for no more; the link may be gone."""
ANSWER_SHARE = 1 / 3
"""Of the time until acknowledgement in the pause of a source. Seen only at the end of a pause, that time is up to a pause too long: with a
third of it, two or three batches are under way."""
ANSWER_WEIGHT = 0.25
"""Of the latest such time in the smoothed one."""


def is_threaded(instance: Instance) -> bool:
    """The source may be asked on an executor thread."""
    return bool(getattr(instance.source, "threaded", False))


def can_promise(instance: Instance) -> bool:
    """The source promises batches that any thread may make (`prefetch`)."""
    return is_threaded(instance) and hasattr(instance.source, "prefetch")


class Polling:
    """The timers of the sources of this host. `due(instance)` is called when it is time to ask one."""

    def __init__(self, host: Host, config: EngineConfig, due: Callable[[Instance], None]) -> None:
        self._host = host
        self._config = config
        self._due = due
        self._asked: dict[Instance, float] = {}
        self._active = 1
        self._counted_at = float("-inf")
        self._spare = 1.0

    def at(self, instance: Instance, when: float) -> None:
        """Ask at that instant, though not sooner than the last batch allows."""
        if instance.state is not State.RUNNING:
            return
        if instance.timer is not None:
            instance.timer.cancel()
        when = max(when, instance.polled_at + self._pause_s(instance))
        instance.timer = self._host.call_at(when, partial(self._fire, instance))

    def allow(self, instance: Instance, now: float) -> int | None:
        """Tell a source that can be told how many rows it may give now. Returns how many it will give at most, if it says what is due."""
        source: Any = instance.source
        due_rows = getattr(source, "due_rows", None)
        due = None if due_rows is None else max(1, int(due_rows(now)))
        if hasattr(source, "batch_rows"):
            most = instance.cost.rows_within(self._config.quantum_s, self._config.quantum_rows)
            # No more than it has told, whatever it will find: on the event loop, that is a promise.
            source.batch_rows = most if due is None else min(most, due)
            due = None if due is None else min(most, due)
        return due

    def again(self, instance: Instance, polled: Polled, asked_at: float) -> None:
        """A source has answered, and what it has more is known: arrange the next question."""
        waiting, instance.due = instance.due, False
        self._look_around()  # now, and not when the next row has come: it would wait for that
        if instance.has_more:
            # More is waiting: only credit holds it back. Others get their turn between two batches.
            if is_threaded(instance):
                self._due(instance)
            else:
                self._host.call_soon(lambda: self._due(instance))
            return
        instance.polled_at = self._asked[instance] = asked_at
        if polled.next_poll is not None or waiting:
            self.at(instance, self._host.now() if waiting or polled.next_poll is None else polled.next_poll)

    def _fire(self, instance: Instance) -> None:
        instance.timer = None
        self._due(instance)

    def _pause_s(self, instance: Instance) -> float:
        config = self._config
        self._look_for_acknowledgements(instance)
        cost_s = instance.batch_cost.per_batch_s * self._active
        least_s = max(config.batch_interval_min_s, instance.answered_s * ANSWER_SHARE)
        # Squared: many agents of one machine, each of which sees the same load, leave most of it to others.
        share = max(min(SHARE_LEAST, config.batch_share), config.batch_share * self._spare**2)
        return pause_s(cost_s, share, least_s, config.batch_interval_s)

    def _look_around(self) -> None:
        """How many sources have been asked lately, and how much of the machine is idle; looked up now and then."""
        now, longest_s = self._host.now(), self._config.batch_interval_s
        if now - self._counted_at >= longest_s:
            self._counted_at = now
            self._asked = {instance: at for instance, at in self._asked.items() if now - at <= 2 * longest_s}
            self._active = max(1, len(self._asked))
            self._spare = min(1.0, max(0.0, (USE_FULL - self._host.use_fraction()) / (USE_FULL - USE_CALM)))

    def offered(self, instance: Instance, output: Output) -> None:
        """What a source gave has left by an output, of its own or of an operator in the same task: when will it be acknowledged?"""
        if len(instance.unanswered) < UNANSWERED_MAX:
            instance.unanswered.append((output.sender, output.sender.offered, self._host.now()))

    def _look_for_acknowledgements(self, instance: Instance) -> None:
        """How long the ways take to acknowledge, smoothed. What is still under way after longer than that counts at once."""
        now, slowest_s, waiting = self._host.now(), 0.0, []
        for sender, sequence, at in instance.unanswered:
            if sender.offered - sender.held >= sequence:
                slowest_s = max(slowest_s, now - at)
            elif now - at < ANSWER_S_MAX:
                waiting.append((sender, sequence, at))
        if slowest_s:
            instance.answered_s += ANSWER_WEIGHT * (min(slowest_s, ANSWER_S_MAX) - instance.answered_s)
        if waiting:
            instance.answered_s = max(instance.answered_s, now - waiting[0][2])
        instance.unanswered = waiting
