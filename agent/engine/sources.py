"""When sources are asked for rows, and for how many."""

from collections.abc import Callable
from typing import Any

from agent.connectors.base import Polled
from agent.engine.instance import Instance, State
from agent.engine.settings import EngineConfig
from agent.host import Host
from sbon.batching import pause_s


def is_threaded(instance: Instance) -> bool:
    """The source may be asked on an executor thread."""
    return bool(getattr(instance.source, "threaded", False))


class Polling:
    """The timers of the sources of this host. `due(instance)` is called when it is time to ask one."""

    def __init__(self, host: Host, config: EngineConfig, due: Callable[[Instance], None]) -> None:
        self._host = host
        self._config = config
        self._due = due
        self._asked: dict[Instance, float] = {}
        self._active = 1
        self._counted_at = float("-inf")

    def at(self, instance: Instance, when: float) -> None:
        """Ask at that instant, though not sooner than the last batch allows."""
        if instance.state is not State.RUNNING:
            return
        if instance.timer is not None:
            instance.timer.cancel()
        when = max(when, instance.polled_at + self._pause_s(instance))
        instance.timer = self._host.call_at(when, lambda: self._fire(instance))

    def allow(self, instance: Instance) -> None:
        """Tell a source that can be told how many rows it may give now."""
        source: Any = instance.source
        if hasattr(source, "batch_rows"):
            source.batch_rows = instance.cost.rows_within(self._config.quantum_s, self._config.quantum_rows)

    def again(self, instance: Instance, polled: Polled, asked_at: float, *, gave: bool) -> None:
        """A source has answered: arrange the next question."""
        waiting, instance.due = instance.due, False
        if gave and polled.next_poll is not None and polled.next_poll <= asked_at:
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
        cost_s = instance.batch_cost.per_batch_s * self._sources_active()
        return pause_s(cost_s, config.batch_share, config.batch_interval_min_s, config.batch_interval_s)

    def _sources_active(self) -> int:
        """How many sources have been asked lately, counted now and then; 1 at least."""
        now, longest_s = self._host.now(), self._config.batch_interval_s
        if now - self._counted_at >= longest_s:
            self._counted_at = now
            self._asked = {instance: at for instance, at in self._asked.items() if now - at <= 2 * longest_s}
            self._active = max(1, len(self._asked))
        return self._active
