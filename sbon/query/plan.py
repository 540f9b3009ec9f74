"""The plan of a query: operators, the links between them, and the rates expected on the links.

A plan is a DAG. Operators are listed upstream first. Sources and sinks are pinned to nodes; all others are unpinned unless the
planner has a reason. An operator has numbered input ports; a port takes any number of links, whose rows are merged (so that a
logical source over many nodes, or a UNION ALL, needs no operator of its own).

Parameters beyond the limits of `sbon.query.limits` cannot be constructed: the planner refuses the query, and a message with such an
operator is not decoded.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from sbon.query.expression import Expression
from sbon.query.limits import (
    IDLE_US_MAX,
    INSTANCES_MAX,
    LIMIT_MAX,
    PRECEDING_MAX,
    SEPARATOR_MAX,
    SPAN_US_MAX,
    LimitError,
    check_count,
    check_expressions,
    check_keys,
    check_outer,
    check_share,
    check_span,
    check_windows,
)
from sbon.query.row_pattern import (
    PROGRAM_MAX,
    Pattern,
    Variable,
    check_pattern_depth,
    length,
    may_skip,
    walk,
)
from sbon.query.schema import ARRAY_TYPES, ColumnType, Schema, array_type
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.limits import Amount, Epoch, Few, Link, Operator

LEAVE_OUT, INCOMPLETE = AFTER_CRASH = ("leave_out", "incomplete")
"""Choices for windows and sessions of which a crash has taken rows."""
FINISH, DEFER, SHED = ON_MISS = ("finish", "defer", "shed")
"""Choices for rows that would be late."""
WATERMARK_MIN = -(2**62)
"""Watermark before the first row; it promises nothing."""
WATERMARK_END = 2**62
"""Watermark after the last row: the stream has ended."""


class Reads(msgspec.Struct, frozen=True):
    """The columns and rows of a source that its query needs. A connector may give NULL in other columns, and leave out rows of which a
    condition is not true. Their event times still count: the watermark advances as if the rows had come."""

    columns: tuple[str, ...]
    """The columns needed, sorted. The event time and NOT NULL columns are needed even if they are not listed."""
    conditions: tuple[Expression, ...] = ()
    """Conditions that compare a column with a constant. The query's other conditions are not listed; a later operator checks them all."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.columns))
        check_count("conditions", len(self.conditions))
        check_expressions(self.conditions)


class SourceParams(msgspec.Struct, frozen=True, tag="source"):
    """One physical source. `connector` and `options` are those of its CREATE SOURCE."""

    name: str
    connector: str
    options: tuple[tuple[str, str], ...]
    """Options sorted by key. The connector's documentation lists them."""
    columns: Schema
    time_column: str | None
    """Column of the event time. None: rows have none, and the planner refuses time windows and joins over the source."""
    watermark_delay_us: int = 0
    """Greatest disorder of rows: the watermark stays this far behind the newest event time."""
    idle_after_us: int = 0
    """Silence after which the watermark follows the wall clock; 0: never."""
    not_null: tuple[str, ...] = ()
    """Columns that may not be NULL: rows with NULL there are dropped where the source is read, and counted."""
    is_table: bool = False
    """The source is read as a lookup table: it sends complete versions (`sbon.query.table_versions`) and never ends."""
    reads: Reads | None = None
    """The columns and rows that the query needs; None: all."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.columns))
        if not {column.name for column in self.columns}.issuperset(self.not_null):
            raise LimitError(f"source {self.name} with NOT NULL columns {', '.join(self.not_null)}, expected some of its own")
        check_count("options", len(self.options))
        check_span("watermark delay", self.watermark_delay_us, 0)
        if not 0 <= self.idle_after_us <= IDLE_US_MAX:
            raise LimitError(f"a source is idle after {self.idle_after_us} µs, expected 0 to {IDLE_US_MAX}")


class MapParams(msgspec.Struct, frozen=True, tag="map"):
    """Filter, then projection: rows for which `predicate` is true, with `columns` computed from them."""

    predicate: Expression | None
    columns: tuple[tuple[str, Expression], ...] | None
    """Name and value of each output column; None: all input columns unchanged."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.columns or ()))
        check_expressions((self.predicate, *(value for _, value in self.columns or ())))


AGGREGATE_FUNCTIONS = (
    "count",
    "count_distinct",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "last",
    "stddev",
    "stddev_pop",
    "var_samp",
    "var_pop",
    "covar_samp",
    "covar_pop",
    "corr",
    "regr_slope",
    "regr_intercept",
    "arg_min",
    "arg_max",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "approx_count_distinct",
    "approx_percentile",
    "percentile_cont",
    "percentile_disc",
    "string_agg",
    "string_agg_distinct",
)
PERCENTILE_FUNCTIONS = frozenset({"approx_percentile", "percentile_cont", "percentile_disc"})
"""Aggregates with a `share`."""


PAIR_FUNCTIONS = frozenset({"covar_samp", "covar_pop", "corr", "regr_slope", "regr_intercept", "arg_min", "arg_max"})
"""Aggregates of two operands."""


