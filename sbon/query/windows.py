"""Binds TUMBLE, HOP and SESSION windows, GROUP BY, and aggregates.

    FROM TUMBLE(input, time column, size [, lateness => INTERVAL '5 seconds'])
    FROM HOP(input, time column, slide, size [, lateness => ...])
    FROM SESSION(input, time column, gap [, lateness => ...])

`input` is a source, a view, or a SELECT in brackets. Flink's form is rewritten into this one first (`sbon.query.flink`). GROUP BY names
window_start or window_end (or both), and the keys. Without a window function, GROUP BY the event time of an already windowed stream
aggregates the rows of each window again.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sbon.query.aggregate_calls import find_aggregate
from sbon.query.catalog import did_you_mean
from sbon.query.dialect import Text
from sbon.query.expression import Expression
from sbon.query.flink import in_from
from sbon.query.grouped import Grouped, is_bound
from sbon.query.limits import PANES_MAX
from sbon.query.literals import identifier, interval_of
from sbon.query.projection import free_name
from sbon.query.relation import BOUNDS, Relation, Window
from sbon.query.rewrite import canonical
from sbon.query.scalar import Scalars
from sbon.query.scope import Scope, ScopeColumn
from sbon.query.text import expression_text
from sbon.query.window_time import end_of
from sbon.schema import ColumnType

_GROUP_HINT = "write FROM TUMBLE(stream, ts, INTERVAL '10 seconds') ... GROUP BY window_start, keys"
_PARTITION = "partition_by"
_FORMS = {"TUMBLE": "TUMBLE(input, ts, size)", "HOP": "HOP(input, ts, slide, size)", "SESSION": "SESSION(input, ts, gap)"}


@dataclass(frozen=True)
class WindowCall:
    """A TUMBLE, HOP or SESSION call as it was written."""

    tree: exp.Func
    input: exp.Expr
    time: exp.Expr
    size_us: int
    slide_us: int
    lateness_us: int
    session: bool = False
    """The window is a session; `size_us` and `slide_us` are its gap."""
    partition: tuple[exp.Expr, ...] | None = None
    """PARTITION BY of Flink's form of a session; None if it has none."""


def window_name(text: Text, tree: exp.Func) -> str:
    """Returns the name of the window function that a call in FROM is.

    Raises
    ------
    QueryError
        The call is no window function.
    """
    name = str(tree.this).upper() if isinstance(tree, exp.Anonymous) else tree.sql_name()
    if name in _FORMS:
        return name
    typed = str(tree.meta.get("typed", name))
    forms = {**_FORMS, "UNNEST": "FROM s CROSS JOIN UNNEST(s.items) AS t(item)"}
    near = difflib.get_close_matches(typed.upper(), forms, n=1)
    hint = f"did you mean {near[0]}? write {forms[near[0]]}" if near else f"use {', '.join(_FORMS.values())}, or one of `sbon functions`"
    raise text.error(tree, f"there is no table function {typed}", hint)


def read_window_call(text: Text, tree: exp.Func) -> WindowCall:
    """Reads the window function of a FROM.

    Raises
    ------
    QueryError
        The function is no window function, or its arguments are invalid.
    """
    name = window_name(text, tree)
    form = _FORMS[name]
    arguments = [a for a in tree.expressions if not isinstance(a, exp.Kwarg)]
    if len(arguments) != (4 if name == "HOP" else 3):
        raise text.error(tree, f"{name} got {len(arguments)} arguments", f"write {form}")
    spans = []
    for argument in arguments[2:]:
        span = interval_of(text, argument)
        if span is None or span <= 0:
            raise text.error(argument, "a positive INTERVAL is expected", f"write {form}, such as INTERVAL '10 seconds'")
        spans.append(span)
    slide, size = spans[0], spans[-1]
    if size < slide:
        raise text.error(arguments[3], f"HOP with a size below its slide would leave rows out; {form} names the slide first")
    if size > PANES_MAX * slide:
        raise text.error(arguments[2], f"each row would be in {size // slide} windows, expected at most {PANES_MAX}", "take a longer slide")
    session, partition = name == "SESSION", _partition(tree)
    return WindowCall(tree, as_table(text, tree, form), arguments[1], size, slide, _lateness(text, tree), session, partition)


