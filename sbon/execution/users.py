"""The queries that use one operator."""

import math

from sbon.optimiser.slack import least_slack_ms
from sbon.types import NodeId, QueryId
from sbon.wire.deployment import User


class Users(dict[QueryId, NodeId]):
    """Queries that use an operator, with the agents that are their homes.

    Examples
    --------
    >>> users = Users()
    >>> users.add(User("q1", "ams", 12.5))
    >>> dict(users), users.delay_slack_ms, users.remove("q1"), users.remove("q1")
    ({'q1': 'ams'}, 12.5, True, False)
    """

    def __init__(self) -> None:
        super().__init__()
        self.slack_ms: dict[QueryId, float] = {}
        """For queries with a delay bound: by how much their longest way may still grow, in ms."""

        self.busy_slack_ms: dict[QueryId, float] = {}
        """For queries with `max_latency`: by how much longer work here may take, in ms."""

    @property
    def delay_slack_ms(self) -> float:
        """Returns by how much the longest way through the operator may grow, in ms: the least slack of its queries."""
        return least_slack_ms(self.slack_ms.values())

    def add(self, user: User) -> None:
        """Adds a query, or updates its slack."""
        self[user.query] = user.owner
        self.slack_told(user.query, user.delay_slack_ms)

    def slack_told(self, query: QueryId, slack_ms: float | None, busy_slack_ms: float | None = None) -> None:
        """Sets the slacks of a query; None means that it has no such bound. A slack that is not finite counts as 0."""
        for known, told_ms in ((self.slack_ms, slack_ms), (self.busy_slack_ms, busy_slack_ms)):
            if told_ms is None or query not in self:
                known.pop(query, None)
            else:
                known[query] = told_ms if math.isfinite(told_ms) else 0.0

    def remove(self, query: QueryId) -> bool:
        """Removes a query; returns False if it did not use the operator."""
        self.slack_ms.pop(query, None)
        self.busy_slack_ms.pop(query, None)
        return self.pop(query, None) is not None
