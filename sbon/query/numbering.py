"""Binds the first rows of each key in a window: ROW_NUMBER() with a condition around it, and DISTINCT ON.

    SELECT * FROM (
      SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, key ORDER BY ts) AS n FROM TUMBLE(stream, ts, INTERVAL '10 seconds')
    ) WHERE n = 1

    SELECT DISTINCT ON (window_start, key) * FROM TUMBLE(...) ORDER BY window_start, key, ts

PARTITION BY must name the window, which limits the rows to keep. The first row by event time becomes `Deduplicate`, which does not wait
for the window's end; everything else becomes `Top`, which waits.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlglot import exp

from sbon.query.dialect import Text
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.limits import LIMIT_MAX
from sbon.query.literals import identifier
from sbon.query.params.ordered import OrderColumn
from sbon.query.projection import free_name
from sbon.query.relation import BOUNDS, Assigned, Deduplicate, Numbered, Relation, Select, Top
from sbon.query.rewrite import columns_of
from sbon.query.scalar import Scalars
from sbon.query.scope import Scope, ScopeColumn
from sbon.query.top import Order, named_items
from sbon.query.window_time import end_of
from sbon.query.windows import WindowCall, event_time
from sbon.schema import ColumnType

_LIMITED = "write SELECT ... FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, key ORDER BY ts) AS n ...) WHERE n = 1"
_WINDOWED = (
    "{form} over FROM TUMBLE(stream, ts, INTERVAL '1 hour'), "
    "or over SESSION(stream, ts, INTERVAL '10 minutes') for a row that comes so long after the last one of its key"
)
_BY_TIME = "ORDER BY the event time, and keep n = 1: which row is the last of a session is not known while it lasts"


class Numbering(NamedTuple):
    """The numbering that a SELECT asks for: partitions, order, and the column of the number."""

    tree: exp.Expr
    """The tree that errors point at."""
    name: str | None
    """Name of the number's column; None: the number is not visible, and the first row is wanted."""
    partition: tuple[exp.Expr, ...]
    order: tuple[Order, ...]

    @property
    def trees(self) -> list[exp.Expr]:
        """Returns the expressions outside the SELECT list."""
        return [*self.partition, *(item.tree for item in self.order)]

    @property
    def what(self) -> str:
        """Returns the construct as its author would call it, for messages."""
        return "DISTINCT ON" if self.name is None else "ROW_NUMBER()"


def numbering_of(text: Text, tree: exp.Select) -> tuple[exp.Select, Numbering | None]:
    """Takes the numbering out of a SELECT; returns the SELECT with NULL for ROW_NUMBER(), or without DISTINCT ON, and the numbering.

    Raises
    ------
    QueryError
        There are two numberings, or one without an order or a name, or with a frame, ...
    """
    distinct = tree.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        return _distinct_on(text, tree, distinct.args["on"])
    places = [place for place, item in enumerate(tree.expressions) if _is_row_number(item.unalias())]
    if not places:
        return tree, None
    item = tree.expressions[places[-1]]
    window = item.unalias()
    if len(places) > 1:
        raise text.error(window, "two ROW_NUMBER() in one SELECT", "number in a SELECT in brackets, and again around it")
    if not isinstance(item, exp.Alias):
        raise text.error(window, "ROW_NUMBER() has no name", f"add AS n; {_LIMITED}")
    for part, keyword in (("order", "ORDER BY"), ("limit", "LIMIT"), ("distinct", "DISTINCT")):
        if tree.args.get(part) is not None:
            raise text.error(window, f"ROW_NUMBER() beside {keyword}", "number in a SELECT in brackets")
    if window.args.get("spec") is not None or window.args.get("alias") is not None:
        raise text.error(
            window, "ROW_NUMBER() counts all rows of its partition", "write OVER (PARTITION BY ... ORDER BY ...) without a frame"
        )
    clause = window.args.get("order")
    if clause is None:
        raise text.error(
            window, "ROW_NUMBER() without ORDER BY", "say which row is the first: OVER (PARTITION BY window_start, key ORDER BY ts)"
        )
    order = tuple(Order(part.this, bool(part.args.get("desc")), bool(part.args.get("nulls_first"))) for part in clause.expressions)
    numbering = Numbering(window, identifier(item.args["alias"]), tuple(window.args.get("partition_by") or ()), order)
    copy = tree.copy()
    copy.expressions[places[0]].set("this", exp.Null())
    return copy, numbering


def _is_row_number(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Window) and isinstance(tree.this, exp.RowNumber)