def _lateness(text: Text, tree: exp.Func) -> int:
    lateness = 0
    for argument in tree.expressions:
        if not isinstance(argument, exp.Kwarg) or argument.this.name.lower() == _PARTITION:
            continue
        span = interval_of(text, argument.expression)
        if argument.this.name.lower() != "lateness" or span is None or span < 0:
            raise text.error(argument, f"{argument.this.name} is not expected here", "write lateness => INTERVAL '5 seconds'")
        lateness = span
    return lateness


def _partition(tree: exp.Func) -> tuple[exp.Expr, ...] | None:
    for argument in tree.expressions:
        if isinstance(argument, exp.Kwarg) and argument.this.name.lower() == _PARTITION:
            keys = argument.expression
            return tuple(keys.expressions) if isinstance(keys, exp.Tuple) else (keys.unnest(),)
    return None


def as_table(text: Text, tree: exp.Func, form: str) -> exp.Expr:
    """Returns the first argument of a table function as an input of FROM.

    Raises
    ------
    QueryError
        The argument cannot be an input.
    """
    argument = next(iter(tree.expressions), None)
    if isinstance(argument, exp.Subquery):
        return argument
    if isinstance(argument, exp.Column) and isinstance(argument.this, exp.Identifier):
        table = exp.Table(this=argument.this.copy(), db=argument.args.get("table"), catalog=argument.args.get("db"))
        table.meta.update(argument.this.meta)
        return table
    if isinstance(argument, exp.Anonymous):
        return exp.Table(this=argument)
    where = argument if isinstance(argument, exp.Expr) else tree
    raise text.error(where, f"the input of {tree.name or 'it'} is a source, a view, or a SELECT in brackets", f"write {form}")


def aggregated(
    text: Text, tree: exp.Select, relation: Relation, scope: Scope, call: WindowCall | None, more: Sequence[exp.Expr] = ()
) -> tuple[Window, Scope, Scalars]:
    """Binds a windowed SELECT: its window, the names of its output, and the binder of expressions over it.

    `more` are expressions outside the SELECT list and HAVING that may aggregate.

    Raises
    ------
    QueryError
        There is no window or no event time, or the SELECT has a value that is neither grouped nor aggregated.
    """
    inner = Scalars(text, scope)
    group = tree.args.get("group")
    if group is None and call is not None:
        raise text.error(call.tree, "a window without GROUP BY", "write GROUP BY window_start, keys, and aggregates in the SELECT list")
    trees = _group_trees(text, tree, group, scope)
    windowed = [item for item in trees if call is not None and is_bound(item, scope)]
    if call is None:
        time, size, slide, lateness = _time_of_group(text, tree, relation, scope, trees), 1, 1, 0
    else:
        (time, behind_us), size, slide = event_time(text, call, relation, scope), call.size_us, call.slide_us
        lateness = call.lateness_us + behind_us
        if not windowed:
            message = "GROUP BY names neither window_start nor window_end"
            raise text.keyword_error(trees[0] if trees else call.tree, "GROUP", message, "write GROUP BY window_start, keys")
    keys: dict[Expression, tuple[str, ColumnType]] = {}
    columns: list[tuple[str, Expression, ColumnType]] = []
    for item in trees:
        if any(item is bound for bound in windowed):
            continue
        expression, type_ = inner.key(item, "GROUP BY")
        form = canonical(expression)
        if form in keys:
            continue
        name = free_name(expression_text(form), [*BOUNDS, *(column[0] for column in columns)])
        keys[form] = (name, type_)
        columns.append((name, expression, type_))
    if call is not None and call.partition is not None and {canonical(inner.value(item)[0]) for item in call.partition} != keys.keys():
        listed = ", ".join(["window_start", "window_end", *(item.sql(dialect="risingwave") for item in call.partition)])
        raise text.error(call.tree, "PARTITION BY of the SESSION and GROUP BY differ in their columns", f"write GROUP BY {listed}")
    grouped = Grouped(inner, keys, is_window=call is not None)
    _collect(tree, grouped)
    for item in more:
        grouped.bind(item)
    aggregates = tuple(grouped.aggregates.values())
    session = call is not None and call.session
    window = Window(relation, time, size, slide, lateness, tuple(columns), aggregates, session)
    alias = scope.columns[0].alias
    output = Scope(tuple(ScopeColumn(alias, column.name, column.name, column.type) for column in window.schema))
    return window, output, grouped