class Aggregate(msgspec.Struct, frozen=True, array_like=True):
    """One aggregate of a window: `function` of `operand` (None for COUNT(*)), named `name` in the output."""

    name: str
    function: str
    """One of `AGGREGATE_FUNCTIONS`."""
    operand: Expression | None
    share: float = 0.5
    """For `PERCENTILE_FUNCTIONS`, the share of the values at or below the answer, 0 to 1. Other functions leave it at its default."""
    by: Expression | None = None
    """For `PAIR_FUNCTIONS`, the second operand; for `string_agg`, the order of its texts, None: by event time."""
    separator: str = ""
    """For `string_agg` and `string_agg_distinct`, the text between two texts."""
    descending: bool = False
    """For the same two, the greatest text, or the one with the greatest `by`, comes first."""

    def __post_init__(self) -> None:
        if self.function not in AGGREGATE_FUNCTIONS:
            raise LimitError(f"aggregate {self.function!r}, expected one of {', '.join(AGGREGATE_FUNCTIONS)}")
        is_free = self.function == "string_agg" and self.operand is not None
        if not is_free and ((self.by is not None) != (self.function in PAIR_FUNCTIONS) or (self.by is not None and self.operand is None)):
            wanted = "two operands" if self.function in PAIR_FUNCTIONS else "at most one operand"
            raise LimitError(f"aggregate {self.function} of other operands, expected {wanted}")
        check_share("percentile of share", self.share, 1.0)
        check_count("characters of a separator", len(self.separator), most=SEPARATOR_MAX)


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
    begin_us: int | None = None
    """Windows that start earlier are left out: a crash has taken rows of them. None: all are answered."""
    omits_begun: bool = True
    """After a crash, windows are left out that the lost state had begun; False: they are answered with the rows that come."""

    def __post_init__(self) -> None:
        check_windows(self.size_us, self.slide_us, self.allowed_lateness_us, gaps=True)
        _check_groups(self.keys, self.aggregates)


class SessionParams(msgspec.Struct, frozen=True, tag="session"):
    """Sessions, aggregated by key: rows of a key less than `gap_us` apart in event time are in one.

    A session begins at its first row and ends `gap_us` behind its last. Output columns and event time are those of `WindowParams`;
    rows leave when the watermark reaches the end plus `allowed_lateness_us`, or up to a sixteenth of the gap later (5 ms where that is
    less, a gap at most), ordered by end, start and key.
    """

    time_column: str
    gap_us: int
    keys: tuple[tuple[str, Expression], ...]
    aggregates: tuple[Aggregate, ...]
    allowed_lateness_us: int = 0
    begin_us: int | None = None
    """Sessions that start earlier are left out, as of `WindowParams`."""
    omits_begun: bool = True
    """After a crash, sessions are left out that the lost state may have begun; False: they are answered with the rows that come."""

    def __post_init__(self) -> None:
        check_span("sessions with a gap", self.gap_us)
        check_span("allowed lateness", self.allowed_lateness_us, 0)
        _check_groups(self.keys, self.aggregates)


class OrderColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column to order by."""

    name: str
    descending: bool
    nulls_first: bool


class TopParams(msgspec.Struct, frozen=True, tag="top"):
    """The first `limit` rows of each event time, or of each partition of it, by `order`, then by the columns `ties`, ascending, NULLs last.

    Rows leave unchanged, in this order, when the watermark has passed their event time.
    """

    time_column: str
    order: tuple[OrderColumn, ...]
    ties: tuple[str, ...]
    limit: int
    partition: tuple[str, ...] = ()
    """Columns that partition the rows of an event time; NULL is a value like any other."""
    number: str | None = None
    """Output column that numbers the rows of each partition from 1; None: there is none."""

    def __post_init__(self) -> None:
        check_count("rows of each event time", self.limit, 1, LIMIT_MAX)
        check_count("columns", len(self.order) + len(self.ties) + len(self.partition))


VARIABLES_MAX = 60
"""Most variables of a pattern; the conditions that a row meets are bits of one number."""
OVER_FUNCTIONS = ("count", "sum", "min", "max", "avg")


class OverParams(msgspec.Struct, frozen=True, tag="over"):
    """Parameters of aggregates OVER preceding rows: each row, with aggregates of it and the rows before it in its partition.

    Rows are ordered by event time, then by the columns `ties`, ascending. Output columns: those of the input, then the aggregates. Rows
    leave in this order when the watermark has passed their event time, which is that of the output, too. A row that comes behind the
    watermark is late: counted, not used. The last rows of every partition are kept.
    """

    time_column: str
    partition: tuple[str, ...]
    """Partition columns; NULL is a value like any other."""
    ties: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    preceding: tuple[int, ...]
    """For each aggregate, the number of rows before the current row in its frame."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.partition) + len(self.ties))
        check_count("aggregates", len(self.aggregates), 1)
        check_count("frames of aggregates", len(self.preceding), len(self.aggregates), len(self.aggregates))
        for rows in self.preceding:
            check_count("rows before a row", rows, 0, PRECEDING_MAX)
        for aggregate in self.aggregates:
            if aggregate.function not in OVER_FUNCTIONS:
                raise LimitError(f"{aggregate.function} over rows, expected one of {', '.join(OVER_FUNCTIONS)}")
        check_expressions(aggregate.operand for aggregate in self.aggregates)


