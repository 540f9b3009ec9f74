"""The built-in engine of an agent: it runs the operators that the overlay layer places here (SBON, section 3, figure 2).

It instantiates, destroys, connects, disconnects and hands over operators, and reports their figures. `sbon_agent.engine.flow` transports
batches, `sbon_agent.engine.execution` runs operators, and `sbon.migration.handover` encodes what moves with an operator. The agent's
node, and the modules for queries and migrations, call it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from sbon.cost.books import Books, timings_ns
from sbon.errors import ConnectorError, LocalProtocolError, PlacementError, SbonError
from sbon.execution.ends import Input, Output
from sbon.execution.events import EngineEvents
from sbon.execution.instance import Instance
from sbon.execution.life import Event, State
from sbon.execution.port_costs import PortCosts
from sbon.execution.reporting import operator_report
from sbon.execution.settings import EngineConfig
from sbon.execution.splitting import fold, may_fold, split
from sbon.extensions import Extensions
from sbon.links.config import LinkConfig
from sbon.links.dead_ends import Absence, Way, judge
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.migration.handover import export, install
from sbon.migration.state_copy import Assembly, InputLog
from sbon.placement.reservations import HostingConfig, Reservations
from sbon.query.plan import OperatorSpec, SinkParams, SourceParams, is_multicast, keeps_state
from sbon.query.text import describe
from sbon.state_budget import DEFAULT_SHARE, StateBudget
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.costs import NodeTold
from sbon.wire.deployment import End, Instantiate, User
from sbon.wire.reports import OperatorReport, OperatorReports
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.reaches import Reaches
from sbon_agent.engine.building import build, opening
from sbon_agent.engine.execution import Execution
from sbon_agent.engine.flow import Flow
from sbon_agent.engine.outgoing import MISSING_MAX, Router
from sbon_agent.host import Host

if TYPE_CHECKING:
    from sbon.operators.operator import Operator

Answer = Callable[[SbonError | None], None]

SPILL_FOLDER = "spill"
"""Folder in the data directory for batches that links keep on disk while their receivers are unreachable."""


OPEN_S_MAX = 5.0
"""Time that a source or sink may take to open its file, in seconds; shorter than the timeout of the request that asks for it."""


class Engine:
    """All operators on this host, and what may be done with them."""

    def __init__(
        self,
        host: Host,
        router: Router,
        events: EngineEvents,
        context: ConnectorContext,
        reaches: Reaches,
        config: EngineConfig,
        links: LinkConfig,
        remembered: int,
        hosting: HostingConfig | None = None,
        books: Books | None = None,
    ) -> None:
        self.instances: dict[OperatorId, Instance] = {}
        self.reservations = Reservations(hosting if hosting is not None else HostingConfig())
        self.books = books if books is not None else Books(router.me)
        self.is_leaving = False
        """True while this host is leaving: it takes no operators, and offers none of its own for sharing."""
        self._host = host
        self._me = router.me
        self._events = events
        self._context = context
        self._reaches = reaches
        self._config = config
        self._links = links
        self.flow = Flow(host, router, self, remembered, links, host.disk(os.path.join(context.data_dir, SPILL_FOLDER)))
        self.budget = StateBudget(config.memory_max or int(DEFAULT_SHARE * host.memory_bytes()))
        self._execution = Execution(
            host,
            router.me,
            config,
            self.flow,
            self.instances,
            self.budget,
            events.operator_failed,
            events.operator_finished,
            events.delivered,
        )
        self._lives = self._execution.lives

    # --------------------------------------------------------------------------------- callbacks of the flow (FlowEvents)

    def runnable(self, instance: Instance) -> None:
        """Lets an operator run that has new input or credit."""
        self._execution.consider(instance)

    def arrived_at_prepared(self, operator: OperatorId) -> None:
        """Passes on that data has arrived for a PREPARED operator."""
        self._events.arrived_at_prepared(operator)

    def disk_lost(self, instance: Instance, reason: str) -> None:
        """Fails an operator whose spilled batches are unreadable, rather than skip rows."""
        self._lives.fail(instance, reason)

    def rows_left_out(self, output: Output, rows: int, reason: str) -> None:
        """Passes on that a batch of a link could not be packed."""
        self._events.rows_left_out(output, rows, reason)

    def disk_told(self, output: Output, event: str, reason: str) -> None:
        """Passes on an event of a link's disk."""
        self._events.link_spills(output, event, reason)

    # ------------------------------------------------------------------------------------------------ the interface

    @property
    def me(self) -> NodeId:
        """Name of this host."""
        return self._me

    @property
    def extensions(self) -> Callable[[], Extensions]:
        """Returns the installed extensions, when called."""
        return self._context.extensions

    @property
    def free_slots(self) -> int:
        """Number of further operators that could be taken, reserved slots excluded."""
        return max(0, self.empty_slots - self.reservations.held(self._host.now()))

    @property
    def empty_slots(self) -> int:
        """Number of slots without an operator, reserved ones included."""
        return 0 if self.is_leaving else max(0, self._config.operators_max - len(self.instances))

    def check_memory(self, spec: OperatorSpec) -> None:
        """Checks whether there is memory for one more operator with state.

        Raises
        ------
        PlacementError
            The states of the running operators leave too little memory.
        """
        if keeps_state(spec.params) and self.budget.is_nearly_full:
            raise PlacementError(
                f"{self._me} takes no further operator that keeps state: those that run take {self.budget.used_bytes / 1e6:,.0f} MB of "
                f"{self.budget.limit_bytes / 1e6:,.0f} MB (engine.memory_max)"
            )

    def shareable(self) -> Iterator[tuple[str, Instance]]:
        """Yields the operators that other queries may use, with their signatures."""
        for instance in self.instances.values():
            if instance.state is State.RUNNING and not instance.waiting.starved and not isinstance(instance.spec.params, SinkParams):
                yield instance.spec.signature, instance

    def running_signatures(self) -> frozenset[str]:
        """Signatures of the operators here that other queries may use."""
        return frozenset(signature for signature, _ in self.shareable())

    def instantiate(self, request: Instantiate, answer: Answer, *, asked_by: NodeId) -> None:
        """Makes an operator and runs it; a sink runs only after `begin`.

        Calls `answer(None)` when the operator is made, `answer(error)` when it cannot be.

        Parameters
        ----------
        asked_by : the agent that asks, as authenticated by its connection; this agent for statements from its control socket
        """
        spec = request.spec
        if spec.id in self.instances:
            answer(LocalProtocolError(f"operator {spec.id} is here already"))
            return
        if self.is_leaving:
            answer(PlacementError(f"{self._me} is leaving, and takes no more operators"))
            return
        try:
            self.check_memory(spec)
        except PlacementError as problem:
            answer(problem)
            return
        if not self.reservations.fill(request.user.query, self.empty_slots, self._host.now()):
            answer(
                PlacementError(
                    f"{self._me} hosts {len(self.instances)} operators, has promised the room for {self._promised} more, "
                    f"and takes no more than {self._config.operators_max} (engine.operators_max)"
                )
            )
            return
        instance = Instance(spec, 0)
        instance.users.add(request.user)
        for end in request.inputs:
            receiver = LinkReceiver(end.link.id, self._links)
            instance.inputs[end.link.id] = Input(end.link, end.node, end.schema, receiver, epoch=end.epoch)
        if (link := self.flow.ends.claimed(instance, instance.inputs, instance.outputs)) is not None:
            answer(LocalProtocolError(f"operator {spec.id} has link {link}, which another operator on {self._me} has already"))
            return
        self.instances[spec.id] = instance
        self.flow.ends.returned(spec.id)
        self.flow.add(instance)
        for end in request.outputs:
            self.connect(spec.id, end, request.user.query)

        def failed(problem: BaseException) -> None:
            if asked_by != self._me:
                self._events.operator_refused(spec.id, asked_by, str(problem))
            self._lives.on(instance, Event.DESTROY)
            self._remove(instance)
            answer(
                problem if isinstance(problem, SbonError) else PlacementError(f"operator {spec.id}: {type(problem).__name__}: {problem}")
            )

        def built(result: object) -> None:
            if isinstance(result, BaseException):
                made(result)
            elif (work := opening(instance)) is not None:
                self._host.execute_apart(work, opened, OPEN_S_MAX)
            else:
                made(None)

        def opened(result: object) -> None:
            if isinstance(result, TimeoutError):
                made(ConnectorError(f"{describe(spec.params)} on {self._me} cannot be opened: {result}; does its file system answer?"))
            else:
                made(result)

        def made(result: object) -> None:
            if self.instances.get(spec.id) is not instance:
                self._lives.let_go(instance, abandon=True)
                answer(PlacementError(f"operator {spec.id} was dropped while it was made"))
                return
            if isinstance(result, BaseException):
                failed(result)
                return
            self._measure_costs(instance)
            self._lives.on(instance, Event.BUILT if instance.sink is None else Event.SINK_BUILT)
            if instance.state is State.FAILED:
                failed(PlacementError(instance.reason))
                return
            answer(None)

        context = self._context
        if isinstance(spec.params, SourceParams | SinkParams):
            context = msgspec.structs.replace(context, reach=self._reaches.of(spec.params, asked_by_us=asked_by == self._me))

        def make() -> None:
            if not self.books.is_timed:
                self.books.timed(timings_ns(self._host.meter(brief=True)))
            build(instance, context, self._events.make_sink)

        self._host.execute(make, built, rows=0)

    def begin(self, query: QueryId) -> None:
        """Starts the sinks of a query, once all its operators run. A repeated call does nothing.

        Raises
        ------
        LocalProtocolError
            No sink of the query is here.
        """
        sinks = [instance for instance in self.instances.values() if instance.sink is not None and query in instance.users]
        if not sinks:
            raise LocalProtocolError(f"{self._me} has no sink of query {query}")
        for instance in sinks:
            if instance.allows(Event.BEGIN):
                self._lives.on(instance, Event.BEGIN)

    def destroy(self, operator: OperatorId) -> None:
        """Stops and removes an operator, if it is here."""
        instance = self.instances.get(operator)
        if instance is not None:
            self._lives.on(instance, Event.DESTROY)
            self._remove(instance)
            self._events.operator_destroyed(operator)

    def connect(self, operator: OperatorId, end: End, query: QueryId) -> None:
        """Gives an operator one more output, starting with its next batch.

        Raises
        ------
        LocalProtocolError
            The operator is not here.
        """
        instance = self._known(operator)
        existing = self.flow.ends.gives(end.link.id)
        if existing is not None:
            existing[1].users.add(query)
            return
        sender = LinkSender(end.link.id, self._links)
        output = Output(end.link, end.node, end.epoch, instance.spec.schema, sender, {query})
        if instance.watermark_out_us >= 0 and instance.state is not State.BUILDING:
            # Earlier watermarks hold for the new consumer too, and nothing else may follow them: an ended source sends no more.
            sender.offer(self._host.wall(), instance.watermark_out_us, None)
        self.flow.add_output(instance, output)
        self.flow.outgoing.transmit(output)

    def disconnect(self, operator: OperatorId, link: LinkId) -> None:
        """Removes an output; batches not acknowledged on it are lost, on purpose."""
        instance = self._known(operator)
        self.flow.remove_output(instance, link)
        self._execution.consider(instance)

    def look_at_outputs(self, absence: Callable[[NodeId], Absence | None], patience_s: float) -> None:
        """Gives up outputs whose consumers are gone, where they block an operator that has other consumers; see `sbon.links.dead_ends`.

        Parameters
        ----------
        absence : tells how a node is absent, None if it is not; raises KeyError for an unknown node, whose state then stays as it was
        """
        now = self._host.now()
        for instance in list(self.instances.values()):
            for output in instance.outputs.values():
                if output.node != self._me:
                    with suppress(KeyError):
                        output.absence = absence(output.node)
            judgement = judge([self._way(instance, output, now) for output in instance.outputs.values()], patience_s)
            for output in list(instance.outputs.values()):
                output.obstructed = judgement.obstructed.get(output.link.id, "")
                if output.link.id in judgement.given_up:
                    self.disconnect(instance.id, output.link.id)
                    self._events.link_broken(instance, output, f"given up: {output.obstructed}")
            if judgement.dead_end is not None:
                self.flow.tell_dead_end(instance, judgement.dead_end)

    def _way(self, instance: Instance, output: Output, now: float) -> Way:
        return Way(
            output.link.id,
            output.link.target,
            output.node,
            output.absence if output.node != self._me else None,
            is_unknown_there=output.missing > MISSING_MAX,
            told=output.dead_end if now < output.dead_end_until_s else None,
            has_disk=self.flow.outgoing.spilling.budget is not None and output.node != self._me and output.sender.has_credit,
            may_be_last=instance.is_multicast or is_multicast(output.link.target),
        )

    def look_at_inputs(self, dead: Callable[[NodeId], bool | None], for_good: Callable[[NodeId], bool | None]) -> None:
        """Marks inputs from nodes that are `dead` as lost, so that one crashed source does not hold up the answers of all others.

        A node that comes back (after a partition) counts again; its rows behind the watermark count as late. For an unknown node (`dead`
        returns None: membership has forgotten it) the mark stays as it was. Where all other inputs have ended, the operator ends without
        those that are dead `for_good`.
        """
        for instance in list(self.instances.values()):
            wants_more = instance.state is State.RUNNING and not instance.ended
            instance.waiting.look_for_input(lambda node: node != self._me and bool(for_good(node)), wants_more=wants_more)
            for incoming in instance.inputs.values():
                gone = dead(incoming.node) if incoming.node != self._me else False
                incoming.lost = incoming.told_lost or (incoming.lost if gone is None else gone)
            least_us = instance.watermark_without_lost(for_good)
            if least_us is not None:
                self._execution.advance(instance, least_us)

    def input_lost(self, operator: OperatorId, link: LinkId, back: bool = False) -> None:
        """Notes that the source of a link is gone, or with `back` that it is there again.

        The home of the query says so, or a multicast upstream.

        Raises
        ------
        LocalProtocolError
            The operator is not here, or is moving away and its record has been read: repeat the message at its new host.
        """
        instance = self.instances.get(operator)
        if instance is None or link not in instance.inputs or instance.state is State.EXPORTED:
            raise LocalProtocolError(f"the receiver of {link} is not on {self._me}, or is moving away")
        instance.inputs[link].lost = instance.inputs[link].told_lost = not back

    def use(self, operator: OperatorId, user: User, outputs: tuple[End, ...], through: LinkId | None) -> Instance:
        """Lets another query use an operator, through a link that the operator has; returns the operator.

        It may be another operator than the caller knows, where the link has been handed to a multicast, or back, in the meantime.

        Raises
        ------
        LocalProtocolError
            The operator is not here (any more), or has failed.
        PlacementError
            It is moving: its users have been exported already, and the new one would be missing.
        """
        carrier = self.flow.ends.gives(through) if through is not None else None
        instance = carrier[0] if carrier is not None else self._known(operator)
        if instance.state is State.FAILED:
            raise LocalProtocolError(f"operator {operator} has failed: {instance.reason}")
        if instance.state is State.EXPORTED:
            raise PlacementError(f"operator {instance.id} is moving away from {self._me}")
        instance.users.add(user)
        if through is not None and through in instance.outputs:
            instance.outputs[through].users.add(user.query)
        for end in outputs:
            self.connect(instance.id, end, user.query)
        return instance

    def slack_told(self, query: QueryId, slack_ms: float | None) -> None:
        """Sets by how much the delay of a query's longest way may still grow, in ms."""
        for instance in self.instances.values():
            if query in instance.users:
                instance.users.slack_told(query, slack_ms)

    def release(self, query: QueryId) -> list[OperatorId]:
        """Ends the use by a query: destroys operators that only it used. Returns their ids."""
        destroyed = []
        for instance in list(self.instances.values()):
            if not instance.users.remove(query):
                continue
            if not instance.users:
                self.destroy(instance.id)
                destroyed.append(instance.id)
                continue
            for output in list(instance.outputs.values()):
                output.users.discard(query)
                if not output.users:
                    self.disconnect(instance.id, output.link.id)
        return destroyed

    def reports(self, operators: tuple[OperatorId, ...] | None = None, query: QueryId = "") -> list[OperatorReport]:
        """Reports the figures of these operators, or of all here, for a query.

        One that has left is reported as `moved`, an unknown one as `missing`.
        """
        if operators is None:
            return [operator_report(instance, self._me) for instance in self.instances.values()]
        return [self._report(operator, query) for operator in operators]

    def report(self, operators: tuple[OperatorId, ...], query: QueryId) -> OperatorReports:
        """Answers the home of a query: figures of its operators, what they cost, and what this host can do."""
        here = [self.instances[operator].spec.signature for operator in operators if operator in self.instances]
        return OperatorReports(
            reports=tuple(self.reports(operators, query)), costs=self.books.costs(here, self._host.now()), host=self.told()
        )

    def told(self) -> NodeTold:
        """Returns what this host can do, for other agents."""
        return self.books.own(self._host.workers, self.budget.limit_bytes, self._host.now())

    def sample(self, now: float) -> None:
        """Samples all rates; called every `sample_interval_s`."""
        for instance in self.instances.values():
            instance.sample(now, self._me)
        cpu_ns = {instance.id: instance.figures.accounts.cpu_ns for instance in self.instances.values()}
        self.books.sample(now, self._host.use_fraction() * self._host.workers, cpu_ns)

    # ---------------------------------------------------------------------------------------------------- multicasts

    def split(self, operator: OperatorId, links: Sequence[LinkId], name: OperatorId) -> Instance:
        """Makes and starts a multicast beside an operator, and moves these outputs of the operator to it."""
        parent = self._known(operator)
        relay = split(parent, links, name, self._links, self._me)
        self.instances[name] = relay
        for outgoing in relay.inputs:
            self.flow.add_output(parent, parent.outputs[outgoing])
        self.flow.add(relay)
        self._execution.join(parent, relay)
        self._lives.on(relay, Event.BUILT)
        for output in relay.outputs.values():
            self.flow.outgoing.transmit(output)
        self._execution.consider(parent)
        return relay

    def fold(self, relay: OperatorId, operator: OperatorId, free: Callable[[], bool], done: Callable[[list[Output]], None]) -> None:
        """Moves the outputs of a multicast back to the operator beside it that feeds it.

        If that is not possible now, the multicast runs on.

        `free` is asked just before the change; `done` gets the outputs after it.
        """
        instance = self._known(relay)

        def idle(rests: bool) -> None:
            if not rests:
                return
            parent = self.instances.get(operator)
            if parent is None or not free() or not may_fold(parent, instance, self._links):
                self.resume(relay)
                return
            outputs = fold(parent, instance, self.flow)
            self._lives.on(instance, Event.DESTROY)
            del self.instances[relay]
            self._execution.consider(parent)
            done(outputs)

        self._lives.rest(instance, idle)

    # ---------------------------------------------------------------------------------------------------- migration

    def fork(self, operator: OperatorId, done: "Callable[[Operator | BaseException | None], None]") -> None:
        """Forks an operator between two batches; from then on its input is logged (`Instance.log`).

        The operator pauses only for the fork. `done` gets None for an operator without state, which needs neither fork nor log.
        """
        instance = self._known(operator)
        if instance.is_multicast or (instance.operator is not None and instance.operator.is_stateless):
            self._host.call_soon(lambda: done(None))
            return

        def forked(result: "Operator | BaseException") -> None:
            if instance.allows(Event.FORKED):  # it has neither failed nor gone meanwhile
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
                done(self._restless(instance))
                return
            self._lives.on(instance, Event.FORK)
            instance.busy = True
            self._host.execute(work, forked, rows=0)

        self._lives.rest(instance, idle)

    def stop_copying(self, operator: OperatorId) -> None:
        """Stops logging input: the copy has been called off."""
        instance = self.instances.get(operator)
        if instance is not None:
            instance.log = None

    def pause(self, operator: OperatorId, done: Callable[[BaseException | None], None]) -> None:
        """Pauses an operator after its current batch. `resume` or `hand_over` must follow."""
        instance = self._known(operator)
        self._lives.rest(instance, lambda rests: done(None if rests else self._restless(instance)))

    def export(self, operator: OperatorId, done: Callable[[bytes | BaseException], None]) -> None:
        """Encodes the engine's record of a paused operator, on an executor thread; `done` gets the bytes."""
        instance = self._known(operator)
        try:
            work = export(instance)
            self._lives.on(instance, Event.EXPORT)
        except LocalProtocolError as problem:
            done(problem)  # called off in the meantime, or part of its output is on disk
            return
        self._host.execute(work, done, rows=0)

    def _restless(self, instance: Instance) -> LocalProtocolError:
        return LocalProtocolError(f"operator {instance.id} is {instance.state.value}: {instance.reason or 'called off'}")

    def resume(self, operator: OperatorId) -> None:
        """Runs an operator again that rests or is to rest, after a migration that was abandoned."""
        instance = self.instances.get(operator)
        if instance is not None and instance.allows(Event.GO_ON):
            self._lives.on(instance, Event.GO_ON)

    def hand_over(self, operator: OperatorId, node: NodeId, epoch: int) -> None:
        """Removes an operator whose migration is committed. Queued batches are dropped; their senders send them to the new host."""
        instance = self._known(operator)
        self._remove(instance)
        self.flow.ends.left(operator, node, epoch)
        self._lives.on(instance, Event.HAND_OVER)

    def install(
        self, assembly: Assembly, epoch: int, is_wanted: Callable[[], bool], done: Callable[[Instance | BaseException], None]
    ) -> None:
        """Makes an operator whose state has arrived, and adds it as PREPARED if it is still wanted; `activate` or `destroy` must follow.

        By then the migration may be off, and another attempt may be on the way with the same id and the same room.
        """

        def installed(result: Instance | BaseException) -> None:
            if isinstance(result, Instance):
                if not is_wanted():
                    done(LocalProtocolError(f"operator {result.id} is not wanted here any more"))
                    return
                if result.id in self.instances:
                    done(LocalProtocolError(f"operator {result.id} is here already"))
                    return
                if (link := self.flow.ends.claimed(result, result.inputs, result.outputs)) is not None:
                    done(LocalProtocolError(f"operator {result.id} has link {link}, which another operator on {self._me} has already"))
                    return
                if not self.reservations.fill(result.id, self.empty_slots, self._host.now()):
                    done(PlacementError(f"{self._me} takes no more operators"))
                    return
                if self.budget.would_exceed(result.figures.state_bytes):
                    done(PlacementError(f"{self._me} has no room for a state of {result.figures.state_bytes} bytes (engine.memory_max)"))
                    return
                self.instances[result.id] = result
                self._measure_costs(result)
                self.budget.measured(result.id, result.figures.state_bytes)
                self.flow.add(result)
            done(result)

        self._host.execute(lambda: install(*assembly.finished(), epoch, self._links), installed, rows=0)

    def activate(self, operator: OperatorId) -> None:
        """Runs a PREPARED operator and resends its unacknowledged output from here."""
        instance = self._known(operator)
        if not instance.allows(Event.RUN):
            return
        self.flow.ends.returned(operator)
        self._lives.on(instance, Event.RUN)
        for output in instance.outputs.values():
            self.flow.outgoing.transmit(output)

    def close(self) -> None:
        """Stops all operators and deletes spilled batches."""
        self.flow.outgoing.spilling.close()
        for instance in list(self.instances.values()):
            self.destroy(instance.id)

    # ------------------------------------------------------------------------------------------------------- inside

    @property
    def _promised(self) -> int:
        return self.reservations.held(self._host.now())

    def _measure_costs(self, instance: Instance) -> None:
        """Lets an operator's costs count with those of all others here that compute the same."""
        spec, brought = instance.spec, instance.figures.costs_brought
        if brought is not None:
            self.books.statistics.brought("moved here", brought, self._host.now())
        instance.figures.port_costs = PortCosts(self.books.fit(spec.signature, spec.ports, self._host.now()), self.books.speed.value)

    def _known(self, operator: OperatorId) -> Instance:
        instance = self.instances.get(operator)
        if instance is None:
            raise LocalProtocolError(f"operator {operator} is not on {self._me}")
        return instance

    def _remove(self, instance: Instance) -> None:
        self.flow.remove(instance)
        for link in instance.outputs:
            self.flow.outgoing.spilling.drop(link)
        self.instances.pop(instance.id, None)
        self.budget.forget(instance.id)

    def _report(self, operator: OperatorId, query: QueryId) -> OperatorReport:
        instance = self.instances.get(operator)
        if instance is not None:
            return operator_report(instance, self._me, query)
        gone = self.flow.ends.place(operator)
        if gone is not None:
            return OperatorReport(id=operator, state="moved", node=gone[0], epoch=gone[1])
        return OperatorReport(id=operator, state="missing", node=self._me)
