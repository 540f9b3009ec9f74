"""The work of an executor thread: a batch, or a slice of one, passes through an operator and through those behind it on this host.

A task is made on the event loop (`sbon.execution.chains`), run here, and applied on the event loop (`sbon.engine.execution`).
While it runs, its operators are busy: nobody else touches their state, and nothing else that is read here changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from sbon.compression import Codec
from sbon.errors import RemoteProtocolError, StateError
from sbon.execution.ahead import Ahead, rows_given, rows_of
from sbon.execution.closing import Closing, Quantum
from sbon.execution.ends import Input
from sbon.execution.instance import Instance, defers
from sbon.execution.rows import Rows
from sbon.links.batch import Batch
from sbon.links.origins import short
from sbon.operators.values import Values
from sbon.ports import Meter
from sbon.query.params.source import SinkParams
from sbon.query.plan import Begin, Part
from sbon.schema import Schema
from sbon.state_budget import StateBudget
from sbon.watermarks import WATERMARK_END

if TYPE_CHECKING:
    import polars as pl

    from sbon.connectors.interface import Polled
    from sbon.types import IntArray


class Stage(msgspec.Struct, frozen=True, eq=False):
    """One operator of a task."""

    instance: Instance
    incoming: Input | None
    """Input that the rows come by; None for a source, which makes them, or for an operator that continues its answers."""
    others_us: int
    """Least watermark of the operator's other inputs, in microseconds."""
    packing: tuple[tuple[Part | None, Codec], ...]
    """Parts and codecs of outputs to other hosts: the result is packed here, not on the event loop."""


class Made(msgspec.Struct, frozen=True, eq=False):
    """Result of one operator in a task."""

    watermark_us: int
    """Watermark of the operator after this step."""
    payload: Rows | None
    watermark_out_us: int
    rest: Closing | None = None
    """Answers still to be given; until then the watermarks stay as they were."""


class Step(msgspec.Struct, frozen=True, eq=False):
    """Record of what one operator did in a task."""

    rows: int
    """Rows that it took; for a source, rows that it gave."""
    made: Made
    spent_s: float
    cpu_ns: int
    """Processor time of this thread and of the polars threads that worked for it."""
    state_bytes: int | None = None
    """Memory of the operator's state after this step; None if not measured."""


class Task(msgspec.Struct, eq=False):
    """Work for one quantum."""

    stages: list[Stage]
    stimulus_s: float
    quantum: Quantum
    budget: StateBudget
    batches: Sequence[Batch] = ()
    """Batches that the first operator takes from one link, in order, as if they were one; empty for a source, or when it continues
    `closing`."""
    closing: Closing | None = None
    leave_out: "Callable[[Task], None] | None" = None
    """Sets `late` and `worked`, for operators with `waiting.misses`; it looks at rows, so it runs on the task's thread."""
    late: Sequence[tuple["IntArray", "IntArray"]] = ()
    """For each batch, the places of its rows that are left out or put off because they would be late, and their cost classes."""
    worked: "Sequence[int] | IntArray" = ()
    """The other rows, by cost class."""
    begin: int = 0
    end: int = 0
    """Rows of a single batch that belong to this task, `begin` to `end`; `end` 0 means all."""
    polled: "Polled | None" = None
    """Answer of the source; None if it is still to be polled, at `now` and `stimulus_s`."""
    make: "Callable[[], Polled] | None" = None
    """Makes the batch that the source has promised; None if it is to be polled."""
    now: float = 0.0
    """When the task began, by the monotonic clock; only for tasks of sources and of operators with `waiting.misses`."""
    given: Rows | None = None
    """The rows of `polled`, if they are there already."""
    ahead: Sequence[Ahead] = ()
    """Answers of the first operators behind the source for the batch, in order, computed before its turn."""
    asked_rows: int | None = None
    """Most rows that the source will give, if it has said how many are due; None if it has not, or is to be polled on a thread anyway."""
    before_s: float = 0.0
    """Time already spent on polling the source."""
    before_cpu_ns: int = 0
    """Processor time already spent on polling the source."""
    steps: list[Step] = msgspec.field(default_factory=list)
    problem: BaseException | None = None
    """Error of the operator behind the last step."""
    joined: list[Instance] = msgspec.field(default_factory=list)
    """Multicasts that were made between two of the operators while the task ran."""

    @property
    def last(self) -> bool:
        """True if nothing of the batch is left after this task."""
        return not self.end or self.end >= self.batches[0].rows

    @property
    def late_rows(self) -> int:
        """Returns the number of rows that are left out or put off because they would be late."""
        return sum(places.size for places, _ in self.late) if self.late else 0

    @property
    def path(self) -> int:
        """Path id of the first operator's input; 0 for a source."""
        if self.closing is not None:
            return self.closing.path
        return self.batches[-1].path if self.batches else 0

    def sizes(self) -> list[int]:
        """Rows that each operator has processed, at least 1 each; sources are left out."""
        return [max(1, step.rows) for stage, step in zip(self.stages, self.steps, strict=False) if stage.instance.source is None]

    @property
    def cpu_s(self) -> float:
        """Processor time of all operators together, in seconds.

        Unlike `spent_s` it does not grow when other programs have the processor.
        """
        return sum(step.cpu_ns for step in self.steps) / 1e9

    @property
    def spent_s(self) -> float:
        """Elapsed time of all operators together, in seconds."""
        return self.before_s + sum([step.spent_s for step in self.steps])


