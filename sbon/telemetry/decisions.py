"""Rows about decisions: where operators were placed and why, what reviews found, what moved."""

from sbon.telemetry.row import Instant, Part, Row
from sbon.types import LinkId, NodeId, OperatorId, QueryId


class CandidateRecord(Part, frozen=True):
    """A node that was considered for an operator."""

    node: NodeId
    """Id of the node."""
    usage_bytes: float | None
    """Network usage of the operator's links if it ran there, by measured round trips as far as there are any."""
    predicted_usage_bytes: float | None
    """The same network usage by coordinates alone."""
    measured: bool
    """True if its round trips were measured; false: predicted from coordinates."""
    load_ms: float
    """The load dimension of its coordinate."""
    free_slots: int
    """Number of operators that it would still take."""
    answered: bool
    """True if it answered when it was asked."""
    runs: OperatorId | None
    """Running operator there that could have served instead; null if there is none."""


class PlacedOperatorRecord(Part, frozen=True):
    """An operator of the query, where it was placed and why."""

    operator: OperatorId
    """Id of the operator."""
    operator_kind: str
    """Kind of operator: source, map, window, join, sink and so on."""
    text: str
    """Description of what the operator computes."""
    node: NodeId
    """Node that the operator was placed on."""
    pinned: bool
    """True if it is fixed to its node."""
    reused: OperatorId | None
    """Running operator that serves instead; null if a new one was made."""
    candidates: tuple[CandidateRecord, ...]
    """Candidates by network usage, least first, the chosen node among them; empty for pinned operators."""


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
    """Predicted network usage that the query adds; input of reused operators counts nothing."""
    usage_producer_bytes: float | None
    """Network usage of the whole query without reuse, all movable operators at a producer; mean over producers."""
    usage_consumer_bytes: float | None
    """The same network usage with all movable operators at the consumer."""
    delay_ms: float | None
    """Predicted one-way latency of the longest path from a source to the sink."""
    delay_bound_ms: float | None
    """The delay that the query accepts; null without a bound."""
    candidates_asked: int
    """Number of nodes that were asked."""
    rtts_measured: int
    """Number of round trips that candidates measured."""
    operators: tuple[PlacedOperatorRecord, ...]
    """The operators of the query, and where each went."""
    links: tuple[PlacedLinkRecord, ...]
    """The links that the query adds."""
    dropped: tuple[OperatorId, ...]
    """Operators of the plan that are not needed, as running ones serve instead."""


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
    """Least share that would be enough for a move; null if none would be."""
    measured: bool
    """True if its round trips were measured; false: predicted from coordinates."""


class Review(Row, frozen=True, tag="reviews"):
    """The local optimiser has reviewed an operator."""

    operator: OperatorId
    """Id of the operator."""
    operators: tuple[OperatorId, ...]
    """Operators that would move together."""
    verdict: str
    """Decision, such as migrate, stay, wait, insert or hindered."""
    reason: str
    """Why, in words."""
    alternatives: tuple[AlternativeRecord, ...]
    """Nodes that were considered, best first."""


class MigrationRow(Row, frozen=True, tag="migrations"):
    """A migration away from the agent has ended. Instants of phases (`sbon.migration`) are null if the phase was never reached."""

    operator: OperatorId
    """Id of the operator."""
    queries: tuple[QueryId, ...]
    """Queries that use it."""
    from_node: NodeId
    """The agent that it ran on."""
    to_node: NodeId
    """The agent that it was to move to."""
    committed: bool
    """True if it has moved; false: the migration was abandoned."""
    reason: str
    """Why the migration was wanted."""
    outcome: str
    """Why the migration was abandoned; empty if it was not."""
    asked_at: Instant
    """When the hosts of the neighbours were asked to keep theirs still."""
    locked_at: Instant | None
    """When all of them had agreed, and the new host was asked."""
    prepared_at: Instant | None
    """When the new host was ready, and copying of the state began while the operator ran on."""
    paused_at: Instant | None
    """When the operator stood still, and the rest of its state began to move."""
    moved_at: Instant | None
    """When the new host had everything: the move was decided."""
    ended_at: Instant
    """When all neighbours knew, or the operator ran on where it was."""
    pause_ms: float
    """Time from the pause until the operator ran again."""
    duration_ms: float
    """Time from the first question to the end."""
    state_bytes: int
    """Bytes sent in all: state, input since the copy began, unacknowledged output."""
    usage_before_bytes: float | None
    """Network usage of its links before, as the review predicted it; null if the move was asked for by hand."""
    usage_after_bytes: float | None
    """Network usage of its links at the new place, as the review predicted it; null likewise."""
    copied_at: Instant | None = None
    """When the copy was nearly complete, and the operator finished its last batch."""
    rounds: int | None = None
    """Number of times that input received during the copy was sent after it."""


class RecoveredOperator(Part, frozen=True):
    """An operator that was lost with its host and runs again."""

    operator: OperatorId
    """Id of the operator."""
    operator_kind: str
    """Kind of operator: source, map, window, join, sink and so on."""
    from_node: NodeId | None
    """The host that it was lost with; null if that is not known."""
    to_node: NodeId
    """The agent that it runs on now."""
    state_lost: bool
    """True if it began empty although its former copy had state."""
    rows_lost: int
    """Rows that had been made and have not arrived."""
    windows_lost: int | None
    """Windows that are left out, those without rows included; null if that is not known."""


class RecoveryRow(Row, frozen=True, tag="recoveries"):
    """Operators of a query that the agent took were lost with their hosts, and run again.

    Instants of the last attempt's phases (`sbon.supervision.recovery`) are null if the phase took no time.
    """

    query: QueryId
    """The query."""
    operators: tuple[RecoveredOperator, ...]
    """The operators that run again."""
    epoch: int
    """Their epoch."""
    attempts: int
    """Number of attempts."""
    lost_at: Instant
    """When the agent learnt that the first of them was lost: some seconds after the crash."""
    placing_at: Instant | None
    """When the last attempt began to choose hosts."""
    fencing_at: Instant | None
    """When it asked the neighbours how far they were."""
    making_at: Instant | None
    """When it had the operators made."""
    beginning_at: Instant | None
    """When it let sinks take rows."""
    recovered_at: Instant
    """When all of them ran."""
    duration_ms: float
    """Time from `lost_at` to `recovered_at`."""
    rows_lost: int
    """Rows that had been made and have not arrived."""
    rows_exact: bool
    """True if exactly so many rows are lost; false: at least so many, and some may have come twice."""
    windows_lost: int | None
    """Windows that are left out, those without rows included; null if that is not known."""


class MulticastChange(Row, frozen=True, tag="multicasts"):
    """A multicast operator was put between an operator and its consumers, or taken away."""

    event: str
    """Which of the two: made or folded."""
    operator: OperatorId
    """Operator whose rows the multicast passes on."""
    multicast: OperatorId
    """Id of the multicast operator."""
    node: NodeId
    """Node that the multicast is to run on; the agent itself when it is folded."""
    reason: str
    """Why, in words."""
