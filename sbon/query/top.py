"""Binds ORDER BY ... LIMIT: the first rows of each window.

A stream has no end and cannot be sorted; a window can. Rows with one event time, such as `window_end`, are one window.
"""

from collections.abc import Iterator
from typing import NamedTuple

from sqlglot import exp

from sbon.query.dialect import Text
from sbon.query.expression import Column, Expression
from sbon.query.limits import LIMIT_MAX
from sbon.query.literals import identifier
from sbon.query.params.ordered import OrderColumn
from sbon.query.projection import free_name
from sbon.query.relation import (
    Apply,
    Assigned,
    Deduplicate,
    Join,
    Lookup,
    Match,
    Numbered,
    Over,
    Relation,
    Scan,
    Select,
    Top,
    Union,
    Unnest,
    Window,
)
from sbon.query.scalar import Scalars
from sbon.schema import ColumnType

_SORT_HINT = "write ORDER BY x DESC LIMIT 10 over a window, for the first rows of each window"
_FORM = "aggregate over a window: FROM TUMBLE(stream, ts, INTERVAL '10 seconds') GROUP BY window_start, keys ORDER BY x DESC LIMIT 10"


class Order(NamedTuple):
    """One item of ORDER BY; names and positions of the SELECT list are replaced by their expressions."""

    tree: exp.Expr
    descending: bool
    nulls_first: bool


def order_of(text: Text, tree: exp.Select) -> tuple[Order, ...]:
    """Returns the ORDER BY of a SELECT.

    Raises
    ------
    QueryError
        ORDER BY stands without LIMIT, LIMIT without ORDER BY, or a position is invalid.
    """
    clause, limit = tree.args.get("order"), tree.args.get("limit")
    if clause is not None and limit is None:
        hint = f"rows of a window leave ordered by its start and keys; {_SORT_HINT}"
        raise text.keyword_error(clause, "ORDER BY", "ORDER BY is not supported: a stream has no end to sort", hint)
    if clause is None:
        if limit is not None:
            hint = f"use `sbon tail QUERY --limit N`; {_SORT_HINT}"
            raise text.keyword_error(limit, "LIMIT", "LIMIT is not supported: a stream has no end", hint)
        return ()
    return tuple(named_items(text, tree, clause))


def named_items(text: Text, tree: exp.Select, clause: exp.Expr) -> Iterator[Order]:
    """Yields the items of an ORDER BY.

    Raises
    ------
    QueryError
        An item is a position that the SELECT list does not have.
    """
    named = {identifier(item.args["alias"]): item.this for item in tree.expressions if isinstance(item, exp.Alias)}
    for item in clause.expressions:
        value = item.this
        if isinstance(value, exp.Literal) and not value.args.get("is_string"):
            position = int(value.this) if str(value.this).isdecimal() and len(str(value.this)) < 6 else 0
            if not 1 <= position <= len(tree.expressions):
                raise text.error(value, f"ORDER BY {value.this}: there are {len(tree.expressions)} columns")
            value = tree.expressions[position - 1].unalias()
        elif isinstance(value, exp.Column) and value.args.get("table") is None:
            value = named.get(identifier(value.this), value)
        yield Order(value, bool(item.args.get("desc")), bool(item.args.get("nulls_first")))


def first_rows(text: Text, tree: exp.Select, select: Select, scalars: Scalars, order: tuple[Order, ...]) -> Select:
    """Limits a SELECT to the first rows of each window; its columns stay.

    Raises
    ------
    QueryError
        There is no window, or the limit is no number.
    """
    limit = _limit(text, tree)
    base = next((name for name, time in select.input.times.items() if time == (name, 0)), None)
    if base is None or not _is_windowed(select.input):
        where = tree.args["order"]
        raise text.keyword_error(where, "ORDER BY", "ORDER BY ... LIMIT gives the first rows of each window, and there is no window", _FORM)
    columns = list(select.columns)

    def named(value: Expression, type_: ColumnType) -> str:
        found = next((name for name, other, _ in columns if other == value), None)
        if found is None:
            found = free_name("order", (name for name, _, _ in columns))
            columns.append((found, value, type_))
        return found

    ordered = []
    for item in order:
        value, type_ = scalars.key(item.tree, "ORDER BY")
        ordered.append(OrderColumn(named(value, type_), item.descending, item.nulls_first))
    time = named(Column(base), ColumnType.TIME)
    ties = tuple(name for name, _, _ in select.columns)
    top = Top(Select(select.input, select.conditions, tuple(columns)), time, tuple(ordered), ties, limit)
    return Select(top, (), tuple((name, Column(name), type_) for name, _, type_ in select.columns))


def _limit(text: Text, tree: exp.Select) -> int:
    value = tree.args["limit"].expression
    number = int(value.this) if isinstance(value, exp.Literal) and str(value.this).isdecimal() and len(str(value.this)) < 10 else 0
    if not 1 <= number <= LIMIT_MAX:
        raise text.error(value or tree.args["limit"], f"LIMIT takes a number from 1 to {LIMIT_MAX}", "it counts the rows of each window")
    return number


def _is_windowed(relation: Relation) -> bool:
    """Tells whether rows share event times, that is, those of their windows."""
    match relation:
        case Window() | Assigned() | Deduplicate():
            return not relation.session  # each session is a window of its own
        case Scan() | Apply() | Numbered() | Over() | Match():
            return False
        case Select() | Top() | Unnest():
            return _is_windowed(relation.input)
        case Lookup():
            return _is_windowed(relation.left)
        case Join():
            return relation.window is not None or (_is_windowed(relation.left) and _is_windowed(relation.right))
        case Union():
            return all(_is_windowed(part) for part in relation.inputs)