class Navigation(msgspec.Struct, frozen=True, tag="navigation", tag_field="form"):
    """A value of one row of a match, or of a row beside it; NULL if there is no such row.

    Among the rows of the match with one of `variables` so far (FINAL: of the whole match), it is the one `skip` behind the first or before
    the last; from there `shift` rows of the partition on (NEXT), or back (PREV).
    """

    name: str
    """Column by which conditions and measures name it."""
    value: Expression | None
    """Over the columns of that row; None: the name of the row's variable (CLASSIFIER)."""
    variables: tuple[int, ...] = ()
    """Places of variables; empty: all rows of the match."""
    first: bool = False
    skip: int = 0
    shift: int = 0
    final: bool = False

    def __post_init__(self) -> None:
        check_count("rows beside a row of a pattern", abs(self.shift), 0, PRECEDING_MAX)
        check_count("rows skipped in a pattern", self.skip, 0, PRECEDING_MAX)
        check_expressions((self.value,))


ROW_LABEL = "classifier()"
"""Column of the name of the variable that a row was taken for, in operands of aggregates over a match."""


class Tally(msgspec.Struct, frozen=True, tag="tally", tag_field="form"):
    """An aggregate over the rows of a match with one of `variables` so far, or, with `final`, of the whole match. Its operands may read
    `ROW_LABEL`."""

    name: str
    aggregate: Aggregate
    variables: tuple[int, ...] = ()
    final: bool = False

    def __post_init__(self) -> None:
        check_expressions((self.aggregate.operand, self.aggregate.by))


class MatchNumber(msgspec.Struct, frozen=True, tag="number", tag_field="form"):
    """The number of the match in its partition, from 1."""

    name: str


Operand: TypeAlias = Navigation | Tally | MatchNumber


class WindowPart(msgspec.Struct, frozen=True):
    """The windows that one of several instances of a pattern has, if they are dealt by turns (`Turns`): those that open in its turns.

    Such an instance gives the match of each start, whatever the matches before it; a merge chooses among them (`WindowChoice`).
    """

    turn_us: int
    index: int
    of: int
    """Number of instances."""
    columns: tuple[str, ...]
    """Columns behind the others: event time of the first row and its number among rows of that time; event time of the row where the next
    match may begin, and the number that it has at least among those of that time."""

    def __post_init__(self) -> None:
        check_span("turn of an instance", self.turn_us)
        check_count("instances", self.of, 2, INSTANCES_MAX)
        check_count("instances before an instance", self.index, 0, self.of - 1)
        check_count("columns that tell where a match and the next one begin", len(self.columns), 4, 4)


class MatchParams(msgspec.Struct, frozen=True, tag="match"):
    """Rows of a partition, in the order of their event times, that match a pattern: MATCH_RECOGNIZE.

    The event time goes first, then the columns `ties`, NULLs last, or, those of `descending`, NULLs first. Matches of a partition are
    looked for from left to right; of those that begin at one row the pattern's preference chooses. A match leaves when no later row can
    change it, in the order in which that is known. A row that comes behind the watermark is late: counted, not used.
    """

    time_column: str
    partition: tuple[str, ...]
    """Partition columns; NULL is a value like any other."""
    ties: tuple[str, ...]
    variables: tuple[str, ...]
    """Names of the variables."""
    conditions: tuple[Expression | None, ...]
    """For each variable, its condition over the operands; None: it holds for every row."""
    pattern: Pattern
    operands: tuple[Operand, ...]
    measures: tuple[tuple[str, Expression], ...]
    """Name and value over the operands."""
    passed: tuple[str, ...] | None
    """ONE ROW PER MATCH (None): the output has the partition columns and the measures of the last row. Otherwise, for each row of a match,
    these columns of it, and the measures."""
    skip_to: str = "past"
    """Place of the next match: `past` the last row, at the `next` row, at the `first` or the `last` row of `skip_variables`."""
    skip_variables: tuple[int, ...] = ()
    within_us: int | None = None
    """The last row of a match is less than this after its first one; None: any time."""
    empty: bool = True
    """Matches without a row are answered, too."""
    unmatched: bool = False
    """So are rows that are in no match, with NULL for all measures."""
    timeouts: bool = False
    """So are attempts whose time is up before they are a match, with the rows so far, and no match number."""
    known: tuple[str, ...] = ()
    """Columns behind the others that tell, for a merge of several instances, when an answer was known: the event time, and 1 where only a
    row tells, else 0. With them, the watermark of the output is that of these times. Empty: there are none."""
    descending: tuple[str, ...] = ()
    """Columns of `ties` that go from the greatest value to the least."""
    dealt: WindowPart | None = None
    """The part of the windows that the operator has; None: all."""

    def __post_init__(self) -> None:
        check_count("columns that tell when a match was known", len(self.known), 0 if not self.known else 2, 2)
        check_count("variables of a pattern", len(self.variables), 1, VARIABLES_MAX)
        check_count("conditions of a pattern", len(self.conditions), len(self.variables), len(self.variables))
        check_count("columns", len(self.partition) + len(self.ties) + len(self.passed or ()) + len(self.measures) + len(self.operands))
        check_expressions((*self.conditions, *(value for _, value in self.measures)))
        check_pattern_depth(self.pattern)
        check_count("steps of a pattern", length(self.pattern), 0, PROGRAM_MAX)
        named = {part.index for part in walk(self.pattern) if isinstance(part, Variable)}
        named.update(self.skip_variables, *(one.variables for one in self.operands if not isinstance(one, MatchNumber)))
        if not named.issubset(range(len(self.variables))):
            raise LimitError(f"a pattern with variables {sorted(named)[-1]} and less, expected less than {len(self.variables)}")
        if self.skip_to not in ("past", "next", "first", "last") or bool(self.skip_variables) != (self.skip_to in ("first", "last")):
            raise LimitError(
                f"skip to {self.skip_to!r} of {len(self.skip_variables)} variables, expected past, next, or first or last of some"
            )
        if self.skip_variables and not may_skip(self.pattern, self.skip_to, frozenset(self.skip_variables)):
            raise LimitError("skip to a row that may be the first one of its match, or missing, expected one that is always behind it")
        if self.within_us is not None:
            check_span("pattern within", self.within_us)
        elif self.timeouts:
            raise LimitError("matches that run out of time, without a time, expected within")


