"""One operator as it runs on this host: its inputs with their queues, its outputs with what is not acknowledged, its figures."""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from sbon.links import Batch, LinkReceiver, LinkSender
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, LinkSpec, OperatorSpec, SinkParams, SourceParams
from sbon.query.schema import Schema
from sbon.types import NodeId, OperatorId, QueryId
from sbon.wire import OperatorReport

if TYPE_CHECKING:
    from agent.connectors.base import SinkConnector, SourceConnector
    from agent.host import Timer
    from sbon.operators.operator import Operator


class State(Enum):
    """What an operator on this host is doing."""

    BUILDING = "building"
    """Being made; batches wait."""
    RUNNING = "running"
    PAUSED = "paused"
    """About to migrate: nothing is processed."""
    PREPARED = "prepared"
    """Has arrived by migration and waits for the word."""
    FINISHED = "finished"
    """Every input has ended, and all of it has been processed."""
    FAILED = "failed"


class Rate:
    """A counter's mean rate over the last few seconds, from samples taken once a second."""

    __slots__ = ("_samples",)

    WINDOW = 10

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=self.WINDOW + 1)

    def sample(self, now: float, total: float) -> None:
        """Take the counter's value."""
        self._samples.append((now, total))

    @property
    def per_s(self) -> float:
        """Per second; 0 until there are two samples."""
        if len(self._samples) < 2:
            return 0.0
        (t0, v0), (t1, v1) = self._samples[0], self._samples[-1]
        return (v1 - v0) / (t1 - t0) if t1 > t0 else 0.0


class Input:
    """One incoming link."""

    __slots__ = (
        "byte_rate",
        "bytes_in",
        "link",
        "lost",
        "node",
        "queue",
        "receiver",
        "reply",
        "schema",
        "told_lost",
        "unheard",
        "watermark_us",
    )

    def __init__(self, link: LinkSpec, node: NodeId, schema: Schema, receiver: LinkReceiver, watermark_us: int = WATERMARK_MIN) -> None:
        self.link = link
        self.node = node
        """Where the link comes from, as last heard."""
        self.schema = schema
        self.receiver = receiver
        self.watermark_us = watermark_us
        """Of the last processed batch."""
        self.queue: deque[Batch] = deque()
        self.reply: Callable[[Any], bool] | None = None
        """Sends a message back on the connection that brought the last batch; None for a link within this host."""
        self.lost = self.told_lost = False
        """What feeds it is no more, as far as is known: nobody waits for its watermark."""
        self.unheard = 0
        """Acknowledgements in a row that found no connection to go by."""
        self.bytes_in = 0
        self.byte_rate = Rate()


class Output:
    """One outgoing link."""

    __slots__ = ("byte_rate", "bytes_out", "epoch", "link", "missing", "node", "row_rate", "schema", "sender", "users")

    def __init__(self, link: LinkSpec, node: NodeId, epoch: int, schema: Schema, sender: LinkSender, users: set[QueryId]) -> None:
        self.link = link
        self.node = node
        self.epoch = epoch
        """How often the target had migrated when it was heard to be at `node`."""
        self.schema = schema
        self.sender = sender
        self.users = users
        self.missing = 0
        """How often in a row the other end said that it has no such link."""
        self.bytes_out = 0
        self.byte_rate = Rate()
        self.row_rate = Rate()


class Instance:
    """One operator on this host."""

    def __init__(self, spec: OperatorSpec, epoch: int) -> None:
        self.spec = spec
        self.epoch = epoch
        self.state = State.BUILDING
        self.reason = ""
        self.users: dict[QueryId, NodeId] = {}
        """The queries that use the operator, with the agents that took them."""
        self.inputs: dict[str, Input] = {}
        self.outputs: dict[str, Output] = {}
        self.operator: Operator | None = None
        self.source: SourceConnector | None = None
        self.sink: SinkConnector | None = None
        self.watermark_us = WATERMARK_MIN
        self.watermark_out_us = WATERMARK_MIN
        self.busy = False
        self.blocked = False
        """Something to do, but no credit on some output."""
        self.when_idle: Callable[[], None] | None = None
        self.timer: Timer | None = None
        self.polled_at = float("-inf")
        self.rows_in = 0
        self.rows_out = 0
        self.batches_in = 0
        self.migrations = 0
        self.arrived_at_s: float | None = None
        """When it came here by migration."""
        self.rate_in = Rate()
        self.rate_out = Rate()

    @property
    def id(self) -> OperatorId:
        """The operator's."""
        return self.spec.id

    @property
    def movable(self) -> bool:
        """May run elsewhere."""
        return self.spec.pinned is None and not isinstance(self.spec.params, SourceParams | SinkParams)

    @property
    def has_credit(self) -> bool:
        """Every output would take another batch."""
        return all(output.sender.has_credit for output in self.outputs.values())

    def earliest(self) -> Input | None:
        """The input whose next batch has the earliest stimulus time; of equals, the first."""
        best: Input | None = None
        for candidate in self.inputs.values():
            if candidate.queue and (best is None or candidate.queue[0].stimulus_s < best.queue[0].stimulus_s):
                best = candidate
        return best

    def watermark_with(self, changed: Input, watermark_us: int) -> int:
        """The least watermark of all inputs that are not lost, once `changed` has this one; never less than before."""
        least = min(
            watermark_us if other is changed else other.watermark_us for other in self.inputs.values() if other is changed or not other.lost
        )
        return max(least, self.watermark_us)

    @property
    def ended(self) -> bool:
        """No input will bring anything more."""
        return self.watermark_us >= WATERMARK_END

    def sample(self, now: float) -> None:
        """Once a second: the rates."""
        self.rate_in.sample(now, self.rows_in)
        self.rate_out.sample(now, self.rows_out)
        for incoming in self.inputs.values():
            incoming.byte_rate.sample(now, incoming.bytes_in)
        for outgoing in self.outputs.values():
            outgoing.byte_rate.sample(now, outgoing.bytes_out)
            outgoing.row_rate.sample(now, outgoing.sender.rows_offered)

    def report(self, node: NodeId) -> OperatorReport:
        """The figures, for the owners of queries and for `sbon operators`."""
        late = self.operator.late_rows if self.operator is not None else 0
        state = "blocked" if self.blocked and self.state is State.RUNNING else self.state.value
        return OperatorReport(
            id=self.id,
            state=state,
            node=node,
            reason=self.reason,
            epoch=self.epoch,
            rows_in=self.rows_in,
            rows_out=self.rows_out,
            batches_in=self.batches_in,
            rows_per_s_in=self.rate_in.per_s,
            rows_per_s_out=self.rate_out.per_s,
            bytes_per_s_out=sum(output.byte_rate.per_s for output in self.outputs.values()),
            late_rows=late,
            dropped_rows=self.source.dropped_rows if self.source is not None else 0,
            queue_batches=sum(len(incoming.queue) for incoming in self.inputs.values()),
            state_rows=self.operator.state_rows if self.operator is not None else 0,
            migrations=self.migrations,
            links=tuple(
                (o.link.id, o.sender.rows_offered, o.sender.rows_acknowledged, o.row_rate.per_s, o.byte_rate.per_s)
                for o in self.outputs.values()
            ),
            received=tuple((i.link.id, i.receiver.rows_processed) for i in self.inputs.values()),
        )
