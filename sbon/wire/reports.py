"""How operators do, and how long the ways through them are."""

import msgspec

from sbon.types import LinkId, NodeId, OperatorId, QueryId


class OperatorsAsk(msgspec.Struct, frozen=True, tag="operators?"):
    """How do these operators do?"""

    operators: tuple[OperatorId, ...]
    query: QueryId = ""
    """For which query: the multicasts on its links are told too."""


class OperatorReport(msgspec.Struct, frozen=True):
    """One operator's figures since it was made, across migrations; rates are of the last interval."""

    id: OperatorId
    state: str
    """running, degraded (all that fed it is gone for good), paused, blocked, stalled, finished, failed, missing, or moved."""
    node: NodeId
    reason: str = ""
    epoch: int = 0
    rows_in: int = 0
    rows_out: int = 0
    batches_in: int = 0
    rows_per_s_in: float = 0.0
    rows_per_s_out: float = 0.0
    bytes_per_s_out: float = 0.0
    late_rows: int = 0
    dropped_rows: int = 0
    queue_batches: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    """Memory of its state, when it was last measured."""
    migrations: int = 0
    links: tuple[tuple[LinkId, int, int, float, float], ...] = ()
    """Per output link: rows sent, rows acknowledged, rows/s, bytes/s."""
    packing: tuple[tuple[LinkId, str, float], ...] = ()
    """Per output link: how its batches are packed at present, and what that has left of each byte so far."""
    received: tuple[tuple[LinkId, int], ...] = ()
    """Per input link: rows processed."""
    multicasts: tuple[tuple[OperatorId, NodeId, int], ...] = ()
    """Those that carry its output for the query that asked: their hosts, and how many queries share each."""
    upstream_delay_ms: float | None = None
    """Latency of the longest way from a producer to here; None until it is known."""
    selectivity: float | None = None
    """Rows out for each row in; None without input or output."""
    queue_rows: int = 0
    """Rows of the batches that wait."""
    quanta: int = 0
    """Since it came to this host: batches, and slices of large ones."""
    cpu_ns: int = 0
    """Processor time, likewise."""
    cpu_ns_per_row: float | None = None
    """Lately; None before the first row."""
    longest_quantum_ms: float = 0.0
    """Longest time that its part of a quantum has kept a thread, since it came to this host."""
    held_up: str = ""
    """Consumers that are gone, and for which it waits all the same."""


class OperatorReports(msgspec.Struct, frozen=True, tag="operators"):
    """Answer to OperatorsAsk."""

    reports: tuple[OperatorReport, ...]


class DelaySlack(msgspec.Struct, frozen=True, tag="slack"):
    """The slack of a query whose operators run here has changed; see `User.delay_slack_ms`."""

    query: QueryId
    slack_ms: float | None


class UpstreamDelay(msgspec.Struct, frozen=True, tag="delay"):
    """The longest way from a producer to the operator that feeds this link; one way, a later one replaces it."""

    link: LinkId
    delay_ms: float
