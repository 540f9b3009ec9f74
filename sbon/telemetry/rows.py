"""The rows of telemetry, one struct for each kind. What an agent records, what spool and broker carry, and what the tables hold.

Those of decisions are in `sbon.telemetry.decisions`; what all rows have in common is in `sbon.telemetry.row`.
"""

from typing import TypeAlias

from sbon.telemetry.decisions import (
    AlternativeRecord,
    CandidateRecord,
    MigrationRow,
    MulticastChange,
    PlacedLinkRecord,
    PlacedOperatorRecord,
    Placement,
    RecoveredOperator,
    RecoveryRow,
    Review,
)
from sbon.telemetry.row import VERSION, Instant, Part, Row
from sbon.types import LinkId, NodeId, OperatorId, QueryId

__all__ = [
    "VERSION",
    "AgentChange",
    "AlternativeRecord",
    "AnyRow",
    "Bucket",
    "CandidateRecord",
    "CoordinateSample",
    "Instant",
    "Label",
    "Latency",
    "LatencyPart",
    "LinkRate",
    "Load",
    "MemberChange",
    "MigrationRow",
    "MisfitCount",
    "MulticastChange",
    "OperatorStatistics",
    "Part",
    "PlacedLinkRecord",
    "PlacedOperatorRecord",
    "Placement",
    "PortCostRow",
    "PredictionRow",
    "Probe",
    "QueryChange",
    "QueryOperator",
    "RecoveredOperator",
    "RecoveryRow",
    "Review",
    "Row",
]


class Probe(Row, frozen=True, tag="probes"):
    """A probe of another agent was answered."""

    peer: NodeId
    """The agent that was probed."""
    rtt_ms: float
    """Round trip as measured, unfiltered."""
    predicted_ms: float
    """Round trip that the two coordinates predicted before the probe."""


class CoordinateSample(Row, frozen=True, tag="coordinates"):
    """The agent's own coordinate, every ten samples of the engine (10 s)."""

    vector_ms: tuple[float, ...]
    """The latency vector."""
    height_ms: float
    """The height: what it takes to leave the node, whichever way."""
    error: float
    """Error estimate of the coordinate; no unit."""
    load_ms: float
    """The load dimension."""
    median_relative_error: float | None
    """Median relative error of the agent's latest predictions of round trips; null before the first."""


class MemberChange(Row, frozen=True, tag="members"):
    """A member's state has changed in the agent's view."""

    member: NodeId
    """The other agent."""
    before: str | None
    """State before: alive, suspect, failed or left; null if the member was unknown."""
    after: str
    """State now: alive, suspect, failed or left."""
    incarnation: int
    """Incarnation of the member; the member raises it when it refutes a suspicion."""


class Load(Row, frozen=True, tag="load"):
    """The machine and the agent on it, every ten samples of the engine (10 s)."""

    cpu: float
    """Share of all cores in use, 0 to 1. In rows without `cpu_waiting`, waiting is added to it, up to 2."""
    memory: float
    """Share of the machine's memory in use, 0 to 1."""
    load_ms: float
    """Load dimension of the agent's coordinate."""
    operators: int
    """Number of operators on the agent, sources and sinks included."""
    free_slots: int
    """Number of operators that the agent would still take."""
    records_dropped: int
    """Telemetry records that this process has lost since its start, for a full buffer or a full disk."""
    loop_lag_p50_ms: float | None = None
    """Median delay of the event loop's timers over the last half minute to minute; null if not measured."""
    loop_lag_p99_ms: float | None = None
    """99th percentile of the same delay."""
    cpu_waiting: float | None = None
    """Share of the last ten seconds in which some work waited for a core, 0 to 1."""


class LinkRate(Row, frozen=True, tag="links"):
    """A link whose sending end is on the agent; every ten samples of the engine (10 s)."""

    link: LinkId
    """Id of the link."""
    source: OperatorId
    """The operator that sends."""
    target: OperatorId
    """The operator that receives."""
    target_node: NodeId
    """Agent that the receiver runs on; the agent itself for a link within the node."""
    queries: tuple[QueryId, ...]
    """Queries that the link serves."""
    rows_per_s: float
    """Rows sent a second, mean over the last 10 s."""
    bytes_per_s: float
    """Bytes sent a second, mean over the last 10 s, repeated batches included."""
    rows: int
    """Rows offered to the link since its operator was made; the count moves with the operator."""
    bytes: int
    """Bytes sent since the sending end came to this node."""
    latency_ms: float | None
    """One-way latency: half of the measured round trip, else of the predicted one; 0 within the node."""
    latency_measured: bool
    """True if `latency_ms` was measured; false: it was predicted from coordinates."""
    batches_held: int
    """Batches sent or waiting that are not yet acknowledged."""
    batches_resent: int
    """Batches sent again since the sending end came to this node."""
    stalled: bool
    """True if the link has no credit, as the receiver is slower than the sender."""
    bandwidth_bytes_per_s: float | None = None
    """Bytes a second that passed to the receiver's agent while the connection's buffer was full; null before it was."""


