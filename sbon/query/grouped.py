"""Binds expressions over the output of a window: its keys and bounds, aggregates of its rows, and expressions built from these."""

from typing import NamedTuple

import msgspec
from sqlglot import exp

from sbon.errors import QueryError
from sbon.query.aggregate_calls import AggregateCall, aggregate_function, find_aggregate, read_aggregate
from sbon.query.expression import Call, Case, Column, Expression, Literal
from sbon.query.functions import MaybeType, aggregate_type
from sbon.query.literals import identifier
from sbon.query.nested import to_json
from sbon.query.plan import Aggregate
from sbon.query.projection import free_name
from sbon.query.relation import BOUNDS
from sbon.query.rewrite import canonical
from sbon.query.scalar import Scalars
from sbon.query.scalar_calls import NULL, Bound, widen
from sbon.query.schema import TYPE_NAMES, ColumnType, array_type
from sbon.query.scope import Scope
from sbon.query.text import aggregate_text


class _Operand(NamedTuple):
    """Operand and function of a call, after it is expressed by aggregates that windows have."""

    function: str
    value: Expression | None
    """None for COUNT(*)."""
    type: MaybeType
    by: Expression | None = None
    by_type: MaybeType = None
    condition: Expression | None = None
    """Rows for which this does not hold are left out."""
    array: ColumnType | None = None
    """The type of arrays that the answer, elements with a comma between two, is the inside of."""


_ONE_TIME = {"first": "min", "last": "max"}


class Grouped(Scalars):
    """Binds expressions over the output of a window.

    Parameters
    ----------
    inner : binder of expressions over the window's input
    keys : name and type of each key, by its canonical form
    is_window : the window has bounds of its own; False if rows that are windowed already are aggregated once more
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
            message = f"{call.function} of rows that have one event time: none of them is {call.function}"
            hint = f"take it in the window that has the rows' own times, or write {_ONE_TIME[call.function]}(x)"
            raise self.text.error(tree, message, hint)
        operand = self._operand(tree, call)
        conditions = tuple(part for part in (condition, operand.condition) if part is not None)
        value, type_ = operand.value, operand.type
        if conditions:
            there: Expression = Literal(1, ColumnType.INT) if value is None else value
            type_ = type_ if value is not None else ColumnType.INT
            met = conditions[0] if len(conditions) == 1 else Call("and", conditions)
            value = Case(((met, there),), widen((NULL, None), type_)[0])
        try:
            result = aggregate_type(operand.function, type_, operand.by_type)
        except QueryError as error:
            raise self.mismatch(tree, error) from None
        form = Aggregate("", operand.function, value, call.share, operand.by, call.separator, call.descending)
        answer = Column(self._named(form, result)), result
        return answer if operand.array is None else self._as_array(tree, answer, operand.array)

    def _as_array(self, tree: exp.Expr, elements: Bound, array: ColumnType) -> Bound:
        brackets = [(Literal(text, ColumnType.TEXT), ColumnType.TEXT) for text in "[]"]
        whole = self.call(tree, "concat", [brackets[0], elements, brackets[1]])
        return self.cast(tree, whole, array)

    def _elements(self, tree: exp.Expr, value: Expression, type_: ColumnType) -> _Operand:
        """ARRAY_AGG: the values as texts of JSON, NULL among them, which STRING_AGG joins."""
        array = array_type(type_)
        if array is None:
            message = f"{self.typed(tree)} takes no {TYPE_NAMES[type_]}: there are no arrays of these"
            raise self.text.error(tree, message, "CAST it to TEXT, or an array to JSON")
        json = to_json(self._inner, tree, (value, type_))
        text, _ = self._inner.cast(tree, json, ColumnType.TEXT)
        told = Call("coalesce", (text, Literal("null", ColumnType.TEXT)))
        return _Operand("string_agg", told, ColumnType.TEXT, array=array)

    def _operand(self, tree: exp.Expr, call: AggregateCall) -> _Operand:
        """Returns the operand of a call, and the aggregate that computes it."""
        if call.operand is None:
            return _Operand(call.function, None, None)
        nested = next((part for part in (call.operand, call.by) if part is not None and find_aggregate(part) is not None), None)
        if nested is not None:
            hint = "aggregate in a SELECT in brackets, and again around it"
            message = f"{self.text.written(nested)}: an aggregate within {self.typed(tree)}"
            raise self.text.error(nested, message, hint)
        typed = self.typed(tree)
        if call.function == "count_if":
            return _Operand("count", None, None, condition=self._inner.condition(call.operand, typed))
        if call.function in ("bool_and", "bool_or"):
            return _Operand(call.function, self._inner.condition(call.operand, typed), ColumnType.BOOL)
        if call.function in ("string_agg", "string_agg_distinct"):
            told, _ = self._inner.as_text(call.operand, self._inner.value(call.operand))
            by = None if call.by is None else self._inner.value(call.by)[0]
            return _Operand(call.function, told, ColumnType.TEXT, by)
        value, type_ = self._inner.value(call.operand)
        if call.function == "array_agg":
            return self._elements(tree, value, type_)
        if call.function == "any_value":
            return _Operand("bool_and" if type_ is ColumnType.BOOL else "min", value, type_)
        by, by_type = (None, None) if call.by is None else self._inner.value(call.by)
        return _Operand(call.function, value, type_, by, by_type)

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
