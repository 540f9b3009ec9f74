"""The logical tree between SQL and plan: what a query computes, before it is split into operators and placed.

Every tree node has a schema with unique names, and its *times*: columns that event-time windows and joins may use. A time is written as
(base, offset): the column is always `base + offset`, and the stream's watermark holds for `base`. So `window_start` is a time of a
windowed stream, at `window_end - size`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from sbon.errors import QueryError
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.limits import SPAN_US_MAX
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.matched import MatchParams, Navigation
from sbon.query.params.ordered import OrderColumn
from sbon.query.params.rowwise import FunctionParams
from sbon.query.system import SourceDefinition
from sbon.schema import ColumnType, Field, Schema

BOUNDS = ("window_start", "window_end")
"""Columns with a window's start and end."""

Times: TypeAlias = Mapping[str, tuple[str, int]]


@dataclass(frozen=True)
class Scan:
    """All physical sources of a logical one, merged."""

    source: SourceDefinition
    hidden: tuple[str, ...]
    """Names of TEXT columns that are constant on each node, `_node` and `_<label>`; `SELECT *` leaves them out."""

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        return (*self.source.columns, *(Field(name, ColumnType.TEXT) for name in self.hidden))

    @property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        time = self.source.time_column
        return {} if time is None else {time: (time, 0)}


@dataclass(frozen=True)
class Select:
    """Rows for which all conditions hold, with columns computed from them."""

    input: "Relation"
    conditions: tuple[Expression, ...]
    columns: tuple[tuple[str, Expression, ColumnType], ...]

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        return tuple(Field(name, type_) for name, _, type_ in self.columns)

    @cached_property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        inner = self.input.times
        passed = {value.name: name for name, value, _ in reversed(self.columns) if isinstance(value, Column)}
        found: dict[str, tuple[str, int]] = {}
        for name, value, _ in self.columns:
            column, shift_us = _shifted(value)
            if column in inner:
                base, offset = inner[column][0], inner[column][1] + shift_us
                # If the base itself is left out, only a companion at the same instant can replace it.
                if base in passed:
                    found[name] = (passed[base], offset)
                elif offset == 0:
                    found[name] = (name, 0)
        return found


def _shifted(value: Expression) -> tuple[str, int]:
    """Returns the column from which a value differs by a constant time, and that offset; an empty name if there is no such column."""
    match value:
        case Column(name=name):
            return name, 0
        case Call(
            function="add" | "sub" as function, arguments=(Column(name=name), Literal(value=int() as span, type=ColumnType.INTERVAL))
        ):
            return (name, span if function == "add" else -span) if abs(span) <= SPAN_US_MAX else ("", 0)
        case _:
            return "", 0


@dataclass(frozen=True)
class Window:
    """Aggregates by window and key; see `WindowParams` and `SessionParams`. Columns: window_start, window_end, keys, aggregates."""

    input: "Relation"
    time_column: str
    size_us: int
    slide_us: int
    lateness_us: int
    keys: tuple[tuple[str, Expression, ColumnType], ...]
    aggregates: tuple[tuple[Aggregate, ColumnType], ...]
    session: bool = False
    """The windows are sessions; `size_us` is their gap."""

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        return (
            Field("window_start", ColumnType.TIME),
            Field("window_end", ColumnType.TIME),
            *(Field(name, type_) for name, _, type_ in self.keys),
            *(Field(aggregate.name, type_) for aggregate, type_ in self.aggregates),
        )

    @property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        if self.session:  # no fixed length
            return {"window_end": ("window_end", 0)}
        times = {"window_end": ("window_end", 0), "window_start": ("window_end", -self.size_us)}
        if self.size_us == 1:  # a window of one instant: `Window.output_watermark` holds for the instant too
            times |= {name: (name, 0) for name, value, _ in self.keys if value == Column(self.time_column)}
        return times


@dataclass(frozen=True)
class Join:
    """Pairs with equal keys within an interval of time; see `JoinParams`."""

    left: "Relation"
    right: "Relation"
    left_time: str
    right_time: str
    keys: tuple[tuple[Expression, Expression], ...]
    before_us: int
    after_us: int
    columns: tuple[tuple[str, int, str], ...]
    """Output name, side and input name of all columns of both sides."""
    residual: tuple[Expression, ...]
    """Condition over the output columns."""
    outer: bool = False
    """A left join: left rows without a pair stay, with NULLs on the right; see `JoinParams`."""
    window: tuple[int, int, int] | None = None
    """Size, slide and lateness of a join within windows, see `WindowJoinParams`; `before_us` and `after_us` are unused then, and
    `window_start` and `window_end` come before the columns."""

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        types = [{column.name: column.type for column in side.schema} for side in (self.left, self.right)]
        bounds = () if self.window is None else (Field("window_start", ColumnType.TIME), Field("window_end", ColumnType.TIME))
        return (*bounds, *(Field(name, types[side][inner]) for name, side, inner in self.columns))

    @cached_property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        if self.window is not None:
            return {"window_end": ("window_end", 0), "window_start": ("window_end", -self.window[0])}
        # The watermark of the output holds for both times of a pair: see `JoinParams`.
        found: dict[str, tuple[str, int]] = {}
        sides = ((0, self.left_time, self.left.times), (1, self.right_time, self.right.times))
        for side, base, times in sides[:1] if self.outer else sides:  # a time that may be NULL is no event time
            names = {inner: name for name, at, inner in self.columns if at == side}
            for inner, name in names.items():
                if inner in times and times[inner][0] == base and base in names:
                    found[name] = (names[base], times[inner][1])
        return found


