"""Runs the operators of this host on executor threads: the most urgent batch first, one quantum at a time, and only while every output has
credit. A batch's urgency is its stimulus time plus the latency bound of the operator's queries (`sbon.scheduling`).
`sbon_agent.engine.engine` owns an `Execution`.

A batch is acknowledged when the operator's state reflects it and its output is in the senders. So an operator that stops between two
batches can move without loss (`sbon.links`). A batch that takes longer than a quantum is processed in slices, and so are the answers to a
watermark (`sbon.execution.closing`). The batch that brought the watermark is acknowledged when the answers begin, because the operator's
state reflects it by then. The operator stays busy until the last slice or answer, so it never moves in the middle of a batch.

Consecutive operators on this host run in one task where possible (`sbon.execution.chains`).
"""

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from sbon.cost.store import CostStore
from sbon.delivery.flow import Flow
from sbon.engine.alignment import Alignment
from sbon.engine.idle_threads import IdleThreads
from sbon.engine.lives import Lives
from sbon.engine.missing import Missing, may_work_off
from sbon.engine.polling import Polling
from sbon.engine.prefetching import Prefetching, may_spread
from sbon.engine.source_acknowledgement import SourceAcknowledgement
from sbon.engine.source_positions import SourcePositions
from sbon.engine.task_accounting import TaskAccounting
from sbon.execution.brief import is_brief
from sbon.execution.chains import backlog, behind_source, chain, first_stages, joins_behind, joins_soon
from sbon.execution.closing import Closing, Quantum
from sbon.execution.ends import Input
from sbon.execution.instance import Instance, is_threaded
from sbon.execution.life import Event, State
from sbon.execution.settings import EngineConfig
from sbon.execution.work import Task, WriteHeld, advancing, run, working_off
from sbon.links.batch import Batch
from sbon.operators.values import FEW_ROWS
from sbon.ports import Executor
from sbon.scheduling import EarliestStimulusFirst
from sbon.state_budget import StateBudget
from sbon.types import NodeId, OperatorId

SLICE_ROWS_MIN = 64
"""Rows of the smallest slice of a batch. In a smaller slice, the fixed cost of a batch outweighs the cost of the rows."""
WHEN_NOTHING_ELSE_WAITS = 1e15
"""Urgency of work that has been put off: it runs when nothing else waits."""


