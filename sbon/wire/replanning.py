"""Messages by which a running query gets another plan (docs/replanning.md)."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Count, Epoch, Node, Operator, Query, Text, Watermark
from sbon.wire.deployment import End


class Cross(msgspec.Struct, frozen=True, tag="cross"):
    """A sink gets the answers of another plan, too. It drops them until it is told where to cross (`Cut`). Repeating it has no effect."""

    query: Query
    operator: Operator
    """The sink."""
    number: Count
    """Number of the change; later changes of a query have higher ones."""
    inputs: Annotated[tuple[End, ...], MANY]
    """The links from the other plan."""
    time_column: Text
    """Event time of the answers, in both plans."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """Answers are taken from the other plan from an event time on, which the sink chooses: behind `after_us` and all rows that it has
    written or dropped. Repeating it asks how far the sink is."""

    query: Query
    operator: Operator
    number: Count
    after_us: Watermark
    go: bool = False
    """Every operator of both plans has been there since the sink was ready: it crosses."""


class Uncut(msgspec.Struct, frozen=True, tag="uncut"):
    """The present plan goes on, unless the sink has crossed already. The sink refuses this change from then on, also if it hears of it only
    later."""

    query: Query
    operator: Operator
    number: Count


class Crossing(msgspec.Struct, frozen=True, tag="crossing"):
    """Answers Cut and Uncut."""

    at_us: Watermark
    """The event time from which on answers are those of the other plan."""
    has_crossed: bool
    is_ready: bool = False
    """Both plans have given everything before, and the sink waits for the word to cross."""
    is_called_off: bool = False
    """The present plan goes on, for good."""


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """A query does not use these operators any more. Those that nobody else uses end, and so do links to and from them."""

    query: Query
    operators: Annotated[tuple[Operator, ...], MANY]
    left: Annotated[tuple[Operator, ...], MANY] = ()
    """Operators that run on, with what feeds them, as others use them: their links to the query's own operators end."""


class Retired(msgspec.Struct, frozen=True, tag="retired"):
    """Answers Retire."""

    moved: Annotated[tuple[tuple[Operator, Node, Epoch], ...], MANY] = ()
    """Those that have moved from here, and where."""