def _distinct_on(text: Text, tree: exp.Select, on: exp.Expr) -> tuple[exp.Select, Numbering]:
    keys = tuple(on.expressions) if isinstance(on, exp.Tuple) else (on.this if isinstance(on, exp.Paren) else on,)
    if tree.args.get("limit") is not None:
        raise text.error(keys[0], "DISTINCT ON beside LIMIT", "put the SELECT with DISTINCT ON in brackets")
    clause = tree.args.get("order")
    order = list(named_items(text, tree, clause)) if clause is not None else []
    ahead = order[: len(keys)]
    if {item.tree for item in ahead} - set(keys):
        stray = next(item.tree for item in ahead if item.tree not in keys)
        raise text.error(
            stray, "ORDER BY begins with other columns than DISTINCT ON", "name the columns of DISTINCT ON first, as PostgreSQL wants"
        )
    copy = tree.copy()
    copy.set("distinct", None)
    copy.set("order", None)
    return copy, Numbering(keys[0], None, keys, tuple(item for item in order if item.tree not in keys))


def assigned(text: Text, call: WindowCall, relation: Relation, scope: Scope, *, numbered: bool) -> tuple[Assigned, Scope]:
    """Binds a window function without GROUP BY: each row with the bounds of its windows, and the names.

    Raises
    ------
    QueryError
        The windows are sessions, which can only be grouped or deduplicated.
    """
    if call.session and not numbered:
        raise text.error(
            call.tree, "a SESSION without GROUP BY", "write GROUP BY window_start, keys; where it ends is not known while it lasts"
        )
    if call.partition is not None:
        raise text.error(call.tree, "a SESSION with a PARTITION BY of its own", "write SESSION(input, ts, gap)")
    time, behind_us = event_time(text, call, relation, scope)
    found = Assigned(relation, time, call.size_us, call.slide_us, call.lateness_us + behind_us, call.session)
    alias = scope.columns[0].alias
    bounds = [ScopeColumn(alias, name, name, ColumnType.TIME) for name in (BOUNDS[:1] if call.session else BOUNDS)]
    return found, Scope((*bounds, *(column for column in scope.columns if column.name not in BOUNDS)))


def numbered(text: Text, numbering: Numbering, select: Select, scalars: Scalars) -> Numbered:
    """Returns the rows of a SELECT, numbered.

    Raises
    ------
    QueryError
        No time is among the partition columns, so that rows would have to be kept for ever.
    """
    columns = [column for column in select.columns if column[0] != numbering.name]

    def named(value: Expression, type_: ColumnType) -> str:
        found = next((name for name, other, _ in columns if other == value), None)
        if found is None:
            found = free_name("key", (name for name, _, _ in (*select.columns, *columns)))
            columns.append((found, value, type_))
        return found

    times = select.input.times
    session = isinstance(select.input, Assigned) and select.input.session
    time: str | None = None
    partition: list[str] = []
    bounded = False
    for tree in map(end_of, numbering.partition):
        value, type_ = scalars.key(tree, numbering.what)
        name = named(value, type_)
        if session and value == Column(BOUNDS[0]):
            bounded = True
        elif isinstance(value, Column) and value.name in times and (time is None or times[value.name][0] == time):
            time, bounded = times[value.name][0], True
        else:
            partition.append(name)
    if not bounded:
        message = f"{numbering.what} without a time window among its keys would keep rows for ever"
        form = "write DISTINCT ON (window_start, key)" if numbering.name is None else "PARTITION BY window_start, key"
        raise text.keyword_error(numbering.tree, "" if numbering.name else "DISTINCT", message, _WINDOWED.format(form=form))
    order = [OrderColumn(named(*scalars.key(item.tree, "ORDER BY")), item.descending, item.nulls_first) for item in numbering.order]
    if not order and isinstance(select.input, Assigned):  # any row is right, and the first by event time is available earliest
        order = [OrderColumn(named(Column(select.input.time_column), ColumnType.TIME), False, False)]
    if time is not None:
        time = named(Column(time), ColumnType.TIME)
    rows = Select(select.input, select.conditions, tuple(columns))
    visible = tuple(name for name, _, _ in select.columns)
    refusal = text.error(numbering.tree, "ROW_NUMBER() without a condition on how many rows are wanted of each partition", _LIMITED)
    found = Numbered(rows, visible, numbering.name or "", tuple(dict.fromkeys(partition)), time, tuple(order), refusal)
    if session and (not order or not _is_first_by_time(found)):
        where = numbering.order[0].tree if numbering.order else numbering.tree
        raise text.error(where, f"{numbering.what} over sessions goes by the event time", _BY_TIME)
    return found


def limited(
    text: Text, relation: Numbered, where: exp.Expr | None, conditions: Sequence[Expression]
) -> tuple[Relation, tuple[Expression, ...]]:
    """Returns the first rows selected by a condition on the row number, and the remaining conditions.

    Raises
    ------
    QueryError
        There is no such condition, or it does not select the first rows.
    """
    limits = [limit for condition in conditions if (limit := _limit(condition, relation.number)) is not None]
    if not limits or where is None:
        raise relation.refusal
    limit = min(limits)
    if not 1 <= limit <= LIMIT_MAX:
        raise text.error(
            where, f"rows are numbered from 1, and at most {LIMIT_MAX} kept of each partition", "write WHERE n = 1, or n <= 10"
        )
    if relation.time is None and limit > 1:
        raise text.error(where, "over sessions, only the first row is available", _BY_TIME)
    return first_of(relation, limit), tuple(condition for condition in conditions if not _is_met(condition, relation.number, limit))