class AssignParams(msgspec.Struct, frozen=True, tag="assign"):
    """Rows with the tumbling (slide = size) or hopping windows that they lie in: one output row for each window.

    Output columns: `window_start`, `window_end`, then those of the input, but for such of these names. The event time of the output is
    `window_end`. A row without an event time is given once, its bounds are NULL. No row is late, as its windows may be open.
    """

    time_column: str
    size_us: int
    slide_us: int
    allowed_lateness_us: int = 0
    """Additional time before windows count as closed, after the watermark has passed their end."""

    def __post_init__(self) -> None:
        check_windows(self.size_us, self.slide_us, self.allowed_lateness_us)


class UnnestParams(msgspec.Struct, frozen=True, tag="unnest"):
    """Rows with an array taken apart: one for each element, in their order.

    Output columns: `columns`, then the element, then its number if that is wanted. Event times are those of the input, and no row is late.
    A row whose array is NULL, empty, none of the type or longer than `sbon.arrays.ELEMENTS_MAX` gives none.
    """

    array: str
    """A column of arrays, as `sbon.arrays` holds them."""
    kind: ColumnType
    """Type of the elements."""
    element: str
    """The column of the elements."""
    columns: tuple[str, ...]
    """Columns of the input that go on."""
    ordinal: str | None = None
    """The column of the elements' numbers within their arrays, from 1; None: there is none."""

    def __post_init__(self) -> None:
        if array_type(self.kind) is None:
            raise LimitError(
                f"array of {self.kind.value[:200]}, expected one of {', '.join(kind.value for kind in ARRAY_TYPES)} or a struct"
            )
        check_count("columns", len(self.columns))
        made = (self.element,) if self.ordinal is None else (self.element, self.ordinal)
        if len({*self.columns, *made}) != len(self.columns) + len(made):
            raise LimitError(f"elements named {', '.join(made)} beside columns {', '.join(self.columns)[:200]}, expected different names")


class DeduplicateParams(msgspec.Struct, frozen=True, tag="deduplicate"):
    """The first row of each key in a tumbling window, or, with `session`, after a time without any row of that key.

    The first one is that of the least event time; among rows of one instant it goes by `order`, then by the columns `ties`,
    ascending, NULLs last. It leaves as soon as the watermark has passed it by `allowed_lateness_us`. Output columns: `window_start`,
    `window_end` (not of sessions, whose end is not known by then), then those of the input, but for such of these names. The event times of
    the output are both that of the input and `window_end`. A row that comes behind the watermark is late: counted, not used.
    """

    time_column: str
    keys: tuple[str, ...]
    """Columns of the key; NULL is a value like any other."""
    order: tuple[OrderColumn, ...]
    ties: tuple[str, ...]
    span_us: int
    """Length of the windows; with `session`, the least time between two rows of a key that makes the later one a first row again."""
    session: bool = False
    allowed_lateness_us: int = 0

    def __post_init__(self) -> None:
        check_span("first rows within a time", self.span_us)
        check_span("allowed lateness", self.allowed_lateness_us, 0)
        check_count("keys of first rows", len(self.keys), 1)
        check_count("columns", len(self.order) + len(self.ties))


