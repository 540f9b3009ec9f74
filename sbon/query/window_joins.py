"""Binds joins of two streams, row by row, within windows of one length.

    FROM TUMBLE(a, ts, size) AS x JOIN TUMBLE(b, ts, size) AS y ON x.window_start = y.window_start AND x.key = y.key

The bounds of the two windows are equal in every pair, so the output has them once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sbon.query.dialect import Text
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.relation import BOUNDS, Relation
from sbon.query.rewrite import substitute
from sbon.query.scope import Scope, ScopeColumn
from sbon.query.windows import WindowCall, event_time
from sbon.schema import ColumnType

_FORM = "write FROM TUMBLE(a, ts, size) AS x JOIN TUMBLE(b, ts, size) AS y ON x.window_start = y.window_start AND x.key = y.key"
_AGGREGATE = "join two windows of one length on window_start, or aggregate it in a SELECT in brackets and join that"


@dataclass(frozen=True)
class WindowPair:
    """The two windows of a join."""

    window: tuple[int, int, int]
    """Size, slide, lateness."""
    times: tuple[str, str]
    """The event times of both sides."""
    bounds: dict[str, Expression]
    """New name of each bound of either window, after the join."""

    def told(self, condition: Expression) -> Expression:
        """Returns a condition with the bounds renamed as in the join."""
        return substitute(condition, self.bounds)

    def named(self, names: Scope) -> Scope:
        """Returns the names with the bounds as the join has them."""
        return Scope(tuple(replace(c, column=c.name) if c.column in self.bounds else c for c in names.columns))

    def without_equality(self, text: Text, tree: exp.Expr, conditions: Sequence[Expression]) -> list[Expression]:
        """Returns the conditions of a join other than the equality of the windows.

        Raises
        ------
        QueryError
            No condition equates the windows.
        """
        told = [self.told(condition) for condition in conditions]
        rest = [condition for condition in told if not _is_equality(condition)]
        if len(rest) == len(told):
            raise text.error(tree.this, "the JOIN does not say that its windows are the same", "add ON x.window_start = y.window_start")
        return rest


def _is_equality(condition: Expression) -> bool:
    """Tells whether the condition equates a bound, or window_time, of both sides."""
    if not isinstance(condition, Call) or condition.function != "eq" or condition.arguments[0] != condition.arguments[1]:
        return False
    match condition.arguments[0]:
        case Column(name=name) | Call(function="sub", arguments=(Column(name=name), Literal())):
            return name in BOUNDS
        case _:
            return False


def with_bounds(scope: Scope, *, of_left: bool) -> Scope:
    """Returns the names of a qualified input with the bounds of its window, which hide columns of the same names. Unqualified bounds mean
    those of the left input."""
    alias = scope.columns[0].alias
    bounds = (ScopeColumn(alias, name, f"{alias}.{name}", ColumnType.TIME, hidden=not of_left, merged=not of_left) for name in BOUNDS)
    return Scope((*bounds, *(column for column in scope.columns if column.name not in BOUNDS)))


def bounds_behind(names: Scope, side: str) -> Scope:
    """Returns the names after a LEFT, RIGHT or FULL join of windows: if a row has no partner, the partner's window is NULL.

    After a FULL join, only the unqualified window_start and window_end mean the window of the answer.
    """
    left = names.columns[0].alias
    found = []
    for column in names.columns:
        if column.name not in BOUNDS or column.column != f"{column.alias}.{column.name}":
            found.append(column)
        elif (column.alias == left) == (side != "RIGHT"):
            found.append(replace(column, alias="" if side == "FULL" else column.alias, hidden=False, merged=False))
    return Scope(tuple(found))


def window_pair(
    text: Text,
    tree: exp.Expr,
    calls: Sequence[WindowCall | None],
    relations: tuple[Relation, Relation],
    scopes: tuple[Scope, Scope],
) -> WindowPair:
    """Returns the windows of a join.

    Parameters
    ----------
    calls : window calls of all inputs so far
    relations, scopes : those of the first and the last input

    Raises
    ------
    QueryError
        The inputs are not two tumbling or hopping windows of one length.
    """
    windows = [call for call in calls if call is not None]
    if len(windows) < len(calls):
        typed = str(windows[0].tree.meta.get("typed", "FROM"))
        raise text.error(windows[0].tree, f"{typed}: a window cannot be joined with something else", _AGGREGATE)
    if len(calls) > 2:
        raise text.error(tree.this, "a JOIN of windows takes two windows", "join two in a SELECT in brackets, aggregate, and join that")
    left, right = windows
    for call in windows:
        if call.session:
            raise text.error(call.tree, "sessions cannot be joined: each has its own length", _AGGREGATE)
    if (left.size_us, left.slide_us) != (right.size_us, right.slide_us):
        raise text.error(right.tree, "the windows of the JOIN differ in length", _FORM)
    times = [event_time(text, call, relation, scope) for call, relation, scope in zip(windows, relations, scopes, strict=True)]
    aliases = [scope.columns[0].alias for scope in scopes]
    lateness = max(call.lateness_us + behind_us for call, (_, behind_us) in zip(windows, times, strict=True))
    return WindowPair(
        (left.size_us, left.slide_us, lateness),
        (f"{aliases[0]}.{times[0][0]}", f"{aliases[1]}.{times[1][0]}"),
        {f"{alias}.{name}": Column(name) for alias in aliases for name in BOUNDS},
    )
