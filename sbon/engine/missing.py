"""Leaves out or puts off rows that would be late, for operators of queries with `on_miss`.

`sbon.engine.execution` calls it before and after a task. `sbon.deadline_scheduling.on_miss` decides which rows are late; this module
supplies clocks, links and the time that consumers take.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sbon.deadline_scheduling.on_miss import LateRows
from sbon.engine.polling import Polling
from sbon.execution.ends import Input
from sbon.execution.instance import Instance, deferred_rows, defers
from sbon.execution.life import State
from sbon.execution.rows import Rows
from sbon.execution.settings import EngineConfig
from sbon.execution.work import Task
from sbon.links.batch import Batch
from sbon.ports import Clock
from sbon.types import LinkId

if TYPE_CHECKING:
    import polars as pl

    from sbon.types import IntArray

PUT_OFF_HELD_MAX = 4
"""Rows that were put off are processed only while every output has at most this many unprocessed batches, so that other rows need not wait
behind them."""


class Missing:
    """Decides about late rows of the operators of this host."""

    def __init__(self, host: Clock, polling: Polling, config: EngineConfig) -> None:
        self._host = host
        self._polling = polling
        self._config = config

    def leave_out(self, misses: LateRows, instance: Instance, incoming: Input, task: Task) -> None:
        """Makes a task leave out its late rows, or put them off while there is room for them."""
        task.now = self._host.now()
        self._polling.look_for_acknowledgements(instance)
        now_s = self._host.wall() + self._config.quantum_s + instance.polls.answered_s
        fresh: list[tuple[LinkId, Batch]] = []
        for other in instance.inputs.values():
            for batch in reversed(other.queue):
                if misses.knows(other.link.id, batch.sequence):
                    break
                fresh.append((other.link.id, batch))
        takes = not defers(instance) or getattr(instance.operator, "deferred_bytes", 0) < self._config.deferred_bytes
        task.leave_out = partial(_leave_out, misses, instance.operator, incoming.link.id, fresh, now_s, takes)

    def measure(self, misses: LateRows, instance: Instance, task: Task) -> None:
        """Records how many rows a task processed, and its time: since the previous task if rows were waiting, otherwise its own."""
        now = self._host.now()
        began_s = task.now if misses.since_s is None else misses.since_s
        if task.steps[0].rows:
            misses.took(now - began_s, task.worked if task.batches else (task.steps[0].rows,), now)
        elif task.late_rows and misses.gave_none(now):
            self._polling.forget_half(instance)
        misses.since_s = now if any(incoming.queue for incoming in instance.inputs.values()) else None


def _leave_out(
    misses: LateRows, operator: object, link: LinkId, fresh: Sequence[tuple[LinkId, Batch]], now_s: float, takes: bool, task: Task
) -> None:
    """Decides which rows of a task are left out, on its thread.

    Parameters
    ----------
    fresh : batches that have come since the last task, with their links
    takes : whether late rows may be taken from the task: the operator leaves them out, or has room to put off more
    """
    classes: Callable[[pl.DataFrame], IntArray] | None = getattr(operator, "cost_classes", None)
    for other, batch in fresh:
        kinds = classes(batch.payload.frame()) if classes is not None and isinstance(batch.payload, Rows) else None
        misses.wait(other, batch.sequence, batch.rows, batch.stimulus_s, now_s, kinds)
    parts = [(batch.sequence, task.begin, task.end or batch.rows) for batch in task.batches]
    late = [misses.of(link, *part, now_s) for part in parts]
    kept = np.sum([misses.classes(link, *part) for part in parts], axis=0)
    if takes:
        task.late = late
        kept -= misses.counted([kinds for _, kinds in late])
    task.worked = kept


def may_work_off(instance: Instance) -> bool:
    """Tells whether an operator has rows that were put off, and may process them now because its consumers are not behind."""
    if not deferred_rows(instance) or instance.task is not None or instance.state is not State.RUNNING or not instance.has_credit:
        return False
    return all(output.sender.held <= PUT_OFF_HELD_MAX for output in instance.outputs.values())
