"""The ends of links on this host: inputs with their queues, outputs with what is not acknowledged."""

from collections.abc import Callable
from typing import Any

from sbon.compression import Packing
from sbon.dead_ends import Absence, Obstruction
from sbon.links import Batch, LinkReceiver, LinkSender
from sbon.query.plan import WATERMARK_MIN, LinkSpec
from sbon.query.schema import Schema
from sbon.scheduling import StimulusFifo
from sbon.types import NodeId, QueryId
from sbon.whereabouts import Whereabouts
from sbon_agent.engine.rates import Rate, SteadyRate


class Input(Whereabouts):
    """One incoming link; `node` is where it comes from."""

    __slots__ = (
        "byte_rate",
        "bytes_in",
        "delay_ms",
        "link",
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
        super().__init__(node, epoch)
        self.link = link
        self.schema = schema
        self.receiver = receiver
        self.watermark_us = watermark_us
        """Of the last processed batch."""
        self.queue = StimulusFifo[Batch]()
        """What waits; changed by `Instance.enqueue` and `dequeue` alone."""
        self.queued_rows = 0
        self.sliced = 0
        """Rows of the first batch of the queue that have been processed already, in slices."""
        self.reply: Callable[[Any], bool] | None = None
        """Sends a message back on the connection that brought the last batch; None for a link within this host."""
        self.lost = self.told_lost = False
        """What feeds it is no more, as far as is known: nobody waits for its watermark."""
        self.unheard = 0
        """Acknowledgements in a row that found no connection to go by."""
        self.bytes_in = 0
        self.byte_rate = Rate()
        self.steady_rate = SteadyRate(link.rate_bytes_per_s)
        self.delay_ms: float | None = None
        """Latency of the longest way from a producer to where the link begins; None until its host has told."""


class Output(Whereabouts):
    """One outgoing link; `node` is where it leads to."""

    __slots__ = (
        "absence",
        "byte_rate",
        "bytes_out",
        "dead_end",
        "dead_end_until_s",
        "is_packing",
        "left_out",
        "left_out_because",
        "link",
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
        super().__init__(node, epoch)
        self.link = link
        self.schema = schema
        self.sender = sender
        self.users = users
        self.missing = 0
        """How often in a row the other end said that it has no such link."""
        self.absence: Absence | None = None
        """Of the node, when it was last looked at; kept when its row is forgotten."""
        self.dead_end: Obstruction | None = None
        """What the node has told of the target's own ways."""
        self.dead_end_until_s = 0.0
        """For how long that counts."""
        self.obstructed = ""
        """Why nothing that goes out here arrives; empty: it may (`sbon.dead_ends`)."""
        self.told = True
        """The receiver knows whose the link is; until it does, the operator stays on this host."""
        self.packing = Packing(sender.compression)
        self.is_packing = False
        """A batch is on an executor thread to be packed again; those behind it wait."""
        self.left_out = 0
        """Batches that could not be packed, and went without their rows."""
        self.left_out_because = ""
        """What was wrong with the first of them."""
        self.bytes_out = 0
        self.byte_rate = Rate()
        self.steady_rate = SteadyRate(link.rate_bytes_per_s)
        self.row_rate = Rate()
