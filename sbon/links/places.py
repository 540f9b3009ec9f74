"""Tracks which host runs the operator at the other end of a link, and which hosts may speak for it.

A place changes when the operator migrates, and the message about it may be late, lost or never sent because the old host has died. So a
host keeps for each end

    now       the operator's present host and epoch, by the last message of a host that was entitled to give it
    named     the next hosts that the present host has named when it asked for a lock, each for an epoch
    former    the previous host: messages that still come from it are late

The present host and the named hosts *speak* for the operator. A message from the former host is *late* and changes nothing. Any other node
is a *stranger* to the link.
"""

import enum
from collections.abc import Iterable

from sbon.types import NodeId

NAMED_MAX = 4
"""Most next hosts kept for one end of a link; those of the lowest epochs are dropped first."""


class Standing(enum.Enum):
    """A node's authority to speak for an operator."""

    SPEAKS = "speaks"
    """The node may speak for the operator."""
    LATE = "late"
    """The node was entitled before: its message is harmless and ignored."""
    STRANGER = "stranger"
    """The node was never entitled."""


class Whereabouts:
    """The known hosts of the operator at the other end of a link."""

    __slots__ = ("epoch", "former", "named", "node")

    def __init__(self, node: NodeId, epoch: int, named: Iterable[tuple[int, NodeId]] = ()) -> None:
        self.node = node
        """The operator's present host, as last reported."""
        self.epoch = epoch
        """Number of the operator's migrations up to the present host; 0 if unknown."""
        self.named: dict[int, NodeId] = dict(named)
        """Next hosts, by the epoch that the operator would have there."""
        self.former: NodeId | None = None

    def standing(self, speaker: NodeId) -> Standing:
        """Returns the authority of a node's message about this end."""
        if speaker == self.node or speaker in self.named.values():
            return Standing.SPEAKS
        return Standing.LATE if speaker == self.former else Standing.STRANGER

    def name(self, node: NodeId, epoch: int) -> None:
        """Records a next host that the operator's host has named. Does nothing if the epoch is not above the known one."""
        if epoch > self.epoch:
            self.named[epoch] = node
            while len(self.named) > NAMED_MAX:
                del self.named[min(self.named)]

    def unname(self, holder: NodeId) -> None:
        """Drops the next hosts that `holder` has named, because its migration is over.

        If `holder` is itself a next host, its own entry stays: the message that the operator has arrived there is lost for good if the
        former host considered this host failed. Only entries of later epochs are dropped.
        """
        own = max((epoch for epoch, node in self.named.items() if node == holder), default=self.epoch)
        self.named = {epoch: node for epoch, node in self.named.items() if epoch <= own}

    def moved(self, node: NodeId, epoch: int) -> None:
        """Records a new place of the operator. Its epoch must not be below the known one."""
        if node != self.node:
            self.former = self.node
        self.node, self.epoch = node, epoch
        self.named = {later: there for later, there in self.named.items() if later > epoch}


def standing_by_places(places: Iterable[Whereabouts], speaker: NodeId) -> Standing:
    """Returns a node's authority to speak for an operator whose place several links record.

    The places of the highest epoch decide who speaks. A node is a former host if any place lists it.
    """
    known = list(places)
    latest = max((place.epoch for place in known), default=0)
    found = {place.standing(speaker) for place in known if place.epoch == latest}
    if Standing.SPEAKS in found:
        return Standing.SPEAKS
    was_there = any(speaker in (place.node, place.former) for place in known)
    return Standing.LATE if was_there else Standing.STRANGER
