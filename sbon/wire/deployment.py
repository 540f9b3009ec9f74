"""Messages that create, share and end the operators of a query, and repair the links between them."""

from typing import Annotated

import msgspec

from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.query.schema import Schema
from sbon.wire.limits import MANY, Epoch, Link, Node, Operator, Query, Slack


class End(msgspec.Struct, frozen=True, array_like=True):
    """The other end of a link, as the host of one end needs to know it."""

    link: LinkSpec
    node: Node
    schema: Annotated[Schema, MANY]
    """Columns of the rows on the link."""
    epoch: Epoch = 0


class User(msgspec.Struct, frozen=True, array_like=True):
    """A query that uses an operator, and the agent that took the query."""

    query: Query
    owner: Node
    delay_slack_ms: Slack | None = None
    """Allowed growth of the query's longest path; None: it has no delay bound. Below 0 if the bound is exceeded."""


class Instantiate(msgspec.Struct, frozen=True, tag="instantiate"):
    """Run an operator here; a sink takes rows only after `Begin`."""

    spec: OperatorSpec
    inputs: Annotated[tuple[End, ...], MANY]
    outputs: Annotated[tuple[End, ...], MANY]
    user: User


class Use(msgspec.Struct, frozen=True, tag="use"):
    """Let another query use a running operator, and all operators that feed it. `outputs` are its links to the new query's operators."""

    operator: Operator
    user: User
    outputs: Annotated[tuple[End, ...], MANY] = ()
    through: Link | None = None
    """The existing link through which the query uses the operator, if it does so through a later operator."""


class Used(msgspec.Struct, frozen=True, tag="used"):
    """The operator and all that feeds it, with their hosts."""

    operators: Annotated[tuple[tuple[Operator, Node], ...], MANY]


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """All operators of a query run, so its sinks here may take rows. Until then their input waits, so that a deployment that fails
    half-way leaves no row behind. Repeating the message has no effect."""

    query: Query


class Release(msgspec.Struct, frozen=True, tag="release"):
    """A query has ended: everything that only it used here is destroyed."""

    query: Query


class InputLost(msgspec.Struct, frozen=True, tag="inputlost"):
    """The source of this link is gone, and its target must not wait for it any longer. With `back`, the source feeds it again."""

    operator: Operator
    link: Link
    back: bool = False


class Refeed(msgspec.Struct, frozen=True, tag="refeed"):
    """The link `lost` has broken for good, though both its ends live: a new one replaces it. Sent to the host of either end."""

    query: Query
    """The query, which uses both operators."""
    lost: Link
    end: End
    """The new link, and the host of its other end; its rows are those of the old link."""
    gives: bool
    """True if the receiver hosts the source, False if it hosts the target."""


class Replaced(msgspec.Struct, frozen=True, tag="replaced"):
    """The target of this link gets its rows by another link: a host that still has the sending end may drop it."""

    link: Link
