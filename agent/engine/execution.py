"""Running operators: earliest stimulus first, one batch at a time each, on executor threads, only with credit on every output.

A batch is acknowledged when its effects are in the operator's state and its output is in the senders; so an operator that has stopped
between two batches can be taken away with nothing lost (`sbon.links`).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from agent.connectors.base import Congested, Polled
from agent.engine.flow import Flow
from agent.engine.instance import Input, Instance, State
from agent.engine.rows import Rows
from agent.engine.settings import EngineConfig
from agent.host import Host
from sbon.errors import ConnectorError, SbonError
from sbon.links import Batch
from sbon.query.plan import WATERMARK_END, SinkParams
from sbon.scheduling import EarliestStimulusFirst
from sbon.types import NodeId, OperatorId

if TYPE_CHECKING:
    import polars as pl


class _Produced(NamedTuple):
    """What one batch led to."""

    payload: Rows | None
    watermark_us: int


class Execution:
    """The scheduler's loop over the operators of this host."""

    def __init__(
        self,
        host: Host,
        me: NodeId,
        config: EngineConfig,
        flow: Flow,
        instances: Mapping[OperatorId, Instance],
        failed: Callable[[Instance], None],
        finished: Callable[[Instance], None],
        delivered: Callable[[Instance, Batch], None],
    ) -> None:
        self._host = host
        self._me = me
        self._config = config
        self._flow = flow
        self._instances = instances
        self._failed = failed
        self._finished = finished
        self._delivered = delivered
        self._ready = EarliestStimulusFirst[OperatorId]()
        self._running = 0

    # -------------------------------------------------------------------------------------------------- scheduling

    def consider(self, instance: Instance) -> None:
        """Something about the operator has changed: may it run?"""
        if instance.state is not State.RUNNING or instance.busy:
            self._ready.remove(instance.id)
            return
        if instance.source is not None:
            if instance.blocked and instance.has_credit:
                instance.blocked = False
                self._poll_at(instance, self._host.now())
            return
        incoming = instance.earliest()
        instance.blocked = incoming is not None and not instance.has_credit
        if incoming is None or instance.blocked:
            self._ready.remove(instance.id)
            return
        self._ready.push(instance.id, incoming.queue[0].stimulus_s)
        self._pump()

    def pause(self, instance: Instance, then: Callable[[], None]) -> None:
        """Run no further batch; `then` follows when the one under way, if any, is done."""
        instance.state = State.PAUSED
        self._ready.remove(instance.id)
        if instance.busy:
            instance.when_idle = then
        else:
            self._host.call_soon(then)

    def start(self, instance: Instance) -> None:
        """The operator may run."""
        instance.state = State.FINISHED if instance.ended else State.RUNNING
        if instance.source is not None:
            try:
                instance.source.start(lambda: self._poll_at(instance, self._host.now()))
            except ConnectorError as problem:
                self.fail(instance, str(problem))
                return
            self._poll_at(instance, self._host.now())
        else:
            self.consider(instance)

    def fail(self, instance: Instance, reason: str) -> None:
        """The operator can do no more; its inputs stay unacknowledged."""
        if instance.state is State.FAILED:
            return
        instance.state = State.FAILED
        instance.reason = reason
        self._ready.remove(instance.id)
        self.stop(instance)
        self._failed(instance)

    def stop(self, instance: Instance) -> None:
        """Let go of files, sockets and timers."""
        self._ready.remove(instance.id)
        if instance.timer is not None:
            instance.timer.cancel()
            instance.timer = None
        if instance.source is not None:
            instance.source.stop()
        if instance.sink is not None:
            sink = instance.sink
            if instance.busy:
                instance.when_idle = lambda: self._host.execute(sink.close, _ignored, rows=0)
            else:
                self._host.execute(sink.close, _ignored, rows=0)

    def _pump(self) -> None:
        while self._running < self._host.workers:
            operator = self._ready.pop()
            if operator is None:
                return
            instance = self._instances.get(operator)
            if instance is not None and instance.state is State.RUNNING and not instance.busy:
                incoming = instance.earliest()
                if incoming is not None:
                    self._run(instance, incoming)

    # ----------------------------------------------------------------------------------------- operators and sinks

    def _run(self, instance: Instance, incoming: Input) -> None:
        batch = incoming.queue[0]
        watermark_us = instance.watermark_with(incoming, max(incoming.watermark_us, batch.watermark_us))
        remote = any(output.node != self._me for output in instance.outputs.values())
        instance.busy = True
        self._running += 1

        def done(result: _Produced | BaseException) -> None:
            self._running -= 1
            instance.busy = False
            self._done(instance, incoming, batch, watermark_us, result)
            self._pump()

        self._host.execute(lambda: _work(instance, incoming, batch, watermark_us, remote), done, rows=max(1, batch.rows))

    def _done(self, instance: Instance, incoming: Input, batch: Batch, watermark_us: int, result: _Produced | BaseException) -> None:
        if isinstance(result, Congested):
            self._retry_later(instance, result.retry_after_s)
        elif isinstance(result, BaseException):
            known = isinstance(result, SbonError)
            self.fail(instance, str(result) if known else f"{type(result).__name__}: {result}")
        else:
            incoming.queue.popleft()
            instance.batches_in += 1
            instance.rows_in += batch.rows
            instance.watermark_us = watermark_us
            self._emit(instance, result.payload, batch.stimulus_s, result.watermark_us)
            self._flow.processed(incoming, batch)
            if instance.sink is not None:
                self._delivered(instance, batch)
            if watermark_us >= WATERMARK_END and instance.state is State.RUNNING:
                instance.state = State.FINISHED
                self._finished(instance)
        if instance.when_idle is not None:
            then, instance.when_idle = instance.when_idle, None
            then()
        self.consider(instance)

    def _retry_later(self, instance: Instance, after_s: float) -> None:
        """The sink's far end is full: hold still for a while, with everything where it is."""
        if instance.state is not State.RUNNING:
            return
        instance.state, instance.blocked = State.PAUSED, True

        def resume() -> None:
            if instance.state is State.PAUSED:
                instance.state = State.RUNNING
                self.consider(instance)

        instance.timer = self._host.call_at(self._host.now() + after_s, resume)

    def _emit(self, instance: Instance, payload: Rows | None, stimulus_s: float, watermark_us: int) -> None:
        if payload is None and watermark_us <= instance.watermark_out_us:
            return
        instance.watermark_out_us = max(instance.watermark_out_us, watermark_us)
        if payload is not None:
            instance.rows_out += payload.rows
        for output in instance.outputs.values():
            output.sender.offer(stimulus_s, instance.watermark_out_us, payload)
            self._flow.transmit(output)

    # ------------------------------------------------------------------------------------------------------ sources

    def _poll_at(self, instance: Instance, when: float) -> None:
        """Poll the source at that instant, though not sooner than its last batch allows."""
        if instance.state is not State.RUNNING:
            return
        if instance.timer is not None:
            instance.timer.cancel()
        when = max(when, instance.polled_at + self._config.batch_interval_s)
        instance.timer = self._host.call_at(when, lambda: self._poll(instance))

    def _poll(self, instance: Instance) -> None:
        instance.timer = None
        source = instance.source
        if instance.state is not State.RUNNING or source is None or self._instances.get(instance.id) is not instance:
            return
        if not instance.has_credit:
            instance.blocked = True
            return
        now, wall = self._host.now(), self._host.wall()
        try:
            polled: Polled = source.poll(now, wall)
        except ConnectorError as problem:
            self.fail(instance, str(problem))
            return
        payload = None
        if polled.frame is not None and polled.frame.height:
            payload = Rows.of_frame(polled.frame, instance.spec.schema)
            instance.rows_in += payload.rows
        self._emit(instance, payload, wall, polled.watermark_us)
        if polled.finished:
            instance.state = State.FINISHED
            source.stop()
            self._finished(instance)
        elif polled.next_poll is None:
            instance.polled_at = now
        elif polled.next_poll <= now and payload is not None:
            # More is waiting: only credit holds it back. Others get their turn between two batches.
            self._host.call_soon(lambda: self._poll(instance))
        else:
            instance.polled_at = now
            self._poll_at(instance, polled.next_poll)