class JoinParams(msgspec.Struct, frozen=True, tag="join"):
    """Equi-join of port 0 (left) and port 1 (right) within a time interval.

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
    outer: tuple[ColumnType, ...] | None = None
    """Types of the right side's columns in a left outer join; None: an inner join. A left row without a partner leaves once, with NULLs of
    these types in this order, when the watermark says that no partner can come."""
    apart: bool = False
    """No source feeds both sides, so one side can be held back until the other has caught up."""

    def __post_init__(self) -> None:
        check_span("join from a time before", self.before_us, -SPAN_US_MAX)
        check_span("join to a time after", self.after_us, -SPAN_US_MAX)
        _check_join(self)


class WindowJoinParams(msgspec.Struct, frozen=True, tag="window_join"):
    """Equi-join of port 0 (left) and port 1 (right) within windows of event time, tumbling (slide = size) or hopping.

    In each window, every left row is paired with every right row whose keys are all equal (and not NULL); rows with `residual` (over the
    output columns) not true are left out. Output columns: `window_start`, `window_end`, then `columns`, given as (output name, side, input
    name). The pairs of a window leave when the watermark reaches its end plus `allowed_lateness_us`, ordered by window, by a hash of the
    keys, and as the left and then the right rows came. The event time of the output is `window_end`. A row all of whose windows have left
    is late: counted, not used.
    """

    left_time: str
    right_time: str
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    size_us: int
    slide_us: int
    columns: tuple[tuple[str, int, str], ...]
    residual: Expression | None = None
    outer: tuple[ColumnType, ...] | None = None
    """Types of the right side's columns in a left outer join; None: an inner join. Left rows without a pair in a window leave with it,
    with NULLs of these types in this order."""
    allowed_lateness_us: int = 0
    apart: bool = False
    """No source feeds both sides, so one side can be held back until the other has caught up."""
    slice_column: str | None = None
    """Column behind the others with the slice of a pair's keys (`sbon.operators.hashes`), for a merge of instances; None: there is none."""

    def __post_init__(self) -> None:
        check_windows(self.size_us, self.slide_us, self.allowed_lateness_us)
        _check_join(self)


class LookupParams(msgspec.Struct, frozen=True, tag="lookup"):
    """Rows of port 0 (left), each with the rows of a table whose keys are equal (and not NULL).

    The table comes by port 1 in versions (`sbon.query.table_versions`); a row is joined with the newest complete one. Pairs with
    `residual` (over the output columns) not true are left out. Output columns are given as (output name, side, input name). Event times
    are those of the left rows, none of which is late.
    """

    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    columns: tuple[tuple[str, int, str], ...]
    residual: Expression | None = None
    outer: tuple[ColumnType, ...] | None = None
    """Types of the table's columns in a left outer join; None: an inner join. Left rows without a pair leave with NULLs of these types in
    this order."""

    def __post_init__(self) -> None:
        _check_join(self)


def _check_groups(keys: Sequence[tuple[str, Expression]], aggregates: Sequence[Aggregate]) -> None:
    check_count("keys and aggregates", len(keys) + len(aggregates))
    check_expressions((*(key for _, key in keys), *(part for aggregate in aggregates for part in (aggregate.operand, aggregate.by))))


def _check_join(params: JoinParams | WindowJoinParams | LookupParams) -> None:
    check_count("columns", len(params.columns))
    check_keys(params.left_keys, params.right_keys)
    check_outer(params.columns, params.outer)
    check_expressions((*params.left_keys, *params.right_keys, params.residual))


class FunctionParams(msgspec.Struct, frozen=True, tag="function"):
    """A user's function. Every host must have it installed in this version; see `sbon.functions`."""

    name: str
    version: str
    arguments: tuple[tuple[str, bool | int | float | str], ...]
    """All arguments, in the order of their declaration."""
    inputs: Schema
    """The columns that it takes, in this order."""
    outputs: Schema
    time_column: str | None
    """The event time, among inputs and outputs; None: its output has none."""
    selectivity: float = 1.0
    """Output rows for each input row, as its author expects."""
    deterministic: bool = True
    """Equal inputs give equal outputs, so queries may share the operator."""
    partition: tuple[str, ...] = ()
    """Columns of the key by which a keyed function has states."""
    commutes: bool = False
    """Its rows may be taken in any order, as far as its author's purpose goes."""
    defers: bool = False
    """Rows that would be late are put off until nothing else waits."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.inputs) + len(self.outputs))
        if self.defers and not (self.commutes and self.partition):
            raise LimitError("rows are put off, expected a function with keys whose updates commute")
        if not set(self.partition) <= {column.name for column in self.inputs}:
            raise LimitError(f"states by {', '.join(self.partition)[:200]}, expected columns of the input")
        check_count("arguments", len(self.arguments))
        check_share("selectivity", self.selectivity)


class UnionParams(msgspec.Struct, frozen=True, tag="union"):
    """Rows of all inputs, whose schemas are equal, unchanged."""


class MulticastParams(msgspec.Struct, frozen=True, tag="multicast"):
    """The stream of a shared operator, unchanged, nearer to several of its consumers (SBON, section 4.2.2). No plan has one: operators
    that already run get them."""

    of: OperatorId
    """The operator whose stream it carries."""


class Turns(msgspec.Struct, frozen=True):
    """Windows dealt to instances by turns: those that open in one span of event time go to one instance, the next span's to the next."""

    time_column: str
    turn_us: int
    within_us: int
    """The last row of a window is less than this after its first one."""

    def __post_init__(self) -> None:
        check_span("turn of an instance", self.turn_us)
        check_span("windows within", self.within_us)

    def copies(self, instances: int) -> float:
        """Returns to how many of the instances a row goes on average.

        Examples
        --------
        >>> Turns("ts", 10, 11).copies(4), Turns("ts", 20, 11).copies(4), Turns("ts", 1, 11).copies(4)
        (2.0, 1.5, 4.0)
        """
        return min(float(instances), 1.0 + (self.within_us - 1) / self.turn_us)


