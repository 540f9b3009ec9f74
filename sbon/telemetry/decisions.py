"""Rows about decisions: where operators were placed and why, what reviews found, what moved."""

from sbon.telemetry.row import Instant, Part, Row
from sbon.types import LinkId, NodeId, OperatorId, QueryId


class CandidateRecord(Part, frozen=True):
    """A node that was considered for an operator."""

    node: NodeId
    """The node."""
    usage_bytes: float | None
    """Of the operator's links if it ran there, by measured RTTs where there are any."""
    predicted_usage_bytes: float | None
    """The same by coordinates alone."""
    measured: bool
    """Whether its round trips were measured; false: predicted from coordinates."""
    load_ms: float
    """The load dimension of its coordinate."""
    free_slots: int
    """Number of operators that it would still take."""
    answered: bool
    """Whether it answered when it was asked."""
    runs: OperatorId | None
    """The operator there that could have served."""


class PlacedOperatorRecord(Part, frozen=True):
    """Where an operator went, and why."""

    operator: OperatorId
    """Id of the operator."""
    operator_kind: str
    """What it is: source, window, sink and so on."""
    text: str
    """What it computes."""
    node: NodeId
    """The node that it was placed on."""
    pinned: bool
    """Whether it is fixed to its node."""
    reused: OperatorId | None
    """The running operator that serves instead; null: it was made."""
    candidates: tuple[CandidateRecord, ...]
    """Least usage first, the chosen node among them; empty for pinned operators."""


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
    """As the plan expects."""
    bytes_per_s: float
    """Bytes a second, as the plan expects."""
    latency_ms: float
    """One way."""
    measured: bool
    """Whether `latency_ms` was measured; false: predicted from coordinates."""


class Placement(Row, frozen=True, tag="placements"):
    """The full optimiser's decision for a query, carried out."""

    query: QueryId
    """Id of the query."""
    sql: str
    """Text of the statement."""
    usage_bytes: float
    """Predicted network usage that it adds; what reused operators receive flows already."""
    usage_producer_bytes: float | None
    """The whole query without reuse, all movable operators at a producer, mean over the producers."""
    usage_consumer_bytes: float | None
    """The same with all of them at the consumer."""
    delay_ms: float | None
    """Predicted, one way, of the longest path."""
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
    """Operators of the plan that reuse has made superfluous."""


class AlternativeRecord(Part, frozen=True):
    """A node that a review has considered."""

    node: NodeId
    """The node."""
    usage_bytes: float | None
    """Of the operator's links if it ran there."""
    usage_here_bytes: float | None
    """As it is."""
    saving: float | None
    """Share of the latter."""
    required: float | None
    """The least share that would do; null: none would."""
    measured: bool
    """Whether its round trips were measured; false: predicted from coordinates."""


class Review(Row, frozen=True, tag="reviews"):
    """The local optimiser has looked at an operator."""

    operator: OperatorId
    """Id of the operator."""
    operators: tuple[OperatorId, ...]
    """Those that would move together."""
    verdict: str
    """migrate, stay, wait, insert, hindered..."""
    reason: str
    """Why, in words."""
    alternatives: tuple[AlternativeRecord, ...]
    """Nodes that were considered, best first."""


class MigrationRow(Row, frozen=True, tag="migrations"):
    """A migration away from the agent has ended. The phases are those of `sbon.migration`; null: never reached."""

    operator: OperatorId
    """Id of the operator."""
    queries: tuple[QueryId, ...]
    """Queries that use it."""
    from_node: NodeId
    """The agent that it ran on."""
    to_node: NodeId
    """The agent that it was to move to."""
    committed: bool
    """Whether it has moved; false: the migration was abandoned."""
    reason: str
    """Why it was wanted."""
    outcome: str
    """Why it was abandoned; else empty."""
    asked_at: Instant
    """The neighbours were asked to keep still."""
    locked_at: Instant | None
    """They do; the new host is asked."""
    prepared_at: Instant | None
    """The new host is ready; the state goes over while the operator runs on (the operator finishes its batch, before there was that)."""
    paused_at: Instant | None
    """It stands still; the rest begins to move."""
    moved_at: Instant | None
    """The new host has everything: decided."""
    ended_at: Instant
    """All neighbours know, or it runs on where it was."""
    pause_ms: float
    """From the pause until it ran again."""
    duration_ms: float
    """From the first question to the end."""
    state_bytes: int
    """All that was sent: state, input since, unacknowledged output."""
    usage_before_bytes: float | None
    """Network usage of its links, as the review predicted it; null: asked for by hand."""
    usage_after_bytes: float | None
    """The same at the new place."""
    copied_at: Instant | None = None
    """The copy is a moment behind; the operator finishes its batch."""
    rounds: int | None = None
    """How often input that it was given during the copy was sent after."""


class MulticastChange(Row, frozen=True, tag="multicasts"):
    """A multicast operator was put between an operator and its consumers, or taken away."""

    event: str
    """made or folded."""
    operator: OperatorId
    """The operator whose rows it passes on."""
    multicast: OperatorId
    """Id of the multicast operator."""
    node: NodeId
    """Where it is to go; the agent itself when it is folded."""
    reason: str
    """Why, in words."""
