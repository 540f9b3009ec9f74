"""Queries with a delay bound: how much longer their ways may become, told to the hosts of their operators by the agent that took them.

The slack is the bound minus the delay, as the host of the sink knows it (`sbon_agent.engine.delays`). Several operators of a query may
move at once, though no two neighbours may (`sbon.migration`): each gets its part, so that all together keep within the bound. After a
migration nothing may lengthen the query's ways until its delay is known again.
"""

from sbon.query.plan import Plan
from sbon.wire.reports import DelaySlack
from sbon_agent.directory import Directory
from sbon_agent.queries.record import QueryRecord

CHANGE_FRACTION = 0.05
"""Of the bound: smaller changes of the slack are not worth a message."""
REPEAT_REPORTS = 15
"""Rounds of reports after which the slack is told again in any case: a host may have missed it."""
SETTLE_REPORTS = 3
"""Rounds of reports after a migration, in which all hosts downstream hear of the new way."""
EXCEEDED_FRACTION = 0.05
"""Of the bound: the network's ordinary wavering is no trouble of the query's."""


def slack_ms(bound_ms: float | None, delay_ms: float | None, movable: int) -> float | None:
    """The part of the slack that each of the hosts may use up; None: no bound.

    Parameters
    ----------
    delay_ms : None where it is not known: then the ways must not grow
    movable : operators of the query that are not pinned, of which every other one may be on its way at the same time

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
    """Tells the hosts of the queries of one agent."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def reported(self, record: QueryRecord) -> None:
        """All hosts have reported on a query: tell them its slack if it is another, and the query's owner if the bound is exceeded."""
        bound_ms = record.plan.delay_bound_ms
        if bound_ms is None:
            return
        bounds = record.bounds
        bounds.reports += 1
        if bounds.reports < bounds.settled_at:
            return
        delay_ms = record.delay_ms
        exceeded = delay_ms is not None and delay_ms > bound_ms * (1 + EXCEEDED_FRACTION)
        record.late = f"its answers are on the way for {delay_ms:.0f} ms, expected at most {bound_ms:g} ms" if exceeded else ""
        slack = slack_ms(bound_ms, delay_ms, record.movable)
        assert slack is not None
        if abs(slack - bounds.told_ms) > CHANGE_FRACTION * bound_ms or bounds.reports - bounds.told_at >= REPEAT_REPORTS:
            self._tell(record, slack)

    def moved(self, record: QueryRecord) -> None:
        """An operator has a new host; how long the ways are now will be seen."""
        if record.plan.delay_bound_ms is not None:
            record.bounds.settled_at = record.bounds.reports + SETTLE_REPORTS
            self._tell(record, min(record.bounds.told_ms, 0.0))

    def _tell(self, record: QueryRecord, slack: float) -> None:
        record.bounds.told_ms, record.bounds.told_at = slack, record.bounds.reports
        for node in sorted(set(record.nodes.values())):
            self._directory.tell(node, DelaySlack(query=record.id, slack_ms=slack))


def movable_of(plan: Plan, reused: int) -> int:
    """Operators of a plan that are not pinned, those that serve for several of them included."""
    return sum(spec.pinned is None for spec in plan.operators) + reused