class ExchangeParams(msgspec.Struct, frozen=True, tag="exchange"):
    """Parameters of an exchange: rows dealt to the instances of the next operator by ranges of a hash of their keys, or by windows.

    The rows are unchanged. Each link from an exchange has a `Part` and carries the rows of that part; their order stays.
    """

    keys: tuple[Expression, ...]
    """Rows with equal keys go to one instance; NULL is a value like any other."""
    instances: int
    turns: Turns | None = None
    """Each instance gets the rows of its windows: a row of windows of several instances goes to all of these. There are no keys then."""

    def __post_init__(self) -> None:
        check_count("keys to deal rows by", len(self.keys), 1 if self.turns is None else 0)
        check_count("instances", self.instances, 2, INSTANCES_MAX)
        check_expressions(self.keys)


class WindowChoice(msgspec.Struct, frozen=True):
    """Columns by which a merge chooses among the matches of all starts as one instance does: `WindowPart.columns` without the first."""

    row: str
    """Number of the first row among those of its event time; rows of one match have the same one."""
    resumes: str
    """Event time of the row where the next match may begin."""
    resumes_row: str
    """Number that this row has at least among those of its event time."""
    numbers: tuple[str, ...] = ()
    """Columns that get the number of the match."""


class MergeParams(msgspec.Struct, frozen=True, tag="merge"):
    """Parameters of a merge: the answers of several instances in the order in which one instance would give them.

    Rows wait until the watermark of all instances has passed their event time. They leave ordered by it and by the columns `order`; rows
    that are equal in these leave as they came. Columns in `hidden` are only there for the order and do not leave.
    """

    time_column: str
    order: tuple[str, ...]
    """Columns to order rows of one event time by, ascending, NULLs first."""
    hidden: tuple[str, ...] = ()
    delay_us: int = 0
    """Greatest distance of the output's event times behind those of `time_column`."""
    choice: WindowChoice | None = None
    """Rows are the matches of all starts, of which some are answered; None: all rows are."""

    def __post_init__(self) -> None:
        check_span("delay of a merge", self.delay_us, 0)
        check_count("columns", len(self.order) + len(self.hidden))


class SinkParams(msgspec.Struct, frozen=True, tag="sink"):
    """The destination of answers. The connector `tail` keeps them for `sbon tail` at the agent that took the query."""

    name: str
    connector: str
    options: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...] | None = None
    """Columns that are written, in order, as (name, name in the input); None: all as they are. Input columns are named and ordered for
    sharing."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.columns or ()))
        check_count("options", len(self.options))


Params: TypeAlias = (
    SourceParams
    | MapParams
    | WindowParams
    | SessionParams
    | TopParams
    | OverParams
    | MatchParams
    | AssignParams
    | UnnestParams
    | DeduplicateParams
    | JoinParams
    | WindowJoinParams
    | LookupParams
    | FunctionParams
    | UnionParams
    | MulticastParams
    | ExchangeParams
    | MergeParams
    | SinkParams
)


class Needs(msgspec.Struct, frozen=True):
    """Needs of operators that a host must meet besides capacity."""

    functions: tuple[tuple[str, str], ...] = ()
    """Users' functions as (name, version), each once and sorted."""
    state: bool = False
    """Memory for state kept between batches."""


NO_NEEDS = Needs()


def needs_of(params: Iterable[Params]) -> Needs:
    """Returns the combined needs of several operators."""
    listed = list(params)
    functions = {(one.name, one.version) for one in listed if isinstance(one, FunctionParams)}
    return Needs(tuple(sorted(functions)), any(keeps_state(one) for one in listed))


class MissRule(msgspec.Struct, frozen=True, array_like=True):
    """A rule for rows that would be late: an operator leaves them out, or puts them off if it `defers`."""

    latency_ms: float
    """Greatest latency of a row."""
    fairness: float = 0.0
    """Part of the share that each cost class would keep if all lost alike that it keeps at least."""

    def __post_init__(self) -> None:
        check_share("latency", self.latency_ms)
        check_share("fairness", self.fairness, 1.0)
        if not self.latency_ms > 0:
            raise LimitError(f"latency of {self.latency_ms} ms, expected above 0")


