"""The rows of telemetry, one struct for each kind. Agents record these rows, spool and broker carry them, and tables hold them.

Rows about decisions are in `sbon.telemetry.decisions`, the base types in `sbon.telemetry.row`.
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
    """Measured round trip, unfiltered."""
    predicted_ms: float
    """Round trip that the two coordinates predicted before the probe."""


class CoordinateSample(Row, frozen=True, tag="coordinates"):
    """The agent's own coordinate, every ten samples of the engine (10 s)."""

    vector_ms: tuple[float, ...]
    """The latency vector."""
    height_ms: float
    """The height: latency of the access link that all paths of the node cross."""
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
    """Telemetry records that this process has lost since its start, because a buffer or the disk was full."""
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
    """Rows offered to the link since its operator was made, on any node."""
    bytes: int
    """Bytes sent since the sending end came to this node."""
    latency_ms: float | None
    """One-way latency: half of the measured round trip, or else of the predicted one; 0 within the node."""
    latency_measured: bool
    """True if `latency_ms` was measured; false: it was predicted from coordinates."""
    batches_held: int
    """Batches sent or waiting that are not yet acknowledged."""
    batches_resent: int
    """Batches sent again since the sending end came to this node."""
    stalled: bool
    """True if the link has no credit, because the receiver is slower than the sender."""
    bandwidth_bytes_per_s: float | None = None
    """Measured rate to the receiver's agent while the connection's buffer was full, in bytes/s; null if it has never been full."""


class MisfitCount(Part, frozen=True):
    """Rows that a source has left out for one reason; the rows themselves are not in telemetry."""

    column: str
    """The column whose value did not fit; empty if the whole line did not fit."""
    cause: str
    """Why the rows were left out."""
    rows: int
    """Number of rows."""


class PortCostRow(Part, frozen=True):
    """Costs of batches at one input port (docs/costs.md); times are those of the agent's processors."""

    port: int
    """Number of the port; 0 for a source."""
    batches: float
    """Number of measured batches, of all operators of the agent that compute the same."""
    rows_per_batch: float
    """Mean rows of a batch."""
    per_batch_ns: float
    """Fixed processor time of a batch, without its rows."""
    per_row_ns: float
    """Processor time of a row."""
    batch_ns: float
    """Processor time of a batch of `rows_per_batch` rows."""
    batch_ns_low: float
    """`batch_ns` minus two standard errors."""
    batch_ns_high: float
    """`batch_ns` plus two standard errors."""
    selectivity: float
    """Rows out for each row in."""


class OperatorStatistics(Row, frozen=True, tag="operators"):
    """An operator on the agent; every ten samples of the engine (10 s), and at once when it fails."""

    operator: OperatorId
    """Id of the operator."""
    operator_kind: str
    """Kind of operator: source, map, window, join, multicast, sink and so on."""
    queries: tuple[QueryId, ...]
    """Queries that use the operator."""
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
    """Batches in the operator's queues."""
    state_rows: int
    """Rows in the operator's state."""
    queue_rows: int | None = None
    """Rows of the batches in the operator's queues."""
    quanta: int | None = None
    """Batches, and slices of large batches, processed since the operator came to the agent."""
    cpu_ns: int | None = None
    """Processor time since the operator came to the agent, including that of polars for it."""
    cpu_ns_per_row: float | None = None
    """Recent processor time for each row, the fixed cost of batches included; null before the first row."""
    longest_quantum_ms: float | None = None
    """Longest time that a quantum has occupied a thread since the operator came to the agent."""
    state_bytes: int | None = None
    """Memory of the operator's state when it was last measured."""
    misfits: tuple[MisfitCount, ...] = ()
    """`dropped_rows` by reason: the kinds with the most rows."""
    costs: tuple[PortCostRow, ...] = ()
    """Costs of batches, for each input port that has had a batch."""
    shed_rows: tuple[int, ...] = ()
    """Rows left out because they would have exceeded `max_latency` (`on_miss = 'shed'`), by cost class; empty: none so far."""
    deferred_rows: tuple[int, ...] = ()
    """Rows put off because they would have exceeded `max_latency` (`on_miss = 'defer'`), by cost class."""
    deferred_waiting: int | None = None
    """Rows put off that have not been processed yet."""


