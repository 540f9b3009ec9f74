"""Binds joins of streams: which conditions are keys, which bound the time between two rows, and which remain.

A condition on times is brought into the form `low <= right time - left time <= high`. Both bounds are required, as rows would
otherwise have to be kept for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.fold import fold
from sbon.query.join_keys import crossing, key_of
from sbon.query.literals import identifier
from sbon.query.lookups import is_lookup, lookup_join, lookup_table
from sbon.query.outer_joins import outer_join
from sbon.query.relation import BOUNDS, Join, Relation, Select
from sbon.query.rewrite import columns_of, conjuncts
from sbon.query.scalar import Scalars
from sbon.query.scope import Scope
from sbon.query.text import duration_text
from sbon.query.window_joins import WindowPair, bounds_behind, window_pair, with_bounds
from sbon.query.windows import WindowCall
from sbon.schema import ColumnType

if TYPE_CHECKING:
    from sbon.query.binder import Binder

KEEP_MAX_US = 30 * 86_400 * 1_000_000
"""Longest interval of a join. Rows of both sides are kept that long."""

_INSTEAD = {
    "NATURAL": "write ON a.key = b.key, and a bound on the time between the rows",
    "LEFT SEMI": "write JOIN, and name the left columns in the SELECT",
    "LEFT ANTI": "write LEFT JOIN, and WHERE b.key IS NULL",
    "ASOF": "write JOIN with AND b.ts BETWEEN a.ts - INTERVAL '5 seconds' AND a.ts, which finds all partners in that time",
}
_STATIC = "a table that does not change is read FOR SYSTEM_TIME AS OF a time of the stream before it; a stream needs WATERMARK FOR its time"
_FLIPPED = {"le": "ge", "lt": "gt", "ge": "le", "gt": "lt", "eq": "eq"}


@dataclass
class _Span:
    """Bounds of right time - left time, in microseconds; None: not bounded."""

    low: int | None = None
    high: int | None = None

    def narrow(self, comparison: str, bound: int) -> None:
        """Applies the condition `right - left <comparison> bound`."""
        if comparison in ("ge", "gt", "eq"):
            low = bound + (comparison == "gt")
            self.low = low if self.low is None else max(self.low, low)
        if comparison in ("le", "lt", "eq"):
            high = bound - (comparison == "lt")
            self.high = high if self.high is None else min(self.high, high)


def join_inputs(
    binder: Binder, relation: Relation, scope: Scope, call: WindowCall | None, joins: Sequence[exp.Expr], where: exp.Expr | None
) -> tuple[Relation, Scope, tuple[Expression, ...]]:
    """Joins the first input with all others, left to right.

    Returns
    -------
    Relation, Scope
        Relation and names of the whole FROM.
    tuple of Expression
        Conditions of WHERE that no join uses.

    Raises
    ------
    QueryError
        The kind of join is not supported, there is no equality or no bound on the times, a window is joined with a stream without one, ...
    """
    calls = [call]
    windows: WindowPair | None = None
    rights: list[tuple[exp.Expr, Select, list[Expression]]] = []
    left: Relation
    left, names = _qualified(binder, joins[0], relation, scope)
    if call is not None:
        names = with_bounds(names, of_left=True)
    for tree in joins:
        _refuse_kind(binder, tree)
        right: Relation
        if is_lookup(tree.this):
            (right, right_scope), right_call = lookup_table(binder, tree, names), None
        else:
            right, right_scope, right_call = binder.table(tree.this)
        calls.append(right_call)
        if any(calls):
            windows = window_pair(binder.text, tree, calls, (relation, right), (scope, right_scope))
        for alias in right_scope.aliases:
            if alias in names.aliases:
                raise binder.text.error(tree.this, f"two inputs are named {alias or 'nothing'}", "name one of them with AS")
        renamed, right_scope = _qualified(binder, tree.this, right, right_scope)
        if right_call is not None:
            right_scope = with_bounds(right_scope, of_left=False)
        conditions = _using(binder, tree, names, right_scope)
        names = _together(binder, tree, names, right_scope)
        on = tree.args.get("on")
        if on is not None:
            # Bound one by one: even if one condition is never true, the others still give the keys.
            conditions += [fold(part) for part in conjuncts(Scalars(binder.text, names).condition(on, "ON"))]
        rights.append((tree, renamed, conditions))
    if windows is not None and _side(joins[0]):
        names = bounds_behind(names, _side(joins[0]))
    waiting = [] if where is None else [fold(part) for part in conjuncts(Scalars(binder.text, names).condition(where, "WHERE"))]
    for tree, renamed, conditions in rights:
        known = {column.name for side in (left, renamed) for column in side.schema}
        known |= {column.column for column in names.columns if column.name in BOUNDS} if windows is not None else set()
        # After an outer join WHERE sees NULLs where ON found no partner, so it must not take part in finding partners.
        mine = [] if _side(tree) else [condition for condition in waiting if known.issuperset(columns_of([condition]))]
        waiting = [condition for condition in waiting if condition not in mine]
        if is_lookup(tree.this):
            left = lookup_join(binder, tree, left, renamed, [*conditions, *mine])
        else:
            left = _join(binder, tree, left, renamed, [*conditions, *mine], windows)
    if windows is not None:
        return left, windows.named(names), tuple(windows.told(condition) for condition in waiting)
    return left, names, tuple(waiting)


def _refuse_kind(binder: Binder, tree: exp.Expr) -> None:
    kind = " ".join(str(tree.args[part]) for part in ("method", "side", "kind") if tree.args.get(part)).upper()
    if kind.removesuffix(" OUTER") not in ("", "INNER", "CROSS", "LEFT", "RIGHT", "FULL"):
        hint = _INSTEAD.get(kind, _INSTEAD.get(kind.split()[0], "write JOIN ... ON, or LEFT, RIGHT or FULL JOIN ... ON"))
        raise binder.text.keyword_error(tree.this, kind, f"{kind} JOIN is not supported", hint)
    binder.refuse_parts(tree, ("this", "on", "using", "kind", "side"))


def _side(tree: exp.Expr) -> str:
    """Returns LEFT, RIGHT, FULL, or ""."""
    return str(tree.args.get("side") or "").upper()


def _together(binder: Binder, tree: exp.Expr, left: Scope, right: Scope) -> Scope:
    """Returns the names of both inputs. An unqualified column of USING means the merged column of the answer."""
    using = {identifier(item) for item in tree.args.get("using") or []}
    keys = sorted(using.difference(BOUNDS))
    if _side(tree) == "FULL" and keys:
        one, other = left.columns[0].alias, right.columns[0].alias
        hint = f"write ON {one}.{keys[0]} = {other}.{keys[0]}, and COALESCE({one}.{keys[0]}, {other}.{keys[0]})"
        raise binder.text.error(tree.args["using"][0], "USING does not go with FULL JOIN", hint)
    sides = [list(left.columns), list(right.columns)]
    less = 0 if _side(tree) == "RIGHT" else 1
    sides[less] = [replace(c, hidden=True, merged=True) if c.name in using else c for c in sides[less]]
    return Scope((*sides[0], *sides[1]))


def _qualified(binder: Binder, tree: exp.Expr, relation: Relation, scope: Scope) -> tuple[Select, Scope]:
    """Returns the input with its columns renamed to `alias.column`, which is unique within the join."""
    alias = scope.columns[0].alias
    if "." in alias:
        raise binder.text.error(tree, f"input {alias} of a join has a dot in its name", "name it with AS")
    columns = tuple((f"{alias}.{column.name}", Column(column.name), column.type) for column in relation.schema)
    renamed = tuple(replace(column, column=f"{alias}.{column.column}") for column in scope.columns)
    return Select(relation, (), columns), Scope(renamed)


def _using(binder: Binder, tree: exp.Expr, left: Scope, right: Scope) -> list[Expression]:
    conditions: list[Expression] = []
    for item in tree.args.get("using") or []:
        column = exp.Column(this=item.copy())
        column.this.meta.update(item.meta)
        both = [scope.resolve(binder.text, column) for scope in (left, right)]
        equal, _ = Scalars(binder.text, left).call(item, "eq", [(Column(one.column), one.type) for one in both])
        conditions.append(equal)
    return conditions


def _join(
    binder: Binder, tree: exp.Expr, left: Relation, right: Relation, conditions: Sequence[Expression], windows: WindowPair | None
) -> Relation:
    """Binds one join. Conditions on one side stay in the list; `sbon.query.lowering` moves them to their side."""
    if windows is not None:
        conditions = windows.without_equality(binder.text, tree, conditions)
    sides = {column.name for column in left.schema}, {column.name for column in right.schema}
    both, residual = crossing(conditions, sides)
    if windows is None:
        left_time, right_time, span, used_up = _span(binder, tree, left, right, both)
    else:
        left_time, right_time, span, used_up = *windows.times, _Span(0, 0), []
    types = {column.name: column.type for side in (left, right) for column in side.schema}
    keys = []
    for condition in both:
        key = key_of(condition, sides, types)
        if key is not None:
            keys.append(key)
        elif condition not in used_up:
            residual.append(condition)
    if not keys:
        raise binder.text.error(tree.this, "JOIN without an equality between both sides", "add ON a.key = b.key")
    columns = tuple((column.name, number, column.name) for number, side in enumerate((left, right)) for column in side.schema)
    assert span.low is not None
    assert span.high is not None
    window = windows.window if windows is not None else None
    join = Join(left, right, left_time, right_time, tuple(keys), -span.low, span.high, columns, tuple(residual), window=window)
    return outer_join(join, _side(tree))


def _span(
    binder: Binder, tree: exp.Expr, left: Relation, right: Relation, conditions: Sequence[Expression]
) -> tuple[str, str, _Span, list[Expression]]:
    """Returns the event times of both sides, the interval between them, and the conditions that the interval replaces.

    Several pairs of times may be bounded if a side is a join itself. The first pair bounded both ways is used; the conditions
    on the others stay ordinary conditions.
    """
    spans: dict[tuple[str, str], tuple[_Span, list[Expression]]] = {}
    for condition in conditions:
        found = _bound(condition, left, right)
        if found is None:
            continue
        pair, comparison, bound = found
        span, used = spans.setdefault(pair, (_Span(), []))
        span.narrow(comparison, bound)
        used.append(condition)
    for (left_time, right_time), (span, used) in spans.items():
        if span.low is None or span.high is None:
            continue
        if span.low > span.high:
            raise binder.text.error(tree.this, "the interval of the JOIN is empty", "exchange its bounds")
        if span.high - span.low > KEEP_MAX_US or max(abs(span.low), abs(span.high)) > KEEP_MAX_US:
            hint = f"take one of at most {duration_text(KEEP_MAX_US)}"
            raise binder.text.error(tree.this, f"the JOIN would keep rows for {duration_text(span.high - span.low)}", hint)
        return left_time, right_time, span, used
    for side in (left, right):
        if not side.times:
            name = side.schema[0].name.partition(".")[0]
            timeless = all(column.type is not ColumnType.TIME for column in side.schema)
            hint = _STATIC if timeless else "declare WATERMARK FOR its time in CREATE SOURCE, and keep the column in subqueries"
            raise binder.text.error(tree.this, f"input {name} of the JOIN has no event time", hint)
    problem = "is bounded on one side only" if spans else "has no bound on the time between its rows"
    raise binder.text.error(tree.this, f"the JOIN {problem}", _within(tree, left, right))


def _within(tree: exp.Expr, left: Relation, right: Relation) -> str:
    """Returns an example of a bound on the times of both sides, for a hint."""
    one, other = (next(name for name in side.times if side.times[name][1] == 0 or len(side.times) == 1) for side in (left, right))
    bound = f"{other} BETWEEN {one} - INTERVAL '5 seconds' AND {one} + INTERVAL '5 seconds'"
    if tree.args.get("on") is not None:
        return f"add AND {bound}"
    keys = [identifier(item) for item in tree.args.get("using") or ()]
    inputs = one.partition(".")[0], other.partition(".")[0]
    equal = " AND ".join(f"{inputs[0]}.{key} = {inputs[1]}.{key}" for key in keys or ["key"])
    return f"write JOIN ... ON {equal} AND {bound}"


def _bound(condition: Expression, left: Relation, right: Relation) -> tuple[tuple[str, str], str, int] | None:
    """Returns ((left base, right base), comparison, bound) of `right base time - left base time <comparison> bound`, if the condition has
    that form."""
    if not isinstance(condition, Call) or condition.function not in _FLIPPED:
        return None
    form = _linear(Call("sub", condition.arguments))
    if form is None:
        return None
    terms = {name: factor for name, factor in form[0].items() if factor}
    on_left = [name for name in terms if name in left.times]
    on_right = [name for name in terms if name in right.times]
    if len(terms) != 2 or len(on_left) != 1 or len(on_right) != 1 or sorted(terms.values()) != [-1, 1]:
        return None
    comparison, constant = condition.function, form[1]
    if terms[on_right[0]] == -1:
        comparison, constant = _FLIPPED[comparison], -constant
    left_base, left_offset = left.times[on_left[0]]
    right_base, right_offset = right.times[on_right[0]]
    # right - left + constant <comparison> 0, with each time = its base + offset.
    return (left_base, right_base), comparison, -constant - right_offset + left_offset


def _linear(expression: Expression) -> tuple[dict[str, int], int] | None:
    """Returns an expression as a sum of columns with integer factors and a constant in microseconds; None if it is no such sum."""
    match fold(expression):
        case Column(name=name):
            return {name: 1}, 0
        case Literal(value=int() as value, type=ColumnType.TIME | ColumnType.INTERVAL):
            return {}, value
        case Call(function="add" | "sub" as function, arguments=(first, second)):
            one, other = _linear(first), _linear(second)
            if one is None or other is None:
                return None
            sign = 1 if function == "add" else -1
            terms = {name: one[0].get(name, 0) + sign * other[0].get(name, 0) for name in (*one[0], *other[0])}
            return terms, one[1] + sign * other[1]
        case Call(function="neg", arguments=(inner,)):
            negated = _linear(inner)
            return None if negated is None else ({name: -factor for name, factor in negated[0].items()}, -negated[1])
        case _:
            return None