@dataclass(frozen=True)
class Lookup:
    """Rows of a stream, each with the rows of a table that have equal keys; see `LookupParams`."""

    left: "Relation"
    table: SourceDefinition
    keys: tuple[tuple[Expression, Expression], ...]
    columns: tuple[tuple[str, int, str], ...]
    """Output name, side and input name of all columns of both sides."""
    residual: tuple[Expression, ...]
    """Condition over the output columns."""
    outer: bool = False
    """Left rows without a pair stay, with NULLs for the table's columns."""

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        types = [{column.name: column.type for column in columns} for columns in (self.left.schema, self.table.columns)]
        return tuple(Field(name, types[side][inner]) for name, side, inner in self.columns)

    @cached_property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        values = ((name, Column(inner), ColumnType.TIME) for name, side, inner in self.columns if side == 0)
        return Select(self.left, (), tuple(values)).times


@dataclass(frozen=True)
class Top:
    """The first rows of each event time and partition; see `TopParams`."""

    input: "Relation"
    time_column: str
    order: tuple[OrderColumn, ...]
    ties: tuple[str, ...]
    limit: int
    partition: tuple[str, ...] = ()
    number: str | None = None

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        columns = sent(self.input)
        return columns if self.number is None else (*columns, Field(self.number, ColumnType.INT))

    @property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        # Rows wait for the watermark of this time, which says nothing about others.
        return {name: time for name, time in self.input.times.items() if time[0] == self.time_column}


@dataclass(frozen=True)
class Over:
    """Rows, each with aggregates over it and the rows before it; see `OverParams`."""

    input: "Relation"
    time_column: str
    partition: tuple[str, ...]
    ties: tuple[str, ...]
    aggregates: tuple[tuple[Aggregate, ColumnType], ...]
    preceding: tuple[int, ...]

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        return (*sent(self.input), *(Field(aggregate.name, type_) for aggregate, type_ in self.aggregates))

    @property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        return {name: time for name, time in self.input.times.items() if time[0] == self.time_column}


@dataclass(frozen=True)
class Match:
    """Rows that match a pattern; see `MatchParams`."""

    input: "Relation"
    params: MatchParams
    measure_types: tuple[ColumnType, ...]
    operand_types: tuple[tuple[str, ColumnType], ...]
    """Types of the operands, by name."""

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        types = {column.name: column.type for column in sent(self.input)}
        kept = self.params.partition if self.params.passed is None else self.params.passed
        measures = (Field(name, type_) for (name, _), type_ in zip(self.params.measures, self.measure_types, strict=True))
        return (*(Field(name, types[name]) for name in kept), *measures)

    @property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        time = self.params.time_column
        if self.params.passed is not None:  # rows leave with their own times, and no row before the first one that waits
            return {time: (time, 0)} if time in self.params.passed else {}
        last = [one.name for one in self.params.operands if isinstance(one, Navigation) and _is_last_time(one, time)]
        return {name: (name, 0) for name, value in self.params.measures if isinstance(value, Column) and value.name in last}


def _is_last_time(operand: Navigation, time: str) -> bool:
    """Tells whether an operand is the event time of a match's last row."""
    same = operand.value == Column(time) and not operand.variables
    return same and not (operand.first or operand.skip or operand.shift) and operand.final


@dataclass(frozen=True)
class Assigned:
    """Rows with the windows that they lie in; see `AssignParams`."""

    input: "Relation"
    time_column: str
    size_us: int
    slide_us: int
    lateness_us: int
    session: bool = False
    """The windows are sessions, which only `Deduplicate` can resolve; never in a plan. `size_us` is their gap."""

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        return _with_bounds(self.input, self.session)

    @property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        return {} if self.session else {"window_end": ("window_end", 0), "window_start": ("window_end", -self.size_us)}


