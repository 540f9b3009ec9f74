"""Who runs the operator at the other end of a link: what one host has been told, and whom it therefore believes.

A place changes by migration, and word of it may be late, lost or never sent because the old host has died. So one host knows

    now       where the operator is, by the last word of a host that was entitled to give it, with its epoch
    named     hosts that the present host has named as its next one, each for an epoch, when it asked for the promise to keep still
    former    where it was before: what still comes from there is late

The present host and the named ones *speak* for the operator. A word of a former host changes nothing and is *late*. Any other
node is a *stranger* to the link, whatever it claims.
"""

import enum
from collections.abc import Iterable

from sbon.types import NodeId

NAMED_MAX = 4
"""Next hosts kept for one end of a link; of more, those of the lowest epochs are forgotten."""


class Standing(enum.Enum):
    """What a word counts for that comes from a certain node."""

    SPEAKS = "speaks"
    """The node is entitled to it."""
    LATE = "late"
    """It was, before: the word changes nothing and does no harm."""
    STRANGER = "stranger"
    """It is not."""


class Whereabouts:
    """Where the operator at the other end of a link is, as far as is known here."""

    __slots__ = ("epoch", "former", "named", "node")

    def __init__(self, node: NodeId, epoch: int, named: Iterable[tuple[int, NodeId]] = ()) -> None:
        self.node = node
        """Its host, as last heard."""
        self.epoch = epoch
        """How often the operator had migrated when it was heard to be there; 0 where that is not known."""
        self.named: dict[int, NodeId] = dict(named)
        """Next hosts, by the epoch that the operator would have there."""
        self.former: NodeId | None = None

    def standing(self, speaker: NodeId) -> Standing:
        """Tells what a node's word on this end counts for."""
        if speaker == self.node or speaker in self.named.values():
            return Standing.SPEAKS
        return Standing.LATE if speaker == self.former else Standing.STRANGER

    def name(self, node: NodeId, epoch: int) -> None:
        """Notes a next host, as the operator's host has told it; an epoch that is not above the known one changes nothing."""
        if epoch > self.epoch:
            self.named[epoch] = node
            while len(self.named) > NAMED_MAX:
                del self.named[min(self.named)]

    def unname(self, holder: NodeId) -> None:
        """Forgets the next hosts that `holder` has named: the migration that it led is over.

        A holder that is itself a next host leads a later migration than the one that named it. Its own name stays: the word that the
        operator is there may be lost for good, where its former host has taken this one for failed.
        """
        own = max((epoch for epoch, node in self.named.items() if node == holder), default=self.epoch)
        self.named = {epoch: node for epoch, node in self.named.items() if epoch <= own}

    def moved(self, node: NodeId, epoch: int) -> None:
        """Takes a new place of the operator, which must be a later one."""
        if node != self.node:
            self.former = self.node
        self.node, self.epoch = node, epoch
        self.named = {later: there for later, there in self.named.items() if later > epoch}


def standing_by_places(places: Iterable[Whereabouts], speaker: NodeId) -> Standing:
    """Tells what a node's word on an operator counts for where several ends of links know the operator's place.

    The places of the highest epoch are the latest, and count; a former host is one of any of them.
    """
    known = list(places)
    latest = max((place.epoch for place in known), default=0)
    found = {place.standing(speaker) for place in known if place.epoch == latest}
    if Standing.SPEAKS in found:
        return Standing.SPEAKS
    was_there = any(speaker in (place.node, place.former) for place in known)
    return Standing.LATE if was_there else Standing.STRANGER
