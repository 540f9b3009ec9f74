"""An engine of another kind, without threads, quanta and chains: it runs each batch at once, on the event loop.

It shows that the overlay uses only the interface `sbon.execution.engine.Engine`. It does not use `sbon_agent.engine`.
"""

from collections.abc import Callable
from typing import Any

from sbon.errors import LocalProtocolError
from sbon.execution.ends import Input
from sbon.execution.instance import Instance
from sbon.execution.life import Event, State
from sbon.execution.rows import Rows
from sbon.links.batch import Batch, way
from sbon.migration.handover import export, install
from sbon.migration.state_copy import Assembly, InputLog
from sbon.operators.frames import arranged
from sbon.operators.registry import build
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import OperatorSpec
from sbon.watermarks import WATERMARK_END
from sbon_agent.connectors.registry import build_sink, build_source
from sbon_agent.hosting import EngineParts

Told = Callable[[BaseException | None], None]


class TinyEngine:
    """Runs the operators of one host, one batch after the other."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        self.instances = parts.instances

    # ------------------------------------------------------------------------------------------------ make and end

    def instantiate(self, instance: Instance, *, done: Told, taken_up: object = None) -> None:
        params, context = instance.spec.params, self.parts.context
        try:
            if isinstance(params, SourceParams):
                instance.source = build_source(params, context)
            elif isinstance(params, SinkParams):
                instance.sink = self.parts.events.make_sink(instance, params) or build_sink(params, instance.spec.schema, context)
            else:
                instance.operator = build(params, context.extensions())
        except Exception as problem:
            done(problem)
            return
        instance.on(Event.BUILT if instance.sink is None else Event.SINK_BUILT)
        if instance.source is not None:
            instance.source.start(lambda: self.consider(instance))
        self.consider(instance)
        done(None)

    def begin(self, instance: Instance) -> None:
        if instance.allows(Event.BEGIN):
            instance.on(Event.BEGIN)
            self.consider(instance)

    def destroy(self, instance: Instance) -> None:
        instance.on(Event.DESTROY)
        if instance.source is not None:
            instance.source.stop()
        if instance.sink is not None:
            instance.sink.close()

    def fail(self, instance: Instance, reason: str) -> None:
        instance.on(Event.FAULT, reason=reason)
        self.parts.events.operator_failed(instance)

    # --------------------------------------------------------------------------------------------------------- run

    def consider(self, instance: Instance) -> None:
        """Runs an operator as long as it has batches, and credit for their results."""
        while instance.state is State.RUNNING and instance.has_credit:
            incoming = instance.waiting.earliest(begun=False)
            if instance.source is not None:
                if not self._poll(instance):
                    return
            elif incoming is None:
                return
            else:
                self._run(instance, incoming, incoming.queue.head)
        instance.waiting.blocked = instance.state is State.RUNNING and not instance.has_credit

    def _poll(self, instance: Instance) -> bool:
        """Polls a source for a batch; tells whether there may be more now."""
        host, schema = self.parts.host, instance.spec.schema
        assert instance.source is not None
        polled = instance.source.poll(host.now(), host.wall())
        rows = Rows.of_frame(polled.frame, schema) if polled.frame is not None else None
        if polled.values is not None:
            rows = Rows.of_values(polled.values, schema)
        self._give(instance, rows, host.wall(), polled.watermark_us, 0)
        if polled.finished:
            instance.on(Event.GAVE_ALL)
            instance.source.stop()
            self.parts.events.operator_finished(instance)
        elif polled.next_poll is not None:
            instance.timer = host.call_at(max(polled.next_poll, host.now() + 0.1), lambda: self.consider(instance))
        return False

    def _run(self, instance: Instance, incoming: Input, batch: Batch) -> None:
        """Processes one batch, and acknowledges it."""
        rows = batch.payload if isinstance(batch.payload, Rows) else None
        others = [other.watermark_us for other in instance.inputs.values() if other is not incoming and not other.lost]
        watermark_us = max(instance.watermark_us, min([max(incoming.watermark_us, batch.watermark_us), *others]))
        if instance.sink is not None:
            params: Any = instance.spec.params
            if rows is not None:
                instance.sink.write(arranged(rows.frame(), params.columns))
            instance.watermark_us = watermark_us
        elif instance.is_multicast:
            instance.watermark_us = watermark_us
            self._give(instance, rows, batch.stimulus_s, watermark_us, batch.path)
        else:
            assert instance.operator is not None
            made = []
            if rows is not None:
                if instance.log is not None:
                    instance.log.process(incoming.link.port, rows.frame())
                made = list(instance.operator.process(incoming.link.port, rows.frame()))
            self._advance(instance, watermark_us, made, batch.stimulus_s, batch.path)
        instance.figures.step(incoming.link.port, batch.rows, 0, 0, 0.0)
        instance.waiting.dequeue(incoming)
        self.parts.flow.processed(incoming, batch)
        if instance.sink is not None:
            self.parts.events.delivered(instance, batch)
        self._end(instance)

    def advance(self, instance: Instance, watermark_us: int) -> None:
        self._advance(instance, watermark_us, [], self.parts.host.wall(), 0)
        self._end(instance)

    def _advance(self, instance: Instance, watermark_us: int, made: list[Any], stimulus_s: float, path: int) -> None:
        operator = instance.operator
        assert operator is not None
        if watermark_us > instance.watermark_us:
            if instance.log is not None:
                instance.log.advance(watermark_us)
            for frames in operator.advance_in_steps(watermark_us):
                made.extend(frames)
            instance.watermark_us = watermark_us
        given = [frame for frame in made if frame.height]
        rows = Rows.of_frames(given, instance.spec.schema) if given else None
        out_us = operator.output_watermark(watermark_us) if watermark_us < WATERMARK_END else WATERMARK_END
        self._give(instance, rows, stimulus_s, out_us, path)

    def _give(self, instance: Instance, rows: Rows | None, stimulus_s: float, watermark_us: int, path: int) -> None:
        """Sends a result to all outputs."""
        if rows is None and watermark_us <= instance.watermark_out_us:
            return
        instance.watermark_out_us = max(instance.watermark_out_us, watermark_us)
        instance.figures.rows_out += rows.rows if rows is not None else 0
        for output in list(instance.outputs.values()):
            output.sender.offer(stimulus_s, instance.watermark_out_us, rows, way(path, instance.id))
            self.parts.flow.outgoing.transmit(output)

    def _end(self, instance: Instance) -> None:
        if instance.ended and instance.state is State.RUNNING:
            finish = getattr(instance.sink, "finish", None)
            if finish is not None:
                finish()
            instance.on(Event.ENDED)
            self.parts.events.operator_finished(instance)

    def join(self, operator: Instance, multicast: Instance) -> None:
        multicast.on(Event.BUILT, ended=multicast.ended)

    # --------------------------------------------------------------------------------------------------- migration

    def rest(self, instance: Instance, done: Told) -> None:
        def soon() -> None:
            still = instance.state is State.PAUSED
            done(None if still else LocalProtocolError(f"operator {instance.id} is {instance.state.value}"))

        if instance.allows(Event.REST):
            instance.on(Event.REST)
            instance.on(Event.IDLE)
        self.parts.host.call_soon(soon)

    def go_on(self, instance: Instance) -> None:
        if instance.allows(Event.GO_ON):
            instance.on(Event.GO_ON, ended=instance.ended)
            self.consider(instance)

    def fork(self, instance: Instance, done: Callable[[Any], None]) -> None:
        if instance.operator is None or instance.operator.is_stateless:
            self.parts.host.call_soon(lambda: done(None))
        elif instance.state in (State.RUNNING, State.FINISHED):
            copy, instance.log = instance.operator.fork(), InputLog()
            self.parts.host.call_soon(lambda: done(copy))
        else:
            self.parts.host.call_soon(lambda: done(LocalProtocolError(f"operator {instance.id} is {instance.state.value}")))

    def end_log(self, instance: Instance) -> None:
        instance.log = None

    def snapshot(self, instance: Instance, done: Callable[[bytes | BaseException], None]) -> None:
        record = export(instance)()
        instance.on(Event.EXPORT)
        self.parts.host.call_soon(lambda: done(record))

    def assembly(self, spec: OperatorSpec) -> Assembly:
        return Assembly(spec, self.parts.context.extensions)

    def restore(self, assembly: Assembly, epoch: int, done: Callable[[Instance | BaseException], None]) -> None:
        made = install(*assembly.finished(), epoch, self.parts.links)
        self.parts.host.call_soon(lambda: done(made))

    def activate(self, instance: Instance) -> None:
        instance.on(Event.RUN, ended=instance.ended)
        self.consider(instance)

    def expect(self) -> None:
        """Does nothing, as there are no libraries to load."""

    def hand_over(self, instance: Instance) -> None:
        instance.on(Event.HAND_OVER)
        instance.drop_operator()
