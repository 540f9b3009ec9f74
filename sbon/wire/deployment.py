"""Making, sharing and ending the operators of a query, and mending the links between them."""

from typing import Annotated

import msgspec

from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.query.schema import Schema
from sbon.wire.limits import MANY, Epoch, Link, Node, Operator, Query, Slack


class End(msgspec.Struct, frozen=True, array_like=True):
    """The other end of a link, as a host of one end needs to know it."""

    link: LinkSpec
    node: Node
    schema: Annotated[Schema, MANY]
    """Of the rows on the link."""
    epoch: Epoch = 0


class User(msgspec.Struct, frozen=True, array_like=True):
    """A query that uses an operator, and the agent that took the query."""

    query: Query
    owner: Node
    delay_slack_ms: Slack | None = None
    """By how much the query's longest way may still grow; None: it has no delay bound. Below 0 where the bound is exceeded."""


class Instantiate(msgspec.Struct, frozen=True, tag="instantiate"):
    """Run an operator here; a sink only once `Begin` has come."""

    spec: OperatorSpec
    inputs: Annotated[tuple[End, ...], MANY]
    outputs: Annotated[tuple[End, ...], MANY]
    user: User


class Use(msgspec.Struct, frozen=True, tag="use"):
    """Let another query use a running operator, and all that feeds it. `outputs` are its links to the new query's operators."""

    operator: Operator
    user: User
    outputs: Annotated[tuple[End, ...], MANY] = ()
    through: Link | None = None
    """The existing link by which the query uses the operator, when it does so through a later one."""


class Used(msgspec.Struct, frozen=True, tag="used"):
    """The operator and all that feeds it, with their hosts."""

    operators: Annotated[tuple[tuple[Operator, Node], ...], MANY]


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """All operators of a query run: its sinks here may take rows. Until then they keep what comes waiting, so that a deployment that fails
    half-way leaves no row behind. Said again, it changes nothing."""

    query: Query


class Release(msgspec.Struct, frozen=True, tag="release"):
    """A query has ended: what only it used here is destroyed."""

    query: Query


class InputLost(msgspec.Struct, frozen=True, tag="inputlost"):
    """What feeds this link is no more: the operator at its end must not wait for it any longer. Or, `back`, it feeds it again."""

    operator: Operator
    link: Link
    back: bool = False


class Refeed(msgspec.Struct, frozen=True, tag="refeed"):
    """The link `lost` has broken for good, though both its ends live: from now on its rows go by a new one. Asked of either end's host."""

    query: Query
    """For which; it uses both operators."""
    lost: Link
    end: End
    """The new link, and the host of its other end; the rows are those of the old one."""
    gives: bool
    """Asked of the source, rather than of the target."""


class Replaced(msgspec.Struct, frozen=True, tag="replaced"):
    """The target of this link takes its rows by another one: whoever still has its sending end may forget it."""

    link: Link
