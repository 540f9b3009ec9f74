"""Rows about decisions: placements, reviews, migrations, recoveries and multicasts."""

from sbon.telemetry.row import Instant, Part, Row
from sbon.types import LinkId, NodeId, OperatorId, QueryId


class CandidateRecord(Part, frozen=True):
    """A node that was considered for an operator."""

    node: NodeId
    """Id of the node."""
    usage_bytes: float | None
    """Network usage of the operator's links if it ran there, by measured round trips if there are any."""
    predicted_usage_bytes: float | None
    """The same network usage by coordinates alone."""
    measured: bool
    """True if the node's round trips were measured; false: predicted from coordinates."""
    load_ms: float
    """The load dimension of the node's coordinate."""
    free_slots: int
    """Number of operators that the node would still take."""
    answered: bool
    """True if the node answered when it was asked."""
    runs: OperatorId | None
    """Running operator there that the query could have used instead; null if there is none."""


class PlacedOperatorRecord(Part, frozen=True):
    """The placement of one operator of the query."""

    operator: OperatorId
    """Id of the operator."""
    operator_kind: str
    """Kind of operator: source, map, window, join, sink and so on."""
    text: str
    """Description of what the operator computes."""
    node: NodeId
    """Node that the operator was placed on."""
    pinned: bool
    """True if the operator is fixed to its node."""
    reused: OperatorId | None
    """Running operator that the query uses instead; null if a new one was made."""
    candidates: tuple[CandidateRecord, ...]
    """Candidates by network usage, least first, the chosen node included; empty for pinned operators."""


class PlacedLinkRecord(Part, frozen=True):
    """A link that a query adds."""

    link: LinkId
    """Id of the link."""
    source: OperatorId
    """The operator that sends."""
    target: OperatorId
    """The operator that receives."""
    source_node: NodeId
    """The node that the sender runs on."""
    target_node: NodeId
    """The node that the receiver runs on."""
    rows_per_s: float
    """Rows a second that the plan expects."""
    bytes_per_s: float
    """Bytes a second that the plan expects."""
    latency_ms: float
    """One-way latency of the link."""
    measured: bool
    """True if `latency_ms` was measured; false: predicted from coordinates."""


class Placement(Row, frozen=True, tag="placements"):
    """The full optimiser has placed a query, and the placement was carried out."""

    query: QueryId
    """Id of the query."""
    sql: str
    """Text of the statement."""
    usage_bytes: float
    """Predicted network usage that the query adds; the input of reused operators does not count."""
    usage_producer_bytes: float | None
    """Network usage of the whole query without reuse, all movable operators at a producer; mean over producers."""
    usage_consumer_bytes: float | None
    """The same network usage with all movable operators at the consumer."""
    delay_ms: float | None
    """Predicted one-way latency of the longest path from a source to the sink."""
    delay_bound_ms: float | None
    """The query's delay bound; null without one."""
    candidates_asked: int
    """Number of nodes that were asked."""
    rtts_measured: int
    """Number of round trips that candidates measured."""
    operators: tuple[PlacedOperatorRecord, ...]
    """The operators of the query, and where each went."""
    links: tuple[PlacedLinkRecord, ...]
    """The links that the query adds."""
    dropped: tuple[OperatorId, ...]
    """Operators of the plan that are not needed, because the query uses running ones."""


class AlternativeRecord(Part, frozen=True):
    """A node that a review has considered."""

    node: NodeId
    """Id of the node."""
    usage_bytes: float | None
    """Network usage of the operator's links if it ran there."""
    usage_here_bytes: float | None
    """Network usage of the operator's links where it runs."""
    saving: float | None
    """Share of `usage_here_bytes` that the move would save."""
    required: float | None
    """Least share that would justify a move; null if none would."""
    measured: bool
    """True if the node's round trips were measured; false: predicted from coordinates."""


class Review(Row, frozen=True, tag="reviews"):
    """The local optimiser has reviewed an operator."""

    operator: OperatorId
    """Id of the operator."""
    operators: tuple[OperatorId, ...]
    """Operators that would move together."""
    verdict: str
    """Decision, such as migrate, stay, wait, insert or hindered."""
    reason: str
    """Reason for the decision, as a sentence."""
    alternatives: tuple[AlternativeRecord, ...]
    """Nodes that were considered, best first."""


