"""Tells the hosts of a query with a delay bound how much longer its paths may become.

The home of the query does so after each round of reports.

The slack is the bound minus the delay that the host of the sink reports (`sbon.execution.delays`). Several operators of a query may move
at once, though never two neighbours (`sbon.migration`). Each gets a part of the slack, so that all moves together stay within the bound.
After a migration no further move may lengthen the query's paths until its delay is known again.
"""

from sbon.query.plan import Plan
from sbon.supervision.record import QueryRecord
from sbon.types import NodeId
from sbon.wire.reports import DelaySlack

CHANGE_FRACTION = 0.05
"""Share of the bound; smaller changes of the slack are not worth a message."""
REPEAT_REPORTS = 15
"""Rounds of reports after which the slack is repeated, in case a host has missed it."""
SETTLE_REPORTS = 3
"""Rounds of reports after a migration until all hosts downstream know the new delay."""
EXCEEDED_FRACTION = 0.05
"""Share of the bound by which the delay may exceed it before the query is reported late; the network's ordinary variation stays below."""


def slack_ms(bound_ms: float | None, delay_ms: float | None, movable: int) -> float | None:
    """Returns the part of the slack that each host may use up, in ms; None without a bound.

    Parameters
    ----------
    delay_ms : None if unknown: the paths must not grow then
    movable : operators of the query that are not pinned; at most every other one migrates at the same time

    Examples
    --------
    >>> slack_ms(250.0, 190.0, 2), slack_ms(250.0, 190.0, 5), slack_ms(250.0, 260.0, 5), slack_ms(None, 190.0, 2)
    (60.0, 20.0, -10.0, None)
    """
    if bound_ms is None:
        return None
    if delay_ms is None:
        return 0.0
    slack = bound_ms - delay_ms
    return slack if slack < 0 else slack / max(1, (movable + 1) // 2)


class DelayBounds:
    """Computes the slack of the queries of one agent. The methods return messages to send, each with its receiver."""

    def reported(self, record: QueryRecord) -> list[tuple[NodeId, DelaySlack]]:
        """Tells the slack of a query if it has changed, and marks the query late if its bound is exceeded.

        Called when all hosts have reported.
        """
        bound_ms = record.plan.delay_bound_ms
        if bound_ms is None:
            return []
        bounds = record.bounds
        bounds.reports += 1
        if bounds.reports < bounds.settled_at:
            return []
        delay_ms = record.delay_ms
        exceeded = delay_ms is not None and delay_ms > bound_ms * (1 + EXCEEDED_FRACTION)
        record.late = f"its answers are on the way for {delay_ms:.0f} ms, expected at most {bound_ms:g} ms" if exceeded else ""
        slack = slack_ms(bound_ms, delay_ms, record.movable)
        assert slack is not None
        if abs(slack - bounds.told_ms) > CHANGE_FRACTION * bound_ms or bounds.reports - bounds.told_at >= REPEAT_REPORTS:
            return _told(record, slack)
        return []

    def moved(self, record: QueryRecord) -> list[tuple[NodeId, DelaySlack]]:
        """Forbids longer paths after an operator has moved, until the new delay is known."""
        if record.plan.delay_bound_ms is None:
            return []
        record.bounds.settled_at = record.bounds.reports + SETTLE_REPORTS
        return _told(record, min(record.bounds.told_ms, 0.0))


def _told(record: QueryRecord, slack: float) -> list[tuple[NodeId, DelaySlack]]:
    record.bounds.told_ms, record.bounds.told_at = slack, record.bounds.reports
    busy_ms = record.forecast.slack_ms if record.forecast is not None else None
    told = DelaySlack(query=record.id, slack_ms=slack, busy_slack_ms=busy_ms)
    return [(node, told) for node in sorted(set(record.nodes.values()))]


def movable_of(plan: Plan, reused: int) -> int:
    """Returns the number of operators of a plan that are not pinned, including running ones that are reused."""
    return sum(spec.pinned is None for spec in plan.operators) + reused