def run(task: Task, clock: Callable[[], float], measure: Callable[[], Meter]) -> Task:
    """Runs a task; an error ends it and is put into `problem`."""
    meter = measure()
    until = clock() + task.quantum.seconds

    def is_over() -> bool:
        return clock() >= until

    try:
        before: Made | None = None
        out_us = 0
        payload_bytes = sum(batch.size_bytes for batch in task.batches)
        for number, stage in enumerate(task.stages):
            began = clock()
            known = None
            if stage.instance.source is not None:
                rows, made = _give(task, stage)
            elif before is not None:
                rows = before.payload.rows if before.payload is not None else 0
                known = _known(task, stage.instance, number) if rows else None
                if known is not None:
                    made = _made(stage.instance, known.payload, _least(stage, out_us))
                else:
                    made = _take(task, stage, before.payload, None, _least(stage, out_us), is_over)
            elif task.closing is not None:
                rows, task.closing.rows = task.closing.rows, 0
                made = _go_on(task, stage.instance, task.closing, [], is_over)
            else:
                rows, made = _begin(task, stage, is_over)
            if made.payload is not None:
                _pack_ahead(made.payload, stage.packing, clock)
            state_bytes = _state_bytes(task, stage.instance, rows, payload_bytes)
            if known is not None:
                cpu_ns = known.cpu_ns + meter.lap(0)
            else:
                cpu_ns = meter.lap(max(1, rows)) if stage.instance.source is None else task.before_cpu_ns + meter.lap(0)
            spent_s = clock() - began + (known.spent_s if known is not None else 0.0)
            task.steps.append(Step(rows, made, spent_s, cpu_ns, state_bytes))
            if made.payload is None and made.watermark_out_us <= stage.instance.watermark_out_us:
                break
            before, out_us = made, max(made.watermark_out_us, stage.instance.watermark_out_us)
            payload_bytes = made.payload.size_bytes if made.payload is not None else 0
    except KeyboardInterrupt:  # in the simulation, whose only thread this is; an agent's executor threads receive no signals
        raise
    except StateError as problem:
        task.problem = problem.with_traceback(None)  # a traceback holds the states, and so their files, until garbage is collected
    except BaseException as problem:  # a panic of polars is no Exception
        task.problem = problem
    finally:
        meter.end()
    return task


def _pack_ahead(payload: Rows, packing: Iterable[tuple[Part | None, Codec]], clock: Callable[[], float]) -> None:
    """Packs rows for their links. Rows that cannot be packed stay as they are: `Flow` tries once more, and then leaves them out."""
    try:
        for part, codec in packing:
            rows = payload.of_part(part)
            if rows is not None and len(rows.parts()) == 1:  # the parts of a large batch are packed when their turn comes
                rows.pack(codec, clock)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a panic of polars is no Exception
        return


