"""Promises of one agent: the highest ownership epoch of each query that it has promised, or taken a record of; and queries that have ended.

See docs/recovery.md, Ownership. Promises are on disk before anybody hears of them, and the next process of the agent begins with them.
"""

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from sbon.types import QueryId
from sbon.wire.ownership import Holder

PROMISES_MAX = 5_000
"""Most promises that are remembered; beyond that, the earliest are forgotten."""
OVER_MAX = 2_000
"""Most ended queries that are remembered; beyond that, the earliest are forgotten."""


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The highest ownership epoch of a query that this agent has promised, or taken a record of."""

    query: QueryId
    epoch: int
    to: Holder
    owns: bool = False
    """True once `to` is known to own the query."""
    is_over: bool = False
    """True if the query has ended. It is promised to nobody any more, so that a keeper that has not been told cannot take it over."""


class Promises:
    """All promises that are remembered.

    Invariant: the epoch of a query only grows.
    """

    def __init__(self) -> None:
        self._given: OrderedDict[QueryId, Promise] = OrderedDict()
        self._over: OrderedDict[QueryId, Promise] = OrderedDict()

    @property
    def all(self) -> tuple[Promise, ...]:
        """Returns ended queries, then promises, earliest first; all must be on disk before anybody hears of a promise."""
        return (*self._over.values(), *self._given.values())

    def of(self, query: QueryId) -> Promise | None:
        """Returns the latest promise of a query."""
        return self._over.get(query) or self._given.get(query)

    def is_over(self, query: QueryId) -> bool:
        """Tells whether a query has ended."""
        return query in self._over

    def lives(self, query: QueryId) -> None:
        """Records that a query has not ended, although it has once started again under another id: its owner runs it under this one."""
        ended = self._over.pop(query, None)
        if ended is not None:
            self._given[query] = msgspec.structs.replace(ended, is_over=False)

    def is_latest(self, query: QueryId, epoch: int, to: Holder) -> bool:
        """Tells whether a promise is still the latest one of its query."""
        given = self._given.get(query)
        return given is not None and (given.epoch, given.to) == (epoch, to)

    def restore(self, promises: Iterable[Promise]) -> None:
        """Takes over the promises of former processes of this agent."""
        for promise in promises:
            self.note(promise)

    def note(self, promise: Promise) -> None:
        """Adds a promise, unless a later one is known, or the query has ended."""
        if promise.is_over:
            self._given.pop(promise.query, None)
            self._over[promise.query] = promise
            while len(self._over) > OVER_MAX:
                self._over.popitem(last=False)
        if promise.query in self._over:
            return
        before = self._given.get(promise.query)
        if before is None or (promise.epoch, promise.owns) >= (before.epoch, before.owns):
            self._given[promise.query] = promise
            self._given.move_to_end(promise.query)
            while len(self._given) > PROMISES_MAX:
                self._given.popitem(last=False)
