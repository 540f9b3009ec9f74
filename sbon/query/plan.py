"""What a query computes: operators, the links between them, and the rates expected on the links.

A plan is a DAG. Operators are listed upstream first. Sources and sinks are pinned to nodes; all between is unpinned unless the
planner has a reason. An operator has numbered input ports; a port takes any number of links, whose rows are merged (so that a
logical source over many nodes, or a UNION ALL, needs no operator of its own).
"""

from typing import TypeAlias

import msgspec

from sbon.query.expression import Expression
from sbon.query.schema import Schema
from sbon.types import LinkId, NodeId, OperatorId, QueryId

WATERMARK_MIN = -(2**62)
"""Before the first row: nothing is promised."""
WATERMARK_END = 2**62
"""The stream has ended: no row will follow."""


class SourceParams(msgspec.Struct, frozen=True, tag="source"):
    """One physical source. `connector` and `options` are those of its CREATE SOURCE."""

    name: str
    connector: str
    options: tuple[tuple[str, str], ...]
    """Sorted by key. What the connector takes is in its own documentation."""
    columns: Schema
    time_column: str | None
    """The event time; None: rows have none, and time windows and joins over it are refused by the planner."""
    watermark_delay_us: int = 0
    """How far rows may be out of order: the watermark stays this far behind the newest event time."""


class MapParams(msgspec.Struct, frozen=True, tag="map"):
    """Filter, then projection: rows for which `predicate` is true, with `columns` computed from them."""

    predicate: Expression | None
    columns: tuple[tuple[str, Expression], ...] | None
    """Name and value of each output column; None: all input columns as they are."""


class Aggregate(msgspec.Struct, frozen=True, array_like=True):
    """One aggregate of a window: `function` of `operand` (None for COUNT(*)), named `name` in the output."""

    name: str
    function: str
    """One of `AGGREGATE_FUNCTIONS`."""
    operand: Expression | None


AGGREGATE_FUNCTIONS = ("count", "count_distinct", "sum", "min", "max", "avg", "first", "last", "stddev")


class WindowParams(msgspec.Struct, frozen=True, tag="window"):
    """Tumbling (slide = size) or hopping window, aggregated by key.

    Windows start at multiples of the slide since 1970. Output columns: `window_start`, `window_end`, the keys, the aggregates;
    rows of a window leave when the watermark reaches its end plus `allowed_lateness_us`, ordered by window and key. The event time
    of the output is `window_end`. A row all of whose windows have left is late: counted, not used.
    """

    time_column: str
    size_us: int
    slide_us: int
    keys: tuple[tuple[str, Expression], ...]
    aggregates: tuple[Aggregate, ...]
    allowed_lateness_us: int = 0


class JoinParams(msgspec.Struct, frozen=True, tag="join"):
    """Inner equi-join of port 0 (left) and port 1 (right) within a time interval.

    A pair matches when all keys are equal (and not NULL) and `left.time - before_us <= right.time <= left.time + after_us`; rows
    with `residual` (over the output columns) not true are left out. Output columns are given as (output name, side, input name).
    """

    left_time: str
    right_time: str
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    before_us: int
    after_us: int
    columns: tuple[tuple[str, int, str], ...]
    residual: Expression | None = None


class UnionParams(msgspec.Struct, frozen=True, tag="union"):
    """Rows of all inputs, whose schemas are equal, unchanged."""


class SinkParams(msgspec.Struct, frozen=True, tag="sink"):
    """Where answers go. Connector `tail` keeps them for `sbon tail` at the agent that took the query."""

    name: str
    connector: str
    options: tuple[tuple[str, str], ...]


Params: TypeAlias = SourceParams | MapParams | WindowParams | JoinParams | UnionParams | SinkParams


class OperatorSpec(msgspec.Struct, frozen=True):
    """One operator of a plan: what any host needs to know to run it."""

    id: OperatorId
    params: Params
    schema: Schema
    """Of the output; for sinks, of the input."""
    time_column: str | None
    """The event time among the output columns, if it has survived."""
    pinned: NodeId | None
    """The node that it must run on; None: the overlay chooses."""
    signature: str
    """Equal for operators that compute the same from the same sources; see `sbon.query.signature`."""
    ports: int = 1
    """Input ports; 0 for sources."""
    selectivity: float = 1.0
    """Expected output rows per input row."""


class LinkSpec(msgspec.Struct, frozen=True):
    """A stream from one operator to a port of another, with the rate expected on it."""

    id: LinkId
    source: OperatorId
    target: OperatorId
    port: int
    rate_rows_per_s: float
    rate_bytes_per_s: float


class Plan(msgspec.Struct, frozen=True):
    """A query ready to be placed."""

    query: QueryId
    name: str
    """Given by the user (view or sink name), or the query id."""
    sql: str
    operators: tuple[OperatorSpec, ...]
    """Upstream before downstream; the last one is the sink."""
    links: tuple[LinkSpec, ...]


def link_id(source: OperatorId, target: OperatorId, port: int) -> LinkId:
    """The name of a link, made of its ends so that both know it without asking."""
    return f"{source}>{target}:{port}"