def _state_bytes(task: Task, instance: Instance, rows: int, size_bytes: int) -> int | None:
    """Measures the memory of an operator's state if it has taken much input since the last time; else returns None.

    Parameters
    ----------
    size_bytes : size of the operator's input; for a slice, that of the whole batch
    """
    operator = instance.operator
    if operator is None or operator.is_stateless:
        return None
    if task.end and task.batches[0].rows:
        size_bytes = size_bytes * rows // task.batches[0].rows
    batches, taken_bytes = instance.figures.unmeasured[0] + 1, instance.figures.unmeasured[1] + size_bytes
    if not task.budget.is_due(batches, taken_bytes):
        instance.figures.unmeasured = (batches, taken_bytes)
        return None
    instance.figures.unmeasured = (0, 0)
    from sbon.operators.sizes import held_bytes

    return held_bytes(operator)


def _give(task: Task, stage: Stage) -> tuple[int, Made]:
    """Takes the source's batch: polls it or makes the promised batch, unless that has been done."""
    source = stage.instance.source
    assert source is not None
    if task.polled is None:
        task.polled = source.poll(task.now, task.stimulus_s) if task.make is None else task.make()
    payload = rows_of(task.polled, stage.instance.spec.schema) if task.given is None else task.given
    return (payload.rows if payload is not None else 0), Made(stage.instance.watermark_us, payload, task.polled.watermark_us)


def _known(task: Task, instance: Instance, number: int) -> Ahead | None:
    """Returns the operator's answer to this batch, if the same operator has computed it ahead."""
    known = task.ahead[number - 1] if number <= len(task.ahead) else None
    return known if known is not None and known.operator is instance.operator else None


def _begin(task: Task, stage: Stage, is_over: Callable[[], bool]) -> tuple[int, Made]:
    """Runs the first operator on its part of the batch. Only the last part brings the watermark along."""
    batch = task.batches[0]
    payload = batch.payload if isinstance(batch.payload, Rows) else None
    own_us = _least(stage, max([one.watermark_us for one in task.batches])) if task.last else stage.instance.watermark_us
    rows, part = batch.rows, None
    if len(task.batches) > 1:
        payloads = [one.payload for one in task.batches if isinstance(one.payload, Rows)]
        payload = Rows.joined(payloads, stage.incoming.schema) if payloads and stage.incoming is not None else None
        rows = payload.rows if payload is not None else 0
    if payload is not None and task.end:
        part = payload.frame().slice(task.begin, task.end - task.begin)
        rows = part.height
    if task.leave_out is not None:
        task.leave_out(task)
    if payload is not None and task.late_rows:
        part = _without_late(task, stage.instance, payload.frame() if part is None else part)
        rows = part.height
    return rows, _take(task, stage, payload, part, own_us, is_over)


def _without_late(task: Task, instance: Instance, frame: "pl.DataFrame") -> "pl.DataFrame":
    """Returns the rows of the first operator without those that would be late. An operator that defers keeps these for later."""
    import numpy as np

    from sbon.operators.frames import rows_where

    is_late, first = np.zeros(frame.height, dtype=bool), -task.begin
    for batch, (places, _) in zip(task.batches, task.late, strict=True):
        is_late[first + places] = True
        first += batch.rows
    if defers(instance):
        from sbon.operators.deferring import PUT_OFF, Deferring, since

        assert isinstance(instance.operator, Deferring)
        put_off = since(rows_where(frame, is_late), task.stimulus_s)
        if instance.log is not None:
            instance.log.process(PUT_OFF, put_off)
        instance.operator.process(PUT_OFF, put_off)
    return rows_where(frame, ~is_late)


def working_off(instance: Instance, rows_max: int) -> Closing:
    """Returns the work on the next rows that were put off; nothing is computed before its first step is taken."""
    from sbon.operators.deferring import WORK_OFF, Deferring

    operator = instance.operator
    assert isinstance(operator, Deferring)
    asked = operator.rows_to_work_off(rows_max)

    def steps() -> "Iterator[Sequence[pl.DataFrame]]":
        if instance.log is not None:
            instance.log.process(WORK_OFF, asked)
        yield operator.process(WORK_OFF, asked)

    closing = Closing(steps(), instance.watermark_us, int(asked.item()))
    closing.stimulus_s = operator.deferred_since_s
    return closing


