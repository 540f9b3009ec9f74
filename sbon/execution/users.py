"""The queries that use one operator, and how urgent its work is to them."""

import math

from sbon.optimiser.slack import least_slack_ms
from sbon.scheduling import URGENT_WITHIN_S_MAX
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
    >>> users.add(User("q1", "ams", None, 250.0)), users.add(User("q2", "ams", None, 500.0)), users.urgent_within_s, users.told()[0]
    (None, None, 0.25, User(query='q1', owner='ams', delay_slack_ms=None, max_latency_ms=250.0))
    >>> users.remove("q1"), users.urgent_within_s, users.remove("q2"), users.urgent_within_s
    (True, 0.5, True, 10.0)
    """

    def __init__(self) -> None:
        super().__init__()
        self.slack_ms: dict[QueryId, float] = {}
        """For queries with a delay bound: by how much their longest path may still grow, in ms."""

        self.busy_slack_ms: dict[QueryId, float] = {}
        """For queries with `max_latency`: by how much longer work here may take, in ms."""

        self.max_latency_ms: dict[QueryId, float] = {}
        """For queries with `max_latency`: that bound."""

        self.urgent_within_s = URGENT_WITHIN_S_MAX
        """A batch is as urgent as its stimulus time plus this: the least `max_latency` of the queries, at most `URGENT_WITHIN_S_MAX`."""

    @property
    def delay_slack_ms(self) -> float:
        """Returns by how much the longest path through the operator may grow, in ms: the least slack of its queries."""
        return least_slack_ms(self.slack_ms.values())

    def add(self, user: User) -> None:
        """Adds a query, or updates its slack and its bound."""
        self[user.query] = user.owner
        self.slack_told(user.query, user.delay_slack_ms)
        self.max_latency_ms.pop(user.query, None)
        if user.max_latency_ms is not None and user.max_latency_ms > 0:
            self.max_latency_ms[user.query] = user.max_latency_ms
        self._see_how_urgent()

    def told(self) -> tuple[User, ...]:
        """Returns the queries as other hosts are told of them."""
        return tuple(self.user(query) for query in sorted(self))

    def user(self, query: QueryId) -> User:
        """Returns one of the queries as other hosts are told of it."""
        return User(query, self[query], self.slack_ms.get(query), self.max_latency_ms.get(query))

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
        self.max_latency_ms.pop(query, None)
        self._see_how_urgent()
        return self.pop(query, None) is not None

    def _see_how_urgent(self) -> None:
        self.urgent_within_s = min([URGENT_WITHIN_S_MAX, *(bound_ms / 1000 for bound_ms in self.max_latency_ms.values())])
