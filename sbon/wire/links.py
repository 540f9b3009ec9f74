"""Messages that acknowledge data on links, and report new places of their ends."""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from sbon.links.dead_ends import Obstruction
from sbon.message_limits import MANY, Count, Epoch, Link, Node, Operator, RowsByOrigin
from sbon.query.plan import LinkSpec


class Acknowledge(msgspec.Struct, frozen=True, tag="ack"):
    """All batches up to `processed` have been processed, and their effects are in the receiver's state or output.

    They may be forgotten up to `safe`: what an operator without state has made of those has been acknowledged further on.
    """

    link: Link
    processed: Count
    credit: Count
    """Number of batches beyond `processed` that the receiver will accept."""
    resume: bool
    """Batches are missing: send everything after `processed` again."""
    made: Count | None = None
    """Rows that the receiving operator has made of everything up to `safe`, and of its other inputs; None if that is unknown."""
    safe: Count | None = None
    """None: `processed`, as the operator keeps state or is a sink."""
    behind: Annotated[tuple[Count, ...], MANY] = ()
    """For everything up to `safe`: rows of each part, if the operator deals them; otherwise the rows that operators without state behind it
    have made, one after the other, as far as that is known. If the receiving operator has several inputs and does not deal its rows: for
    this input, what the operators behind it have told in `by_origin`, folded."""
    by_origin: RowsByOrigin | UnsetType = UNSET
    """For everything up to `safe`, if the operator passes origins on (`sbon.links.origins`): for each origin the rows taken, and those made
    of them, of each part if it deals them; otherwise the same numbers of the operators behind it follow, folded. Not there: not known."""


class NoSuchLink(msgspec.Struct, frozen=True, tag="nolink"):
    """The receiver of some data does not host the link's target and does not know who does."""

    link: Link


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """An operator has a new host. The message with the higher epoch is newer."""

    operator: Operator
    node: Node
    epoch: Epoch


class DeadEnd(msgspec.Struct, frozen=True, tag="deadend"):
    """All that this link's target feeds is gone, so its rows go nowhere. Repeated while this holds; see `sbon.links.dead_ends`."""

    link: Link
    obstruction: Obstruction


class Handed(msgspec.Struct, frozen=True, tag="handed"):
    """The sending end of a link belongs to another operator of the same host now: a multicast has taken it over, or returned it."""

    link: LinkSpec
    node: Node