def _collect(tree: exp.Select, grouped: Grouped) -> None:
    """Binds the SELECT list and HAVING once, so that all aggregates are known before the window is made."""
    for item in tree.expressions:
        if item.is_star:
            raise grouped.text.error(item, "* does not go with GROUP BY", "name the keys and aggregates")
        grouped.bind(item.this if isinstance(item, exp.Alias) else item)
    having = tree.args.get("having")
    if having is not None:
        grouped.bind(having.this)


def _group_trees(text: Text, tree: exp.Select, group: exp.Expr | None, scope: Scope) -> list[exp.Expr]:
    """Returns the GROUP BY expressions, with positions and names of the SELECT list replaced by their expressions."""
    if group is None:
        found = next(a for part in [*tree.expressions, tree.args.get("having")] if part is not None and (a := find_aggregate(part)))
        typed = str(found.meta.get("typed", found.sql_name() if isinstance(found, exp.Func) else "it"))
        raise text.error(found, f"{typed}: an aggregate without GROUP BY would never end", _GROUP_HINT)
    for part, value in group.args.items():
        if part != "expressions" and value not in (None, False, []):
            raise text.error(group, f"GROUP BY {part.upper()} is not supported", "list the keys")
    named = {identifier(item.args["alias"]): item.this for item in tree.expressions if isinstance(item, exp.Alias)}
    declared = {column.name for column in scope.columns}
    trees: list[exp.Expr] = []
    for item in group.expressions:
        if isinstance(item, exp.Literal) and not item.args.get("is_string"):
            position = int(item.this) if str(item.this).isdecimal() and len(str(item.this)) < 6 else 0
            if not 1 <= position <= len(tree.expressions):
                raise text.error(item, f"GROUP BY {item.this}: there are {len(tree.expressions)} columns")
            item = tree.expressions[position - 1].unalias()
        elif isinstance(item, exp.Column) and item.args.get("table") is None and identifier(item.this) not in declared:
            item = named.get(identifier(item.this), item)
        item = end_of(item)
        if isinstance(item, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
            word = {exp.Rollup: "ROLLUP", exp.Cube: "CUBE", exp.GroupingSets: "GROUPING SETS"}.get(
                type(item), "GROUP BY of a list in brackets"
            )
            raise text.error(item, f"{word} is not supported", "UNION ALL one SELECT per set")
        if find_aggregate(item) is not None:
            raise text.error(item, "GROUP BY of an aggregate", "aggregate in a SELECT in brackets, and group around it")
        trees.append(item)
    return trees


def event_time(text: Text, call: WindowCall, relation: Relation, scope: Scope) -> tuple[str, int]:
    """Returns the time column of a window call, and how far its values may lie behind the input's watermark, in microseconds.

    Raises
    ------
    QueryError
        The column is no event time of the input.
    """
    if not isinstance(call.time, exp.Column):
        raise text.error(call.time, "the time of a window is a column", "write TUMBLE(stream, ts, INTERVAL '10 seconds')")
    found = scope.resolve(text, call.time)
    times = relation.times
    if found.column in times:
        return found.column, max(0, -times[found.column][1])
    known = [column.name for column in scope.columns if column.column in times]
    if not known:
        hint = "declare WATERMARK FOR it in CREATE SOURCE, and keep the column in subqueries; after a window, keep window_end"
        raise text.error(call.time, f"column {found.name} is not an event time, and this input has none", hint)
    raise text.error(call.time, f"column {found.name} is not an event time", did_you_mean(found.name, known))


def _time_of_group(text: Text, tree: exp.Select, relation: Relation, scope: Scope, trees: list[exp.Expr]) -> str:
    """Returns the event time among the keys, which acts as the window if there is no window function."""
    times = relation.times
    for item in trees:
        if isinstance(item, exp.Column) and not isinstance(item.this, exp.Star):
            found = scope.resolve(text, item)
            if found.column in times:
                return times[found.column][0]
    where = tree.args["group"].expressions[0] if tree.args["group"].expressions else tree
    for item in tree.args["group"].expressions:
        if isinstance(item, exp.Anonymous) and str(item.this).upper() in _FORMS and item.expressions:
            raise text.error(item, f"{str(item.this).upper()} stands in FROM here, not in GROUP BY", in_from(tree, item))
    raise text.error(where, "GROUP BY without a time window would never end", _GROUP_HINT)
