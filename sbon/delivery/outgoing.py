"""Sends the batches of all links that begin on this host, and handles the answers of the other ends.

Batches that cannot be sent now (no connection, full buffer) stay in the link's sender, in memory or on disk, until the connection is back
or has room. `sbon.delivery.flow` owns an `Outgoing`.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import UnsetType

from sbon.compression import Codec
from sbon.delivery.spilling import Spilling
from sbon.errors import SbonError, UnpackableError
from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance
from sbon.execution.rows import Packed, Rows
from sbon.links.batch import Batch
from sbon.links.config import LinkConfig
from sbon.links.dead_ends import MISSING_MAX, REASON_LENGTH_MAX, TOLD_S, Obstruction
from sbon.links.ends import Ends, pause_s
from sbon.links.frames import Data
from sbon.ports import Disk, Executor
from sbon.printable import printable
from sbon.types import LinkId, NodeId
from sbon.wire.links import Acknowledge, DeadEnd, NoSuchLink
from sbon.wire.messages import Message


class Router(Protocol):
    """Sends messages to nodes: the agent's directory and connections behind one call."""

    me: NodeId

    def send(self, node: NodeId, message: Message | Data) -> bool:
        """Sends a message. Returns False if no connection has room; then `Outgoing.reconnected` or `Outgoing.writable` is called later."""


class OutgoingEvents(Protocol):
    """Callbacks of sending; the node implements them (`sbon_agent.reactions.links`)."""

    def runnable(self, instance: Instance) -> None:
        """Reports that an operator has new credit."""

    def disk_lost(self, instance: Instance, reason: str) -> None:
        """Reports that batches of one of the operator's links cannot be read back from disk."""

    def disk_told(self, output: Output, event: str, reason: str) -> None:
        """Reports an event of a link's disk (`sbon.delivery.spilling.SpillEvents`)."""

    def rows_left_out(self, output: Output, rows: int, reason: str) -> None:
        """Reports that a batch could not be encoded and is sent without its rows."""


