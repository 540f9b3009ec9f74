"""Applies finished tasks to the counters, watermarks and states of their operators and to the links between them.

`sbon.engine.execution` calls it.

Each task is applied in a single turn of the event loop, so that no other code sees it half done.
"""

from collections.abc import Callable, Sequence

from sbon.delivery.flow import Flow
from sbon.engine.polling import Polling
from sbon.engine.source_acknowledgement import SourceAcknowledgement
from sbon.engine.source_positions import SourcePositions
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance, defers
from sbon.execution.life import State
from sbon.execution.rows import PART_BYTES_MAX, Rows
from sbon.execution.work import Task
from sbon.links.batch import Batch, way

LOCAL_BYTES_MAX = 4 * PART_BYTES_MAX
"""A larger batch is cut even for a consumer on this host, because the consumer may move while the batch waits, and frames have a maximum
size. In bytes."""


class TaskAccounting:
    """Applies the results of tasks to the operators of this host.

    Parameters
    ----------
    ended : called when an operator has processed all its input
    delivered : called with each batch that a sink has written
    """

    def __init__(
        self,
        flow: Flow,
        polling: Polling,
        acknowledgement: SourceAcknowledgement,
        positions: SourcePositions,
        ended: Callable[[Instance], None],
        delivered: Callable[[Instance, Batch], None],
    ) -> None:
        self._flow = flow
        self._polling = polling
        self._acknowledgement = acknowledgement
        self._positions = positions
        self._ended = ended
        self._delivered = delivered

    def enter(self, task: Task) -> None:
        """Applies all steps of a task, in order."""
        batch, path = task.batches[0] if task.batches else None, task.path
        head = task.stages[0].instance
        source = head if head.source is not None else None
        awaiting = head if source is not None or head.waiting.misses is not None else None
        for number, step in enumerate(task.steps):
            stage, made = task.stages[number], step.made
            instance = stage.instance
            instance.watermark_us, instance.closing = made.watermark_us, made.rest
            if made.rest is not None:
                made.rest.stimulus_s, made.rest.path = task.stimulus_s, path
            onward = task.stages[number + 1].incoming if number + 1 < len(task.steps) else None
            path = way(path, instance.id)
            origin = origin_of(instance, stage.incoming, batch)
            carried = self._emit(
                instance, made.payload, task.stimulus_s, made.watermark_out_us, path, onward, task.joined, awaiting, origin
            )
            if stage.incoming is not None and made.payload is not None:
                stage.incoming.origin.has_made(origin, made.payload.rows_by_part)
            if step.state_bytes is not None:
                instance.figures.state_bytes = step.state_bytes
            port = stage.incoming.link.port if stage.incoming is not None else 0 if instance is source else None
            if instance is source and made.payload is not None:
                instance.figures.rate_out.gained(task.now, made.payload.rows)
            instance.figures.step(port, step.rows, made.payload.rows if made.payload is not None else 0, step.cpu_ns, step.spent_s)
            if number == 0 and task.late and instance.waiting.misses is not None:
                instance.figures.late(instance.waiting.misses.counted([kinds for _, kinds in task.late]), defers=defers(instance))
            if stage.incoming is not None:
                self._count(instance, stage.incoming, batch, task, first=number == 0)
            elif instance.sink is not None:  # it has written its held rows
                self._delivered(instance, Batch(0, task.stimulus_s, made.watermark_us, None))
            batch = carried
            if instance.ended and instance.state is State.RUNNING:
                self._ended(instance)
        if source is not None and task.polled is not None and task.steps:
            self._acknowledgement.entered(source, task.polled.upto)
            if task.polled.place is not None:
                self._positions.entered(source, task.polled.place)

    def _count(self, instance: Instance, incoming: Input, batch: Batch | None, task: Task, *, first: bool) -> None:
        """Counts a batch or slice that an operator has processed, and tells the link when a batch is complete."""
        if first and not task.last:
            incoming.sliced = task.end
            return
        instance.figures.batches_in += 1
        incoming.origin.made_of_all = instance.figures.rows_out
        if first:
            incoming.sliced = 0
            for taken in task.batches:
                instance.waiting.dequeue(incoming)
                self._flow.processed(incoming, taken)
            if instance.waiting.misses is not None:
                instance.waiting.misses.left(incoming.link.id, [taken.sequence for taken in task.batches])
            instance.figures.batches_in += len(task.batches) - 1
        elif instance.passes:
            self._flow.safety.passed_on(instance, incoming)
        if instance.sink is not None:
            for one in task.batches if first or batch is None else [batch]:
                self._delivered(instance, one)

    def _emit(
        self,
        instance: Instance,
        payload: Rows | None,
        stimulus_s: float,
        watermark_us: int,
        path: int,
        onward: Input | None,
        joined: Sequence[Instance],
        head: Instance | None,
        origin: int,
    ) -> Batch | None:
        """Offers an operator's result to its outputs.

        Parameters
        ----------
        head : first operator of the task, if the acknowledgement of the rows is awaited
        origin : number of the input that the rows were made of (`sbon.links.origins`)

        Returns the batch that the next operator of the same task took from the link `onward`.
        """
        if payload is None and watermark_us <= instance.watermark_out_us:
            return None
        before_us, instance.watermark_out_us = instance.watermark_out_us, max(instance.watermark_out_us, watermark_us)
        if payload is not None:
            instance.figures.rows_out += payload.rows
        carried = None
        whole = payload
        for output in list(instance.outputs.values()):
            payload = None if whole is None else whole.of_part(output.link.part)
            if payload is None and watermark_us <= before_us:
                continue  # the batch has rows for other parts only
            payload = payload if not output.giving.is_due else _skipped(output, payload, origin)
            told = origin if output.giving.is_whole else 0
            relay = next((made for made in joined if output.link.id in made.inputs), None) if joined else None
            goes_on = onward is not None and output.link.id == onward.link.id
            large = payload is not None and relay is None and not goes_on and payload.size_bytes > LOCAL_BYTES_MAX
            *parts, last = payload.parts() if payload is not None and (large or self._flow.outgoing.leaves(output)) else (payload,)
            for part in parts:
                output.sender.offer(stimulus_s, before_us, part, path, told)
            batch = output.sender.offer(stimulus_s, instance.watermark_out_us, last, path, told)
            if onward is not None and goes_on:
                self._flow.carried(output, onward, batch)
                carried = batch
            elif relay is not None:
                incoming = relay.inputs[output.link.id]
                self._flow.carried(output, incoming, batch)
                relay.figures.batches_in += 1
                relay.figures.rows_in += batch.rows
                relay.watermark_us = incoming.watermark_us
                on = way(path, relay.id)
                carried = self._emit(relay, payload, stimulus_s, relay.watermark_us, on, onward, joined, head, told) or carried
                self._flow.safety.passed_on(relay, incoming)
            else:
                self._flow.outgoing.transmit(output)
                if payload is not None and head is not None:
                    self._polling.offered(head, output)
                    if head.source is not None:
                        self._acknowledgement.offered(output)
        return carried


def origin_of(instance: Instance, incoming: Input | None, batch: Batch | None) -> int:
    """Returns the origin of the rows that an operator makes of a batch. Multicasts and stateless operators with one input pass it on."""
    if instance.is_multicast:
        return 0 if batch is None else batch.origin
    return 0 if incoming is None else incoming.origin.of(0 if batch is None else batch.origin)


def _skipped(output: Output, payload: Rows | None, origin: int) -> Rows | None:
    """Returns the rows without those that the target took before a crash; None if no row is left."""
    if payload is None:
        return None
    skipped = output.giving.take(payload.rows, origin)
    return payload.behind(skipped) if skipped < payload.rows else None
