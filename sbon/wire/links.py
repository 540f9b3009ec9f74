"""How data on links is acknowledged, and where the ends of links have gone."""

import msgspec

from sbon.dead_ends import Obstruction
from sbon.query.plan import LinkSpec
from sbon.wire.limits import Count, Epoch, Link, Node, Operator


class Acknowledge(msgspec.Struct, frozen=True, tag="ack"):
    """All batches up to `processed` have been processed, and their effects are in the receiver's state or output."""

    link: Link
    processed: Count
    credit: Count
    """How many batches beyond `processed` the receiver will hold."""
    resume: bool
    """Batches are missing: send everything after `processed` again."""


class NoSuchLink(msgspec.Struct, frozen=True, tag="nolink"):
    """The receiver of some data does not host the link's target and does not know who does."""

    link: Link


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """An operator has a new host. Of two such words the one with the higher epoch is the later."""

    operator: Operator
    node: Node
    epoch: Epoch


class DeadEnd(msgspec.Struct, frozen=True, tag="deadend"):
    """All that this link's target feeds is gone: what goes by the link stays there. Repeated while it is so; see `sbon.dead_ends`."""

    link: Link
    obstruction: Obstruction


class Handed(msgspec.Struct, frozen=True, tag="handed"):
    """The sending end of a link belongs to another operator of the same host now: a multicast has taken it, or given it back."""

    link: LinkSpec
    node: Node
