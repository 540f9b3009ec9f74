"""Messages that give a running query another plan (docs/replanning.md)."""

from typing import Annotated

import msgspec

from sbon.message_limits import MANY, Count, Epoch, Node, Operator, Query, Text, Watermark
from sbon.wire.deployment import End


class Cross(msgspec.Struct, frozen=True, tag="cross"):
    """Connects a sink to another plan as well. The sink drops that plan's answers until it is told where to cross (`Cut`). Repeating the
    message has no effect."""

    query: Query
    operator: Operator
    """The sink."""
    number: Count
    """Number of the change; later changes of a query have higher numbers."""
    inputs: Annotated[tuple[End, ...], MANY]
    """The links from the other plan."""
    time_column: Text
    """Column with the answers' event time, in both plans."""


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """Makes the sink take the answers of the other plan from an event time on. The sink chooses a time later than `after_us` and than all
    rows that it has written or dropped. Repeating the message asks for the sink's progress."""

    query: Query
    operator: Operator
    number: Count
    after_us: Watermark
    go: bool = False
    """Every operator of both plans has been running since the sink was ready: the sink may cross."""


class Uncut(msgspec.Struct, frozen=True, tag="uncut"):
    """Keeps the present plan, unless the sink has crossed already. From then on the sink refuses this change, even if the change's messages
    arrive only later."""

    query: Query
    operator: Operator
    number: Count


class Crossing(msgspec.Struct, frozen=True, tag="crossing"):
    """Answers Cut and Uncut."""

    at_us: Watermark
    """The event time from which on the sink takes the answers of the other plan."""
    has_crossed: bool
    is_ready: bool = False
    """Both plans have given all answers before that time, and the sink waits for permission to cross."""
    is_called_off: bool = False
    """The change is called off; the present plan stays."""


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """A query no longer uses these operators. Those that no other query uses end, and so do the links to and from them."""

    query: Query
    operators: Annotated[tuple[Operator, ...], MANY]
    left: Annotated[tuple[Operator, ...], MANY] = ()
    """Operators that other queries use. They run on with all that feeds them, and their links to the query's own operators end."""


class Retired(msgspec.Struct, frozen=True, tag="retired"):
    """Answers Retire."""

    moved: Annotated[tuple[tuple[Operator, Node, Epoch], ...], MANY] = ()
    """Operators that have moved away from here, with their new hosts and epochs."""
