"""One operator as it runs on this host: its connector or library object, its inputs and outputs, and its figures.

The engine and its parts share it.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sbon.batching import Cost
from sbon.execution.life import Life, State
from sbon.links.batch import Batch
from sbon.links.dead_ends import Obstruction
from sbon.links.sender import LinkSender
from sbon.misfits import KINDS_REPORTED_MAX, Misfits
from sbon.optimiser.slack import least_slack_ms
from sbon.query.plan import WATERMARK_END, WATERMARK_MIN, MulticastParams, OperatorSpec, SinkParams, SourceParams, is_multicast
from sbon.scheduling import EarliestStimulusFirst
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.deployment import User
from sbon.wire.reports import OperatorReport
from sbon_agent.engine.accounts import Accounts
from sbon_agent.engine.ends import Input, Output
from sbon_agent.engine.rates import Rate

if TYPE_CHECKING:
    from sbon.operators.operator import Operator
    from sbon_agent.connectors.base import SinkConnector, SourceConnector
    from sbon_agent.engine.closing import Closing
    from sbon_agent.engine.copying import InputLog
    from sbon_agent.engine.prefetching import Fetch
    from sbon_agent.engine.work import Task
    from sbon_agent.host import Timer


class Instance(Life):
    """One operator on this host."""

    def __init__(self, spec: OperatorSpec, epoch: int, state: State = State.BUILDING) -> None:
        super().__init__(state)
        self.spec = spec
        self.id: OperatorId = spec.id
        self.epoch = epoch
        self.dead_end: Obstruction | None = None
        """Set if all consumers of the operator are gone (`sbon.links.dead_ends`)."""
        self.starved = ""
        """What happened to the inputs if all of them are gone for good before they ended; otherwise empty."""
        self.users: dict[QueryId, NodeId] = {}
        """Queries that use the operator, with the agents that are their homes."""
        self.slack_ms: dict[QueryId, float] = {}
        """For queries with a delay bound: by how much their longest way may still grow, in ms."""
        self.upstream_delay_ms: float | None = None
        """Latency of the longest way from a producer to here, in ms; None until all hosts on it have sent theirs."""
        self.inputs: dict[LinkId, Input] = {}
        self._heads = EarliestStimulusFirst[LinkId]()
        self.outputs: dict[str, Output] = {}
        self.operator: Operator | None = None
        self.log: InputLog | None = None
        """Log of the operator's input while its state is copied to another host; None at other times."""
        self.source: SourceConnector | None = None
        self.sink: SinkConnector | None = None
        self.watermark_us = WATERMARK_MIN
        self.watermark_out_us = WATERMARK_MIN
        self.busy = False
        """In the middle of a batch: on an executor thread, or between two slices of it or of its answers."""
        self.task: Task | None = None
        """The task on an executor thread that the operator is part of."""
        self.closing: Closing | None = None
        """Answers that are still to be given for the last batch; the operator is busy until then."""
        self.cost = Cost()
        """Cost of tasks that begin with this operator, including those behind it in the same task."""
        self.step_cost = Cost()
        """Processor time of this operator alone."""
        self.has_more = False
        """The source had more to give when it was last polled."""
        self.fetches: deque[Fetch] = deque()
        """Batches that the source has promised, in order."""
        self.behind_cost = Cost()
        """For a source: processor time of the operators behind it in the task of a batch."""
        self.batch_cost = Cost()
        """Processor time of one batch of the source, including work on the event loop."""
        self.accounts = Accounts()
        self.unanswered: list[tuple[LinkSender, int, float]] = []
        """Batches of the source whose acknowledgement is awaited: sender, number, and time of sending."""
        self.answered_s = 0.0
        """Smoothed time until a source's batches are acknowledged."""
        self.due = False
        """The source is due to be polled, but is busy."""
        self.held_port: int | None = None
        """The input port that is ahead of another in event time, and is held back until that one has caught up."""
        self.blocked = False
        """The operator has something to do, but no credit on some output."""
        self.blocked_samples = 0
        """Number of successive samples at which it was blocked."""
        self.timer: Timer | None = None
        self.polled_at = float("-inf")
        self.rows_in = 0
        self.rows_out = 0
        self.batches_in = 0
        self.migrations = 0
        self.arrived_at_s: float | None = None
        """When the operator came here by migration."""
        self.state_bytes = 0
        """Size of the operator's state when last measured."""
        self.unmeasured = (0, 0)
        """Batches and bytes taken since then."""
        self._late_rows = 0
        """Late rows of an operator that has been dropped."""
        self._misfits: Misfits | None = None
        """What a dropped operator could not use."""
        self.rate_in = Rate()
        self.rate_out = Rate()

    @property
    def movable(self) -> bool:
        """True if the operator may run on another host."""
        return self.spec.pinned is None and not isinstance(self.spec.params, SourceParams | SinkParams)

    @property
    def delay_slack_ms(self) -> float:
        """By how much the longest way through here may grow, in ms: the least slack of its queries."""
        return least_slack_ms(self.slack_ms.values())

    def used_by(self, user: User) -> None:
        """Adds a query that uses the operator, or updates its slack."""
        self.users[user.query] = user.owner
        self.slack_told(user.query, user.delay_slack_ms)

    def slack_told(self, query: QueryId, slack_ms: float | None) -> None:
        """Sets the slack of a query; None means that it has no bound. A slack that is not finite counts as 0."""
        if slack_ms is None or query not in self.users:
            self.slack_ms.pop(query, None)
        else:
            self.slack_ms[query] = slack_ms if math.isfinite(slack_ms) else 0.0

    def unused_by(self, query: QueryId) -> bool:
        """Removes a query; returns False if it did not use the operator."""
        self.slack_ms.pop(query, None)
        return self.users.pop(query, None) is not None

    @property
    def has_credit(self) -> bool:
        """True if every output would accept another batch."""
        for output in self.outputs.values():  # noqa: SIM110 - asked several times for each batch: without a generator
            if not output.sender.has_credit:
                return False
        return True

    def enqueue(self, incoming: Input, batch: Batch) -> None:
        """Appends a batch to the queue of an input."""
        incoming.queue.append(batch)
        incoming.queued_rows += batch.rows
        if incoming.link.port != self.held_port:
            self._heads.push(incoming.link.id, incoming.queue.earliest_s)

    def dequeue(self, incoming: Input) -> Batch:
        """Takes out the first batch of an input."""
        batch = incoming.queue.popleft()
        incoming.queued_rows -= batch.rows
        if incoming.queue and incoming.link.port != self.held_port:
            self._heads.push(incoming.link.id, incoming.queue.earliest_s)
        else:
            self._heads.remove(incoming.link.id)
        return batch

    def align(self, rows_max: int) -> None:
        """Holds an input port back that is ahead of another, while the operator keeps more than `rows_max` of its rows for the other.

        Batches that wait on its links then use up their credit, which slows down the sources.
        """
        if self.operator is None or self.busy:
            return
        kept = self.operator.rows_ahead()
        held = self._port_ahead(kept, rows_max) if max(kept, default=0) > rows_max else None
        if held == self.held_port:
            return
        self.held_port = held
        for incoming in self.inputs.values():
            if incoming.queue and incoming.link.port != held:
                self._heads.push(incoming.link.id, incoming.queue.earliest_s)
            else:
                self._heads.remove(incoming.link.id)

    def _port_ahead(self, kept: Sequence[int], rows_max: int) -> int | None:
        watermarks = [WATERMARK_END] * len(kept)
        for incoming in self.inputs.values():
            if not incoming.lost:
                watermarks[incoming.link.port] = min(watermarks[incoming.link.port], incoming.watermark_us)
        ahead = (port for port, rows in enumerate(kept) if rows > rows_max and watermarks[port] > min(watermarks))
        return next(ahead, None)

    @property
    def earliest_s(self) -> float:
        """Earliest stimulus time of all waiting batches; infinite if none waits."""
        link = self._heads.first()
        return math.inf if link is None else self.inputs[link].queue.earliest_s

    @property
    def held_back_by(self) -> str:
        """Describes the consumers that accept no more, and the trouble of their disks; empty if all accept."""
        if self.held_port is not None:
            ahead = self.operator.rows_ahead()[self.held_port] if self.operator is not None else 0
            return f"input {self.held_port} waits until the other has caught up: {ahead} of its rows are kept for that one"
        full = [output for output in self.outputs.values() if not output.sender.has_credit]
        return "; ".join(
            (
                f"{output.sender.held} batches wait for {output.obstructed}"
                if output.obstructed
                else f"{output.link.target} on {output.node} takes no more, {output.sender.held} batches wait for it"
            )
            + (f" and {output.sender.trouble}" if output.sender.trouble else "")
            for output in full
        )

    @property
    def held_up_by(self) -> str:
        """Describes the consumers that accept no more because they are gone; empty if there is none."""
        return " and ".join(output.obstructed for output in self.outputs.values() if output.obstructed and not output.sender.has_credit)

    def look_for_input(self, for_good: Callable[[NodeId], bool]) -> None:
        """Sets `starved` if no input can ever bring anything again."""
        waits = self.state is State.RUNNING and not self.ended and not self._heads
        gone = [incoming for incoming in self.inputs.values() if incoming.told_lost or for_good(incoming.node)]
        if not waits or not gone or len(gone) < len(self.inputs):
            self.starved = ""
            return
        sources = ", ".join(f"{incoming.link.source} on {incoming.node}" for incoming in gone)
        self.starved = f"nothing feeds it any more: {sources} {'is' if len(gone) == 1 else 'are'} gone for good"

    @property
    def stays_for(self) -> str:
        """Describes output on disk, which only this host can deliver; the operator stays until then. Empty if there is none."""
        spilled = [output for output in self.outputs.values() if output.sender.on_disk]
        return "; ".join(
            f"{output.sender.spilled_batches} batches for {output.link.target} on {output.node} are on disk, it stays here until they are "
            "delivered"
            for output in spilled
        )

    def earliest(self) -> Input | None:
        """Returns the input to process next: one whose batch has been begun, else one with the earliest stimulus time; of equals, the one
        that has waited longest. None if nothing waits.
        """
        if self.busy and self.task is None:
            begun = next((incoming for incoming in self.inputs.values() if incoming.sliced), None)
            if begun is not None:
                return begun
        link = self._heads.first()
        return None if link is None else self.inputs[link]

    def watermark_without_lost(self, for_good: Callable[[NodeId], bool | None]) -> int | None:
        """Returns the watermark that the operator could advance to without its lost inputs; None if they do not hold it back.

        It does not advance to the end as long as a lost input may come back: `for_good` returns False for its host.
        """
        if len(self.inputs) < 2 or self.operator is None or self.busy or self.state is not State.RUNNING:
            return None
        least_us = min((i.watermark_us for i in self.inputs.values() if not i.lost), default=self.watermark_us)
        if least_us >= WATERMARK_END and any(i.lost and not i.told_lost and for_good(i.node) is False for i in self.inputs.values()):
            return None
        return least_us if least_us > self.watermark_us else None

    @property
    def ended(self) -> bool:
        """True if no input will bring anything more."""
        return self.watermark_us >= WATERMARK_END

    @property
    def is_multicast(self) -> bool:
        """True if the operator only passes on what another one computes."""
        return isinstance(self.spec.params, MulticastParams)

    @property
    def misfits(self) -> Misfits | None:
        """Rows that a source or an operator has left out, and why; None if it is of a kind that leaves none out, or does not tell why."""
        if self.operator is not None:
            return self.operator.misfits
        found = getattr(self.source, "misfits", self._misfits)
        return found if isinstance(found, Misfits) else None

    @property
    def dropped_rows(self) -> int:
        """Number of rows left out, whether or not it is told why."""
        if self.source is not None:
            return self.source.dropped_rows
        return 0 if self.misfits is None else self.misfits.rows

    def drop_operator(self) -> "Operator | None":
        """Removes the operator with its state and returns it, so that the caller can free it on a thread."""
        gone, self.operator = self.operator, None
        if gone is not None:
            self._late_rows, self._misfits = gone.late_rows, gone.misfits
        self.state_bytes = 0
        return gone

    def sample(self, now: float) -> None:
        """Samples all rates; called once a second."""
        self.blocked_samples = self.blocked_samples + 1 if self.blocked else 0
        self.accounts.sample()
        self.rate_in.sample(now, self.rows_in)
        self.rate_out.sample(now, self.rows_out)
        for incoming in self.inputs.values():
            incoming.byte_rate.sample(now, incoming.bytes_in)
            incoming.steady_rate.sample(now, incoming.bytes_in)
        for outgoing in self.outputs.values():
            outgoing.byte_rate.sample(now, outgoing.bytes_out)
            outgoing.steady_rate.sample(now, outgoing.bytes_out)
            outgoing.row_rate.sample(now, outgoing.sender.rows_offered)

    def multicasts(self, query: QueryId) -> tuple[tuple[OperatorId, NodeId, int], ...]:
        """Returns the multicasts fed from here that serve a query, each with its host and the number of queries that share it."""
        outputs = [o for o in self.outputs.values() if query in o.users and is_multicast(o.link.target)]
        return tuple((o.link.target, o.node, len(o.users)) for o in outputs)

    def report(self, node: NodeId, query: QueryId = "") -> OperatorReport:
        """Returns the operator's figures, for the homes of queries and for `sbon operators`."""
        late = self.operator.late_rows if self.operator is not None else self._late_rows
        waits = self.blocked or (self.held_port is not None and not self._heads)
        stalled = str(getattr(self.source, "stalled", "")) if self.state is State.RUNNING else ""
        state = "blocked" if waits and self.state is State.RUNNING else "degraded" if self.starved else self.state.told
        waiting = self.held_back_by if state == "blocked" else self.starved
        if stalled and state == State.RUNNING.value:
            state, waiting = State.STALLED.value, stalled
        return OperatorReport(
            id=self.id,
            state=state,
            node=node,
            reason=self.reason or "; ".join(filter(None, (waiting, self.stays_for, getattr(self.source, "remark", "")))),
            epoch=self.epoch,
            rows_in=self.rows_in,
            rows_out=self.rows_out,
            batches_in=self.batches_in,
            rows_per_s_in=self.rate_in.per_s,
            rows_per_s_out=self.rate_out.per_s,
            bytes_per_s_out=sum(output.byte_rate.per_s for output in self.outputs.values()),
            late_rows=late,
            dropped_rows=self.dropped_rows,
            queue_batches=sum(len(incoming.queue) for incoming in self.inputs.values()),
            queue_rows=sum(incoming.queued_rows - incoming.sliced for incoming in self.inputs.values()),
            quanta=self.accounts.quanta,
            cpu_ns=self.accounts.cpu_ns,
            cpu_ns_per_row=self.accounts.cpu_ns_per_row,
            longest_quantum_ms=self.accounts.longest_s * 1000,
            selectivity=self.rows_out / self.rows_in if self.rows_in and self.inputs and self.outputs else None,
            state_rows=self.operator.state_rows if self.operator is not None else 0,
            state_bytes=self.state_bytes,
            migrations=self.migrations,
            links=tuple(
                (o.link.id, o.sender.rows_offered, o.sender.rows_acknowledged, o.row_rate.per_s, o.byte_rate.per_s)
                for o in self.outputs.values()
            ),
            packing=tuple((o.link.id, o.packing.codec.value, o.packing.ratio) for o in self.outputs.values()),
            received=tuple((i.link.id, i.receiver.rows_processed) for i in self.inputs.values()),
            upstream_delay_ms=self.upstream_delay_ms,
            multicasts=self.multicasts(query) if query else (),
            held_up=self.held_up_by if state == "blocked" else "",
            left_out=tuple(
                (o.link.id, o.sender.rows_left_out, o.left_out_because) for o in self.outputs.values() if o.sender.rows_left_out
            ),
            misfits=() if self.misfits is None else self.misfits.told(KINDS_REPORTED_MAX),
        )
