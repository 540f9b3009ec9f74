"""Runs the operators of this host on executor threads: the batch with the earliest stimulus time first, one quantum at a time, and only
while every output has credit. `sbon_agent.engine.engine` owns it.

A batch is acknowledged when the operator's state reflects it and its output is in the senders; an operator that stops between two batches
can therefore move without loss (`sbon.links`). A batch that takes longer than a quantum is processed in slices, and the answers to a
watermark likewise (`sbon_agent.engine.closing`). The batch that brought a watermark is acknowledged when the answers begin, since the
operator has taken it in whole. The operator stays busy until the last slice or answer, and so never moves in the middle of a batch.

Consecutive operators on this host run in one task where possible (`sbon_agent.engine.chains`).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from sbon.errors import SbonError
from sbon.execution.life import Do, Event, State
from sbon.links.batch import Batch
from sbon.operators.values import FEW_ROWS
from sbon.scheduling import EarliestStimulusFirst
from sbon.state_budget import StateBudget
from sbon.types import NodeId, OperatorId
from sbon_agent.connectors.base import Congested
from sbon_agent.engine.books import Books
from sbon_agent.engine.brief import is_brief
from sbon_agent.engine.chains import backlog, chain, first_part, joins_soon
from sbon_agent.engine.closing import Closing, Quantum
from sbon_agent.engine.ends import Input
from sbon_agent.engine.flow import Flow
from sbon_agent.engine.instance import Instance
from sbon_agent.engine.prefetching import Prefetching, may_spread
from sbon_agent.engine.settings import EngineConfig
from sbon_agent.engine.source_acknowledgement import SourceAcknowledgement
from sbon_agent.engine.sources import Polling, is_threaded
from sbon_agent.engine.work import Task, advancing, run
from sbon_agent.host import Host

SLICE_ROWS_MIN = 64
"""Smallest slice of a batch: in smaller ones the fixed cost of a batch outweighs the rows."""


class Execution:
    """Scheduler of the operators of this host."""

    def __init__(
        self,
        host: Host,
        me: NodeId,
        config: EngineConfig,
        flow: Flow,
        instances: Mapping[OperatorId, Instance],
        budget: StateBudget,
        failed: Callable[[Instance], None],
        finished: Callable[[Instance], None],
        delivered: Callable[[Instance, Batch], None],
    ) -> None:
        self._host = host
        self._me = me
        self._config = config
        self._flow = flow
        self._instances = instances
        self._budget = budget
        self._failed = failed
        self._finished = finished
        self._polling = Polling(host, config, self._due)
        self._prefetching = Prefetching(host, self._polling, self._due)
        self._acknowledgement = SourceAcknowledgement(host, flow, instances)
        self._books = Books(flow, self._polling, self._acknowledgement, self._ended, delivered)
        self._ready = EarliestStimulusFirst[OperatorId]()
        self._resting: dict[OperatorId, Callable[[bool], None]] = {}
        """Who is told when an operator rests."""
        self._afterwards: dict[Instance, list[Do]] = {}
        """What is done about operators once the thread that has them is done."""
        self._running = 0
        self._pumps_soon = False
        self._on_threads = 0
        """Running tasks that are not brief, a subset of `_running`."""
        self._quantum = Quantum(config.quantum_s, config.quantum_rows)

    # -------------------------------------------------------------------------------------------------- scheduling

    def consider(self, instance: Instance) -> None:
        """Reconsiders whether an operator can run, after something about it has changed."""
        self._look_at(instance)
        self._acknowledgement.look()
        self._pump()

    def on(self, instance: Instance, event: Event, reason: str = "") -> None:
        """Reports an event to the life of an operator, and carries out what follows from it.

        Raises
        ------
        LocalProtocolError
            It does not go with the operator's state.
        """
        for what in instance.on(event, ended=instance.ended, reason=reason):
            self._carry_out(instance, what)

    def rest(self, instance: Instance, done: Callable[[bool], None]) -> None:
        """Lets an operator finish the batch under way and begin no other. `done(True)` follows when it rests, or else `done(False)`."""
        if instance.allows(Event.REST):
            self._resting[instance.id] = done
            self.on(instance, Event.REST)
        else:
            self._host.call_soon(lambda: done(False))

    def fail(self, instance: Instance, reason: str) -> None:
        """Fails an operator; its input stays unacknowledged."""
        remains = getattr(instance.sink, "remains", "")
        self.on(instance, Event.FAULT, f"{reason}; {remains}" if remains else reason)

    def _carry_out(self, instance: Instance, what: Do) -> None:
        match what:
            case Do.START:
                self._start(instance)
            case Do.TAKE_UP:
                self.consider(instance)
            case Do.FINISH_BATCH:
                self._finish_batch(instance)
            case Do.TELL_RESTS:
                self._resting.pop(instance.id)(True)
            case Do.TELL_CALLED_OFF:
                self._host.call_soon(partial(self._resting.pop(instance.id), False))
            case Do.PUT_IN_PLACE:
                self._put_in_place(instance)
            case Do.LET_GO | Do.ABANDON | Do.FREE:
                self._stop(instance)
                if instance.task is not None:
                    self._afterwards.setdefault(instance, []).append(what)
                elif what is Do.FREE:
                    self._free_state(instance)
                else:
                    self.let_go(instance, abandon=what is Do.ABANDON)
            case Do.LET_GO_LATER:
                self._stop(instance)  # `_put_in_place` lets go
            case Do.TELL_FINISHED:
                self._finished(instance)
            case Do.TELL_FAILED:
                self._failed(instance)

    def _start(self, instance: Instance) -> None:
        if instance.source is None:
            self.consider(instance)
            return
        try:
            instance.source.start(lambda: self._polling.at(instance, self._host.now()))
        except Exception as problem:  # a connector may raise anything: report it
            self._failed_at(instance, problem)
            return
        self._polling.at(instance, self._host.now())

    def _finish_batch(self, instance: Instance) -> None:
        """Processes the rest of a batch, if there is one; the operator rests at the earliest in the next turn of the event loop."""
        done = self._resting[instance.id]

        def idle() -> None:
            if self._resting.get(instance.id) is done and not instance.busy:
                self.on(instance, Event.IDLE)

        self._ready.remove(instance.id)
        if instance.busy:
            self.consider(instance)
        else:
            self._host.call_soon(idle)

    def _stop(self, instance: Instance) -> None:
        """Cancels the timers of an operator and drops what it has not begun, or not completed."""
        self._ready.remove(instance.id)
        instance.fetches.clear()
        if instance.timer is not None:
            instance.timer.cancel()
            instance.timer = None
        if instance.task is None:
            instance.busy, instance.closing = False, None  # drops the rest of a batch in slices

    def _came_back(self, instance: Instance) -> None:
        """Carries out what had to wait until a thread was done with an operator."""
        for what in self._afterwards.pop(instance, ()):
            self._carry_out(instance, what)
        if instance.state is State.RESTING:
            self.on(instance, Event.IDLE)

    def let_go(self, instance: Instance, *, abandon: bool = False) -> None:
        """Closes the files and sockets of an operator. With `abandon`, a sink removes what is not complete."""
        if instance.source is not None:
            instance.source.stop()
        if instance.sink is not None:
            close = getattr(instance.sink, "abandon", instance.sink.close) if abandon else instance.sink.close
            self._host.execute(close, _ignored, rows=0)

    def advance(self, instance: Instance, watermark_us: int) -> None:
        """Raises the watermark of an idle operator without a batch, and lets it give its answers."""
        instance.closing = Closing(advancing(instance, watermark_us), watermark_us)
        instance.closing.stimulus_s = self._host.wall()
        instance.busy = True
        self.consider(instance)

    def join(self, operator: Instance, made: Instance) -> None:
        """Adds a new multicast to the task that the operator before it is in, if any.

        It passes on that task's results at once, because the operators behind it may be part of the task too.
        """
        if operator.task is not None:
            made.busy, made.task = True, operator.task
            operator.task.joined.append(made)

    def _free_state(self, instance: Instance) -> None:
        """Frees the state of an operator that has failed or left on a thread, because that takes long where the state is large."""
        self._budget.forget(instance.id)
        gone = [instance.drop_operator()]
        self._host.execute(gone.clear, _ignored, rows=0)

    def _look_at_state(self, instance: Instance) -> None:
        """Records a measured state size. If all states together exceed the limit, the operator with the largest one fails."""
        if self._instances.get(instance.id) is not instance or instance.state is State.FAILED:
            return
        excess = self._budget.measured(instance.id, instance.state_bytes)
        if excess is not None and excess.operator in self._instances:
            self.fail(self._instances[excess.operator], excess.reason)

    def _look_at(self, instance: Instance) -> None:
        """Updates an operator's entry in the queue of those ready to run."""
        instance.align(self._config.ahead_rows_max)
        incoming = instance.earliest()  # a batch in slices, or else the most urgent one
        if instance.closing is not None and instance.task is None:
            # Each part of the answers needs credit, even while a migration waits for the last one: consumers never get more batches than
            # they have granted.
            instance.blocked = not instance.has_credit
            if not instance.blocked and self._may_end_its_batch(instance):
                self._ready.push(instance.id, instance.closing.stimulus_s)
            else:
                self._ready.remove(instance.id)
        elif instance.task is not None or incoming is None:
            self._look_at_source(instance)
        elif instance.busy:
            # The rest of a sliced batch needs credit as the first slice did, unless a pause waits for it.
            instance.blocked = not instance.has_credit
            if instance.state is State.RESTING or (instance.state is State.RUNNING and not instance.blocked):
                self._ready.push(instance.id, instance.earliest_s)
        elif instance.state is not State.RUNNING:
            self._ready.remove(instance.id)
        else:
            instance.blocked = not instance.has_credit
            if instance.blocked:
                self._ready.remove(instance.id)
            else:
                self._ready.push(instance.id, incoming.queue.earliest_s)

    def _look_at_source(self, instance: Instance) -> None:
        if instance.source is None:
            self._ready.remove(instance.id)
            instance.blocked = instance.blocked and instance.state is not State.RUNNING
        elif instance.state is State.RUNNING and instance.blocked and instance.task is None and instance.has_credit:
            instance.blocked = False
            self._polling.at(instance, self._host.now())

    def _pump(self) -> None:
        waiting: list[tuple[OperatorId, float]] = []
        while self._running < self._host.workers:
            operator = self._ready.pop()
            if operator is None:
                break
            instance = self._instances.get(operator)
            if instance is None or instance.task is not None:
                continue
            incoming = instance.earliest()
            if self._waits(instance, incoming):
                waiting.append((operator, self._host.wall() if incoming is None else incoming.queue.earliest_s))
            elif instance.source is not None:
                instance.blocked = instance.state is State.RUNNING and not instance.has_credit
                if instance.state is State.RUNNING and not instance.blocked:
                    self._take(instance)
            elif instance.closing is not None and self._may_end_its_batch(instance):
                self._close(instance, instance.closing)
            elif incoming is not None and self._may_end_its_batch(instance):
                self._run(instance, incoming)
        for operator, stimulus_s in waiting:
            self._ready.push(operator, stimulus_s)
        if waiting and self._flow.is_carrying and not self._pumps_soon:  # otherwise the end of a running task pumps again
            self._pumps_soon = True
            self._host.call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._pumps_soon = False
        self._pump()

    def _waits(self, instance: Instance, incoming: Input | None) -> bool:
        """Tells whether the next task of an operator is put off for a moment, so that the operator behind it can take part."""
        if not self._running and not self._flow.is_carrying:
            return False  # no operator behind it is at work
        if instance.state is not State.RUNNING or instance.busy or not instance.has_credit:
            return False
        return (instance.source is not None or incoming is not None) and joins_soon(instance, self._flow, self._me)

    def _may_end_its_batch(self, instance: Instance) -> bool:
        """Tells whether an operator may run, or was paused in the middle of a batch that must be finished."""
        return instance.state is State.RUNNING or (instance.busy and instance.state is State.RESTING)

    # ---------------------------------------------------------------------------------------------------------- tasks

    def _run(self, instance: Instance, incoming: Input) -> None:
        """Runs the next batch of an operator, or as much of it as fits into a quantum."""
        batch = incoming.queue.head
        stages = chain(instance, incoming, batch.stimulus_s, self._flow, self._me, self._instances)
        task = Task(stages, batch.stimulus_s, self._quantum, self._budget, (batch,))
        most = instance.cost.rows_within(self._config.quantum_s, self._config.quantum_rows)
        most = max(most, min(SLICE_ROWS_MIN, self._config.quantum_rows))
        most = min(most * getattr(instance.sink, "quanta", 1), max(most, self._config.quantum_rows))
        spread = instance.operator.spread if instance.operator is not None else 1
        most = min(most, max(1, self._config.quantum_rows // spread))
        begin, hurried = incoming.sliced, instance.state is State.RESTING and spread == 1
        if instance.is_multicast:
            pass  # a multicast passes batches on unchanged
        elif begin or (batch.rows > 2 * most and not hurried):
            task.begin, task.end = begin, batch.rows if hurried else min(batch.rows, begin + most)
        else:
            task.batches = backlog(incoming, most)
            if len(task.batches) > 1:
                task.stimulus_s = max(one.stimulus_s for one in task.batches)
        if task.end or len(incoming.queue) > len(task.batches):
            self._share(task)
        self._execute(task)

    def _close(self, instance: Instance, closing: Closing) -> None:
        """Runs the next part of an operator's answers to a watermark."""
        stages = chain(instance, None, closing.stimulus_s, self._flow, self._me, self._instances)
        self._execute(Task(stages, closing.stimulus_s, self._quantum, self._budget, closing=closing))

    def _share(self, task: Task) -> None:
        """Cuts the later stages off a task that another one will follow, so that an idle thread can run them."""
        if self._running + 1 < self._host.workers and not self._ready and may_spread(self._host):
            del task.stages[first_part(task.stages) :]

    def _execute(self, task: Task) -> None:
        for stage in task.stages:
            stage.instance.busy, stage.instance.task = True, task
        brief = is_brief(task)
        self._running += 1
        self._on_threads += not brief

        def done(result: Task | BaseException) -> None:
            self._running -= 1
            self._on_threads -= not brief
            if isinstance(result, BaseException):
                task.problem = result
            self._settle(task)

        work = partial(run, task, self._host.stopwatch, partial(self._host.meter, brief=brief))
        self._host.execute(work, done, rows=task.sizes, brief=brief)

    def _settle(self, task: Task) -> None:
        """Applies a finished task to its operators and links, on the event loop, then schedules what follows."""
        began = self._host.stopwatch()
        self._books.enter(task)
        head = task.stages[0].instance
        rest = self._free(task)
        if task.problem is not None:
            self._failed_at(task.stages[len(task.steps)].instance, task.problem)
        elif task.steps and task.closing is None:
            head.cost.took(task.steps[0].rows, task.spent_s)
        for stage, step in zip(task.stages, task.steps, strict=False):
            if step.state_bytes is not None:
                self._look_at_state(stage.instance)
        for instance in rest:
            if instance.state is not State.RUNNING and not instance.busy:
                self._came_back(instance)
        for instance in rest:
            self._look_at(instance)
        if head.source is not None and task.steps:
            head.behind_cost.took(task.steps[0].rows, sum([step.cpu_ns for step in task.steps[1:]]) / 1e9)
            head.batch_cost.took(0, task.cpu_s + self._host.stopwatch() - began)
            self._polled(head, task)
        self._pump()

    def _free(self, task: Task) -> list[Instance]:
        """Marks the operators of a task idle, except those with the rest of a batch or of answers. Returns them all."""
        instances = [stage.instance for stage in task.stages] + task.joined
        head, incoming = task.stages[0].instance, task.stages[0].incoming
        for instance in instances:
            instance.task = None
            if instance.state is State.GONE or instance.state is State.FAILED:
                instance.closing = None
                instance.busy = False
            else:
                instance.busy = instance.closing is not None or (instance is head and incoming is not None and incoming.sliced > 0)
        return instances

    def _failed_at(self, instance: Instance, problem: BaseException) -> None:
        if isinstance(problem, Congested):
            self._stall(instance, problem)
            return
        self.fail(instance, str(problem) if isinstance(problem, SbonError) else f"{type(problem).__name__}: {problem}")

    def _stall(self, instance: Instance, problem: Congested) -> None:
        """Stalls a sink whose receiver or disk is full, for the pause that it asked for; nothing is dropped."""
        if not instance.allows(Event.NOT_TAKEN):
            return
        self.on(instance, Event.NOT_TAKEN, str(problem))
        instance.blocked = True

        def again() -> None:
            if instance.allows(Event.OFFER):
                self.on(instance, Event.OFFER)

        instance.timer = self._host.call_at(self._host.now() + problem.retry_after_s, again)

    # ----------------------------------------------------------------------------------------------------- the end

    def _ended(self, instance: Instance) -> None:
        """Finishes an operator whose input has all been processed. A sink with a `finish` method runs that first."""
        self.on(instance, Event.ENDED if getattr(instance.sink, "finish", None) is None else Event.RESULT_DUE)

    def _put_in_place(self, instance: Instance) -> None:
        finish: Any = getattr(instance.sink, "finish", None)

        def done(result: object) -> None:
            if instance.state is State.GONE:
                self.let_go(instance)
            elif isinstance(result, BaseException):
                self._failed_at(instance, result)
            elif instance.allows(Event.IN_PLACE):
                self.on(instance, Event.IN_PLACE)

        self._host.execute(finish, done, rows=0)

    # ------------------------------------------------------------------------------------------------------ sources

    def _due(self, instance: Instance) -> None:
        """Polls a source whose time has come, or arranges for it."""
        if instance.state is not State.RUNNING or self._instances.get(instance.id) is not instance:
            return
        if instance.task is not None:
            instance.due = True
        elif not instance.has_credit:
            instance.blocked = True
        elif is_threaded(instance):
            self._ready.push(instance.id, self._host.wall())
            self._pump()
        else:
            self._poll(instance, threaded=False)

    def _take(self, instance: Instance) -> None:
        """Takes the next batch of a source that can be polled on a thread: the one that it has promised, if any."""
        if not instance.fetches:
            self._poll(instance, threaded=True)
            return
        fetch = instance.fetches[0]
        if not fetch.is_made and not fetch.begin():
            return  # a thread is making it, and reports when it is done
        instance.fetches.popleft()
        if fetch.problem is not None:
            self._failed_at(instance, fetch.problem)
            return
        self._prefetching.look(instance)
        task = Task([], fetch.wall, self._quantum, self._budget, now=fetch.now, polled=fetch.polled, make=fetch.make)
        task.before_s, task.before_cpu_ns = fetch.spent_s, fetch.cpu_ns
        self._go(instance, task)

    def _poll(self, instance: Instance, *, threaded: bool) -> None:
        """Polls a source and passes on the result: in one task if it is polled on a thread, otherwise as far as threads are free."""
        source, now, wall = instance.source, self._host.now(), self._host.wall()
        assert source is not None
        task = Task([], wall, self._quantum, self._budget, now=now, asked_rows=self._polling.allow(instance, now))
        if threaded and self._on_threads:
            # With other tasks on threads, this one goes to a thread too: on the event loop it would also wait for the interpreter's lock
            # and for polars.
            task.asked_rows = None
        if not threaded:
            few = task.asked_rows is not None and task.asked_rows <= FEW_ROWS  # too few rows for polars to use its threads
            began, meter = self._host.stopwatch(), self._host.meter(brief=few)
            try:
                task.polled = source.poll(now, wall)
            except Exception as problem:
                self._failed_at(instance, problem)
                return
            finally:
                task.before_cpu_ns = meter.lap(0)
                meter.end()
            task.before_s = self._host.stopwatch() - began
        self._go(instance, task, threaded=threaded)

    def _go(self, instance: Instance, task: Task, *, threaded: bool = True) -> None:
        """Runs the task of a source's batch, with the operators behind it."""
        task.stages = chain(instance, None, task.stimulus_s, self._flow, self._me, self._instances)
        if not threaded and (self._running >= self._host.workers or (len(task.stages) == 1 and not task.stages[0].packing)):
            del task.stages[1:]
            task.stages[0] = msgspec.structs.replace(task.stages[0], packing=())
            instance.busy, instance.task = True, task
            self._settle(run(task, self._host.stopwatch, self._host.meter))
        else:
            if instance.has_more:
                self._share(task)
            self._execute(task)

    def _polled(self, instance: Instance, task: Task) -> None:
        """Ends a source that has finished, or arranges its next poll."""
        polled = task.polled
        if polled is None or instance.source is None:
            return
        if polled.finished:
            if instance.allows(Event.GAVE_ALL):
                self.on(instance, Event.GAVE_ALL)
        else:
            gave = bool(task.steps and task.steps[0].rows)
            instance.has_more = bool(instance.fetches) or (gave and polled.next_poll is not None and polled.next_poll <= task.now)
            if self._instances.get(instance.id) is instance:
                self._prefetching.look(instance)
            self._polling.again(instance, polled, task.now)


def _ignored(result: object) -> None:
    """Ignores the result: a sink that could not be closed has been reported as failed already."""
