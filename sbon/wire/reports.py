"""Messages that report the state of operators, and the delays of paths through them."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Amount, Count, Delay, Epoch, Link, Node, Operator, Query, Slack, Text
from sbon.misfits import KINDS_REPORTED_MAX, Misfit
from sbon.wire.costs import TOLD_MAX, NodeTold, OperatorCosts
from sbon.wire.deployment import User


class OperatorsAsk(msgspec.Struct, frozen=True, tag="operators?"):
    """Asks for reports on operators."""

    operators: Annotated[tuple[Operator, ...], MANY]
    query: Query = ""
    """The query whose multicasts are reported, too."""


class LatencyTold(msgspec.Struct, frozen=True, kw_only=True):
    """Recent latencies of a sink's rows, each since the latest source row behind it entered the overlay."""

    rows: Count
    mean_ms: Delay
    p50_ms: Delay
    p99_ms: Delay
    max_ms: Delay


class MissedRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows that an operator did not process when they came, because they would have been late."""

    shed: Annotated[tuple[Count, ...], MANY] = ()
    """Rows left out, by cost class."""
    deferred: Annotated[tuple[Count, ...], MANY] = ()
    """Rows put off, by cost class."""
    waiting: Count = 0
    """Rows put off that have not been processed yet."""


NONE_MISSED = MissedRows()


class FilePosition(msgspec.Struct, frozen=True, array_like=True):
    """A kept position of a source that reads a file; all rows before it were safe (`sbon.engine.source_positions`)."""

    link: Link
    """First name of the source's output link."""
    rows: Count
    """Rows that the source had given before the position."""
    made: Annotated[tuple[Count, ...], MANY] = ()
    """Rows that each stateless operator behind the source had made of exactly these rows, nearest first, or the rows of each part
    (`Acknowledge.behind`)."""


class OperatorReport(msgspec.Struct, frozen=True):
    """One operator's figures since it was created, across migrations; rates are those of the last interval."""

    id: Operator
    state: Text
    """running, degraded (all its feeders are gone for good), paused, blocked, stalled, finished, failed, missing, moved, or over (missing
    and not made again, because the query that it was made for has finished)."""
    node: Node
    reason: Text = ""
    epoch: Epoch = 0
    rows_in: Count = 0
    rows_out: Count = 0
    batches_in: Count = 0
    rows_per_s_in: Amount = 0.0
    rows_per_s_out: Amount = 0.0
    bytes_per_s_out: Amount = 0.0
    late_rows: Count = 0
    dropped_rows: Count = 0
    queue_batches: Count = 0
    state_rows: Count = 0
    state_bytes: Count = 0
    """Memory of the operator's state, as last measured."""
    migrations: Epoch = 0
    links: Annotated[tuple[tuple[Link, Count, Count, Amount, Amount], ...], MANY] = ()
    """Rows sent, rows acknowledged, rows/s and bytes/s of each output link."""
    packing: Annotated[tuple[tuple[Link, Text, Amount], ...], MANY] = ()
    """Present codec of each output link, and the ratio of compressed to plain bytes so far."""
    received: Annotated[tuple[tuple[Link, Count], ...], MANY] = ()
    """Rows processed from each input link."""
    multicasts: Annotated[tuple[tuple[Operator, Node, Count], ...], MANY] = ()
    """Multicasts that carry the operator's output for the query in the question: id, host, and number of queries that share each."""
    upstream_delay_ms: Delay | None = None
    """Latency of the longest path from a producer to this operator; None until it is known."""
    selectivity: Amount | None = None
    """Output rows per input row; None without input or output."""
    queue_rows: Count = 0
    """Rows of the waiting batches."""
    quanta: Count = 0
    """Batches, and slices of large batches, processed since the operator came to this host."""
    cpu_ns: Count = 0
    """Processor time since the operator came to this host."""
    cpu_ns_per_row: Amount | None = None
    """Recent value; None before the first row."""
    longest_quantum_ms: Amount = 0.0
    """Longest time that a quantum has occupied a thread since the operator came to this host."""
    held_up: Text = ""
    """Consumers that are gone and that the operator still waits for."""
    left_out: Annotated[tuple[tuple[Link, Count, Text], ...], MANY] = ()
    """Rows of batches that could not be encoded since the operator came to this host, by output link, with the first problem."""
    users: Annotated[tuple[User, ...], MANY] = ()
    """Queries that use the operator, and their homes."""
    begun_at: Count | None = None
    """Position in a sink's file where the query's rows begin; None for other operators."""
    lost_rows: Count | msgspec.UnsetType = msgspec.UNSET
    """Rows that former copies of a sink had taken but not written when their hosts crashed."""
    untimed_rows: Count | msgspec.UnsetType = msgspec.UNSET
    """Rows among `late_rows` that had no event time, as far as known."""
    is_found: bool | msgspec.UnsetType = msgspec.UNSET
    """True for a sink that has found which rows of each input and origin its former copies have written."""
    misfits: Annotated[tuple[Misfit, ...], msgspec.Meta(max_length=KINDS_REPORTED_MAX)] = ()
    """Reasons why a source or an operator has left rows out: the kinds with the most rows."""
    latency: LatencyTold | None = None
    """Latencies at a sink that has taken rows."""
    bursts: Annotated[tuple[Count, ...], msgspec.Meta(max_length=240)] | msgspec.UnsetType = msgspec.UNSET
    """Rows that a source gave in each quarter of a second of the last minute, oldest first, if they come in bursts."""
    missed: MissedRows | msgspec.UnsetType = msgspec.UNSET
    """Rows that would have been late, if the operator may leave rows out; `rows_in` includes them."""
    position: FilePosition | msgspec.UnsetType = msgspec.UNSET
    """Position at which a missing source can begin."""
    unmatched_rows: Count | msgspec.UnsetType = msgspec.UNSET
    """Rows in the file of a sink that has ended that have not come again, although all rows of the query have."""


class OperatorReports(msgspec.Struct, frozen=True, tag="operators"):
    """Answers OperatorsAsk."""

    reports: Annotated[tuple[OperatorReport, ...], MANY]
    costs: Annotated[tuple[OperatorCosts, ...], msgspec.Meta(max_length=TOLD_MAX)] = ()
    """Costs of these operators that the host has measured, by signature."""
    host: NodeTold | None = None
    """Capacities of the host."""


class DelaySlack(msgspec.Struct, frozen=True, tag="slack"):
    """The slack of a query with operators on the receiver has changed (`User.delay_slack_ms`)."""

    query: Query
    slack_ms: Slack | None
    busy_slack_ms: Slack | None = None
    """Time by which work on the host may become longer before the query exceeds its `max_latency`; None if it has none."""


class InstanceFigures(msgspec.Struct, frozen=True, tag="figures"):
    """Figures of an instance to which a splitter deals windows as a dealer decides; a later message replaces it."""

    link: Link
    """From the splitter to the instance."""
    rows: Count
    """Rows that it has taken since it was made."""
    cpu_ns: Count
    """Processor time for these, in ns."""
    waiting: Count
    """Rows that wait at it."""
    wait_ms: Delay
    """For how long the oldest of them has been in the overlay; 0 if none waits."""


class UpstreamDelay(msgspec.Struct, frozen=True, tag="delay"):
    """One-way latency of the longest path from a producer to the operator that feeds this link. A later message replaces it."""

    link: Link
    delay_ms: Delay
