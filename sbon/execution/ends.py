"""The two ends of a link as the engine keeps them: inputs with their queues, outputs with their senders.

Operators (`sbon.execution.instance`) hold them.
"""

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from sbon.compression import Packing
from sbon.execution.rates import Rate, SteadyRate
from sbon.links.batch import Batch
from sbon.links.dead_ends import Absence, Obstruction
from sbon.links.ends import End
from sbon.links.origins import ByOrigin, Giving, InputRows, counted
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.links.unsafe import Unsafe
from sbon.query.plan import LinkSpec
from sbon.scheduling import StimulusFifo
from sbon.schema import Schema
from sbon.types import NodeId, OperatorId, QueryId
from sbon.watermarks import WATERMARK_MIN
from sbon.wire.links import Acknowledge


class Reply:
    """Sends messages back on the connection that has brought a batch, to the host at the other end of that connection."""

    __slots__ = ("_send", "epoch", "node")

    def __init__(self, node: NodeId, epoch: int, send: Callable[[Any], bool]) -> None:
        self.node = node
        self.epoch = epoch
        """The epoch in which the link's source is, or may be, on that host."""
        self._send = send

    def __call__(self, message: Any) -> bool:
        return self._send(message)


class Input(End):
    """Receiving end of a link; `node` is the host of its source."""

    __slots__ = (
        "byte_rate",
        "bytes_in",
        "delay_ms",
        "from_former",
        "lost",
        "origin",
        "queue",
        "queued_rows",
        "receiver",
        "reply",
        "schema",
        "sliced",
        "steady_rate",
        "told_bytes",
        "told_lost",
        "told_safe",
        "unheard",
        "unsafe",
        "watermark_us",
        "written",
    )

    def __init__(
        self,
        link: LinkSpec,
        node: NodeId,
        schema: Schema,
        receiver: LinkReceiver,
        watermark_us: int = WATERMARK_MIN,
        epoch: int = 0,
    ) -> None:
        super().__init__(link, node, epoch)
        self.schema = schema
        self.receiver = receiver
        self.watermark_us = watermark_us
        """Watermark of the last processed batch, in microseconds."""
        self.queue = StimulusFifo[Batch]()
        """Batches waiting to be processed; only `Instance.enqueue` and `dequeue` change it."""
        self.queued_rows = 0
        self.sliced = 0
        """Rows of the first queued batch that have already been processed in slices."""
        self.reply: Reply | None = None
        """Sends a message back on the connection that brought the last batch; None for a link within this host."""
        self.lost = self.told_lost = False
        """True if, as far as is known, the source is gone: its watermark is no longer waited for. `told_lost`: another agent said so."""
        self.unheard = 0
        """Number of successive acknowledgements for which there was no connection."""
        self.from_former = 0
        """Highest number of the batches that came from a copy of the source that has crashed: nobody can send these batches again."""
        self.written = Giving()
        """The next rows that a sink does not write, because its former copy has written them before a crash."""
        self.unsafe = Unsafe[tuple[LinkSender, int]]()
        """Processed batches whose results are not all safe further on; only for an operator without state."""
        self.told_safe = self.told_bytes = 0
        """The number up to which its batches are safe, as the source was last told; `told_bytes`: the bytes that had come by then."""
        self.origin = InputRows(is_first=not receiver.received)
        """Counts of the rows taken of this input, and of the rows made of them, by origin."""
        self.bytes_in = 0
        self.byte_rate = Rate()
        self.steady_rate = SteadyRate(link.rate_bytes_per_s)
        self.delay_ms: float | None = None
        """Latency of the longest path from a source of the query to the source of this link, in ms; None until its host has sent it."""

    def answers(self, batch: int, node: NodeId, send: Callable[[Any], bool]) -> None:
        """Sends answers from now on over the connection that has brought batch number `batch`.

        Changes nothing if that batch had come before and a later host of the source has sent batches: then the source runs there, and a
        former host repeats what it had sent.
        """
        before, epoch = self.reply, self.epoch
        if node != self.node:
            epoch = max((later for later, there in self.named.items() if there == node), default=epoch)
        is_next_heard = before is not None and before.epoch > epoch and self.named.get(before.epoch) == before.node
        if not (is_next_heard and batch <= self.receiver.received):
            self.reply = Reply(node, epoch, send)

    def begins_anew(self, node: NodeId, epoch: int) -> None:
        """Connects the input to a source that has been made again, on any host. Batches that have come before stay."""
        self.receiver.link, self.from_former = self.link.id, self.receiver.received
        self.moved(node, epoch)
        self.named.clear()
        self.reply = self.delay_ms = None
        self.lost = self.told_lost = False

    def acknowledgement(self, *, resume: bool, passes: bool) -> Acknowledge:
        """Returns the acknowledgement of the batches that have been processed.

        Parameters
        ----------
        passes : whether the operator has no state; then a batch is safe once its results have been acknowledged as safe further on
        """
        link, receiver, unsafe = self.link.id, self.receiver, self.unsafe
        if not passes:
            return Acknowledge(link, receiver.processed, receiver.credit, resume, self.origin.made_of_all)
        self.told_safe, self.told_bytes = unsafe.safe, self.bytes_in
        by_origin = UNSET if unsafe.by_origin is None else unsafe.by_origin
        return Acknowledge(link, receiver.processed, receiver.credit, resume, unsafe.made, unsafe.safe, unsafe.behind, by_origin)

    def count(self, batch: Batch) -> None:
        """Counts a batch that has just been processed."""
        self.bytes_in += batch.size_bytes
        self.watermark_us = max(self.watermark_us, batch.watermark_us)
        self.origin.count(batch)

    @property
    def origins_taken(self) -> tuple[int, ...] | None:
        """Rows that have come, by origin, including those that wait; None if unknown."""
        return counted(self.origin.taken, self.queue)

    @property
    def is_whole(self) -> bool:
        """True if the last rows that have come are known not to be the first part of an answer."""
        times = self.origin.times.copy()
        for batch in self.queue:
            times.take(batch)
        return times.until_us is not None

    @property
    def rows_taken(self) -> int:
        """Number of rows that have come, including those that wait."""
        return self.receiver.rows_processed + self.queued_rows

    @property
    def watermark_taken_us(self) -> int:
        """Watermark of the last batch that has come, in microseconds."""
        return max([self.watermark_us, *(batch.watermark_us for batch in self.queue)])