class OperatorSpec(msgspec.Struct, frozen=True):
    """One operator of a plan: everything a host needs to run it."""

    id: OperatorId
    params: Params
    schema: Schema
    """Output columns; for sinks, the columns that they write."""
    time_column: str | None
    """The event time among the output columns, if there is one."""
    pinned: NodeId | None
    """The node that it must run on; None: the overlay chooses."""
    signature: str
    """Equal for operators that compute the same from the same sources; see `sbon.query.signature`."""
    ports: int = 1
    """Input ports; 0 for sources."""
    selectivity: float = 1.0
    """Expected output rows per input row."""
    on_miss: MissRule | msgspec.UnsetType = msgspec.UNSET
    """Which rows are left out, or put off; unset: none ever, and nothing travels for it."""

    def __post_init__(self) -> None:
        check_count("columns", len(self.schema))
        check_count("input ports", self.ports, 0, 2)
        check_share("selectivity", self.selectivity)


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of an exchange's rows."""

    index: Few
    of: Few
    """Number of parts."""
    copies: Amount = 1.0
    """Parts that a row is in on average."""

    def __post_init__(self) -> None:
        check_count("parts", self.of, 2, INSTANCES_MAX)
        if not 1 <= self.copies <= self.of:
            raise LimitError(f"{self.copies} copies of a row in {self.of} parts, expected 1 to {self.of}")
        check_count("parts before a part", self.index, 0, self.of - 1)


class LinkSpec(msgspec.Struct, frozen=True):
    """A stream from one operator to a port of another, with the rate expected on it."""

    id: Link
    source: Operator
    target: Operator
    port: Few
    rate_rows_per_s: Amount
    rate_bytes_per_s: Amount
    handed: Epoch = 0
    """Number of times the sending end has moved to a multicast operator or back. If two messages name different sources for the link, the
    one with the greater number is newer."""
    part: Part | None = None
    """The part of the rows of an exchange that the link carries; None: all rows of another operator."""

    @property
    def share(self) -> float:
        """Returns the expected share of the source's rows that the link carries."""
        return 1.0 if self.part is None else self.part.copies / self.part.of


def after_crash(operators: Iterable[OperatorSpec]) -> str | None:
    """Returns what becomes of windows and sessions of which a crash has taken rows; None if there are none among the operators."""
    omits = [spec.params.omits_begun for spec in operators if isinstance(spec.params, WindowParams | SessionParams)]
    return None if not omits else LEAVE_OUT if all(omits) else INCOMPLETE


class ProfilePoint(msgspec.Struct, frozen=True, array_like=True):
    """Rates that the sources of a query are expected to reach together."""

    name: str
    """Empty if there is only one."""
    rates: tuple[tuple[OperatorId, float], ...]
    """Rows per second, of each source that declares them."""


class Sizing(msgspec.Struct, frozen=True, array_like=True):
    """The number of instances that the planner has chosen for one operator with keys, or is to choose."""

    operators: tuple[OperatorId, ...]
    """The instances, in the order of their parts; the operator itself where there is one."""
    rate_rows_per_s: float = 0.0
    """Rows into all instances together for which the number was chosen; 0: it has not been chosen yet."""
    cores: float = 0.0
    """Cores that the instances need together at that rate."""
    most: int = 0
    """Greatest number of instances that the nodes have cores for."""
    alone: str = ""
    """Signature that the operator has as one instance, where it has several: a row costs what it costs there, until that is measured."""


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    """Two operators of a plan that have exchanged places (`sbon.query.moves`)."""

    what: str
    """Digests of both as they were, so that they are found in another plan of the same statement."""
    before: str
    """Digest of the streams of the plan before."""


class Changed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The choices that were made for a plan after its statement had been read: every later plan of the query makes them, too."""

    instances: int = 0
    """Number of instances of each operator with keys that somebody has asked for since; 0: as the statement says."""
    exchanges: tuple[Exchange, ...] = ()
    """Exchanges that lead from the order of the statement to that of the plan."""


UNCHANGED = Changed()


class Plan(msgspec.Struct, frozen=True):
    """A query ready to be placed."""

    query: QueryId
    name: str
    """Name given by the user (view or sink), or the query id."""
    sql: str
    operators: tuple[OperatorSpec, ...]
    """Upstream before downstream; the last one is the sink."""
    links: tuple[LinkSpec, ...]
    delay_bound_ms: float | None = None
    """Longest network latency from any source to the sink that the author accepts, in milliseconds; None: no bound."""
    max_latency_ms: float | None = None
    """Greatest predicted latency of an answer that the author accepts, in milliseconds; None: no bound."""
    profile: tuple[ProfilePoint, ...] = ()
    """Rates that the plan is to carry; empty: none is declared."""
    sizings: tuple[Sizing, ...] = ()
    """Operators whose number of instances is the planner's choice (`instances = 'auto'`), in the order in which they were added."""
    changed: Changed = UNCHANGED