def _work(instance: Instance, incoming: Input, batch: Batch, watermark_us: int, remote: bool) -> _Produced:
    """One batch through one operator, on an executor thread. `remote`: encode the answer here, not on the event loop."""
    if instance.is_multicast:
        return _Produced(_as_it_came(batch, remote), watermark_us)
    frame = batch.payload.frame() if isinstance(batch.payload, Rows) else None
    if instance.sink is not None:
        if frame is not None:
            instance.sink.write(_as_wanted(instance, frame))
        return _Produced(None, watermark_us)
    operator = instance.operator
    assert operator is not None
    produced: list[pl.DataFrame] = []
    if frame is not None:
        produced.extend(operator.process(incoming.link.port, frame))
    if watermark_us > instance.watermark_us:
        produced.extend(operator.advance(watermark_us))
    produced = [part for part in produced if part.height]
    payload = None
    if produced:
        payload = Rows.of_frames(produced, instance.spec.schema)
        if remote:
            payload.data()
    out_us = operator.output_watermark(watermark_us) if watermark_us < WATERMARK_END else WATERMARK_END
    return _Produced(payload, out_us)


def _as_wanted(instance: Instance, frame: "pl.DataFrame") -> "pl.DataFrame":
    """The columns of a sink, named and ordered as the author of its query wants them."""
    from sbon.operators.frames import arranged

    params = instance.spec.params
    return arranged(frame, params.columns) if isinstance(params, SinkParams) else frame


def _as_it_came(batch: Batch, remote: bool) -> Rows | None:
    """The rows of a batch, undecoded."""
    if not isinstance(batch.payload, Rows):
        return None
    if remote:
        batch.payload.data()
    return batch.payload


def _ignored(result: object) -> None:
    """A sink that was closed in vain has already been reported as failed."""