class Output(End):
    """Sending end of a link; `node` is the host of its target."""

    __slots__ = (
        "absence",
        "behind",
        "by_origin",
        "byte_rate",
        "bytes_out",
        "dead_end",
        "giving",
        "is_packing",
        "left_out",
        "left_out_because",
        "made",
        "missing",
        "obstructed",
        "packing",
        "row_rate",
        "schema",
        "sender",
        "staying",
        "steady_rate",
        "users",
    )

    def __init__(self, link: LinkSpec, node: NodeId, epoch: int, schema: Schema, sender: LinkSender, users: set[QueryId]) -> None:
        super().__init__(link, node, epoch)
        self.schema = schema
        self.sender = sender
        self.users = users
        self.missing = 0
        """Number of successive answers from the other end that it has no such link."""
        self.absence: Absence | None = None
        """Absence of the node when last looked up; kept after the membership has forgotten the node."""
        self.dead_end: tuple[Obstruction, float] | None = None
        """Report of the target's host about the consumers behind it, and the monotonic time until which it counts."""
        self.obstructed = ""
        """Reason why nothing sent here arrives; empty if it may arrive (`sbon.links.dead_ends`)."""
        self.staying: set[OperatorId] = set()
        """Operators that stay on this host until the receiver knows who sends on this link: that operator, and those that sent before. The
        receiver may take any of them for the sender. If one moved, the receiver would look for this end there, and believe that host."""
        self.packing = Packing(sender.compression)
        self.is_packing = False
        """A batch is being packed on an executor thread; those behind it wait."""
        self.left_out = 0
        """Number of batches that could not be packed and were sent without their rows."""
        self.left_out_because = ""
        """Error of the first such batch."""
        self.made: tuple[int, int | None] = (0, 0)
        """The last number that is safe, and the rows that the target had made by then; None if unknown."""
        self.behind: tuple[int, ...] | None = None
        """Rows made by operators behind a target without state, or of its parts (`sbon.wire.links.Acknowledge`); None if it keeps state."""
        self.by_origin: ByOrigin | None = ()
        """The rows of `made` and `behind` by origin, if the target passes origins on; None if unknown."""
        self.giving = Giving()
        """The next rows that are not sent, because the target has taken them before a crash; and whether all others have been sent."""
        self.bytes_out = 0
        self.byte_rate = Rate()
        self.steady_rate = SteadyRate(link.rate_bytes_per_s)
        self.row_rate = Rate()

    def begins_anew(self, node: NodeId, epoch: int) -> None:
        """Connects the output to a target that has been made again, on any host."""
        self.sender.link = self.link.id
        self.moved(node, epoch)
        self.named.clear()
        self.packing.elsewhere()
        self.sender.begins_anew()
        self.missing, self.obstructed = 0, ""
        self.absence = self.dead_end = None

    @property
    def told(self) -> bool:
        """True if the receiver knows which operator sends on this link."""
        return not self.staying

    @property
    def made_by_target(self) -> int | None:
        """Rows that the target had made of the batches that have been dropped here as safe; None if unknown."""
        number, made = self.made
        return made if number == self.sender.forgotten else None
