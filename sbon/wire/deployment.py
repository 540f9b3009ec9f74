"""Messages that create, share and end the operators of a query, and repair the links between them."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Amount, Count, Delay, Epoch, Link, Node, Operator, Query, RowsByOrigin, Slack, Watermark
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.schema import Schema
from sbon.watermarks import WATERMARK_MIN

Origins = Annotated[tuple[Count, ...], MANY]


class End(msgspec.Struct, frozen=True, array_like=True):
    """The other end of a link, as the host of one end needs to know it."""

    link: LinkSpec
    node: Node
    schema: Annotated[Schema, MANY]
    """Columns of the rows on the link."""
    epoch: Epoch = 0
    after: Count = 0
    """The last number that the other end has seen: an end that is made here goes on behind it (`sbon.supervision.recovery`)."""
    rows: Count = 0
    """Rows that the other end has taken, or has had acknowledged, up to there."""
    skip_rows: Count = 0
    """First rows that are not given on this link, because the other end has taken them before a crash."""
    watermark_us: Watermark = WATERMARK_MIN
    """Watermark of what has been acknowledged; known only if nothing else waits."""
    made: Origins | None = None
    """For a new copy of an operator with several inputs, of an input: the rows that the former one had made of it up to `after`, of each
    part if it deals them."""
    origins: Origins | None = None
    """For an input: `rows` by their origin (`sbon.links.origins`); None if that is not known."""
    skips: Origins = ()
    """`skip_rows` by origin."""
    made_by_origin: RowsByOrigin | None = None
    """For a new copy of an operator that passes origins on, of its input: the rows that the former one had made of each origin up to
    `after`, of each part if it deals them; None if that is not known."""


class User(msgspec.Struct, frozen=True, array_like=True):
    """A query that uses an operator, and the agent that took the query."""

    query: Query
    owner: Node
    delay_slack_ms: Slack | None = None
    """Allowed growth of the query's longest path; None: it has no delay bound. Below 0 if the bound is exceeded."""
    max_latency_ms: Amount | None = None
    """Greatest latency of an answer that the query accepts; None: it has no such bound."""


class TakenUp(msgspec.Struct, frozen=True):
    """The known progress of an operator whose host has crashed and which is made anew (`sbon.supervision.recovery`)."""

    epoch: Epoch
    rows_out: Count = 0
    """Rows that it counts as made before."""
    watermark_us: Watermark = WATERMARK_MIN
    """Watermark at which its state begins, empty."""
    watermark_out_us: Watermark = WATERMARK_MIN
    """Watermark that its consumers have seen."""
    seconds: Delay = 0.0
    """Time since its query began; a source that reads its file again is that far already."""
    begun_at: Count | None = None
    """Place in its file where the rows of a sink begin; None if unknown."""
    users: Annotated[tuple[User, ...], MANY] = ()
    """Other queries that used it."""
    lost_rows: Count | msgspec.UnsetType = msgspec.UNSET
    """Rows that a sink has lost in earlier crashes."""
    begins_behind: Count | msgspec.UnsetType = msgspec.UNSET
    """A source begins at the position that its host has kept behind so many of its rows; not set: at its first row, or where it can."""


class Instantiate(msgspec.Struct, frozen=True, tag="instantiate"):
    """Run an operator here; a sink takes rows only after `Begin`."""

    spec: OperatorSpec
    inputs: Annotated[tuple[End, ...], MANY]
    outputs: Annotated[tuple[End, ...], MANY]
    user: User
    taken_up: TakenUp | None = None
    """Set for an operator that begins anew after a crash; an earlier copy here ends."""


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
    before_rows: Count = 0
    """Rows that the operator had given before it got the outputs of the question."""
    before_us: Watermark = WATERMARK_MIN
    """At least the event time of each of them, if the operator is a source."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """All operators of a query run, so its sinks here may take rows. Until then their input waits, so that a deployment that fails
    half-way leaves no row behind. Repeating the message has no effect. The answer, `OperatorReports`, says where in their files these sinks
    begin: should their host crash at once, the home knows which rows are the query's."""

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
    is_over: bool | msgspec.UnsetType = msgspec.UNSET
    """Nobody makes the source again, as the query that it was made for has finished: the new link has ended."""


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """The operator at the other end of a link runs anew, under a higher epoch: the link gets another id, and its numbers go on. Sent to the
    host of the living end, whichever id the link has there; repeating it has no effect."""

    query: Query
    """The query that the operator was made for."""
    end: End
    """The link with its new id, and the host of the other end."""
    gives: bool
    """True if the receiver hosts the source, False if it hosts the target."""


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    """Answers Renew with what the living end knows of the lost one."""

    link: LinkSpec
    """The link as the living end has it now."""
    after: Count
    """The source's answer: the last number acknowledged. The target's: the last number taken."""
    rows: Count
    """Rows up to there."""
    watermark_us: Watermark
    """The source's answer: at least the watermark of the last batch acknowledged. The target's: that of the last one taken."""
    settled_us: Watermark = WATERMARK_MIN
    """The source's answer: its watermark, if everything that it has given has been acknowledged."""
    schema: Annotated[Schema, MANY] = ()
    """The source's answer: columns of its rows."""
    made: Count | None = None
    """The source's answer: rows that the lost operator had made of everything up to there; None if unknown."""
    behind: Annotated[tuple[Count, ...], MANY] = ()
    """With `made`: rows of each of its parts, or of the operators without state behind it (`Acknowledge`)."""
    passes: bool = False
    """The source's answer: the lost operator kept no state, and all that it had made of the rows up to there has been acknowledged further
    on."""
    origins: Origins | None = None
    """`rows` by their origin (`sbon.links.origins`); None if that is not known."""
    by_origin: RowsByOrigin | None = None
    """With `made`, if the lost operator passed origins on: the same by origin (`Acknowledge`); None if that is not known."""
    ahead_us: Watermark = WATERMARK_MIN
    """The target's answer, if it keeps state and has gone on without the lost operator: the event time up to which it has answered."""


class Replaced(msgspec.Struct, frozen=True, tag="replaced"):
    """The target of this link gets its rows by another link: a host that still has the sending end may drop it."""

    link: Link