def _compared(condition: Expression, number: str) -> tuple[str, int] | None:
    """Returns (comparison, constant) of `number <comparison> constant`, if the condition has that form."""
    mirrored = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt", "eq": "eq"}
    match condition:
        case Call(function=name, arguments=(Column(name=column), Literal(value=int() as value))) if column == number and name in mirrored:
            return name, value
        case Call(function=name, arguments=(Literal(value=int() as value), Column(name=column))) if column == number and name in mirrored:
            return mirrored[name], value
        case _:
            return None


def _limit(condition: Expression, number: str) -> int | None:
    """Returns the greatest number that meets a condition."""
    match condition:
        case Call(function="in", arguments=(Column(name=column), *values)) if column == number:
            known = [value.value for value in values if isinstance(value, Literal) and isinstance(value.value, int)]
            return max(known) if known and len(known) == len(values) else None
    compared = _compared(condition, number)
    if compared is None or compared[0] in ("ge", "gt"):
        return None
    return compared[1] - (compared[0] == "lt")


def _is_met(condition: Expression, number: str, limit: int) -> bool:
    """Tells whether all numbers from 1 to the limit meet the condition."""
    compared = _compared(condition, number)
    if compared is None:
        return False
    name, value = compared
    return {"le": value >= limit, "lt": value > limit, "ge": value <= 1, "gt": value < 1, "eq": value == limit == 1}[name]


def first_of(relation: Numbered, limit: int) -> Select:
    """Returns the first `limit` rows of each partition."""
    rows = relation.rows
    if limit == 1 and relation.partition and _is_first_by_time(relation):
        return _deduplicated(relation)
    assert relation.time is not None
    ties = tuple(name for name in relation.visible if name != relation.number)
    number = relation.number if limit > 1 else None
    top = Top(rows, relation.time, relation.order, ties, limit, relation.partition, number)
    return Select(top, (), _shown(relation, {name: Column(name) for name in relation.visible}, limit))


def _shown(relation: Numbered, values: dict[str, Expression], limit: int) -> tuple[tuple[str, Expression, ColumnType], ...]:
    one: Expression = Literal(1, ColumnType.INT)
    types = {column.name: column.type for column in relation.schema}
    return tuple((name, one if limit == 1 and name == relation.number else values[name], types[name]) for name in relation.visible)


def _is_first_by_time(relation: Numbered) -> bool:
    """Tells whether rows are ordered by the time by which they were assigned to tumbling windows or sessions."""
    windows, order = relation.rows.input, relation.order
    if not isinstance(windows, Assigned) or windows.slide_us != windows.size_us or (not relation.partition and not windows.session):
        return False
    values = {name: value for name, value, _ in relation.rows.columns}
    return bool(order) and values[order[0].name] == Column(windows.time_column) and not order[0].descending


def _deduplicated(relation: Numbered) -> Select:
    """Returns the first row of each key by event time; conditions on the window itself are applied after it."""
    windows = relation.rows.input
    assert isinstance(windows, Assigned)
    values = {name: value for name, value, _ in relation.rows.columns}
    types = {column.name: column.type for column in windows.input.schema}
    shown = {name: values[name] for name in relation.visible if name != relation.number}
    late = tuple(c for c in relation.rows.conditions if set(columns_of([c])).intersection(BOUNDS))
    early = tuple(c for c in relation.rows.conditions if c not in late)
    plain = dict.fromkeys([windows.time_column, *(name for name in columns_of([*shown.values(), *late]) if name not in BOUNDS)])
    columns: list[tuple[str, Expression, ColumnType]] = [(name, Column(name), types[name]) for name in plain]
    kinds = {name: kind for name, _, kind in relation.rows.columns}

    def column(name: str) -> str:
        found = next((own for own, value, _ in columns if value == values[name]), None)
        if found is None:
            found = free_name(name, (*BOUNDS, *(own for own, _, _ in columns)))
            columns.append((found, values[name], kinds[name]))
        return found

    keys = tuple(column(name) for name in relation.partition)
    order = tuple(OrderColumn(column(item.name), item.descending, item.nulls_first) for item in relation.order[1:])
    rows = Select(windows.input, early, tuple(columns))
    span, lateness = windows.size_us, windows.lateness_us
    first = Deduplicate(rows, windows.time_column, keys, order, tuple(plain), span, lateness, windows.session)
    return Select(first, late, _shown(relation, shown, 1))


def bounded(relations: Iterable[Relation]) -> None:
    """Checks that every numbered SELECT stands in brackets with a condition on its number around it.

    Raises
    ------
    QueryError
        A numbered SELECT has no such condition around it.
    """
    for relation in relations:
        if isinstance(relation, Numbered):
            raise relation.refusal
