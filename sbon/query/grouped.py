"""Binds expressions over the output of a window: its keys and bounds, aggregates of its rows, and expressions built from these."""

import msgspec
from sqlglot import exp

from sbon.errors import QueryError
from sbon.query.aggregate_calls import aggregate_function, find_aggregate, read_aggregate
from sbon.query.aggregate_forms import aggregated
from sbon.query.expression import Column, Expression
from sbon.query.literals import identifier
from sbon.query.params.aggregate import Aggregate
from sbon.query.projection import free_name
from sbon.query.relation import BOUNDS
from sbon.query.rewrite import canonical
from sbon.query.scalar import Scalars
from sbon.query.scalar_calls import Bound
from sbon.query.scope import Scope
from sbon.query.text import aggregate_text
from sbon.schema import ColumnType

_ONE_TIME = {"first": "min", "last": "max"}


class Grouped(Scalars):
    """Binds expressions over the output of a window.

    Parameters
    ----------
    inner : binder of expressions over the window's input
    keys : name and type of each key, by its canonical form
    is_window : True if the window has bounds of its own; False if rows that are windowed already are aggregated again
    """

    def __init__(self, inner: Scalars, keys: dict[Expression, tuple[str, ColumnType]], *, is_window: bool) -> None:
        super().__init__(inner.text, Scope(()))
        self._inner = inner
        self._keys = keys
        self._is_window = is_window
        self.aggregates: dict[str, tuple[Aggregate, ColumnType]] = {}
        """Aggregates by output column, with the type of the answer."""
        self._names: dict[Aggregate, str] = {}

    def bind(self, tree: exp.Expr) -> Bound:
        """Binds a key, a bound of the window, an aggregate, or an expression of these."""
        if self._is_window and is_bound(tree, self._inner.scope):
            return Column(identifier(tree.this)), ColumnType.TIME
        if aggregate_function(tree) is not None or isinstance(tree, exp.Filter):
            return self._aggregate(tree)
        key = self._key(tree)
        if key is not None:
            return key
        if isinstance(tree, exp.Column) and not isinstance(tree.this, exp.Star):
            found, _ = self._inner.scope.path(self.text, tree)
            raise self.text.error(
                tree, f"column {found.name} is neither grouped nor aggregated", f"add it to GROUP BY, or write max({found.name})"
            )
        return super().bind(tree)

    def _key(self, tree: exp.Expr) -> Bound | None:
        if not self._keys or isinstance(tree, exp.Literal | exp.Null | exp.Boolean) or find_aggregate(tree) is not None:
            return None
        try:
            expression, _ = self._inner.bind(tree)
        except QueryError:
            return None
        named = self._keys.get(canonical(expression))
        return None if named is None else (Column(named[0]), named[1])

    def _aggregate(self, tree: exp.Expr) -> Bound:
        condition: Expression | None = None
        if isinstance(tree, exp.Filter):
            condition = self._inner.condition(tree.expression.this, "FILTER")
            tree = tree.this
        name = aggregate_function(tree)
        if name is None:
            if isinstance(tree, exp.AggFunc | exp.WithinGroup):
                raise self.unknown(tree)
            raise self.text.error(tree, "FILTER belongs to an aggregate", "write count(*) FILTER (WHERE ...)")
        call = read_aggregate(self.text, tree, name)
        if call.function in _ONE_TIME and not self._is_window:
            message = f"{call.function} of rows with the same event time: none of them is {call.function}"
            hint = f"take it in the SELECT that reads the rows with their own times, or write {_ONE_TIME[call.function]}(x)"
            raise self.text.error(tree, message, hint)
        made = aggregated(self._inner, tree, call, condition)
        return made.answered(self, tree, (Column(self._named(made.form, made.type)), made.type))

    def _named(self, form: Aggregate, result: ColumnType) -> str:
        """Returns the column of an aggregate; equal aggregates share one."""
        operand, by = (None if value is None else canonical(value) for value in (form.operand, form.by))
        unique = msgspec.structs.replace(form, operand=operand, by=by)
        name = self._names.get(unique)
        if name is None:  # equal texts may stand for different columns or NULLs of different types
            taken = [*(key for key, _ in self._keys.values()), *self.aggregates]
            name = self._names[unique] = free_name(aggregate_text(unique), taken)
            self.aggregates[name] = msgspec.structs.replace(form, name=name), result
        return name


def is_bound(tree: exp.Expr, scope: Scope) -> bool:
    """Tells whether the tree names a bound of the window, which hides input columns of that name."""
    if not isinstance(tree, exp.Column) or identifier(tree.this) not in BOUNDS:
        return False
    table = tree.args.get("table")
    return table is None or identifier(table) in scope.aliases
