"""The operators of one host, as the overlay sees them: their users, their links, and how they come and go.

Works with any engine (`sbon.execution.engine`), which does the operators' work. Queries, migrations, optimisers and the dispatch of
messages call it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from sbon.errors import LocalProtocolError, PlacementError, SbonError
from sbon.execution.ends import Input, Output
from sbon.execution.engine import Engine
from sbon.execution.events import EngineEvents
from sbon.execution.host_links import Links
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.renewing import ask_again, begin_anew
from sbon.execution.room import Room
from sbon.execution.splitting import fold, may_fold, split
from sbon.links.config import LinkConfig
from sbon.links.dead_ends import MISSING_MAX, Absence, Way, judge
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.ports import Clock
from sbon.query.multicast_ids import is_multicast
from sbon.query.params.source import SinkParams
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.deployment import End, Instantiate, User

Answer = Callable[[SbonError | None], None]


class Operators:
    """All operators on this host.

    Parameters
    ----------
    instances : the table of operators, which the engine and the links share
    """

    def __init__(
        self,
        me: NodeId,
        clock: Clock,
        instances: dict[OperatorId, Instance],
        links: Links,
        room: Room,
        engine: Engine,
        events: EngineEvents,
        config: LinkConfig,
    ) -> None:
        self.instances = instances
        self.room = room
        self.me = me
        self._clock = clock
        self._links = links
        self._engine = engine
        self._events = events
        self._config = config

    # ------------------------------------------------------------------------------------------------- come and go

    def instantiate(self, request: Instantiate, answer: Answer, *, asked_by: NodeId) -> None:
        """Makes an operator and runs it; a sink runs only after `begin`.

        Calls `answer(None)` when the operator is made, `answer(error)` when it cannot be.

        Parameters
        ----------
        asked_by : the agent that asks, as authenticated by its connection; this agent for statements from its control socket
        """
        spec, taken_up = request.spec, request.taken_up
        try:
            instance = self._enter(request)
        except SbonError as problem:
            answer(problem)
            return

        def made(problem: BaseException | None) -> None:
            if self.instances.get(spec.id) is not instance:
                answer(PlacementError(f"operator {spec.id} was dropped while it was made"))
            elif problem is None:
                if taken_up is not None:
                    self._go_on_anew(instance)
                answer(None)
            else:
                if asked_by != self.me:
                    self._events.operator_refused(spec.id, asked_by, str(problem))
                self._remove(instance)
                self._engine.destroy(instance)
                text = f"operator {spec.id}: {type(problem).__name__}: {problem}"
                answer(problem if isinstance(problem, SbonError) else PlacementError(text))

        self._engine.instantiate(instance, done=made, taken_up=taken_up)

    def _go_on_anew(self, instance: Instance) -> None:
        """Raises the watermark of an operator that was made again to its inputs' watermark, and asks feeders for unacknowledged batches."""
        least_us = instance.watermark_without_lost(lambda node: None) if len(instance.inputs) > 1 else instance.watermark_in_us
        if least_us is not None and least_us > instance.watermark_us and instance.operator is not None:
            self._engine.advance(instance, least_us)
        ask_again(self.me, self._links.outgoing, instance)

    def _enter(self, request: Instantiate) -> Instance:
        """Puts a new operator on the table, with its links.

        Raises
        ------
        SbonError
            There is no room, or the operator or one of its links is here already.
        """
        spec, taken_up = request.spec, request.taken_up
        if taken_up is not None and spec.id in self.instances and self.instances[spec.id].epoch < taken_up.epoch:
            self.destroy(spec.id)  # an earlier copy, which nobody has links to any more
        if spec.id in self.instances:
            raise LocalProtocolError(f"operator {spec.id} is here already")
        self.room.enter(spec, request.user.query, self._clock.now())
        instance = Instance(spec, 0)
        instance.users.add(request.user)
        for end in request.inputs:
            receiver = LinkReceiver(end.link.id, self._config, end.after, end.rows)
            incoming = Input(end.link, end.node, end.schema, receiver, end.watermark_us, end.epoch)
            incoming.origin.taken = end.origins if taken_up is not None else ()
            incoming.origin.made, incoming.origin.made_by_origin = instance.is_made_of_input(end.made), end.made_by_origin
            instance.inputs[end.link.id] = incoming
        instance.number_inputs()
        if taken_up is None:
            for incoming in instance.inputs.values():
                incoming.origin.made = instance.made_of_nothing if incoming.origin.number else None
                incoming.origin.made_by_origin = () if instance.passes_origins else None
        if taken_up is not None:
            begin_anew(instance, taken_up)
        self._check_links(instance)
        self.instances[spec.id] = instance
        self._links.ends.returned(spec.id)
        self._links.add(instance)
        for end in request.outputs:
            self.connect(spec.id, end, request.user.query)
        return instance

    def begin(self, query: QueryId) -> list[OperatorId]:
        """Starts the sinks of a query, once all its operators run, and returns them. A repeated call only returns them.

        Raises
        ------
        LocalProtocolError
            No sink of the query is here.
        """
        sinks = [one for one in self.instances.values() if isinstance(one.spec.params, SinkParams) and query in one.users]
        if not sinks:
            raise LocalProtocolError(f"{self.me} has no sink of query {query}")
        for instance in sinks:
            self._engine.begin(instance)
        return [instance.id for instance in sinks]

    def destroy(self, operator: OperatorId) -> None:
        """Stops and removes an operator, if it is here."""
        instance = self.instances.get(operator)
        if instance is not None:
            self._remove(instance)
            self._engine.destroy(instance)
            self._events.operator_destroyed(operator)

    def restore(self, assembly: Any, epoch: int, is_wanted: Callable[[], bool], done: Callable[[Instance | BaseException], None]) -> None:
        """Makes an operator whose state has arrived, and adds it as PREPARED if it is still wanted; `activate` or `destroy` must follow.

        Before that the migration may be called off, and another attempt with the same id and the same room may be under way.
        """

        def restored(result: Instance | BaseException) -> None:
            if isinstance(result, Instance):
                try:
                    if not is_wanted():
                        raise LocalProtocolError(f"operator {result.id} is not wanted here any more")
                    if result.id in self.instances:
                        raise LocalProtocolError(f"operator {result.id} is here already")
                    self._check_links(result)
                    self.room.enter_moved(result.id, result.figures.state_bytes, self._clock.now())
                except SbonError as problem:
                    done(problem)
                    return
                self.instances[result.id] = result
                self._links.add(result)
            done(result)

        self._engine.restore(assembly, epoch, restored)

    def activate(self, operator: OperatorId) -> Instance:
        """Runs a PREPARED operator and sends its unacknowledged output from here; returns it."""
        instance = self.known(operator)
        if instance.state is State.PREPARED:
            self._links.ends.returned(operator)
            self._engine.activate(instance)
            for output in instance.outputs.values():
                self._links.outgoing.transmit(output)
        return instance

    def hand_over(self, operator: OperatorId, node: NodeId, epoch: int) -> None:
        """Removes an operator whose migration is committed. Queued batches are dropped; their senders send them to the new host."""
        instance = self.known(operator)
        self._remove(instance)
        self._links.ends.left(operator, node, epoch)
        self._engine.hand_over(instance)

    def close(self) -> None:
        """Stops all operators. Sinks keep the files that they need when their agent is back."""
        for operator, instance in list(self.instances.items()):
            getattr(instance.sink, "keep", bool)()
            self.destroy(operator)

    # ------------------------------------------------------------------------------------------------------- links

    def connect(self, operator: OperatorId, end: End, query: QueryId) -> None:
        """Gives an operator one more output, starting with its next batch.

        Raises
        ------
        LocalProtocolError
            The operator is not here.
        """
        instance = self.known(operator)
        existing = self._links.ends.gives(end.link.id)
        if existing is not None:
            existing[1].users.add(query)
            return
        sender = LinkSender.restored(end.link.id, self._config, (end.after + 1, end.rows, end.rows, ()))
        output = Output(end.link, end.node, end.epoch, instance.spec.schema, sender, {query})
        output.made, output.giving.rows = (end.after, None if end.after else 0), end.skip_rows
        output.by_origin = None if end.after else ()
        output.giving.by_origin = list(end.skips) if any(end.skips) else []
        output.giving.is_whole = instance.state is State.BUILDING or not (instance.figures.rows_out or instance.is_multicast)
        sender.before, sender.former_us = (instance.figures.rows_out, instance.watermark_out_us), end.watermark_us
        if instance.watermark_out_us >= 0 and instance.state is not State.BUILDING:
            # Earlier watermarks hold for the new consumer too, and nothing else may follow them: an ended source sends no more.
            sender.offer(self._clock.wall(), instance.watermark_out_us, None)
        self._links.add_output(instance, output)
        self._links.outgoing.transmit(output)

    def disconnect(self, operator: OperatorId, link: LinkId) -> None:
        """Removes an output; batches not acknowledged on it are lost, on purpose."""
        instance = self.known(operator)
        self._links.remove_output(instance, link)
        self._engine.consider(instance)

    def look_at_outputs(self, absence: Callable[[NodeId], Absence | None], patience_s: float) -> None:
        """Gives up outputs whose consumers are gone, where they block an operator that has other consumers; see `sbon.links.dead_ends`.

        Parameters
        ----------
        absence : tells how a node is absent, None if it is not; raises KeyError for an unknown node, whose state then stays as it was
        """
        now = self._clock.now()
        for instance in list(self.instances.values()):
            for output in instance.outputs.values():
                if output.node != self.me:
                    with suppress(KeyError):
                        output.absence = absence(output.node)
            judgement = judge([self._way(instance, output, now) for output in instance.outputs.values()], patience_s)
            for output in list(instance.outputs.values()):
                output.obstructed = judgement.obstructed.get(output.link.id, "")
                if output.link.id in judgement.given_up:
                    self.disconnect(instance.id, output.link.id)
                    self._events.link_broken(instance, output, f"given up: {output.obstructed}")
            if judgement.dead_end is not None:
                self._links.tell_dead_end(instance, judgement.dead_end)

    def _way(self, instance: Instance, output: Output, now: float) -> Way:
        leaves = self._links.outgoing.leaves(output)
        return Way(
            output.link.id,
            output.link.target,
            output.node,
            output.absence if leaves else None,
            is_unknown_there=output.missing > MISSING_MAX,
            told=output.dead_end[0] if output.dead_end is not None and now < output.dead_end[1] else None,
            has_disk=self._links.outgoing.has_disk and leaves and output.sender.has_credit,
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
            instance.waiting.look_for_input(lambda node: node != self.me and bool(for_good(node)), wants_more=wants_more)
            for incoming in instance.inputs.values():
                gone = dead(incoming.node) if incoming.node != self.me else False
                incoming.lost = incoming.told_lost or (incoming.lost if gone is None else gone)
            least_us = instance.watermark_without_lost(for_good)
            if least_us is not None:
                self._engine.advance(instance, least_us)

    def input_lost(self, operator: OperatorId, link: LinkId, back: bool = False) -> None:
        """Notes that the source of a link is gone, or with `back` that it is there again.

        The home of the query or a multicast upstream reports it.

        Raises
        ------
        LocalProtocolError
            The operator is not here, or is moving away and its record has been read: repeat the message at its new host.
        """
        instance = self.instances.get(operator)
        if instance is None or link not in instance.inputs or instance.state is State.EXPORTED:
            raise LocalProtocolError(f"the receiver of {link} is not on {self.me}, or is moving away")
        instance.inputs[link].lost = instance.inputs[link].told_lost = not back

    def split(self, operator: OperatorId, links: Sequence[LinkId], name: OperatorId) -> Instance:
        """Makes and starts a multicast beside an operator, and moves these outputs of the operator to it."""
        parent = self.known(operator)
        relay = split(parent, links, name, self._config, self.me)
        self.instances[name] = relay
        for outgoing in relay.inputs:
            self._links.add_output(parent, parent.outputs[outgoing])
        self._links.add(relay)
        self._engine.join(parent, relay)
        for output in relay.outputs.values():
            self._links.outgoing.transmit(output)
        self._engine.consider(parent)
        return relay

    def fold(self, relay: OperatorId, operator: OperatorId, free: Callable[[], bool], done: Callable[[list[Output]], None]) -> None:
        """Moves the outputs of a multicast back to the operator beside it that feeds it.

        If that is not possible now, the multicast runs on.

        `free` is asked just before the change; `done` gets the outputs after it.
        """
        instance = self.known(relay)

        def rests(problem: BaseException | None) -> None:
            if problem is not None:
                return
            parent = self.instances.get(operator)
            if parent is None or not free() or not may_fold(parent, instance, self._config):
                self._engine.go_on(instance)
                return
            outputs = fold(parent, instance, self._links)
            self._engine.destroy(instance)
            del self.instances[relay]
            self._engine.consider(parent)
            done(outputs)

        self._engine.rest(instance, rests)

    # ------------------------------------------------------------------------------------------------------- users

    def shareable(self) -> Iterator[tuple[str, Instance]]:
        """Yields the operators that other queries may use, with their signatures."""
        for instance in self.instances.values():
            if instance.state is State.RUNNING and not instance.waiting.starved and not isinstance(instance.spec.params, SinkParams):
                yield instance.spec.signature, instance

    def use(self, operator: OperatorId, user: User, outputs: tuple[End, ...], through: LinkId | None) -> Instance:
        """Lets another query use an operator, through a link that the operator has; returns the operator.

        That may be another operator than `operator`, if the link has been handed to a multicast, or back, in the meantime.

        Raises
        ------
        LocalProtocolError
            The operator is not here (any more), or has failed.
        PlacementError
            It is moving: its users have been exported already, and the new user would be missing.
        """
        carrier = self._links.ends.gives(through) if through is not None else None
        instance = carrier[0] if carrier is not None else self.known(operator)
        if instance.state is State.FAILED:
            raise LocalProtocolError(f"operator {operator} has failed: {instance.reason}")
        if instance.state is State.EXPORTED:
            raise PlacementError(f"operator {instance.id} is moving away from {self.me}")
        instance.users.add(user)
        if through is not None and through in instance.outputs:
            instance.outputs[through].users.add(user.query)
        for end in outputs:
            self.connect(instance.id, end, user.query)
        return instance

    def slack_told(self, query: QueryId, slack_ms: float | None, busy_slack_ms: float | None = None) -> None:
        """Sets by how much the delay of a query's longest path may still grow, in ms."""
        for instance in self.instances.values():
            if query in instance.users:
                instance.users.slack_told(query, slack_ms, busy_slack_ms)

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

    # ------------------------------------------------------------------------------------------------------- inside

    def known(self, operator: OperatorId) -> Instance:
        """Returns an operator of this host.

        Raises
        ------
        LocalProtocolError
            It is not here.
        """
        instance = self.instances.get(operator)
        if instance is None:
            raise LocalProtocolError(f"operator {operator} is not on {self.me}")
        return instance

    def _check_links(self, instance: Instance) -> None:
        """Checks that no link of a new operator belongs to another operator here.

        Raises
        ------
        LocalProtocolError
            One of them does.
        """
        link = self._links.ends.claimed(instance, instance.inputs, instance.outputs)
        if link is not None:
            raise LocalProtocolError(f"operator {instance.id} has link {link}, which another operator on {self.me} has already")

    def _remove(self, instance: Instance) -> None:
        """Takes an operator and its links off the tables."""
        self._links.end(instance)
        self.instances.pop(instance.id, None)
        self.room.budget.forget(instance.id)