class MigrationRow(Row, frozen=True, tag="migrations"):
    """A migration away from the agent has ended. The instant of a phase (`sbon.migration`) is null if the phase was not reached."""

    operator: OperatorId
    """Id of the operator."""
    queries: tuple[QueryId, ...]
    """Queries that use the operator."""
    from_node: NodeId
    """The agent that the operator ran on."""
    to_node: NodeId
    """The agent that the operator was to move to."""
    committed: bool
    """True if the operator has moved; false: the migration was abandoned."""
    reason: str
    """Why the migration was wanted."""
    outcome: str
    """Why the migration was abandoned; empty if it was not."""
    asked_at: Instant
    """When the hosts of the neighbours were asked for locks."""
    locked_at: Instant | None
    """When all of them had agreed, and the new host was asked."""
    prepared_at: Instant | None
    """When the new host was ready, and copying of the state began while the operator ran on."""
    paused_at: Instant | None
    """When the operator rested, and the transfer of the remaining state began."""
    moved_at: Instant | None
    """When the new host had everything, and the move was committed."""
    ended_at: Instant
    """When all neighbours knew of the move, or the operator ran on where it was."""
    pause_ms: float
    """Time from the pause until the operator ran again."""
    duration_ms: float
    """Time from `asked_at` to `ended_at`."""
    state_bytes: int
    """All bytes sent: state, input since the copy began, unacknowledged output."""
    usage_before_bytes: float | None
    """Network usage of the operator's links at the old place, as the review predicted it; null if no review wanted the move."""
    usage_after_bytes: float | None
    """Network usage of the operator's links at the new place, as the review predicted it; null if no review wanted the move."""
    copied_at: Instant | None = None
    """When the copy was nearly complete, and the operator finished its last batch."""
    rounds: int | None = None
    """Number of times that input received during the copy was sent afterwards."""


class RecoveredOperator(Part, frozen=True):
    """An operator that was lost with its host and runs again."""

    operator: OperatorId
    """Id of the operator."""
    operator_kind: str
    """Kind of operator: source, map, window, join, sink and so on."""
    from_node: NodeId | None
    """The host that the operator was lost with; null if unknown."""
    to_node: NodeId
    """The agent that the operator runs on now."""
    state_lost: bool
    """True if the operator began empty although its former copy had state."""
    rows_lost: int
    """Rows that had been made and have not arrived."""
    windows_lost: int | None
    """Windows that are left out, including those without rows; null if unknown."""


class RecoveryRow(Row, frozen=True, tag="recoveries"):
    """Operators of a query that the agent owns were lost with their hosts, and run again.

    The instant of a phase of the last attempt (`sbon.supervision.recovery`) is null if the phase took no time.
    """

    query: QueryId
    """The query."""
    operators: tuple[RecoveredOperator, ...]
    """The operators that run again."""
    epoch: int
    """Epoch of these operators."""
    attempts: int
    """Number of attempts."""
    lost_at: Instant
    """When the agent learnt that the first operator was lost: some seconds after the crash."""
    placing_at: Instant | None
    """When the last attempt began to choose hosts."""
    fencing_at: Instant | None
    """When the last attempt began to ask the neighbours for their progress."""
    making_at: Instant | None
    """When the last attempt began to have the operators made."""
    beginning_at: Instant | None
    """When the last attempt let sinks take rows."""
    recovered_at: Instant
    """When all operators ran."""
    duration_ms: float
    """Time from `lost_at` to `recovered_at`."""
    rows_lost: int
    """Rows that had been made and have not arrived."""
    rows_exact: bool
    """True if `rows_lost` is exact; false: at least so many are lost, and some may have come twice."""
    windows_lost: int | None
    """Windows that are left out, including those without rows; null if unknown."""


class MulticastChange(Row, frozen=True, tag="multicasts"):
    """A multicast was made between an operator and its consumers, or was folded."""

    event: str
    """made or folded."""
    operator: OperatorId
    """Operator whose rows the multicast passes on."""
    multicast: OperatorId
    """Id of the multicast operator."""
    node: NodeId
    """Node that the multicast is to run on; the agent itself when it is folded."""
    reason: str
    """Reason, as a sentence."""
