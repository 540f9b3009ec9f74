"""Transports batches between operators: over the network to other hosts, or directly within this host.

The same state machines serve both.

The ends of a link are `LinkSender` and `LinkReceiver` (`sbon.links`); this module carries their messages. What cannot be sent now (no
connection, full buffer) stays in the sender, and is sent when the connection is back or has room. The engine owns it; the agent's node
gives it incoming messages.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from sbon.compression import Codec
from sbon.errors import SbonError, UnpackableError
from sbon.execution.life import State
from sbon.execution.rows import Packed, Rows
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.dead_ends import REASON_LENGTH_MAX, TOLD_S, Obstruction
from sbon.links.frames import Data
from sbon.links.places import Whereabouts
from sbon.links.receiver import Verdict
from sbon.printable import printable
from sbon.query.plan import LinkSpec, target_of
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.links import Acknowledge, DeadEnd, Moved, NoSuchLink
from sbon.wire.messages import Message
from sbon_agent.engine.ends import Input, Output
from sbon_agent.engine.instance import Instance
from sbon_agent.engine.spilling import Spilling
from sbon_agent.host import Disk, Host

Reply = Callable[[Message], bool]

MISSING_MAX = 6
"""Number of successive answers that the other end does not know a link, about half a minute, after which the link counts as gone for
good."""
MISSING_RETRY_S_MIN = 0.5
"""First pause before batches of a link unknown at the other end are sent again; it doubles each time. An end that is being made needs one
or two."""
MISSING_RETRY_S_MAX = 30.0
ACKNOWLEDGE_RETRY_S = 0.1
ACKNOWLEDGE_TRIES = 50
"""Retries of an acknowledgement whose connection is full; a connection that stays full for longer is broken."""


class Router(Protocol):
    """Sends messages to nodes: the agent's directory and connections behind one call."""

    me: NodeId

    def send(self, node: NodeId, message: Message | Data) -> bool:
        """Sends a message. Returns False if there is no connection with room; `Flow.reconnected` or `Flow.writable` follows later."""


class FlowEvents(Protocol):
    """Callbacks of the flow; the engine implements them."""

    def runnable(self, instance: Instance) -> None:
        """An operator has a batch to process, or new credit."""

    def arrived_at_prepared(self, operator: OperatorId) -> None:
        """Data has arrived for a PREPARED operator. Its senders know the new host, so the migration is committed."""

    def disk_lost(self, instance: Instance, reason: str) -> None:
        """What a link of the operator had put on disk cannot be read back."""

    def disk_told(self, output: Output, event: str, reason: str) -> None:
        """Something happened to a link's disk; see `sbon_agent.engine.spilling.SpillEvents`."""

    def rows_left_out(self, output: Output, rows: int, reason: str) -> None:
        """A batch could not be packed and is sent without its rows."""


