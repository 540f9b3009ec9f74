"""The two ends of a link as the engine keeps them: inputs with their queues, outputs with their senders.

Operators (`sbon.execution.instance`) hold them.
"""

from collections.abc import Callable
from typing import Any

from sbon.compression import Packing
from sbon.execution.rates import Rate, SteadyRate
from sbon.links.batch import Batch
from sbon.links.dead_ends import Absence, Obstruction
from sbon.links.ends import End
from sbon.links.receiver import LinkReceiver
from sbon.links.sender import LinkSender
from sbon.query.plan import WATERMARK_MIN, LinkSpec
from sbon.query.schema import Schema
from sbon.scheduling import StimulusFifo
from sbon.types import NodeId, QueryId


class Input(End):
    """Receiving end of a link; `node` is the host of its source."""

    __slots__ = (
        "byte_rate",
        "bytes_in",
        "delay_ms",
        "lost",
        "queue",
        "queued_rows",
        "receiver",
        "reply",
        "schema",
        "sliced",
        "steady_rate",
        "told_lost",
        "unheard",
        "watermark_us",
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
        self.reply: Callable[[Any], bool] | None = None
        """Sends a message back on the connection that brought the last batch; None for a link within this host."""
        self.lost = self.told_lost = False
        """True if, as far as is known, the source is gone: its watermark is no longer waited for. `told_lost`: another agent said so."""
        self.unheard = 0
        """Number of successive acknowledgements for which there was no connection."""
        self.bytes_in = 0
        self.byte_rate = Rate()
        self.steady_rate = SteadyRate(link.rate_bytes_per_s)
        self.delay_ms: float | None = None
        """Latency of the longest way from a producer to the source of this link, in ms; None until its host has sent it."""


class Output(End):
    """Sending end of a link; `node` is the host of its target."""

    __slots__ = (
        "absence",
        "byte_rate",
        "bytes_out",
        "dead_end",
        "dead_end_until_s",
        "is_packing",
        "left_out",
        "left_out_because",
        "missing",
        "obstructed",
        "packing",
        "row_rate",
        "schema",
        "sender",
        "steady_rate",
        "told",
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
        self.dead_end: Obstruction | None = None
        """What the target's host has reported about the consumers behind it."""
        self.dead_end_until_s = 0.0
        """Monotonic time until which that report counts."""
        self.obstructed = ""
        """Reason why nothing sent here arrives; empty if it may arrive (`sbon.links.dead_ends`)."""
        self.told = True
        """True if the receiver knows which operator sends on this link; until then that operator stays on this host."""
        self.packing = Packing(sender.compression)
        self.is_packing = False
        """A batch is being packed on an executor thread; those behind it wait."""
        self.left_out = 0
        """Number of batches that could not be packed and were sent without their rows."""
        self.left_out_because = ""
        """Error of the first such batch."""
        self.bytes_out = 0
        self.byte_rate = Rate()
        self.steady_rate = SteadyRate(link.rate_bytes_per_s)
        self.row_rate = Rate()
