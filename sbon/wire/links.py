"""Messages that acknowledge data on links, and report new places of their ends."""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from sbon.links.dead_ends import Obstruction
from sbon.message_limits import MANY, Count, Epoch, Link, Node, Operator, RowsByOrigin
from sbon.query.plan import LinkSpec


class Acknowledge(msgspec.Struct, frozen=True, tag="ack"):
    """All batches up to `processed` have been processed: their effects are in the receiver's state or output.

    The sender may drop batches up to `safe`: the rows that a stateless operator has made of those have been acknowledged further on.
    """

    link: Link
    processed: Count
    credit: Count
    """Number of batches beyond `processed` that the receiver will accept."""
    resume: bool
    """Batches are missing: send all batches after `processed` again."""
    made: Count | None = None
    """Rows that the receiving operator has made of everything up to `safe`, and of its other inputs; None if unknown."""
    safe: Count | None = None
    """None: the same as `processed`, because the operator keeps state or is a sink."""
    behind: Annotated[tuple[Count, ...], MANY] = ()
    """For everything up to `safe`. If the operator deals its rows: the rows of each part. Otherwise: the rows that each stateless operator
    behind it has made, nearest operator first, as far as known. If the operator has several inputs and does not deal its rows: the numbers
    for this input that the operators behind it have sent in `by_origin`, folded."""
    by_origin: RowsByOrigin | UnsetType = UNSET
    """For everything up to `safe`, if the operator passes origins on (`sbon.links.origins`): for each origin the rows taken, and the rows
    made of them, for each part if it deals them. If it does not, the same numbers of the operators behind it follow, folded. Not set:
    unknown."""


class NoSuchLink(msgspec.Struct, frozen=True, tag="nolink"):
    """The receiver of a batch does not host the link's target, and does not know which node does."""

    link: Link


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """An operator has a new host. The message with the higher epoch is newer."""

    operator: Operator
    node: Node
    epoch: Epoch


class DeadEnd(msgspec.Struct, frozen=True, tag="deadend"):
    """Everything that this link's target feeds is gone, so its rows go nowhere. Repeated while this holds (`sbon.links.dead_ends`)."""

    link: Link
    obstruction: Obstruction


class Handed(msgspec.Struct, frozen=True, tag="handed"):
    """The sending end of a link belongs to another operator of the same host now: a multicast has taken it over, or returned it."""

    link: LinkSpec
    node: Node