class Flow:
    """All links that begin or end on this host."""

    def __init__(self, host: Host, router: Router, events: FlowEvents, remembered: int, links: LinkConfig, disk: Disk) -> None:
        self._host = host
        self._router = router
        self._events = events
        self._remembered = remembered
        self._inputs: dict[LinkId, tuple[Instance, Input]] = {}
        self._outputs: dict[LinkId, tuple[Instance, Output]] = {}
        self._gone: OrderedDict[OperatorId, tuple[NodeId, int]] = OrderedDict()
        self._acks: dict[LinkId, Input] = {}
        self._again: dict[LinkId, bool] = {}
        self.spilling = Spilling(host, disk, links, self)
        self._local: deque[tuple[LinkId, Batch]] = deque()
        self.counters = {
            "batches_duplicate": 0,
            "batches_missing": 0,
            "batches_turned_away": 0,
            "links_unknown": 0,
            "acknowledgements_bad": 0,
            "batches_unpackable": 0,
            "rows_unpackable": 0,
        }

    # --------------------------------------------------------------------------------------------- ends of links

    def add(self, instance: Instance) -> None:
        """Starts to transport for all links of an operator."""
        for incoming in instance.inputs.values():
            self._inputs[incoming.link.id] = (instance, incoming)
        for outgoing in instance.outputs.values():
            self.add_output(instance, outgoing)

    def add_output(self, instance: Instance, output: Output) -> None:
        """Starts to transport for one more output."""
        output.sender.may_spill(self.spilling.budget)
        instance.outputs[output.link.id] = output
        self._outputs[output.link.id] = (instance, output)

    def input(self, link: LinkId) -> Input | None:
        """Returns the receiving end of a link, if it is here."""
        found = self._inputs.get(link)
        return None if found is None else found[1]

    def consumer(self, link: LinkId) -> tuple[Instance, Input] | None:
        """Returns the operator here that has the receiving end of a link, with that end."""
        return self._inputs.get(link)

    def replace_input(self, instance: Instance, old: Input, new: Input) -> None:
        """Replaces an input of an operator by a new link; batches that arrive by the old link are refused."""
        inputs = [new if incoming is old else incoming for incoming in instance.inputs.values()]
        instance.inputs.clear()
        instance.inputs.update((incoming.link.id, incoming) for incoming in inputs)  # in their order
        self._inputs.pop(old.link.id, None)
        self._acks.pop(old.link.id, None)
        self._inputs[new.link.id] = (instance, new)

    def far_ends(self, operator: OperatorId) -> list[tuple[Instance, Input | Output]]:
        """Returns the local ends of all links to or from this operator, each with the operator that has it."""
        feeding: list[tuple[Instance, Input | Output]] = [(i, end) for i, end in self._inputs.values() if end.link.source == operator]
        return feeding + [(i, end) for i, end in self._outputs.values() if end.link.target == operator]

    def taken(self, instance: Instance) -> LinkId | None:
        """Returns a link of a new operator whose end here belongs to another operator already; None if there is none."""
        inputs = (link for link in instance.inputs if link in self._inputs and self._inputs[link][0] is not instance)
        outputs = (link for link in instance.outputs if link in self._outputs and self._outputs[link][0] is not instance)
        return next(inputs, next(outputs, None))

    def remove(self, instance: Instance) -> None:
        """Removes an operator's links. Batches waiting in its queues are dropped; their senders keep them."""
        for incoming in instance.inputs.values():
            self._inputs.pop(incoming.link.id, None)
            self._acks.pop(incoming.link.id, None)
        for outgoing in instance.outputs.values():
            self._outputs.pop(outgoing.link.id, None)

    def remove_output(self, instance: Instance, link: LinkId) -> None:
        """Removes an output that has no consumer any more."""
        instance.outputs.pop(link, None)
        self._outputs.pop(link, None)
        self.spilling.drop(link)

    def carrier(self, link: LinkId) -> tuple[Instance, Output] | None:
        """Returns the operator here that has the sending end of a link, with that end."""
        return self._outputs.get(link)

    def handed(self, link: LinkSpec, node: NodeId) -> None:
        """Notes that another operator has the sending end of an input now. Older news than what is known is ignored."""
        found = self._inputs.get(link.id)
        if found is not None and link.handed > found[1].link.handed:
            incoming = found[1]
            incoming.link = msgspec.structs.replace(incoming.link, source=link.source, handed=link.handed)
            incoming.moved(node, 0)
            incoming.named.clear()  # earlier announced hosts were those of the previous source

    def left(self, operator: OperatorId, node: NodeId, epoch: int) -> None:
        """Notes where an operator has moved to, for senders that do not know yet. The oldest notes are dropped."""
        self._gone[operator] = (node, epoch)
        self._gone.move_to_end(operator)
        while len(self._gone) > self._remembered:
            self._gone.popitem(last=False)

    def places(self, operator: OperatorId) -> list[Whereabouts]:
        """Returns all that is known here about where an operator on another host runs."""
        ends: list[Whereabouts] = [end for _, end in self.far_ends(operator)]
        gone = self._gone.get(operator)
        return ends if gone is None else [*ends, Whereabouts(*gone)]

    def whereabouts(self, operator: OperatorId) -> tuple[NodeId, int] | None:
        """Returns where an operator that was here has gone, with the epoch of the move; None if unknown."""
        return self._gone.get(operator)

    def forget_whereabouts(self, operator: OperatorId) -> None:
        """Forgets where an operator went: it is here again."""
        self._gone.pop(operator, None)

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> None:
        """Notes the new host of an operator and sends unacknowledged batches there. Older news than what is known is ignored."""
        if operator in self._gone and self._gone[operator][1] < epoch:
            self.left(operator, node, epoch)
        for _, output in list(self._outputs.values()):
            if output.link.target == operator and epoch > output.epoch:
                output.moved(node, epoch)
                output.packing.elsewhere()
                output.sender.rewind()
                self.transmit(output)
        for _, incoming in self._inputs.values():
            if incoming.link.source == operator and epoch > incoming.epoch:
                if incoming.node != node:
                    incoming.delay_ms = None  # it was that of the old host
                incoming.moved(node, epoch)

    # ------------------------------------------------------------------------------------------------------ sending

    def leaves(self, output: Output) -> bool:
        """Tells whether the link leads to another host."""
        return output.node != self._router.me

    def transmit(self, output: Output) -> None:
        """Sends what may be sent, and lets batches beyond the memory limit spill to disk."""
        found = self._outputs.get(output.link.id)
        if found is None or found[1] is not output:
            return  # the operator has ended or left: nothing more may be sent for it, or written to a disk that nobody would empty
        self._send_on(output)
        # An unreachable receiver may come back. One that answers and does not know the link hardly will, and must not fill the disk.
        away = output.node != self._router.me and output.missing < MISSING_MAX
        self.spilling.look(output.link.id, output.sender, output.schema, may_spill=away)

    def _send_on(self, output: Output) -> None:
        sender = output.sender
        while (batch := sender.peek()) is not None:
            if output.node == self._router.me:
                self._local.append((output.link.id, batch))
                if len(self._local) == 1:
                    self._host.call_soon(self._carry_local)
            else:
                try:
                    if not self._send_away(output, batch):
                        return
                except UnpackableError as problem:
                    self._leave_out(output, batch, str(problem))
                    continue
            output.bytes_out += batch.size_bytes
            sender.sent(batch)

    def _send_away(self, output: Output, batch: Batch) -> bool:
        rows, codec = batch.payload, output.packing.codec
        if isinstance(rows, Rows) and not rows.is_packed(codec):
            # The batch was made when the link led to an operator here, or for another compression.
            if not output.is_packing:
                output.is_packing = True
                self._host.execute(lambda: rows.pack(codec, self._host.stopwatch), partial(self._packed, output, batch), rows=rows.rows)
            return False
        packed = rows.packed(codec) if isinstance(rows, Rows) else None
        if not self._router.send(output.node, _data(output.link.id, batch, packed)):
            return False
        if packed is not None:
            output.packing.sent(packed.codec, batch.size_bytes, len(packed.data), packed.seconds, self._host.now())
        return True

    def _packed(self, output: Output, batch: Batch, result: object) -> None:
        output.is_packing = False
        found = self._outputs.get(output.link.id)
        if found is None or found[1] is not output:
            return
        if isinstance(result, BaseException):
            self._leave_out(output, batch, str(result) if isinstance(result, SbonError) else f"{type(result).__name__}: {result}")
        self.transmit(output)

    def _leave_out(self, output: Output, batch: Batch, reason: str) -> None:
        """Drops the rows of one batch; those behind it are sent."""
        rows = output.sender.leave_out(batch.sequence)
        if not rows:
            return  # acknowledged in the meantime
        output.left_out += 1
        output.left_out_because = output.left_out_because or printable(reason)[:REASON_LENGTH_MAX]
        self.counters["batches_unpackable"] += 1
        self.counters["rows_unpackable"] += rows
        self._events.rows_left_out(output, rows, reason)

    # ------------------------------------------------------------------------------- callbacks of the disk (SpillEvents)

    def disk_done(self, link: LinkId) -> None:
        """Transmits after disk work: batches have come back from disk, or there is room for more."""
        found = self._outputs.get(link)
        if found is not None:
            self.transmit(found[1])
            self._events.runnable(found[0])

    def disk_lost(self, link: LinkId, reason: str) -> None:
        """Passes on that spilled batches of a link cannot be read back."""
        found = self._outputs.get(link)
        if found is not None:
            self._events.disk_lost(found[0], f"link to {found[1].link.target}: {reason}")

    def disk_told(self, link: LinkId, event: str, reason: str) -> None:
        """Passes on an event of a link's disk, for the log."""
        found = self._outputs.get(link)
        if found is not None:
            self._events.disk_told(found[1], event, reason)

    # -------------------------------------------------------------------------------------------------- connections

    def reconnected(self, node: NodeId) -> None:
        """Resends to a node with a new connection, because unacknowledged batches may have been lost with the old one."""
        for _, output in list(self._outputs.values()):
            if output.node == node:
                output.sender.rewind()
                self.transmit(output)

    def writable(self, node: NodeId, drained_bytes_per_s: float = 0.0) -> None:
        """Sends to a node whose connection has room again. `drained_bytes_per_s` is the rate at which it drained, 0 if unknown."""
        for _, output in list(self._outputs.values()):
            if output.node == node:
                if drained_bytes_per_s > 0:
                    output.packing.drained(drained_bytes_per_s, self._host.now())
                self.transmit(output)

    def destinations(self) -> set[NodeId]:
        """Returns the other nodes that links lead to."""
        return {output.node for _, output in self._outputs.values()} - {self._router.me}

    def acknowledged(self, message: Acknowledge) -> None:
        """Takes an acknowledgement: the other end of an output has processed batches."""
        found = self._outputs.get(message.link)
        if found is None:
            return
        instance, output = found
        output.missing = 0
        if not output.sender.acknowledge(message.processed, message.credit):
            self.counters["acknowledgements_bad"] += 1
            return
        if message.resume:
            output.sender.rewind()
        self.transmit(output)
        self._events.runnable(instance)

    def unknown_there(self, message: NoSuchLink) -> None:
        """Schedules a resend on a link that the other end does not know: its end may be in the making, have failed, or have gone in a crash
        (`sbon.links.dead_ends`).
        """
        found = self._outputs.get(message.link)
        if found is None or self._again.get(message.link):
            return
        output = found[1]
        output.missing += 1
        self._again[message.link] = True

        def retry() -> None:
            self._again.pop(message.link, None)
            found = self._outputs.get(message.link)  # the operator may have left and come back
            if found is not None:
                found[1].sender.rewind()
                self.transmit(found[1])

        pause_s = min(MISSING_RETRY_S_MAX, MISSING_RETRY_S_MIN * 2.0 ** min(output.missing - 1, 16))
        self._host.call_at(self._host.now() + pause_s, retry)

    def dead_end_told(self, message: DeadEnd) -> None:
        """Notes the report of a target's host that all consumers behind the target are gone."""
        found = self._outputs.get(message.link)
        if found is not None:
            reason = message.obstruction.reason[:REASON_LENGTH_MAX]
            found[1].dead_end = Obstruction(reason, message.obstruction.for_good)
            found[1].dead_end_until_s = self._host.now() + TOLD_S

    def tell_dead_end(self, instance: Instance, obstruction: Obstruction) -> None:
        """Tells the sources of an operator that all its consumers are gone.

        Inputs that have brought nothing yet wait for no credit, and are not told.
        """
        for incoming in instance.inputs.values():
            message = DeadEnd(link=incoming.link.id, obstruction=obstruction)
            if incoming.reply is not None:
                incoming.reply(message)
            elif incoming.node == self._router.me:
                self.dead_end_told(message)

    # ---------------------------------------------------------------------------------------------------- receiving

    def receive(self, message: Data, reply: Reply) -> None:
        """Takes a batch from another host."""
        found = self._inputs.get(message.link)
        if found is None:
            reply(self._whereabouts_of(message.link))
            return
        instance, incoming = found
        if instance.state is State.FAILED:
            reply(NoSuchLink(link=message.link))
            return
        payload = Rows.of_bytes(message.payload, message.rows, incoming.schema, message.size_bytes, message.codec) if message.rows else None
        incoming.reply = reply
        self._take(found, Batch(message.sequence, message.stimulus_s, message.watermark_us, payload, message.path))

    def processed(self, incoming: Input, batch: Batch) -> None:
        """Counts a batch as processed; its acknowledgement follows soon, together with others."""
        incoming.receiver.process(batch.sequence, batch.rows)
        incoming.bytes_in += batch.size_bytes
        incoming.watermark_us = max(incoming.watermark_us, batch.watermark_us)
        if incoming.receiver.wants_more():
            self._acknowledge(incoming, resume=True)
        else:
            self._acknowledge_soon(incoming)

    def carried(self, output: Output, incoming: Input, batch: Batch) -> None:
        """Counts a batch that the next operator processed in the same task: both ends count as if it had travelled over the link."""
        output.bytes_out += batch.size_bytes
        output.missing = 0
        output.sender.sent(batch)
        incoming.reply = None
        incoming.receiver.accept(batch.sequence, batch.size_bytes)
        incoming.receiver.process(batch.sequence, batch.rows)
        incoming.bytes_in += batch.size_bytes
        incoming.watermark_us = max(incoming.watermark_us, batch.watermark_us)
        output.sender.acknowledge(incoming.receiver.processed, incoming.receiver.credit)

    def _take(self, found: tuple[Instance, Input], batch: Batch) -> None:
        instance, incoming = found
        verdict = incoming.receiver.accept(batch.sequence, batch.size_bytes)
        if verdict is Verdict.ACCEPTED:
            instance.waiting.enqueue(incoming, batch)
            if instance.state is State.PREPARED:
                self._events.arrived_at_prepared(instance.id)
            self._events.runnable(instance)
        elif verdict is Verdict.DUPLICATE:
            self.counters["batches_duplicate"] += 1
            self._acknowledge_soon(incoming)
        elif verdict is Verdict.GAP:
            self.counters["batches_missing"] += 1
            self._acknowledge(incoming, resume=True)
        elif verdict is Verdict.FULL:
            self.counters["batches_turned_away"] += 1

    def _whereabouts_of(self, link: LinkId) -> Message:
        target = target_of(link)
        gone = self._gone.get(target)
        if gone is not None:
            return Moved(operator=target, node=gone[0], epoch=gone[1])
        self.counters["links_unknown"] += 1
        return NoSuchLink(link=link)

    @property
    def is_carrying(self) -> bool:
        """True while batches or acknowledgements between operators here are in transit; they arrive in this turn of the event loop."""
        return bool(self._local or self._acks)

    def _carry_local(self) -> None:
        waiting, self._local = self._local, deque()
        for link, batch in waiting:
            found = self._inputs.get(link)
            if found is not None and found[0].state is State.FAILED:
                self.unknown_there(NoSuchLink(link=link))
                continue
            if found is not None:
                found[1].reply = None
                self._take(found, batch)
                continue
            answer = self._whereabouts_of(link)
            if isinstance(answer, Moved):
                self.moved(answer.operator, answer.node, answer.epoch)
            elif isinstance(answer, NoSuchLink):
                self.unknown_there(answer)

    def _acknowledge_soon(self, incoming: Input) -> None:
        if not self._acks:
            self._host.call_soon(self._acknowledge_all)
        self._acks[incoming.link.id] = incoming

    def _acknowledge_all(self) -> None:
        due, self._acks = self._acks, {}
        for incoming in due.values():
            self._acknowledge(incoming, resume=False)

    def _acknowledge(self, incoming: Input, *, resume: bool) -> None:
        receiver = incoming.receiver
        message = Acknowledge(link=incoming.link.id, processed=receiver.processed, credit=receiver.credit, resume=resume)
        if incoming.reply is None:
            self.acknowledged(message)
        elif incoming.reply(message):
            incoming.unheard = 0
        elif incoming.unheard < ACKNOWLEDGE_TRIES:
            # The connection that brought the data is full or gone. If gone, the sender reconnects and is acknowledged then; if full, it may
            # need this message before it can send at all.
            incoming.unheard += 1
            self._host.call_at(self._host.now() + ACKNOWLEDGE_RETRY_S, lambda: self._acknowledge(incoming, resume=resume))


def _data(link: LinkId, batch: Batch, packed: Packed | None) -> Data:
    return Data(
        link=link,
        sequence=batch.sequence,
        stimulus_s=batch.stimulus_s,
        watermark_us=batch.watermark_us,
        rows=batch.rows,
        payload=packed.data if packed is not None else b"",
        size_bytes=batch.payload.size_bytes if batch.payload is not None else 0,
        codec=packed.codec if packed is not None else Codec.NONE,
        path=batch.path,
    )
