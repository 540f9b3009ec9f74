"""Messages that create, share and end the operators of a query, and repair the links between them."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Amount, Count, Delay, Epoch, Few, Link, Node, Operator, Query, RowsByOrigin, Slack, Text, Watermark
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
    """Number of the last batch that the other end has seen; a new end here continues after it (`sbon.supervision.recovery`)."""
    rows: Count = 0
    """Rows that the other end has taken, or has had acknowledged, up to batch `after`."""
    skip_rows: Count = 0
    """Number of first rows that are not sent on this link, because the other end took them before a crash."""
    watermark_us: Watermark = WATERMARK_MIN
    """Watermark of the acknowledged batches of an input; known only if all batches are acknowledged. For an output to a living consumer: a
    watermark that the rows which it has had of former copies had been made for."""
    made: Origins | None = None
    """For an input of a new copy of an operator with several inputs: the rows that the former copy had made of the input up to `after`, for
    each part if it deals them."""
    origins: Origins | None = None
    """For an input: `rows` by origin (`sbon.links.origins`); None if unknown."""
    skips: Origins = ()
    """`skip_rows` by origin."""
    made_by_origin: RowsByOrigin | None = None
    """For the input of a new copy of an operator that passes origins on: the rows that the former copy had made of each origin up to
    `after`, for each part if it deals them; None if unknown."""


class User(msgspec.Struct, frozen=True, array_like=True):
    """A query that uses an operator, and the agent that took the query."""

    query: Query
    owner: Node
    delay_slack_ms: Slack | None = None
    """Time by which the query's longest path may grow; None: the query has no delay bound. Below 0 if the bound is exceeded."""
    max_latency_ms: Amount | None = None
    """The query's bound on the latency of answers; None: it has none."""


class DealtTurns(msgspec.Struct, frozen=True, array_like=True):
    """The owners of turns of event time that a splitter, or an instance behind it, knows (`sbon.dealing.owners`)."""

    turns: Annotated[tuple[tuple[Watermark, Few], ...], MANY]
    """Turns, in the order in which they were decided, with the numbers of their instances."""
    is_whole: bool
    """True if these are all turns that were decided before the last of them."""


class TakenUp(msgspec.Struct, frozen=True):
    """The known progress of a lost operator that is made again after its host crashed (`sbon.supervision.recovery`)."""

    epoch: Epoch
    rows_out: Count = 0
    """Rows that the operator counts as made before."""
    watermark_us: Watermark = WATERMARK_MIN
    """Watermark at which the operator's state begins, empty."""
    watermark_out_us: Watermark = WATERMARK_MIN
    """Watermark that the consumers have seen."""
    seconds: Delay = 0.0
    """Time since the query began; a source that reads its file again counts this time as passed."""
    begun_at: Count | None = None
    """Position in the sink's file where the query's rows begin; None if unknown."""
    users: Annotated[tuple[User, ...], MANY] = ()
    """Other queries that used the operator."""
    lost_rows: Count | msgspec.UnsetType = msgspec.UNSET
    """Rows that a sink has lost in earlier crashes."""
    begins_behind: Count | msgspec.UnsetType = msgspec.UNSET
    """A source begins at the position that its host kept after this many of its rows. Not set: at its first row, or where it can."""
    is_fresh: bool | msgspec.UnsetType = msgspec.UNSET
    """A sink skips no row, whatever is in its file: nobody knows how many of the rows to come are there, or none are."""
    fresh: Annotated[tuple[Link, ...], MANY] = ()
    """Inputs of a sink, by their links' first names, whose rows are not in its file yet, whatever it has noted of them."""
    matches: bool | msgspec.UnsetType = msgspec.UNSET
    """A sink gets all rows of the query once more in another order, and leaves out those that are in its file."""
    dealt: DealtTurns | msgspec.UnsetType = msgspec.UNSET
    """For a splitter that asks a dealer, or an instance behind it: the owners of turns that its living neighbours know. Not set if a
    neighbour's release does not tell them."""


class Instantiate(msgspec.Struct, frozen=True, tag="instantiate"):
    """Make and run an operator here. A sink takes rows only after `Begin`."""

    spec: OperatorSpec
    inputs: Annotated[tuple[End, ...], MANY]
    outputs: Annotated[tuple[End, ...], MANY]
    user: User
    taken_up: TakenUp | None = None
    """Set for an operator that is made again after a crash; an earlier copy here ends."""


class Use(msgspec.Struct, frozen=True, tag="use"):
    """Let another query use a running operator, and all operators that feed it. `outputs` are its links to the new query's operators."""

    operator: Operator
    user: User
    outputs: Annotated[tuple[End, ...], MANY] = ()
    through: Link | None = None
    """If the query uses the operator through a later operator: the existing link to that one."""