class MisfitCount(Part, frozen=True):
    """Rows that a source has left out for one reason; the rows themselves are not in telemetry."""

    column: str
    """The column whose value did not fit; empty if the line as a whole did not."""
    cause: str
    """Why they were left out."""
    rows: int
    """Number of rows."""


class PortCostRow(Part, frozen=True):
    """Costs of batches at one input port (docs/costs.md); times are those of the agent's processors."""

    port: int
    """Number of the port; 0 for a source."""
    batches: float
    """Batches behind the figures, those of all operators of the agent that compute the same."""
    rows_per_batch: float
    """Mean rows of a batch."""
    per_batch_ns: float
    """Processor time of a batch beside its rows."""
    per_row_ns: float
    """Processor time of a row."""
    batch_ns: float
    """Processor time of a batch of `rows_per_batch` rows."""
    batch_ns_low: float
    """Two standard errors below."""
    batch_ns_high: float
    """Two standard errors above."""
    selectivity: float
    """Rows out for each row in."""


class OperatorStatistics(Row, frozen=True, tag="operators"):
    """An operator on the agent; every ten samples of the engine (10 s), and at once when it fails."""

    operator: OperatorId
    """Id of the operator."""
    operator_kind: str
    """Kind of operator: source, map, window, join, multicast, sink and so on."""
    queries: tuple[QueryId, ...]
    """Queries that use it."""
    state: str
    """State: building, running, blocked, stalled, degraded, paused, prepared, finished or failed."""
    reason: str
    """Reason for the state, such as why the operator failed or what it waits for; may be empty."""
    epoch: int
    """Number of times that the operator has moved."""
    rows_in: int
    """Rows received since the operator was made."""
    rows_out: int
    """Rows given since the operator was made."""
    rows_per_s_in: float
    """Rows received a second, mean over the last 10 s."""
    rows_per_s_out: float
    """Rows given a second, mean over the last 10 s."""
    bytes_per_s_in: float
    """Bytes received a second, mean over the last 10 s."""
    bytes_per_s_out: float
    """Bytes given a second, mean over the last 10 s."""
    selectivity: float | None
    """Rows given for each row received, by the rates of the last 10 s; null without input or output."""
    selectivity_estimated: float
    """Selectivity that the plan expects."""
    estimated_rows_per_s_in: float | None
    """Rows received a second that the plan expects; null without inputs."""
    estimated_rows_per_s_out: float | None
    """Rows given a second that the plan expects; null without outputs."""
    late_rows: int
    """Rows that came behind the watermark and were left out, since the operator was made."""
    dropped_rows: int
    """Rows that came in but could not be used: lines of a source, arrays that are too long for UNNEST; 0 for other operators."""
    queue_batches: int
    """Batches in its queues."""
    state_rows: int
    """Rows kept in its state."""
    queue_rows: int | None = None
    """Rows of the batches in its queues."""
    quanta: int | None = None
    """Batches, and slices of large batches, that it has worked on since it came to the agent."""
    cpu_ns: int | None = None
    """Processor time since it came to the agent, including that of polars on its behalf."""
    cpu_ns_per_row: float | None = None
    """Recent processor time for each row, the fixed cost of batches included; null before the first row."""
    longest_quantum_ms: float | None = None
    """Longest time that one quantum of it has kept a thread since it came to the agent."""
    state_bytes: int | None = None
    """Memory of its state when it was last measured."""
    misfits: tuple[MisfitCount, ...] = ()
    """`dropped_rows` by reason: the kinds with the most rows."""
    costs: tuple[PortCostRow, ...] = ()
    """Costs of batches, by input port that has had any."""
    shed_rows: tuple[int, ...] = ()
    """Rows left out because they would have been later than `max_latency` (`on_miss = 'shed'`), by cost class; empty: none ever."""
    deferred_rows: tuple[int, ...] = ()
    """Rows put off for that (`on_miss = 'defer'`), by cost class."""
    deferred_waiting: int | None = None
    """Rows put off that have not been worked on yet."""


class DealingRow(Row, frozen=True, tag="dealings"):
    """A splitter on the agent, which deals windows to instances by turns; every ten samples of the engine (10 s)."""

    operator: OperatorId
    """Id of the splitter."""
    queries: tuple[QueryId, ...]
    """Queries that use it."""
    instances: int
    """Number of instances to which it deals."""
    within_s: float
    """Length of a window, in event time."""
    turn_s: float
    """Time for which the windows that open go to one instance, in event time."""
    rows_dealt: int
    """Rows dealt since the splitter was made."""
    rows_sent: int
    """Rows sent since then: one that goes to three instances counts three times."""
    copies: float | None
    """Instances that a row went to, on average; null before the first row."""
    copies_expected: float
    """The same as the plan expects it."""
    turn: int | None
    """Number of the turn at the splitter's watermark, from 1970 on: the difference of two rows is the number of decisions between them.
    Null before the first watermark and behind the last."""