class DealingRow(Row, frozen=True, tag="dealings"):
    """A splitter on the agent, which deals windows to instances; every ten samples of the engine (10 s)."""

    operator: OperatorId
    """Id of the splitter."""
    queries: tuple[QueryId, ...]
    """Queries that use the splitter."""
    instances: int
    """Number of instances to which the splitter deals."""
    within_s: float
    """Length of a window, in event time."""
    turn_s: float
    """Length of a turn, in event time: all windows that open within a turn go to one instance."""
    rows_dealt: int
    """Rows dealt since the splitter was made."""
    rows_sent: int
    """Rows sent since the splitter was made: a row that goes to three instances counts three times."""
    copies: float | None
    """Average number of instances that a row went to; null before the first row."""
    copies_expected: float
    """The value of `copies` that the plan expects; the greatest one if a dealer is asked."""
    turn: int | None
    """Number of the turn at the splitter's watermark, counted from 1970: the difference between two rows is the number of decisions between
    them. Null before the first watermark and after the last."""
    dealer: str | None = None
    """The dealer that is asked for the instance of each turn; null if instances take turns. The following columns are null without a
    dealer, and before the first report of an instance."""
    used: int | None = None
    """Number of instances that have open windows."""
    decisions: int | None = None
    """Turns for which the dealer was asked since the splitter came to this host."""
    peak_predicted_s: float | None = None
    """Longest time that a row is predicted to take at an instance; null while costs are unknown."""
    peak_measured_s: float | None = None
    """Longest time, within a minute, for which a row that waited at an instance had been in the overlay, at samples once a second."""
    row_ns: float | None = None
    """Measured processor time of a row at an instance, for itself; null while unknown."""
    turn_ns: float | None = None
    """Measured processor time of a row for each open turn of the instance; null while unknown."""


class Bucket(Part, frozen=True):
    """Rows whose latency lies in one bucket of a digest (`sbon.digest`)."""

    number: int
    """Number of the bucket: bucket n holds latencies from g^n to g^(n + 1) ms, with g = `sbon.digest.GROWTH`."""
    rows: int
    """Number of rows."""


class Latency(Row, frozen=True, tag="latencies"):
    """Latencies from source to sink of the rows that a sink on the agent took within a window of time.

    A latency is the clock of the sink's node minus the clock of the source's node. Clocks that disagree shift it; values below 0 count as
    0.
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
    """Rows that the sink took in the window."""
    batches: int
    """Batches that the sink took in the window."""
    p50_ms: float
    """Median over rows, each with the stimulus time of its batch. Percentiles are exact within 1 percent."""
    p90_ms: float
    """90th percentile."""
    p99_ms: float
    """99th percentile."""
    max_ms: float
    """Greatest latency, exact."""
    buckets: tuple[Bucket, ...]
    """Rows by bucket of latency. For quantiles over several windows, add up the rows of equal bucket numbers."""


class LatencyPart(Part, frozen=True):
    """One part of the worst case."""

    name: str
    """A node, "link a > b", or "network" for propagation."""
    ms: float
    """Milliseconds."""


class PredictionRow(Row, frozen=True, tag="predictions"):
    """The latency of a query's answers, predicted by its home and measured by the sink; with each prediction, and once a minute."""

    query: QueryId
    """The query."""
    worst_ms: float | None
    """Greatest latency expected; null: unbounded, because a node has more load than capacity."""
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
    """Reason for a new prediction; empty for the first."""
    max_latency_ms: float | None
    """The query's `max_latency`; null: no bound."""
    measured_rows: int | None
    """Rows that the sink took in the last seconds; null before the first report."""
    measured_mean_ms: float | None
    """Mean latency of these rows."""
    measured_p99_ms: float | None
    """99th percentile of the latency of these rows."""
    measured_max_ms: float | None
    """Greatest latency of these rows."""


class QueryOperator(Part, frozen=True):
    """The place of an operator of a query."""

    operator: OperatorId
    """Id of the operator."""
    node: NodeId
    """The agent that the operator runs on."""
    reused: bool
    """True if the operator is shared and was made for another query."""


class QueryChange(Row, frozen=True, tag="queries"):
    """A query that the agent took has begun, is degraded, has recovered, or has ended."""

    query: QueryId
    """Id of the query."""
    name: str
    """Name of the query's sink; empty without one."""
    state: str
    """State: running, recovering, degraded, shared, finished or stopping."""
    reason: str
    """Fault of the query; empty if there is none."""
    sink_node: NodeId
    """The agent that the query's sink runs on; empty once the query has been dropped."""
    operators: tuple[QueryOperator, ...]
    """The query's operators, and where they run."""


class Label(Part, frozen=True):
    """One of an agent's labels."""

    key: str
    """Name of the label."""
    value: str
    """Value of the label."""


class AgentChange(Row, frozen=True, tag="agents"):
    """The agent has started, or is stopping in good order."""

    event: str
    """started or stopped."""
    address: str
    """HOST:PORT under which others reach the agent."""
    labels: tuple[Label, ...]
    """The agent's labels."""
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