class Outgoing:
    """The senders of all links that begin here.

    Parameters
    ----------
    carry : takes a batch of a link that ends on this host
    look_safe : called with an operator when batches that it has given may have become safe
    """

    def __init__(
        self,
        host: Executor,
        router: Router,
        events: OutgoingEvents,
        ends: Ends[Instance, Input, Output],
        links: LinkConfig,
        disk: Disk,
        carry: Callable[[LinkId, Batch], None],
        look_safe: Callable[[Instance], None],
    ) -> None:
        self._host = host
        self._router = router
        self._events = events
        self._ends = ends
        self._carry = carry
        self._look_safe = look_safe
        self._again: set[LinkId] = set()
        self.spilling = Spilling(host, disk, links, self)
        self.counters = {"acknowledgements_bad": 0, "batches_unpackable": 0, "rows_unpackable": 0}

    @property
    def has_disk(self) -> bool:
        """True if batches may wait on disk for receivers that are unreachable."""
        return self.spilling.budget is not None

    def leaves(self, output: Output) -> bool:
        """Tells whether the link leads to another host."""
        return output.node != self._router.me

    def transmit(self, output: Output) -> None:
        """Sends the batches for which there is credit, and lets batches beyond the memory limit spill to disk."""
        found = self._ends.gives(output.link.id)
        if found is None or found[1] is not output:
            return  # the operator has ended or left: send nothing for it, and write nothing to disk, which nobody would delete
        self._send_on(output)
        # An unreachable receiver may come back. If the receiver answers but does not know the link, it probably never will: do not fill the
        # disk for it.
        away = output.node != self._router.me and output.missing < MISSING_MAX
        self.spilling.look(output.link.id, output.sender, output.schema, may_spill=away)

    def resend(self, output: Output) -> None:
        """Sends all unacknowledged batches once more."""
        output.sender.rewind()
        self.transmit(output)

    def _send_on(self, output: Output) -> None:
        sender = output.sender
        while (batch := sender.peek()) is not None:
            if output.node == self._router.me:
                self._carry(output.link.id, batch)
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
            # The batch was made while the link led to an operator on this host, or used another compression.
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
        found = self._ends.gives(output.link.id)
        if found is None or found[1] is not output:
            return
        if isinstance(result, BaseException):
            self._leave_out(output, batch, str(result) if isinstance(result, SbonError) else f"{type(result).__name__}: {result}")
        self.transmit(output)

    def _leave_out(self, output: Output, batch: Batch, reason: str) -> None:
        """Drops the rows of one batch, so that later batches can be sent."""
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
        """Sends batches after a disk operation: some have come back from disk, or there is room for more."""
        found = self._ends.gives(link)
        if found is not None:
            self.transmit(found[1])
            self._look_safe(found[0])
            self._events.runnable(found[0])

    def disk_lost(self, link: LinkId, reason: str) -> None:
        """Passes on that spilled batches of a link cannot be read back."""
        found = self._ends.gives(link)
        if found is not None:
            self._events.disk_lost(found[0], f"link to {found[1].link.target}: {reason}")

    def disk_told(self, link: LinkId, event: str, reason: str) -> None:
        """Passes on an event of a link's disk, for the log."""
        found = self._ends.gives(link)
        if found is not None:
            self._events.disk_told(found[1], event, reason)

    # -------------------------------------------------------------------------------------------------- connections

    def reconnected(self, node: NodeId) -> None:
        """Resends unacknowledged batches to a node with a new connection: they may have been lost with the old connection."""
        for output in self._ends.giving():
            if output.node == node:
                self.resend(output)

    def writable(self, node: NodeId, drained_bytes_per_s: float = 0.0) -> None:
        """Sends to a node whose connection has room again. `drained_bytes_per_s`: rate at which the connection drained; 0: unknown."""
        for output in self._ends.giving():
            if output.node == node:
                if drained_bytes_per_s > 0:
                    output.packing.drained(drained_bytes_per_s, self._host.now())
                self.transmit(output)

    def destinations(self) -> set[NodeId]:
        """Returns the other nodes that links lead to."""
        return {output.node for output in self._ends.giving()} - {self._router.me}

    def acknowledged(self, message: Acknowledge) -> None:
        """Handles an acknowledgement: the other end of an output has processed batches."""
        found = self._noted(message)
        if found is None:
            return
        instance, output = found
        if message.resume:
            output.sender.rewind()
        self.transmit(output)
        self._events.runnable(instance)

    def safe_here(self, message: Acknowledge) -> None:
        """Handles an acknowledgement from an operator on this host that more batches are safe, for which a source may wait.

        This frees room only if the operator came from another host with processed batches that were not safe yet.
        """
        found = self._noted(message)
        if found is None:
            return
        instance, output = found
        if instance.waiting.blocked:
            self.transmit(output)
        if instance.waiting.blocked or (instance.source is not None and hasattr(instance.source, "acknowledged")):
            self._events.runnable(instance)

    def _noted(self, message: Acknowledge) -> tuple[Instance, Output] | None:
        found = self._ends.gives(message.link)
        if found is None:
            return None
        instance, output = found
        output.missing = 0
        if not output.sender.acknowledge(message.processed, message.credit, message.safe, keeps=self.leaves(output)):
            self.counters["acknowledgements_bad"] += 1
            return None
        safe = message.processed if message.safe is None else message.safe
        if safe >= output.made[0]:
            output.made, output.behind = (safe, message.made), None if message.safe is None else message.behind
            output.by_origin = None if isinstance(message.by_origin, UnsetType) else message.by_origin
        self._look_safe(instance)
        return found

    def tell(self, node: NodeId, message: Message) -> None:
        """Sends a message about a link if there is a connection. If there is none, the other end asks again by itself."""
        self._router.send(node, message)

    def unknown_there(self, message: NoSuchLink) -> None:
        """Schedules a resend on a link that the other host does not know. Its end of the link may still be in the making, or have been lost
        by a failure or a crash (`sbon.links.dead_ends`).
        """
        found = self._ends.gives(message.link)
        if found is None or message.link in self._again:
            return
        output = found[1]
        output.missing += 1
        self._again.add(message.link)

        def retry() -> None:
            self._again.discard(message.link)
            found = self._ends.gives(message.link)  # the operator may have left and come back
            if found is not None:
                self.resend(found[1])

        self._host.call_at(self._host.now() + pause_s(output.missing), retry)

    def dead_end_told(self, message: DeadEnd) -> None:
        """Notes a report that all consumers behind a link's target are gone."""
        found = self._ends.gives(message.link)
        if found is not None:
            reason = message.obstruction.reason[:REASON_LENGTH_MAX]
            found[1].dead_end = Obstruction(reason, message.obstruction.for_good), self._host.now() + TOLD_S


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
        origin=batch.origin,
    )
