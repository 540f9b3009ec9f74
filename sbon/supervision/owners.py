"""The owners of queries, as one agent has heard. The id of a query names its first owner. An agent that has taken it over since says so
under a higher ownership epoch (docs/recovery.md, Ownership)."""

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from sbon.query.ids import boot_of, home_of
from sbon.supervision.promises import Promise
from sbon.types import NodeId, QueryId

OWNERS_MAX = 10_000
"""Most queries with another owner that are remembered; beyond that, those heard of first are forgotten."""


class Owner(msgspec.Struct, frozen=True):
    """The owner of a query."""

    name: NodeId
    boot: int | None
    """The process that owns it; None: any."""
    epoch: int = 0


class Owners:
    """Owners of queries that other agents have taken over.

    Invariant: the epoch of a query only grows.
    """

    def __init__(self) -> None:
        self._heard: OrderedDict[QueryId, Owner] = OrderedDict()

    def of(self, query: QueryId) -> Owner:
        """Returns the owner of a query with the highest ownership epoch heard of."""
        return self._heard.get(query) or Owner(home_of(query), boot_of(query))

    def answering(self, query: QueryId, told: NodeId) -> NodeId:
        """Returns who answers for a query: the latest owner heard of; without one, the home that one of its operators here was told."""
        owner = self.of(query)
        return owner.name if owner.epoch > 0 else told

    def told(self, query: QueryId, owner: Owner, by: NodeId) -> bool:
        """Records who owns a query by the word of another agent. Returns False if that is older than what is known.

        The owner known so far may name an owner of a lower epoch: it has given way, as its own epoch never came to count, or it has had a
        successor.
        """
        known = self.of(query)
        if by == known.name != owner.name and owner.epoch <= known.epoch:
            self._heard[query] = Owner(owner.name, owner.boot, known.epoch)
            return True
        return self.heard(query, owner)

    def restore(self, promises: Iterable[Promise]) -> None:
        """Takes over what former processes of this agent knew of owners."""
        for promise in promises:
            if promise.owns:
                self.heard(promise.query, Owner(promise.to.name, promise.to.boot, promise.epoch))

    def heard(self, query: QueryId, owner: Owner) -> bool:
        """Records who owns a query. Returns False if that is older than what is known."""
        known = self.of(query)
        if owner.epoch < known.epoch or (owner.epoch == known.epoch and owner.name != known.name):
            return False
        if owner.epoch > 0:
            self._heard[query] = owner
            self._heard.move_to_end(query)
            while len(self._heard) > OWNERS_MAX:
                self._heard.popitem(last=False)
        return True
