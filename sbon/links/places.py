"""Tracks which host runs the operator at the other end of a link, and which hosts may speak for it.

A place changes by migration, and the message about it may be late, lost or never sent because the old host has died. So one host keeps

    now       where the operator is, by the last message of a host that was entitled to say so, with its epoch
    named     hosts that the present host has named as its next one, each for an epoch, when it asked for a lock
    former    where it was before: messages that still come from there are late

The present host and the named ones *speak* for the operator. A message from a former host changes nothing and is *late*. Any other
node is a *stranger* to the link, whatever it claims.
"""

import enum
from collections.abc import Iterable

from sbon.types import NodeId

NAMED_MAX = 4
"""Most next hosts kept for one end of a link; those of the lowest epochs are dropped first."""


class Standing(enum.Enum):
    """The authority of a message from a certain node."""

    SPEAKS = "speaks"
    """The node may speak for the operator."""
    LATE = "late"
    """The node was entitled before: its message is ignored as harmless."""
    STRANGER = "stranger"
    """The node was never entitled."""


class Whereabouts:
    """The known hosts of the operator at the other end of a link."""

    __slots__ = ("epoch", "former", "named", "node")

    def __init__(self, node: NodeId, epoch: int, named: Iterable[tuple[int, NodeId]] = ()) -> None:
        self.node = node
        """Its present host, as last reported."""
        self.epoch = epoch
        """Number of migrations of the operator when it was reported there; 0 if that is not known."""
        self.named: dict[int, NodeId] = dict(named)
        """Next hosts by the epoch that the operator would have there."""
        self.former: NodeId | None = None

    def standing(self, speaker: NodeId) -> Standing:
        """Returns the authority of a node's message about this end."""
        if speaker == self.node or speaker in self.named.values():
            return Standing.SPEAKS
        return Standing.LATE if speaker == self.former else Standing.STRANGER

    def name(self, node: NodeId, epoch: int) -> None:
        """Records a next host named by the operator's host; an epoch that is not above the known one changes nothing."""
        if epoch > self.epoch:
            self.named[epoch] = node
            while len(self.named) > NAMED_MAX:
                del self.named[min(self.named)]

    def unname(self, holder: NodeId) -> None:
        """Drops the next hosts that `holder` has named, because its migration is over.

        A holder that is itself a next host leads a later migration than the one that named it. Its own entry stays: the message that the
        operator is there may be lost for good, if its former host considered this one failed.
        """
        own = max((epoch for epoch, node in self.named.items() if node == holder), default=self.epoch)
        self.named = {epoch: node for epoch, node in self.named.items() if epoch <= own}

    def moved(self, node: NodeId, epoch: int) -> None:
        """Records a new place of the operator, which must be a later one."""
        if node != self.node:
            self.former = self.node
        self.node, self.epoch = node, epoch
        self.named = {later: there for later, there in self.named.items() if later > epoch}


def standing_by_places(places: Iterable[Whereabouts], speaker: NodeId) -> Standing:
    """Returns the authority of a node's message about an operator whose place several links know.

    The places of the highest epoch are the latest, and decide; a node is a former host if any of the places lists it.
    """
    known = list(places)
    latest = max((place.epoch for place in known), default=0)
    found = {place.standing(speaker) for place in known if place.epoch == latest}
    if Standing.SPEAKS in found:
        return Standing.SPEAKS
    was_there = any(speaker in (place.node, place.former) for place in known)
    return Standing.LATE if was_there else Standing.STRANGER
