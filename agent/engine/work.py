"""What an executor thread does: a batch, or a slice of one, goes through an operator, and on through those behind it on this host.

A task is made on the event loop (`agent.engine.chains`), run here, and settled on the event loop (`agent.engine.execution`). While it
runs, its operators are busy: nobody else touches their state, and everything else about them that is read here stands still.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from agent.engine.instance import Input, Instance
from agent.engine.rows import Rows
from agent.host import Meter
from sbon.compression import Codec
from sbon.links import Batch
from sbon.query.plan import WATERMARK_END, SinkParams

if TYPE_CHECKING:
    import polars as pl

    from agent.connectors.base import Polled


class Stage(NamedTuple):
    """One operator of a task."""

    instance: Instance
    incoming: Input | None
    """By which the rows come; None: a source, which makes them."""
    others_us: int
    """Least watermark of its other inputs."""
    packing: tuple[Codec, ...]
    """For outputs that lead elsewhere: how they pack the answer, which is done here and not on the event loop."""


class Step(NamedTuple):
    """What one operator has done."""

    rows: int
    """That it took; for a source, that it gave."""
    watermark_us: int
    """Of the operator, after this."""
    payload: Rows | None
    watermark_out_us: int
    spent_s: float
    cpu_ns: int
    """Of this thread, and of those that polars has worked on for it."""


@dataclass(slots=True, eq=False)
class Task:
    """Work for one quantum."""

    stages: list[Stage]
    stimulus_s: float
    batch: Batch | None = None
    """What the first operator takes; None: it is a source."""
    further: list[Batch] = field(default_factory=list)
    """Batches behind it on the same link, which go with it as if they were one."""
    begin: int = 0
    end: int = 0
    """The rows of it that are this task's; `end` 0: all."""
    polled: "Polled | None" = None
    """What the source gave; None: it is still to be asked, at these instants."""
    now: float = 0.0
    before_s: float = 0.0
    """Spent on asking it already."""
    before_cpu_ns: int = 0
    """Processor time of that."""
    steps: list[Step] = field(default_factory=list)
    problem: BaseException | None = None
    """Of the operator behind the last step."""
    joined: list[Instance] = field(default_factory=list)
    """Multicasts made in the meantime between two of the operators."""

    @property
    def batches(self) -> list[Batch]:
        """All that the first operator takes, in order."""
        return [self.batch, *self.further] if self.batch is not None else []

    @property
    def last(self) -> bool:
        """Nothing of the batch is left after this."""
        return self.batch is None or not self.end or self.end >= self.batch.rows

    def sizes(self) -> list[int]:
        """Rows that each operator has worked on, at least 1; sources do not count."""
        return [max(1, step.rows) for stage, step in zip(self.stages, self.steps, strict=False) if stage.incoming is not None]

    @property
    def cpu_s(self) -> float:
        """Processor time, by all operators together: unlike `spent_s` it does not grow when others have the processor."""
        return sum(step.cpu_ns for step in self.steps) / 1e9

    @property
    def spent_s(self) -> float:
        """By all operators together."""
        return self.before_s + sum(step.spent_s for step in self.steps)


def run(task: Task, clock: Callable[[], float], measure: Callable[[], Meter]) -> Task:
    """Do it; what fails ends it, and is in `problem`."""
    meter = measure()
    try:
        payload, watermark_us = None, 0
        for number, stage in enumerate(task.stages):
            began = clock()
            if stage.incoming is None:
                rows, own_us, payload, watermark_us = _give(task, stage)
            elif number:
                rows = payload.rows if payload is not None else 0
                own_us = _least(stage, watermark_us)
                payload, watermark_us = _take(stage, payload, None, own_us)
            else:
                rows, own_us, payload, watermark_us = _begin(task, stage)
            if payload is not None and len(payload.parts()) == 1:  # parts are packed when their turn comes
                for codec in stage.packing:
                    payload.pack(codec, clock)
            spent_s = clock() - began
            cpu_ns = meter.lap(max(1, rows)) if stage.incoming is not None else task.before_cpu_ns + meter.lap(0)
            task.steps.append(Step(rows, own_us, payload, watermark_us, spent_s, cpu_ns))
            if payload is None and watermark_us <= stage.instance.watermark_out_us:
                break
            watermark_us = max(watermark_us, stage.instance.watermark_out_us)
    except BaseException as problem:  # a panic of polars is no Exception
        task.problem = problem
    finally:
        meter.end()
    return task


def _give(task: Task, stage: Stage) -> tuple[int, int, Rows | None, int]:
    """Ask the source, unless that has been done."""
    source = stage.instance.source
    assert source is not None
    if task.polled is None:
        task.polled = source.poll(task.now, task.stimulus_s)
    frame = task.polled.frame
    payload = Rows.of_frame(frame, stage.instance.spec.schema) if frame is not None and frame.height else None
    return (payload.rows if payload is not None else 0), stage.instance.watermark_us, payload, task.polled.watermark_us


def _begin(task: Task, stage: Stage) -> tuple[int, int, Rows | None, int]:
    """The first operator, with its part of the batch. Only the last part brings the watermark along."""
    batch = task.batch
    assert batch is not None
    payload = batch.payload if isinstance(batch.payload, Rows) else None
    own_us = _least(stage, max(one.watermark_us for one in task.batches)) if task.last else stage.instance.watermark_us
    rows, part = batch.rows, None
    if task.further:
        payloads = [one.payload for one in task.batches if isinstance(one.payload, Rows)]
        payload = Rows.joined(payloads, stage.incoming.schema) if payloads and stage.incoming is not None else None
        rows = payload.rows if payload is not None else 0
    if payload is not None and task.end:
        part = payload.frame().slice(task.begin, task.end - task.begin)
        rows = part.height
    return rows, own_us, *_take(stage, payload, part, own_us)


def _least(stage: Stage, watermark_us: int) -> int:
    """The operator's watermark once this has come by the link: the least of its inputs, never less than before."""
    assert stage.incoming is not None
    return max(min(max(watermark_us, stage.incoming.watermark_us), stage.others_us), stage.instance.watermark_us)


def _take(stage: Stage, payload: Rows | None, part: "pl.DataFrame | None", watermark_us: int) -> tuple[Rows | None, int]:
    """Rows (or `part` of them) and a watermark through one operator: what comes of it."""
    instance = stage.instance
    if instance.is_multicast:
        return payload, watermark_us  # as they came, undecoded
    frame = part if part is not None else payload.frame() if payload is not None else None
    if instance.sink is not None:
        if frame is not None:
            instance.sink.write(_as_wanted(instance, frame))
        return None, watermark_us
    operator, incoming = instance.operator, stage.incoming
    assert operator is not None
    assert incoming is not None
    produced: list[pl.DataFrame] = []
    log = instance.log
    if frame is not None:
        if log is not None:
            log.process(incoming.link.port, frame)
        produced.extend(operator.process(incoming.link.port, frame))
    if watermark_us > instance.watermark_us:
        if log is not None:
            log.advance(watermark_us)
        produced.extend(operator.advance(watermark_us))
    produced = [given for given in produced if given.height]
    out_us = operator.output_watermark(watermark_us) if watermark_us < WATERMARK_END else WATERMARK_END
    return (Rows.of_frames(produced, instance.spec.schema) if produced else None), out_us


def _as_wanted(instance: Instance, frame: "pl.DataFrame") -> "pl.DataFrame":
    """The columns of a sink, named and ordered as the author of its query wants them."""
    from sbon.operators.frames import arranged

    params = instance.spec.params
    return arranged(frame, params.columns) if isinstance(params, SinkParams) else frame