def link_id(source: OperatorId, target: OperatorId, port: int) -> LinkId:
    """Returns the name of a link, made from its ends so that both know it."""
    return f"{source}>{target}:{port}"


def target_of(link: LinkId) -> OperatorId:
    """Returns the operator that a link leads to, from the link's name.

    Examples
    --------
    >>> target_of("ams.t1.0>ams.t1.1:0"), target_of("ams.t1.0>ams.t1.1:0#2")
    ('ams.t1.1', 'ams.t1.1')
    """
    return link.rpartition(":")[0].rpartition(">")[2]


def renewed(link: LinkId, number: int) -> LinkId:
    """Returns the id of the link that replaces another one, whose ends begin anew.

    Parameters
    ----------
    number : above those of all ids that the link has had, or has been about to get

    Examples
    --------
    >>> renewed("ams.t1.0>ams.t1.1:0#2", 1), renewed("ams.t1.0>ams.t1.1:0+1", 5)
    ('ams.t1.0>ams.t1.1:0#2+1', 'ams.t1.0>ams.t1.1:0+5')
    """
    return f"{first_name(link)}+{number}"


def first_name(link: LinkId) -> LinkId:
    """Returns the id that a link had before it began anew.

    Examples
    --------
    >>> first_name("ams.t1.0>ams.t1.1:0#2+3"), first_name("a+b.t1.0>a+b.t1.1:0")
    ('ams.t1.0>ams.t1.1:0#2', 'a+b.t1.0>a+b.t1.1:0')
    """
    ends, colon, port = link.rpartition(":")
    return f"{ends}{colon}{port.partition('+')[0]}"


def renewals(link: LinkId) -> int:
    """Returns the number in the id of a link that has begun anew, or 0.

    Examples
    --------
    >>> renewals("ams.t1.0>ams.t1.1:0#2+3"), renewals("a+b.t1.0>a+b.t1.1:0")
    (3, 0)
    """
    number = link.rpartition(":")[2].partition("+")[2]
    return int(number) if number.isdecimal() and len(number) < RENEWALS_DIGITS_MAX else 0


RENEWALS_DIGITS_MAX = 16
"""Longest number that is read from a link's id: ids of others may contain anything."""
MULTICAST_MARK = "~"
"""Mark in the ids of multicast operators, and in no other: names of agents do not contain it."""


def multicast_id(of: OperatorId, suffix: str) -> OperatorId:
    """Returns the id of a multicast operator: the operator whose stream it carries, with a suffix. For a multicast of a multicast that is
    the first one's.

    Examples
    --------
    >>> multicast_id("ams.t1.2", "x"), multicast_id("ams.t1.2~x", "y")
    ('ams.t1.2~x', 'ams.t1.2~y')
    """
    return f"{of.partition(MULTICAST_MARK)[0]}{MULTICAST_MARK}{suffix}"


def keeps_state(params: "Params") -> bool:
    """Returns whether an operator of this kind may keep rows between two batches."""
    stateless = SourceParams | MapParams | AssignParams | UnnestParams | UnionParams | MulticastParams | ExchangeParams | SinkParams
    return not isinstance(params, stateless)


def may_miss(params: "Params", *, defers: bool) -> bool:
    """Returns whether rows that wait at an operator of this kind may be left out, or put off, because they would be late.

    Behind an exchange, and before a sink, work has been spent on them, or waits for them elsewhere; rows of a lookup's table are no events.
    """
    if defers:
        return isinstance(params, FunctionParams) and params.defers
    return not isinstance(params, SourceParams | SinkParams | MulticastParams | ExchangeParams | MergeParams | LookupParams)


def newest_us(params: "Params", watermark_us: int) -> int:
    """Returns an event time that no row has exceeded which a source has given up to a watermark.

    Examples
    --------
    >>> source = SourceParams("s", "file", (), (), "ts", watermark_delay_us=5)
    >>> newest_us(source, 100), newest_us(source, WATERMARK_MIN) == WATERMARK_MIN, newest_us(source, WATERMARK_END) == WATERMARK_END
    (105, True, True)
    """
    if not isinstance(params, SourceParams) or not WATERMARK_MIN < watermark_us < WATERMARK_END:
        return watermark_us
    return min(watermark_us + params.watermark_delay_us, WATERMARK_END)


def held_for_s(params: "Params") -> float:
    """Returns for how many seconds of event time an operator holds each row, as far as its parameters tell; 0 if they do not."""
    match params:
        case JoinParams(before_us=before_us, after_us=after_us):
            return max(0.0, (before_us + after_us) / 1e6)
        case MatchParams(within_us=int(within_us)):
            return within_us / 1e6
        case _:
            return 0.0


def is_multicast(operator: OperatorId) -> bool:
    """Returns whether an operator id is that of a multicast."""
    return MULTICAST_MARK in operator