class Used(msgspec.Struct, frozen=True, tag="used"):
    """Answers Use with the operator and all operators that feed it, with their hosts."""

    operators: Annotated[tuple[tuple[Operator, Node], ...], MANY]
    before_rows: Count = 0
    """Number of rows that the operator had given before it got the requested outputs."""
    before_us: Watermark = WATERMARK_MIN
    """If the operator is a source: an event time that none of these rows exceeds."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """All operators of a query run, so its sinks here may take rows. Before, their input waits, so that a deployment that fails half-way
    writes no row. Repeating the message has no effect. The answer, `OperatorReports`, gives the positions in their files where these sinks
    begin, so that the home knows after a crash which rows are the query's."""

    query: Query


class Release(msgspec.Struct, frozen=True, tag="release"):
    """A query has ended: destroy everything here that only this query used."""

    query: Query


class InputLost(msgspec.Struct, frozen=True, tag="inputlost"):
    """The source of this link is gone, and its target must no longer wait for it. With `back`, the source is there again."""

    operator: Operator
    link: Link
    back: bool = False


class Refeed(msgspec.Struct, frozen=True, tag="refeed"):
    """The link `lost` has broken for good, though both its operators run: a new link replaces it. Sent to the hosts of both ends."""

    query: Query
    """The query that uses both operators."""
    lost: Link
    end: End
    """The new link, which carries the same rows, and the host of its other end."""
    gives: bool
    """True if the receiver hosts the source, False if it hosts the target."""
    is_over: bool | msgspec.UnsetType = msgspec.UNSET
    """The source is not made again, because the query that it was made for has finished: the new link has ended."""


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """The operator at the other end of a link has been made again, under a higher epoch. The link gets another id; its numbers continue.
    Sent to the host of the living end, whatever id the link has there. Repeating it has no effect."""

    query: Query
    """The query that the operator was made for."""
    end: End
    """The link with its new id, and the host of the other end."""
    gives: bool
    """True if the receiver hosts the source, False if it hosts the target."""
    begins: bool | msgspec.UnsetType = msgspec.UNSET
    """The source has given the link up. If it has no sending end, it gets one that begins behind all rows that it has made."""


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    """Answers Renew with the living end's knowledge of the lost operator's progress."""

    link: LinkSpec
    """The link as the living end has it now."""
    after: Count
    """From the source: number of the last batch acknowledged. From the target: number of the last batch taken."""
    rows: Count
    """Rows up to batch `after`."""
    watermark_us: Watermark
    """From the source: a watermark for which it had made all rows acknowledged, or a higher one. From the target: that of the last batch
    taken."""
    settled_us: Watermark = WATERMARK_MIN
    """From the source: its watermark, if all its batches have been acknowledged."""
    schema: Annotated[Schema, MANY] = ()
    """From the source: columns of its rows."""
    made: Count | None = None
    """From the source: rows that the lost operator had made of everything up to `after`; None if unknown."""
    behind: Annotated[tuple[Count, ...], MANY] = ()
    """With `made`: the rows of each part, or the rows that stateless operators behind had made of them (`Acknowledge`)."""
    passes: bool = False
    """From the source: the lost operator kept no state, and all rows that it had made up to `after` have been acknowledged further on."""
    origins: Origins | None = None
    """`rows` by origin (`sbon.links.origins`); None if unknown."""
    by_origin: RowsByOrigin | None = None
    """With `made`, if the lost operator passed origins on: `made` and `behind` by origin (`Acknowledge`); None if unknown."""
    ahead_us: Watermark = WATERMARK_MIN
    """From a target that keeps state and has continued without the lost operator: the event time up to which it has given answers."""
    sent_us: Watermark | msgspec.UnsetType = msgspec.UNSET
    """From the source: a watermark for which it had made all batches that may have arrived, with or without rows, or a higher one. Not set
    by older releases."""
    is_whole: bool = False
    """From the target: the last rows taken are known not to be the first part of an answer, so `watermark_us` is that of the answer."""
    dealt: DealtTurns | msgspec.UnsetType = msgspec.UNSET
    """From a splitter that asks a dealer, or an instance behind it: the owners of turns that it knows."""


class LeaveOut(msgspec.Struct, frozen=True, tag="leaveout"):
    """A running operator answers from now on without the rows before `begin`, because a crash of another host has taken rows that these
    would need. Repeating the message has no effect."""

    query: Query
    """The query that the operator was made for."""
    operator: Operator
    column: Text
    """Output column with an event time."""
    us: Watermark
    """Rows with an earlier event time in that column, in microseconds, are left out."""


class Replaced(msgspec.Struct, frozen=True, tag="replaced"):
    """The target of this link gets its rows by another link. A host that still has this link's sending end may drop it."""

    link: Link