def _least(stage: Stage, watermark_us: int) -> int:
    """Returns the operator's watermark once this link has reached `watermark_us`: the least of its inputs, and never less than before."""
    assert stage.incoming is not None
    return max(min(max(watermark_us, stage.incoming.watermark_us), stage.others_us), stage.instance.watermark_us)


def _take(
    task: Task, stage: Stage, payload: Rows | None, part: "pl.DataFrame | None", watermark_us: int, is_over: Callable[[], bool]
) -> Made:
    """Runs rows (or `part` of them) and a watermark through one operator; returns the result."""
    instance = stage.instance
    if instance.is_multicast:
        return Made(watermark_us, payload, watermark_us)  # passed on without decoding
    if instance.sink is not None:
        if instance.waiting.change is not None:
            _write_of_plan(stage, payload, part, watermark_us, _origin_of(task))
        elif part is not None or payload is not None:
            _write_behind(stage, payload, part, _origin_of(task))
        return Made(watermark_us, None, watermark_us)
    operator, incoming = instance.operator, stage.incoming
    assert operator is not None
    assert incoming is not None
    if part is None and payload is not None and instance.log is None:
        taking = operator.of_values(incoming.schema)
        values = payload.values() if taking is not None else None
        if taking is not None and values is not None:
            given = taking(values)
            return _made(instance, Rows.of_values(given, instance.spec.schema) if given.rows else None, watermark_us)
    frame = part if part is not None else payload.frame() if payload is not None else None
    produced: list[pl.DataFrame] = []
    log = instance.log
    if frame is not None and frame.height:
        produced.extend(operator.process(incoming.link.port, frame))
        if log is not None:  # not before: an operator whose disk is full takes the batch again
            log.process(incoming.link.port, frame)
    if watermark_us > instance.watermark_us:
        if log is not None:
            log.advance(watermark_us)
        steps = operator.advance_in_steps(watermark_us)
        if not isinstance(steps, Sequence):
            return _go_on(task, instance, Closing(iter(steps), watermark_us), produced, is_over)
        for frames in steps:
            produced.extend(frames)
    return _made(instance, _rows(instance, produced), watermark_us)


def _go_on(task: Task, instance: Instance, closing: Closing, produced: "list[pl.DataFrame]", is_over: Callable[[], bool]) -> Made:
    """Takes as many of the answers to a watermark as fit into a quantum, and appends them to what the operator has produced."""
    produced += closing.part(task.quantum.rows, is_over)
    if instance.sink is not None:
        reached_us = closing.watermark_us if closing.done else instance.watermark_us
        return Made(reached_us, None, reached_us, None if closing.done else closing)
    if closing.done:
        return _made(instance, _rows(instance, produced), closing.watermark_us)
    return Made(instance.watermark_us, _rows(instance, produced), instance.watermark_out_us, closing)


def advancing(instance: Instance, watermark_us: int) -> "Iterator[Sequence[pl.DataFrame]]":
    """Yields an operator's answers to a watermark that no batch brings; nothing is done before the first is taken."""
    assert instance.operator is not None
    if instance.log is not None:
        instance.log.advance(watermark_us)
    yield from instance.operator.advance_in_steps(watermark_us)


def _made(instance: Instance, payload: Rows | None, watermark_us: int) -> Made:
    operator = instance.operator
    assert operator is not None
    out_us = operator.output_watermark(watermark_us) if watermark_us < WATERMARK_END else WATERMARK_END
    return Made(watermark_us, payload, out_us)


def _rows(instance: Instance, produced: "list[pl.DataFrame]") -> Rows | None:
    assert instance.operator is not None
    begin = instance.spec.begin
    if isinstance(begin, Begin):
        produced = [rows for frame in produced if (rows := from_begin(frame, begin)).height or instance.operator.deals]
    return rows_given(instance.operator, produced, instance.spec.schema)


def from_begin(frame: "pl.DataFrame", begin: Begin) -> "pl.DataFrame":
    """Returns the rows from the first complete answer on, and those without an event time."""
    times = frame[begin.column].to_physical()
    return frame.filter((times >= begin.us) | times.is_null())


