"""Transports batches between operators: over the network to other hosts, or directly within this host, with the same state machines.

The ends of a link are `LinkSender` and `LinkReceiver`, and `Ends` knows where the other ends are (`sbon.links`). This module receives
batches and acknowledges them; `sbon.delivery.outgoing` sends. The agent's node makes a `Flow` and passes incoming messages to it.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from sbon.delivery.outgoing import Outgoing, OutgoingEvents, Router
from sbon.delivery.safety import Safety
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.rows import Rows
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.dead_ends import Obstruction
from sbon.links.ends import Action, Ends, ForgetDelay, SendAgain
from sbon.links.frames import Data
from sbon.links.link_names import target_of
from sbon.links.receiver import Verdict
from sbon.ports import Disk, Executor
from sbon.query.plan import LinkSpec
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.links import DeadEnd, Moved, NoSuchLink
from sbon.wire.messages import Message

Reply = Callable[[Message], bool]

ACKNOWLEDGE_RETRY_S = 0.1
ACKNOWLEDGE_TRIES = 50
"""Retries of an acknowledgement whose connection is full; a connection that stays full for longer is broken."""


class FlowEvents(OutgoingEvents, Protocol):
    """Callbacks of the flow; the node implements them (`sbon_agent.reactions.links`)."""

    def arrived_at_prepared(self, operator: OperatorId) -> None:
        """Data has arrived for a PREPARED operator. Its senders know the new host, so the migration is committed."""


class Flow:
    """All links that begin or end on this host."""

    def __init__(self, host: Executor, router: Router, events: FlowEvents, remembered: int, links: LinkConfig, disk: Disk) -> None:
        self._host = host
        self._me = router.me
        self._events = events
        self.ends = Ends[Instance, Input, Output](remembered)
        self.outgoing = Outgoing(host, router, events, self.ends, links, disk, self._carry, lambda instance: self.safety.look(instance))
        self.safety = Safety(host, self.ends, self.outgoing.safe_here, self._acknowledge_soon)
        self._acks: dict[LinkId, Input] = {}
        self._local: deque[tuple[LinkId, Batch]] = deque()
        self._counters = {"batches_duplicate": 0, "batches_missing": 0, "batches_turned_away": 0, "links_unknown": 0}

    @property
    def counters(self) -> dict[str, int]:
        """Counts of unexpected batches, links and acknowledgements."""
        return self._counters | self.outgoing.counters

    # --------------------------------------------------------------------------------------------- ends of links

    def add(self, instance: Instance) -> None:
        """Starts to transport for all links of an operator."""
        for incoming in instance.inputs.values():
            self.ends.add_taking(instance, incoming)
        for outgoing in instance.outputs.values():
            self.add_output(instance, outgoing)

    def add_output(self, instance: Instance, output: Output) -> None:
        """Starts to transport for one more output."""
        output.sender.backlog.budget = self.outgoing.spilling.budget
        instance.outputs[output.link.id] = output
        self.ends.add_giving(instance, output)

    def replace_input(self, instance: Instance, old: Input, new: Input) -> None:
        """Replaces an input of an operator by a new link; batches on the old link are refused from now on."""
        inputs = [new if incoming is old else incoming for incoming in instance.inputs.values()]
        instance.inputs.clear()
        instance.inputs.update((incoming.link.id, incoming) for incoming in inputs)  # in their order
        self.drop_input(old.link.id)
        self.ends.add_taking(instance, new)

    def end(self, instance: Instance) -> None:
        """Removes the links of an operator that ends here, with their batches on disk."""
        self.remove(instance)
        for link in instance.outputs:
            self.outgoing.spilling.drop(link)

    def close(self) -> None:
        """Deletes all batches on disk."""
        self.outgoing.spilling.close()

    def remove(self, instance: Instance) -> None:
        """Removes an operator's links. Batches waiting in its queues are dropped; their senders keep them."""
        for incoming in instance.inputs.values():
            self.drop_input(incoming.link.id)
        for outgoing in instance.outputs.values():
            self.ends.drop_giving(outgoing.link.id)

    def remove_output(self, instance: Instance, link: LinkId) -> None:
        """Removes an output that has no consumer any more."""
        instance.outputs.pop(link, None)
        self.ends.drop_giving(link)
        self.outgoing.spilling.drop(link)
        self.safety.look(instance)

    def drop_input(self, link: LinkId) -> None:
        """Stops receiving the batches of a link."""
        self.ends.drop_taking(link)
        self._acks.pop(link, None)

    def moved(self, operator: OperatorId, node: NodeId, epoch: int, told_by: NodeId = "") -> None:
        """Applies the news that an operator runs on another host, and sends unacknowledged batches there.

        If the news is older than what is known, and comes from the very host where the operator should be, then the operator has not
        arrived there yet. The batches are resent later.
        """
        self._perform(self.ends.moved(operator, node, epoch))
        for output in self.ends.giving():
            if output.link.target == operator and output.node == told_by and output.epoch > epoch:
                self.outgoing.unknown_there(NoSuchLink(link=output.link.id))

    def passed(self, link: LinkSpec, node: NodeId) -> None:
        """Applies the news that another operator has the sending end of an input."""
        self._perform(self.ends.passed(link, node))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SendAgain) and (giving := self.ends.gives(action.link)) is not None:
                giving[1].packing.elsewhere()
                self.outgoing.resend(giving[1])
            elif isinstance(action, ForgetDelay) and (taking := self.ends.takes(action.link)) is not None:
                taking[1].delay_ms = None

    # ---------------------------------------------------------------------------------------------------- receiving

    def tell_dead_end(self, instance: Instance, obstruction: Obstruction) -> None:
        """Tells the operators that feed this one that all its consumers are gone.

        Does not tell those on other hosts that have sent nothing yet: they do not wait for credit.
        """
        for incoming in instance.inputs.values():
            message = DeadEnd(link=incoming.link.id, obstruction=obstruction)
            if incoming.reply is not None:
                incoming.reply(message)
            elif incoming.node == self._me:
                self.outgoing.dead_end_told(message)

    def receive(self, message: Data, node: NodeId, reply: Reply) -> None:
        """Takes a batch from another host.

        Parameters
        ----------
        reply : sends a message back on the batch's connection
        """
        found = self.ends.takes(message.link)
        if found is None:
            reply(self._whereabouts_of(message.link))
            return
        instance, incoming = found
        if instance.state is State.FAILED:
            reply(NoSuchLink(link=message.link))
            return
        payload = Rows.of_bytes(message.payload, message.rows, incoming.schema, message.size_bytes, message.codec) if message.rows else None
        incoming.answers(message.sequence, node, reply)
        self._take(found, Batch(message.sequence, message.stimulus_s, message.watermark_us, payload, message.path, message.origin))

    def processed(self, incoming: Input, batch: Batch) -> None:
        """Counts a batch as processed. Call it after the results have been offered; the acknowledgement follows soon, with others."""
        incoming.receiver.process(batch.sequence, batch.rows)
        incoming.count(batch)
        found = self.ends.takes(incoming.link.id)
        if found is not None and found[0].passes:
            self.safety.passed_on(found[0], incoming)
        if incoming.receiver.wants_more():
            self._acknowledge(incoming, resume=True)
        else:
            self._acknowledge_soon(incoming)

    def carried(self, output: Output, incoming: Input, batch: Batch) -> None:
        """Counts a batch that the next operator processed in the same task, at both ends, as if the link had carried it."""
        output.bytes_out += batch.size_bytes
        output.missing = 0
        output.sender.sent(batch)
        incoming.reply = None
        incoming.receiver.accept(batch.sequence, batch.size_bytes)
        incoming.receiver.process(batch.sequence, batch.rows)
        incoming.count(batch)
        receiver, found = incoming.receiver, self.ends.takes(incoming.link.id)
        passes = found is not None and found[0].passes  # if stateless, the results are not safe yet
        output.sender.acknowledge(receiver.processed, receiver.credit, incoming.unsafe.safe if passes else None, keeps=False)
        if not passes:
            output.made, output.by_origin = (receiver.processed, None), None

    def _take(self, found: tuple[Instance, Input], batch: Batch) -> None:
        instance, incoming = found
        verdict = incoming.receiver.accept(batch.sequence, batch.size_bytes)
        if verdict is Verdict.ACCEPTED:
            instance.waiting.enqueue(incoming, batch)
            if instance.state is State.PREPARED:
                self._events.arrived_at_prepared(instance.id)
            self._events.runnable(instance)
        elif verdict is Verdict.DUPLICATE:
            self._counters["batches_duplicate"] += 1
            self._acknowledge_soon(incoming)
        elif verdict is Verdict.GAP:
            self._counters["batches_missing"] += 1
            self._acknowledge(incoming, resume=True)
        elif verdict is Verdict.FULL:
            self._counters["batches_turned_away"] += 1

    def _whereabouts_of(self, link: LinkId) -> Message:
        target = target_of(link)
        gone = self.ends.place(target)
        if gone is not None:
            return Moved(operator=target, node=gone[0], epoch=gone[1])
        self._counters["links_unknown"] += 1
        return NoSuchLink(link=link)

    @property
    def is_carrying(self) -> bool:
        """True while batches or acknowledgements are in transit between operators here; they arrive in this turn of the event loop."""
        return bool(self._local or self._acks)

    def _carry(self, link: LinkId, batch: Batch) -> None:
        """Takes a batch from an operator of this host; it arrives in the same turn of the event loop."""
        self._local.append((link, batch))
        if len(self._local) == 1:
            self._host.call_soon(self._carry_local)

    def _carry_local(self) -> None:
        waiting, self._local = self._local, deque()
        for link, batch in waiting:
            found = self.ends.takes(link)
            if found is not None and found[0].state is State.FAILED:
                self.outgoing.unknown_there(NoSuchLink(link=link))
                continue
            if found is not None:
                found[1].reply = None
                self._take(found, batch)
                continue
            answer = self._whereabouts_of(link)
            if isinstance(answer, Moved):
                self.moved(answer.operator, answer.node, answer.epoch, self._me)
            elif isinstance(answer, NoSuchLink):
                self.outgoing.unknown_there(answer)

    def _acknowledge_soon(self, incoming: Input) -> None:
        if not self._acks:
            self._host.call_soon(self._acknowledge_all)
        self._acks[incoming.link.id] = incoming

    def _acknowledge_all(self) -> None:
        due, self._acks = self._acks, {}
        for incoming in due.values():
            self._acknowledge(incoming, resume=False)

    def _acknowledge(self, incoming: Input, *, resume: bool) -> None:
        found = self.ends.takes(incoming.link.id)
        if found is None:
            return
        passes = found[0].passes
        if passes:
            self.safety.refresh(incoming)  # an operator that has just arrived may have no unsafe batch left
        message = incoming.acknowledgement(resume=resume, passes=passes)
        if incoming.reply is None:
            self.outgoing.acknowledged(message)
        elif incoming.reply(message):
            incoming.unheard = 0
        elif incoming.unheard < ACKNOWLEDGE_TRIES:
            # The connection that brought the batch is full or gone. If it is gone, the sender reconnects, resends and is acknowledged then.
            # If it is full, the sender may need this acknowledgement before it can send at all.
            incoming.unheard += 1
            self._host.call_at(self._host.now() + ACKNOWLEDGE_RETRY_S, lambda: self._acknowledge(incoming, resume=resume))