class Execution:
    """Scheduler of the operators of this host."""

    def __init__(
        self,
        host: Executor,
        me: NodeId,
        config: EngineConfig,
        flow: Flow,
        instances: Mapping[OperatorId, Instance],
        budget: StateBudget,
        failed: Callable[[Instance], None],
        finished: Callable[[Instance], None],
        delivered: Callable[[Instance, Batch], None],
        cost_store: CostStore,
    ) -> None:
        self._host = host
        self._me = me
        self._config = config
        self._flow = flow
        self._instances = instances
        self._budget = budget
        self._cost_store = cost_store
        self._polling = Polling(host, config, self._due, partial(joins_behind, flow=flow, me=me))
        self._prefetching = Prefetching(host, self._polling, self._due, partial(behind_source, flow=flow, me=me))
        self._acknowledgement = SourceAcknowledgement(host, flow, instances)
        self._ready = EarliestStimulusFirst[OperatorId]()
        self.lives = Lives(host, self._polling, budget, self._ready, self.consider, failed, finished)
        self._accounting = TaskAccounting(flow, self._polling, self._acknowledgement, SourcePositions(host), self.lives.ended, delivered)
        self._missing = Missing(host, self._polling, config)
        self._running = 0
        self._pumps_soon = False
        self._idle = IdleThreads()
        self._alignment = Alignment(flow, me, config.ahead_rows_max)
        self._on_threads = 0
        """Running tasks that are not brief, a subset of `_running`."""
        self._quantum = Quantum(config.quantum_s, config.quantum_rows)

    # -------------------------------------------------------------------------------------------------- scheduling

    def consider(self, instance: Instance) -> None:
        """Reconsiders whether an operator can run, after something about it has changed."""
        if instance.waiting.misses is not None:
            self._polling.look_for_acknowledgements(instance)
        self._look_at(instance)
        self._acknowledgement.look()
        self._pump()

    def advance(self, instance: Instance, watermark_us: int) -> None:
        """Raises the watermark of an idle operator without a batch. The operator then gives its answers; a sink writes its held rows."""
        steps = advancing(instance, watermark_us) if instance.sink is None else WriteHeld(instance)
        instance.closing = Closing(steps, watermark_us)
        instance.closing.stimulus_s = self._host.wall()
        instance.busy = True
        self.consider(instance)

    def join(self, operator: Instance, made: Instance) -> None:
        """Adds a new multicast to the running task of the operator that feeds it, if any.

        The multicast passes on that task's results at once, because the operators behind it may be part of the task, too.
        """
        if operator.task is not None:
            made.busy, made.task = True, operator.task
            operator.task.joined.append(made)

    def _look_at_state(self, instance: Instance) -> None:
        """Records a measured state size. If all states together exceed the limit, the operator with the largest state fails."""
        if self._instances.get(instance.id) is not instance or instance.state is State.FAILED:
            return
        excess = self._budget.measured(instance.id, instance.figures.state_bytes)
        if excess is not None and excess.operator in self._instances:
            self.lives.fail(self._instances[excess.operator], excess.reason)

    def _look_at(self, instance: Instance) -> None:
        """Updates an operator's entry in the queue of those ready to run."""
        if instance.operator is not None and not instance.busy:
            self._alignment.look_at(instance)
        incoming = instance.waiting.earliest(begun=instance.busy and instance.task is None)
        if instance.closing is not None and instance.task is None:
            # Each part of the answers needs credit, even while a migration waits for the last part: consumers never get more batches than
            # they have granted.
            instance.waiting.blocked = not instance.has_credit
            if not instance.waiting.blocked and self._may_end_its_batch(instance):
                self._ready.push(instance.id, instance.closing.stimulus_s + instance.users.urgent_within_s)
            else:
                self._ready.remove(instance.id)
        elif instance.task is not None or incoming is None:
            if instance.waiting.misses is not None and may_work_off(instance):
                self._ready.push(instance.id, WHEN_NOTHING_ELSE_WAITS)
            else:
                self._look_at_source(instance)
        elif instance.busy:
            # Every slice of a batch needs credit, even while a migration waits for the last slice.
            instance.waiting.blocked = not instance.has_credit
            if not instance.waiting.blocked and self._may_end_its_batch(instance):
                self._ready.push(instance.id, instance.waiting.earliest_s + instance.users.urgent_within_s)
        elif instance.state is State.FINISHED:
            # The operator has processed all its input. A source that was made again for other consumers repeats rows: acknowledge them.
            for one in instance.inputs.values():
                while one.queue:
                    self._flow.processed(one, instance.waiting.dequeue(one))
        elif instance.state is not State.RUNNING:
            self._ready.remove(instance.id)
        else:
            instance.waiting.blocked = not instance.has_credit
            if instance.waiting.blocked:
                self._ready.remove(instance.id)
            else:
                self._ready.push(instance.id, incoming.queue.earliest_s + instance.users.urgent_within_s)

    def _look_at_source(self, instance: Instance) -> None:
        if instance.source is None:
            self._ready.remove(instance.id)
            instance.waiting.blocked = instance.waiting.blocked and instance.state is not State.RUNNING
        elif instance.state is State.RUNNING and instance.waiting.blocked and instance.task is None and instance.has_credit:
            instance.waiting.blocked = False
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
            incoming = instance.waiting.earliest(begun=instance.busy and instance.task is None)
            if self._waits(instance, incoming):
                stimulus_s = self._host.wall() if incoming is None else incoming.queue.earliest_s
                waiting.append((operator, stimulus_s + instance.users.urgent_within_s))
            elif instance.source is not None:
                instance.waiting.blocked = instance.state is State.RUNNING and not instance.has_credit
                if instance.state is State.RUNNING and not instance.waiting.blocked:
                    self._take(instance)
            elif instance.closing is not None and self._may_end_its_batch(instance):
                self._close(instance, instance.closing)
            elif incoming is not None and self._may_end_its_batch(instance):
                self._run(instance, incoming)
            elif incoming is None and may_work_off(instance):
                instance.closing = working_off(instance, self._most(instance))
                self._close(instance, instance.closing)
        self._idle.note(self._host.now(), is_idle=self._running < self._host.workers and not waiting)
        for operator, urgency_s in waiting:
            self._ready.push(operator, urgency_s)
        # If tasks wait, and no batch is on its way between operators, the end of a running task pumps again.
        pumps_again = self._flow.is_carrying if waiting else bool(self._alignment.held) and not self._running
        if pumps_again and not self._pumps_soon:
            self._pumps_soon = True
            self._host.call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._pumps_soon = False
        if not self._running and not self._ready and not self._flow.is_carrying:
            for join in self._alignment.release():
                if join.has_credit and not join.busy:
                    self._ready.push(join.id, WHEN_NOTHING_ELSE_WAITS)
        self._pump()

    def _waits(self, instance: Instance, incoming: Input | None) -> bool:
        """Tells whether the next task of an operator waits for a moment, so that the operator behind it can be part of the task."""
        if not self._running and not self._flow.is_carrying:
            return False  # no operator behind it is at work, so none can join soon
        if instance.state is not State.RUNNING or instance.busy or not instance.has_credit:
            return False
        return (instance.source is not None or incoming is not None) and joins_soon(instance, self._flow, self._me)

    def _may_end_its_batch(self, instance: Instance) -> bool:
        """Tells whether an operator is running, or is coming to rest with a batch that it must finish."""
        return instance.state is State.RUNNING or (instance.busy and instance.state is State.RESTING)

    # ---------------------------------------------------------------------------------------------------------- tasks

    def _run(self, instance: Instance, incoming: Input) -> None:
        """Runs the next batch of an operator, or as much of it as fits into a quantum."""
        batch = incoming.queue.head
        stages = chain(instance, incoming, batch.stimulus_s, self._flow, self._me, self._instances)
        task = Task(stages, batch.stimulus_s, self._quantum, self._budget, (batch,))
        most = self._most(instance)
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
        if instance.waiting.misses is not None:
            self._missing.leave_out(instance.waiting.misses, instance, incoming, task)
        if task.end or len(incoming.queue) > len(task.batches):
            self._share(task)
        self._execute(task)

    def _most(self, instance: Instance) -> int:
        """Returns the rows that fit into a quantum."""
        most = instance.cost.rows_within(self._config.quantum_s, self._config.quantum_rows)
        return max(most, min(SLICE_ROWS_MIN, self._config.quantum_rows))

    def _close(self, instance: Instance, closing: Closing) -> None:
        """Runs the next part of an operator's answers to a watermark."""
        stages = chain(instance, None, closing.stimulus_s, self._flow, self._me, self._instances)
        self._execute(Task(stages, closing.stimulus_s, self._quantum, self._budget, closing=closing, now=self._host.now()))

    def _share(self, task: Task) -> None:
        """Cuts the later stages off a task if more work of the operator waits, so that another thread can run them.

        Does so if a thread is idle now, or was recently and so may be again soon.
        """
        is_idle = self._running + 1 < self._host.workers and not self._ready
        if (is_idle or self._idle.was_recently(self._host.now())) and may_spread(self._host):
            del task.stages[first_stages(task.stages) :]

    def _execute(self, task: Task) -> None:
        for stage in task.stages:
            stage.instance.busy, stage.instance.task = True, task
        brief = is_brief(task)
        self._running += 1
        self._on_threads += not brief
        handed_out = self._host.stopwatch()

        def done(result: Task | BaseException) -> None:
            self._running -= 1
            self._on_threads -= not brief
            if isinstance(result, BaseException):
                task.problem = result
            self._cost_store.waits.waited(self._host.stopwatch() - handed_out - task.cpu_s)
            self._settle(task)

        work = partial(run, task, self._host.stopwatch, partial(self._host.meter, brief=brief))
        self._host.execute(work, done, rows=task.sizes, brief=brief)
        if brief and task.steps:  # the host has run the task at once, on this thread
            self._cost_store.processors.on_loop_ns += sum([step.cpu_ns for step in task.steps])

    def _settle(self, task: Task) -> None:
        """Applies a finished task to its operators and links, on the event loop, then schedules what follows."""
        began = self._host.stopwatch()
        self._cost_store.processors.operators_ns += sum([step.cpu_ns for step in task.steps])
        self._accounting.enter(task)
        head = task.stages[0].instance
        rest = self._free(task)
        if task.problem is not None:
            self.lives.went_wrong(task.stages[len(task.steps)].instance, task.problem)
        elif task.steps and (task.closing is None or task.steps[0].rows):
            head.cost.took(task.steps[0].rows, task.spent_s)
            if head.waiting.misses is not None:
                self._missing.measure(head.waiting.misses, head, task)
        for stage, step in zip(task.stages, task.steps, strict=False):
            if step.state_bytes is not None:
                self._look_at_state(stage.instance)
        for instance in rest:
            if instance.state is not State.RUNNING and not instance.busy:
                self.lives.came_back(instance)
        for instance in rest:
            self._look_at(instance)
        if head.source is not None and task.steps:
            head.polls.behind_cost.took(task.steps[0].rows, sum([step.cpu_ns for step in task.steps[1:]]) / 1e9)
            head.polls.batch_cost.took(0, task.cpu_s + self._host.stopwatch() - began)
            self._polled(head, task)
        for join in self._alignment.held:
            self._look_at(join)
        self._pump()

    def _free(self, task: Task) -> list[Instance]:
        """Marks the operators of a task idle, except those with the rest of a batch or of answers. Returns all operators of the task."""
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

    # ------------------------------------------------------------------------------------------------------ sources

    def _due(self, instance: Instance) -> None:
        """Polls a source whose time has come, or arranges for a later poll if the source is busy or has no credit."""
        if instance.state is not State.RUNNING or self._instances.get(instance.id) is not instance:
            return
        if instance.task is not None:
            instance.polls.due = True
        elif not instance.has_credit:
            instance.waiting.blocked = True
        elif is_threaded(instance):
            self._ready.push(instance.id, self._polling.urgency_s(instance))
            self._pump()
        else:
            self._poll(instance, threaded=False)

    def _take(self, instance: Instance) -> None:
        """Takes the next batch of a source that can be polled on a thread: the first promised batch, or else a new one."""
        if not instance.polls.fetches:
            self._poll(instance, threaded=True)
            return
        fetch = instance.polls.fetches[0]
        if not fetch.is_made and not fetch.begin():
            return  # a thread is making the batch, and reports when it is done
        instance.polls.fetches.popleft()
        if fetch.problem is not None:
            self.lives.went_wrong(instance, fetch.problem)
            return
        self._prefetching.look(instance)
        task = Task([], fetch.wall, self._quantum, self._budget, now=fetch.now, polled=fetch.polled, make=fetch.make)
        task.before_s, task.before_cpu_ns = fetch.spent_s, fetch.cpu_ns
        task.given, task.ahead = fetch.given, fetch.ahead
        self._go(instance, task)

    def _poll(self, instance: Instance, *, threaded: bool) -> None:
        """Polls a source and starts a task for the result. With `threaded`, the task includes the poll; otherwise the poll runs here."""
        source, now, wall = instance.source, self._host.now(), self._host.wall()
        assert source is not None
        task = Task([], wall, self._quantum, self._budget, now=now, asked_rows=self._polling.allow(instance, now))
        if threaded and self._on_threads:
            # While other tasks run on threads, this one goes to a thread, too: on the event loop it would make the loop wait for the
            # interpreter's lock and for polars.
            task.asked_rows = None
        if not threaded:
            few = task.asked_rows is not None and task.asked_rows <= FEW_ROWS  # too few rows for polars to use its threads
            began, meter = self._host.stopwatch(), self._host.meter(brief=few)
            try:
                task.polled = source.poll(now, wall)
            except Exception as problem:
                self.lives.went_wrong(instance, problem)
                return
            finally:
                task.before_cpu_ns = meter.lap(0)
                meter.end()
            task.before_s = self._host.stopwatch() - began
        self._go(instance, task, threaded=threaded)

    def _go(self, instance: Instance, task: Task, *, threaded: bool = True) -> None:
        """Runs the task of a source's batch together with the operators behind the source."""
        task.stages = chain(instance, None, task.stimulus_s, self._flow, self._me, self._instances)
        if not threaded and (self._running >= self._host.workers or (len(task.stages) == 1 and not task.stages[0].packing)):
            del task.stages[1:]
            task.stages[0] = msgspec.structs.replace(task.stages[0], packing=())
            instance.busy, instance.task = True, task
            self._cost_store.processors.on_loop_ns += sum([step.cpu_ns for step in run(task, self._host.stopwatch, self._host.meter).steps])
            self._settle(task)
        else:
            if instance.polls.has_more:
                self._share(task)
            self._execute(task)
            if not threaded and not task.steps:  # polled on this thread, then handed to another
                self._cost_store.processors.on_loop_ns += task.before_cpu_ns

    def _polled(self, instance: Instance, task: Task) -> None:
        """Ends a source that has finished, or arranges its next poll."""
        polled = task.polled
        if polled is None or instance.source is None:
            return
        if polled.finished:
            if instance.allows(Event.GAVE_ALL):
                self.lives.on(instance, Event.GAVE_ALL)
        else:
            gave = bool(task.steps and task.steps[0].rows)
            instance.polls.has_more = bool(instance.polls.fetches) or (
                gave and polled.next_poll is not None and polled.next_poll <= task.now
            )
            self._prefetching.look(instance)
            self._polling.again(instance, polled, task.now)
