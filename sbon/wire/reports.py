"""How operators do, and how long the ways through them are."""

from typing import Annotated

import msgspec

from sbon.misfits import KINDS_REPORTED_MAX, Misfit
from sbon.wire.limits import MANY, Amount, Count, Delay, Epoch, Link, Node, Operator, Query, Slack, Text


class OperatorsAsk(msgspec.Struct, frozen=True, tag="operators?"):
    """How do these operators do?"""

    operators: Annotated[tuple[Operator, ...], MANY]
    query: Query = ""
    """For which query: the multicasts on its links are told too."""


class OperatorReport(msgspec.Struct, frozen=True):
    """One operator's figures since it was made, across migrations; rates are of the last interval."""

    id: Operator
    state: Text
    """running, degraded (all that fed it is gone for good), paused, blocked, stalled, finished, failed, missing, or moved."""
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
    """Memory of its state, when it was last measured."""
    migrations: Epoch = 0
    links: Annotated[tuple[tuple[Link, Count, Count, Amount, Amount], ...], MANY] = ()
    """Per output link: rows sent, rows acknowledged, rows/s, bytes/s."""
    packing: Annotated[tuple[tuple[Link, Text, Amount], ...], MANY] = ()
    """Per output link: how its batches are packed at present, and what that has left of each byte so far."""
    received: Annotated[tuple[tuple[Link, Count], ...], MANY] = ()
    """Per input link: rows processed."""
    multicasts: Annotated[tuple[tuple[Operator, Node, Count], ...], MANY] = ()
    """Those that carry its output for the query that asked: their hosts, and how many queries share each."""
    upstream_delay_ms: Delay | None = None
    """Latency of the longest way from a producer to here; None until it is known."""
    selectivity: Amount | None = None
    """Rows out for each row in; None without input or output."""
    queue_rows: Count = 0
    """Rows of the batches that wait."""
    quanta: Count = 0
    """Since it came to this host: batches, and slices of large ones."""
    cpu_ns: Count = 0
    """Processor time, likewise."""
    cpu_ns_per_row: Amount | None = None
    """Lately; None before the first row."""
    longest_quantum_ms: Amount = 0.0
    """Longest time that its part of a quantum has kept a thread, since it came to this host."""
    held_up: Text = ""
    """Consumers that are gone, and for which it waits all the same."""
    left_out: Annotated[tuple[tuple[Link, Count, Text], ...], MANY] = ()
    """Per output link that has any since it came to this host: rows of batches that could not be packed; what was wrong with the first."""
    misfits: Annotated[tuple[Misfit, ...], msgspec.Meta(max_length=KINDS_REPORTED_MAX)] = ()
    """Of a source: why it has left rows out, the kinds with the most rows."""


class OperatorReports(msgspec.Struct, frozen=True, tag="operators"):
    """Answer to OperatorsAsk."""

    reports: Annotated[tuple[OperatorReport, ...], MANY]


class DelaySlack(msgspec.Struct, frozen=True, tag="slack"):
    """The slack of a query whose operators run here has changed; see `User.delay_slack_ms`."""

    query: Query
    slack_ms: Slack | None


class UpstreamDelay(msgspec.Struct, frozen=True, tag="delay"):
    """The longest way from a producer to the operator that feeds this link; one way, a later one replaces it."""

    link: Link
    delay_ms: Delay