def _write_behind(stage: Stage, payload: Rows | None, part: "pl.DataFrame | None", origin: int) -> None:
    """Writes rows of one origin into a sink, without the first ones that its former copy has written before a crash."""
    incoming = stage.incoming
    if incoming is not None and incoming.origin.is_noted:
        sink: Any = stage.instance.sink
        sink.next_of(short(incoming.link.id) if len(stage.instance.inputs) > 1 else 0, origin)
    if incoming is None or not incoming.written.is_due:
        _write(stage, payload, part)
        return
    rows = part.height if part is not None else payload.rows if payload is not None else 0
    skipped = incoming.written.next(rows, origin)
    if skipped < rows:
        if part is None and payload is not None:
            part = payload.frame()
        _write(stage, None, None if part is None else part.slice(skipped))
    incoming.written.take(rows, origin)


def _origin_of(task: Task) -> int:
    """Returns the origin of the rows that the next operator of a task takes; 0 if it is not told."""
    origin = task.batches[0].origin if task.batches else 0
    for stage, behind in pairwise(task.stages[: len(task.steps) + 1]):
        if not stage.instance.is_multicast:
            origin = 0 if stage.incoming is None else stage.incoming.origin.of(origin)
        output = None if behind.incoming is None else stage.instance.outputs.get(behind.incoming.link.id)
        origin = origin if output is not None and output.giving.is_whole else 0
    return origin


def _write_of_plan(stage: Stage, payload: Rows | None, part: "pl.DataFrame | None", watermark_us: int, origin: int) -> None:
    """Writes those rows of a batch that a change of plan lets through now, without those that the sink's former copy has written."""
    from sbon.execution.crossing import both_passed

    instance, incoming, change = stage.instance, stage.incoming, stage.instance.waiting.change
    assert change is not None
    assert incoming is not None
    frame = part if part is not None else payload.frame() if payload is not None else None
    rows = 0 if frame is None else frame.height
    skipped = incoming.written.next(rows, origin)
    if frame is not None and skipped:
        frame = frame.slice(skipped)
    passed, is_end = both_passed(change, instance, incoming, watermark_us), watermark_us >= WATERMARK_END
    step = change.step(incoming.link.id, frame, both_passed=passed, is_end=is_end)
    if step.rows is not None and step.rows.height:
        _write(stage, None, step.rows)
    incoming.written.take(rows, origin)
    change.commit(step)


class WriteHeld:
    """Writes the rows that wait in a sink whose change of plan has been decided, as the only step of its answers. A sink that refuses the
    rows is offered them again."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._is_done = False

    def __iter__(self) -> "Iterator[Sequence[pl.DataFrame]]":
        return self

    def __next__(self) -> "Sequence[pl.DataFrame]":
        if self._is_done:
            raise StopIteration
        change = self._instance.waiting.change
        if change is not None and change.waits:
            step = change.step("", None, both_passed=False)
            if step.rows is not None and step.rows.height:
                _write(Stage(self._instance, None, WATERMARK_END, ()), None, step.rows)
            change.commit(step)
        self._is_done = True
        return ()


def _write(stage: Stage, payload: Rows | None, part: "pl.DataFrame | None") -> None:
    """Writes rows (or `part` of them) into a sink, with columns named and ordered as the query says."""
    sink: Any = stage.instance.sink
    params = stage.instance.spec.params
    columns = params.columns if isinstance(params, SinkParams) else None
    if part is None and payload is not None and hasattr(sink, "write_values") and stage.incoming is not None:
        values = payload.values()
        if values is not None:
            sink.write_values(values if columns is None else Values(values.rows, _picked(values, columns, stage.incoming.schema)))
            return
    from sbon.operators.frames import arranged

    frame = part if part is not None else payload.frame() if payload is not None else None
    assert frame is not None
    sink.write(arranged(frame, columns))


def _picked(values: Values, columns: Sequence[tuple[str, str]], schema: Schema) -> tuple[Sequence[Any], ...]:
    """Picks and orders columns of plain values, as `sbon.operators.frames.arranged` does for a frame.

    Raises
    ------
    RemoteProtocolError
        A column is not among those that came.
    """
    places = {field.name: place for place, field in enumerate(schema)}
    try:
        return tuple(values.columns[places[found]] for _, found in columns)
    except KeyError as missing:
        raise RemoteProtocolError(f"column {missing} is not among the input columns {', '.join(places)}") from None
