"""The built-in engine: makes and runs operators on executor threads; implements `sbon.execution.engine.Engine`.

`sbon.engine.execution` schedules and runs operators, and `sbon.migration.handover` encodes the state that moves with an operator.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from sbon.engine.execution import Execution
from sbon.errors import ConnectorError, LocalProtocolError, PlacementError, SbonError
from sbon.execution.host_reports import measure_costs
from sbon.execution.instance import Instance
from sbon.execution.life import Event, State
from sbon.execution.opening import opening
from sbon.migration.handover import export, install
from sbon.migration.state_copy import Assembly, InputLog
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import OperatorSpec
from sbon.query.text import describe
from sbon.wire.authority import query_of
from sbon.wire.deployment import TakenUp
from sbon_agent.engine.building import build, load
from sbon_agent.hosting import EngineParts

if TYPE_CHECKING:
    from sbon.operators.operator import Operator

OPEN_S_MAX = 5.0
"""Time that a source or sink may take to open its file, in seconds; shorter than the timeout of the request that asks for it."""


class BuiltInEngine:
    """Runs the operators of this host with the library's operators and the agent's connectors."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._host = parts.host
        self.instances = parts.instances
        self._execution = Execution(
            parts.host,
            parts.me,
            parts.config,
            parts.flow,
            parts.instances,
            parts.budget,
            parts.events.operator_failed,
            parts.events.operator_finished,
            parts.events.delivered,
            parts.cost_store,
        )
        self._lives = self._execution.lives
        self._is_loading = False

    # ------------------------------------------------------------------------------------------------ make and end

    def expect(self) -> None:
        """Loads the libraries of operators on a thread, unless that has begun before."""
        if not self._is_loading:
            self._is_loading = True
            self._host.execute(load, _loaded, rows=0)

    def instantiate(self, instance: Instance, *, done: Callable[[BaseException | None], None], taken_up: TakenUp | None = None) -> None:
        """Builds an operator on a thread, opens its files, and starts it; a sink starts at `begin`."""
        params, context = instance.spec.params, self._parts.context
        if isinstance(params, SourceParams | SinkParams):
            reach = self._parts.reaches.of(params, query_of(instance.id))
            context = msgspec.structs.replace(context, reach=reach, operator=instance.id)

        def built(result: object) -> None:
            if isinstance(result, BaseException):
                made(result)
            elif (work := opening(instance, taken_up)) is not None:
                self._lives.when_closed(instance.id, lambda: open_with(work))
            else:
                made(None)

        def open_with(work: Callable[[], None]) -> None:
            if instance.state is State.GONE:
                made(None)
            else:
                self._host.execute_apart(work, opened, OPEN_S_MAX)

        def opened(result: object) -> None:
            if isinstance(result, TimeoutError):
                what = f"{describe(params)} on {self._parts.me}"
                made(ConnectorError(f"{what} cannot be opened: {result}; does its file system answer?"))
            else:
                made(result)

        def made(result: object) -> None:
            if instance.state is State.GONE:
                self._lives.let_go(instance, abandon=True)
                done(None)
            elif isinstance(result, BaseException):
                done(result)
            else:
                done(start())

        def start() -> BaseException | None:
            try:
                measure_costs(instance, self._parts.cost_store, self._host.now())
            except SbonError as problem:  # whoever asked for the operator would get no answer, however often he asks
                return problem
            self._lives.on(instance, Event.BUILT if instance.sink is None else Event.SINK_BUILT)
            return PlacementError(instance.reason) if instance.state is State.FAILED else None

        def make() -> None:
            self._parts.cost_store.time_once(lambda: self._host.meter(brief=True))
            build(instance, context, self._parts.events.make_sink, taken_up, self._parts.budget.room)

        self._host.execute(make, built, rows=0)

    def begin(self, instance: Instance) -> None:
        """Starts a sink that has been made."""
        if instance.allows(Event.BEGIN):
            self._lives.on(instance, Event.BEGIN)
            if instance.ended:  # it begins again after a crash, and its feeders have ended
                self._lives.ended(instance)

    def destroy(self, instance: Instance) -> None:
        """Stops an operator, and closes its files and sockets."""
        self._lives.on(instance, Event.DESTROY)
        if instance.source is not None:
            self._parts.context.positions.drop(instance.id)

    def fail(self, instance: Instance, reason: str) -> None:
        """Fails an operator."""
        self._lives.fail(instance, reason)

    # --------------------------------------------------------------------------------------------------------- run

    def consider(self, instance: Instance) -> None:
        """Runs an operator if it has something to do and credit on all outputs."""
        self._execution.consider(instance)

    def advance(self, instance: Instance, watermark_us: int) -> None:
        """Raises the watermark of an idle operator without a batch, and lets the operator give the rows that are due."""
        self._execution.advance(instance, watermark_us)

    def join(self, operator: Instance, multicast: Instance) -> None:
        """Starts a multicast, within the task of the operator before it if that operator is running."""
        self._execution.join(operator, multicast)
        self._lives.on(multicast, Event.BUILT)

    # --------------------------------------------------------------------------------------------------- migration

    def rest(self, instance: Instance, done: Callable[[BaseException | None], None]) -> None:
        """Pauses an operator after its current batch."""
        self._lives.rest(instance, lambda rests: done(None if rests else _restless(instance)))

    def go_on(self, instance: Instance) -> None:
        """Resumes an operator that is paused or about to pause."""
        if instance.allows(Event.GO_ON):
            self._lives.on(instance, Event.GO_ON)

    def fork(self, instance: Instance, done: "Callable[[Operator | BaseException | None], None]") -> None:
        """Forks an operator's state on a thread, between two batches; the operator pauses only for the fork."""
        if instance.is_multicast or (instance.operator is not None and instance.operator.is_stateless):
            self._host.call_soon(lambda: done(None))
            return

        def forked(result: "Operator | BaseException") -> None:
            if instance.allows(Event.FORKED):  # it has neither failed nor gone in the meantime
                instance.busy = False
                if not isinstance(result, BaseException):
                    instance.log = InputLog()
                self._lives.on(instance, Event.FORKED)
            done(result)

        def work() -> "Operator":
            assert instance.operator is not None
            return instance.operator.fork()

        def idle(rests: bool) -> None:
            if not rests:
                done(_restless(instance))
                return
            self._lives.on(instance, Event.FORK)
            instance.busy = True
            self._host.execute(work, forked, rows=0)

        self._lives.rest(instance, idle)

    def end_log(self, instance: Instance) -> None:
        """Stops logging input, when the copy of the state has ended or been cancelled."""
        instance.log = None

    def snapshot(self, instance: Instance, done: Callable[[bytes | BaseException], None]) -> None:
        """Encodes the record of a paused operator, on an executor thread."""
        try:
            work = export(instance)
            self._lives.on(instance, Event.EXPORT)
        except LocalProtocolError as problem:
            done(problem)  # cancelled in the meantime, or part of its output is on disk
            return
        self._host.execute(work, done, rows=0)

    def assembly(self, spec: OperatorSpec) -> Assembly:
        """Returns an empty state for an operator that moves to this host."""
        return Assembly(spec, self._parts.context.extensions, self._parts.budget.room)

    def restore(self, assembly: Assembly, epoch: int, done: Callable[[Instance | BaseException], None]) -> None:
        """Makes an operator from a state that has arrived, on an executor thread."""
        self._host.execute(lambda: install(*assembly.finished(), epoch, self._parts.links), done, rows=0)

    def activate(self, instance: Instance) -> None:
        """Runs a PREPARED operator."""
        measure_costs(instance, self._parts.cost_store, self._host.now())
        self._lives.on(instance, Event.RUN)

    def hand_over(self, instance: Instance) -> None:
        """Frees the state of an operator that now runs on another host."""
        self._lives.on(instance, Event.HAND_OVER)


def _loaded(result: object) -> None:
    """Does nothing: an operator that needs a missing library reports it."""


def _restless(instance: Instance) -> LocalProtocolError:
    return LocalProtocolError(f"operator {instance.id} is {instance.state.value}: {instance.reason or 'called off'}")