@dataclass(frozen=True)
class Unnest:
    """Rows with an array unnested; see `UnnestParams`."""

    input: "Relation"
    array: Expression
    """Expression over the columns of the input."""
    kind: ColumnType
    """Type of the elements."""
    element: str
    """Name of the elements' column, which the input does not have."""
    ordinal: str | None = None
    """Name of the column with the elements' numbers, which the input does not have; None: there is none."""
    kept: tuple[str, ...] | None = None
    """Columns of the input that are kept; None (before lowering): all."""

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        kept = (column for column in self.input.schema if self.kept is None or column.name in self.kept)
        numbers = () if self.ordinal is None else (Field(self.ordinal, ColumnType.INT),)
        return (*kept, Field(self.element, self.kind), *numbers)

    @cached_property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        values = (
            (column.name, Column(column.name), column.type) for column in self.schema if column.name not in (self.element, self.ordinal)
        )
        return Select(self.input, (), tuple(values)).times


@dataclass(frozen=True)
class Deduplicate:
    """The first row of each key in its window, or after a pause; see `DeduplicateParams`."""

    input: "Relation"
    time_column: str
    keys: tuple[str, ...]
    order: tuple[OrderColumn, ...]
    ties: tuple[str, ...]
    span_us: int
    lateness_us: int
    session: bool

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        return _with_bounds(self.input, self.session)

    @property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        # Rows leave in the order of their times, and a row's window ends after its time, so one watermark holds for both.
        of_window: dict[str, tuple[str, int]] = {"window_end": ("window_end", 0), "window_start": ("window_end", -self.span_us)}
        own = {name: time for name, time in self.input.times.items() if time[0] == self.time_column and name not in BOUNDS}
        return own if self.session else of_window | own


def _with_bounds(relation: "Relation", session: bool) -> Schema:
    """Returns the bounds of a window, then the columns of its rows. Bounds hide columns of the same names. A session has only
    `window_start`, as its end is unknown while it lasts."""
    bounds = tuple(Field(name, ColumnType.TIME) for name in (BOUNDS[:1] if session else BOUNDS))
    return (*bounds, *(column for column in sent(relation) if column.name not in BOUNDS))


@dataclass(frozen=True)
class Numbered:
    """Rows with their number within a partition. No operator computes the number: a condition in the enclosing SELECT limits it, so that
    the first rows can be selected instead."""

    rows: Select
    """The rows with the author's columns and those of the partition and order."""
    visible: tuple[str, ...]
    """The author's columns, in order, including the number."""
    number: str
    partition: tuple[str, ...]
    """Partition columns other than `time`."""
    time: str | None
    """The event time by which rows are partitioned; None: they are partitioned by session."""
    order: tuple[OrderColumn, ...]
    refusal: QueryError
    """The error to raise if no condition limits the number."""

    @property
    def schema(self) -> Schema:
        """Columns of the output."""
        types = {column.name: column.type for column in self.rows.schema}
        return tuple(Field(name, types.get(name, ColumnType.INT)) for name in self.visible)

    @property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        return {}


@dataclass(frozen=True)
class Apply:
    """The rows that a user's function makes of a stream's rows; see `FunctionParams`."""

    input: "Relation"
    function: FunctionParams

    @property
    def schema(self) -> Schema:
        """Columns of the output."""
        return self.function.outputs

    @property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        time = self.function.time_column
        return {} if time is None else {time: (time, 0)}


@dataclass(frozen=True)
class Union:
    """Rows of all inputs; columns are matched by position and named as in the first."""

    inputs: tuple["Relation", ...]

    @cached_property
    def schema(self) -> Schema:
        """Columns of the output."""
        return self.inputs[0].schema

    @cached_property
    def times(self) -> Times:
        """Columns that are event times; see the module."""
        positions = []
        for relation in self.inputs:
            at = {column.name: index for index, column in enumerate(relation.schema)}
            positions.append({at[name]: (at[base], offset) for name, (base, offset) in relation.times.items() if base in at})
        names = [column.name for column in self.schema]
        common = {i: time for i, time in positions[0].items() if all(other.get(i) == time for other in positions[1:])}
        return {names[i]: (names[base], offset) for i, (base, offset) in common.items() if base in common}


Relation: TypeAlias = (
    Scan | Select | Window | Top | Over | Match | Assigned | Unnest | Deduplicate | Numbered | Join | Lookup | Union | Apply
)


def sent(relation: Relation) -> Schema:
    """Returns the columns that a stream has when it runs; hidden columns of a source exist only in planning."""
    match relation:
        case Scan():
            return relation.source.columns
        case Union():
            return sent(relation.inputs[0])
        case _:
            return relation.schema


def sources_of(relation: Relation) -> tuple[SourceDefinition, ...]:
    """Returns the sources of a stream, each as often as it is read."""
    match relation:
        case Scan():
            return (relation.source,)
        case Select() | Window() | Top() | Over() | Match() | Assigned() | Unnest() | Deduplicate() | Apply():
            return sources_of(relation.input)
        case Numbered():
            return sources_of(relation.rows)
        case Lookup():  # a lookup table is not a stream to wait for
            return sources_of(relation.left)
        case Join():
            return (*sources_of(relation.left), *sources_of(relation.right))
        case Union():
            return tuple(source for part in relation.inputs for source in sources_of(part))
