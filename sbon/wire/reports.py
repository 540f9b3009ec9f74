"""Messages that report the state of operators, and the delays of paths through them."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Amount, Count, Delay, Epoch, Link, Node, Operator, Query, Slack, Text
from sbon.misfits import KINDS_REPORTED_MAX, Misfit
from sbon.wire.costs import BINS, TOLD_MAX, NodeTold, OperatorCosts
from sbon.wire.deployment import User


class OperatorsAsk(msgspec.Struct, frozen=True, tag="operators?"):
    """Asks for reports on operators."""

    operators: Annotated[tuple[Operator, ...], MANY]
    query: Query = ""
    """The query for which multicasts on its links are reported, too."""


class LatencyTold(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of the rows that a sink took lately, since the entry of the latest source row behind each."""

    rows: Count
    mean_ms: Delay
    p50_ms: Delay
    p99_ms: Delay
    max_ms: Delay


class MissedRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows that an operator did not work on when they came, because they would have been late."""

    shed: Annotated[tuple[Count, ...], MANY] = ()
    """Rows left out, by cost class."""
    deferred: Annotated[tuple[Count, ...], MANY] = ()
    """Rows put off, by cost class."""
    waiting: Count = 0
    """Those put off that wait to be worked on."""


NONE_MISSED = MissedRows()


class FilePosition(msgspec.Struct, frozen=True, array_like=True):
    """A position of a source that reads a file, as its host has kept it: all up to there was safe (`sbon.engine.source_positions`)."""

    link: Link
    """First name of the link that the source gave its rows to."""
    rows: Count
    """Rows that the source had given by then."""
    made: Annotated[tuple[Count, ...], MANY] = ()
    """Rows that operators without state behind it had made of exactly these, one after the other, or its parts (`Acknowledge.behind`)."""


class OperatorReport(msgspec.Struct, frozen=True):
    """One operator's figures since it was created, across migrations; rates are those of the last interval."""

    id: Operator
    state: Text
    """running, degraded (all that fed it is gone for good), paused, blocked, stalled, finished, failed, missing, moved, or over: it is
    missing, and is not made again, as the query that it was made for has finished."""
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
    """Memory of its state, as last measured."""
    migrations: Epoch = 0
    links: Annotated[tuple[tuple[Link, Count, Count, Amount, Amount], ...], MANY] = ()
    """Rows sent, rows acknowledged, rows/s and bytes/s of each output link."""
    packing: Annotated[tuple[tuple[Link, Text, Amount], ...], MANY] = ()
    """Present codec of each output link, and the ratio of compressed to plain bytes so far."""
    received: Annotated[tuple[tuple[Link, Count], ...], MANY] = ()
    """Rows processed of each input link."""
    multicasts: Annotated[tuple[tuple[Operator, Node, Count], ...], MANY] = ()
    """Multicasts that carry its output for the query that asked: their hosts, and how many queries share each."""
    upstream_delay_ms: Delay | None = None
    """Latency of the longest path from a producer to this operator; None until it is known."""
    selectivity: Amount | None = None
    """Output rows per input row; None without input or output."""
    queue_rows: Count = 0
    """Rows of the waiting batches."""
    quanta: Count = 0
    """Batches, and slices of large ones, processed since it came to this host."""
    cpu_ns: Count = 0
    """Processor time since it came to this host."""
    cpu_ns_per_row: Amount | None = None
    """Recent value; None before the first row."""
    longest_quantum_ms: Amount = 0.0
    """Longest time that a quantum has occupied a thread, since it came to this host."""
    held_up: Text = ""
    """Consumers that are gone, but for which it waits."""
    left_out: Annotated[tuple[tuple[Link, Count, Text], ...], MANY] = ()
    """For output links with any since it came to this host: rows of batches that could not be encoded, and the problem of the first."""
    users: Annotated[tuple[User, ...], MANY] = ()
    """Queries that use it, and their homes."""
    begun_at: Count | None = None
    """Place in its file where the rows of a sink begin; None for other operators."""
    lost_rows: Count | msgspec.UnsetType = msgspec.UNSET
    """Rows that former copies of a sink had taken, and had not written when their hosts crashed."""
    is_found: bool | msgspec.UnsetType = msgspec.UNSET
    """True for a sink that has found which rows of each input and origin its former copies have written."""
    misfits: Annotated[tuple[Misfit, ...], msgspec.Meta(max_length=KINDS_REPORTED_MAX)] = ()
    """Why a source or an operator has left rows out: the kinds with the most rows."""
    latency: LatencyTold | None = None
    """Latency of a sink that has taken rows."""
    bursts: Annotated[tuple[Count, ...], BINS] | msgspec.UnsetType = msgspec.UNSET
    """Rows that a source gave in each second of the last minute, oldest first, if they come in bursts."""
    missed: MissedRows | msgspec.UnsetType = msgspec.UNSET
    """Rows that would have been late, if the operator may leave any out; they are among `rows_in`."""
    position: FilePosition | msgspec.UnsetType = msgspec.UNSET
    """Position at which a source that is missing can begin."""


class OperatorReports(msgspec.Struct, frozen=True, tag="operators"):
    """Answers OperatorsAsk."""

    reports: Annotated[tuple[OperatorReport, ...], MANY]
    costs: Annotated[tuple[OperatorCosts, ...], msgspec.Meta(max_length=TOLD_MAX)] = ()
    """Costs that the host has measured of these operators, by signature."""
    host: NodeTold | None = None
    """Capacities of the host."""


class DelaySlack(msgspec.Struct, frozen=True, tag="slack"):
    """The slack of a query whose operators run here has changed; see `User.delay_slack_ms`."""

    query: Query
    slack_ms: Slack | None
    busy_slack_ms: Slack | None = None
    """Time by which work on the host may become longer before an answer is later than the query accepts; None without `max_latency`."""


class UpstreamDelay(msgspec.Struct, frozen=True, tag="delay"):
    """Longest path from a producer to the operator that feeds this link, one way; a later message replaces it."""

    link: Link
    delay_ms: Delay