class Bucket(Part, frozen=True):
    """Rows whose latency lies in one bucket of a digest (`sbon.digest`)."""

    number: int
    """Number of the bucket: bucket n holds latencies from g^n to g^(n + 1) ms, with g = `sbon.digest.GROWTH`."""
    rows: int
    """Number of rows."""


class Latency(Row, frozen=True, tag="latencies"):
    """Latencies from creation to sink, of the rows that a sink on the agent took within a window of time.

    A latency is the clock of the sink's node minus that of the source's. Clocks that disagree shift it; values below 0 count as 0.
    """

    query: QueryId
    """The query that the sink serves."""
    operator: OperatorId
    """Id of the sink."""
    begun_at: Instant
    """When the window of time began."""
    window_s: float
    """Length of the window."""
    rows: int
    """Rows that the sink took in it."""
    batches: int
    """Batches that the sink took in it."""
    p50_ms: float
    """Median over rows, each with the stimulus time of its batch; within 1 percent, as the other percentiles."""
    p90_ms: float
    """90th percentile."""
    p99_ms: float
    """99th percentile."""
    max_ms: float
    """Greatest latency, exact."""
    buckets: tuple[Bucket, ...]
    """Rows by bucket of latency: add up the rows of equal numbers for quantiles over several windows."""


class LatencyPart(Part, frozen=True):
    """Share of the worst case."""

    name: str
    """A node, "link a > b", or "network" for propagation."""
    ms: float
    """Milliseconds."""


class PredictionRow(Row, frozen=True, tag="predictions"):
    """The latency of a query's answers, as its home predicts it and as the sink measured it; with each prediction, and once a minute."""

    query: QueryId
    """The query."""
    worst_ms: float | None
    """Greatest latency expected; null: it never ends, as a node has more load than capacity."""
    worst_low_ms: float | None
    """Lower bound of the worst case."""
    worst_high_ms: float | None
    """Upper bound of the latency of any answer; null: no bound."""
    p99_ms: float | None
    """99th percentile over time."""
    mean_ms: float | None
    """Mean over time."""
    parts: tuple[LatencyPart, ...]
    """Parts of the worst case."""
    rests_on_rules: bool
    """True if the costs of some operator are a rule of thumb."""
    anew_because: str
    """Why it was predicted anew; empty for the first prediction."""
    max_latency_ms: float | None
    """Latency that the query accepts; null: no bound."""
    measured_rows: int | None
    """Rows that the sink took in the last seconds; null before the first report."""
    measured_mean_ms: float | None
    """Their mean latency."""
    measured_p99_ms: float | None
    """99th percentile of their latency."""
    measured_max_ms: float | None
    """Greatest of their latencies."""


class QueryOperator(Part, frozen=True):
    """The place of an operator of a query."""

    operator: OperatorId
    """Id of the operator."""
    node: NodeId
    """The agent that it runs on."""
    reused: bool
    """True if the operator is shared and was brought by another query."""


class QueryChange(Row, frozen=True, tag="queries"):
    """A query that the agent took has begun, is degraded, has recovered, or has ended."""

    query: QueryId
    """Id of the query."""
    name: str
    """Name of its sink; empty without one."""
    state: str
    """State: running, recovering, degraded, shared, finished or stopping."""
    reason: str
    """Fault of the query; empty if there is none."""
    sink_node: NodeId
    """The agent that its sink runs on; empty once it has been dropped."""
    operators: tuple[QueryOperator, ...]
    """Its operators and where they run."""


class Label(Part, frozen=True):
    """One of an agent's labels."""

    key: str
    """Name of the label."""
    value: str
    """Its value."""


class AgentChange(Row, frozen=True, tag="agents"):
    """The agent has started, or is stopping in good order."""

    event: str
    """Which of the two: started or stopped."""
    address: str
    """HOST:PORT under which others reach the agent."""
    labels: tuple[Label, ...]
    """Its labels."""
    release: str
    """Version of sbon."""


AnyRow: TypeAlias = (
    Probe
    | CoordinateSample
    | MemberChange
    | Load
    | LinkRate
    | OperatorStatistics
    | DealingRow
    | Placement
    | Review
    | MigrationRow
    | RecoveryRow
    | MulticastChange
    | Latency
    | PredictionRow
    | QueryChange
    | AgentChange
)
