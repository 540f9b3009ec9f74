"""Translates aggregate calls into the aggregates that operators compute: COUNT_IF and FILTER by conditions, ARRAY_AGG by joined texts."""

from typing import NamedTuple

from sqlglot import exp

from sbon.errors import QueryError
from sbon.query.aggregate_calls import AggregateCall, find_aggregate
from sbon.query.expression import Call, Case, Expression, Literal
from sbon.query.functions import MaybeType, aggregate_type
from sbon.query.nested import to_json
from sbon.query.params.aggregate import Aggregate
from sbon.query.scalar import Scalars
from sbon.query.scalar_calls import NULL, Bound, widen
from sbon.schema import TYPE_NAMES, ColumnType, array_type


class Aggregated(NamedTuple):
    """An aggregate call as operators compute it."""

    form: Aggregate
    """The aggregate, still without a name."""
    type: ColumnType
    array: ColumnType | None
    """For ARRAY_AGG, the type of the array. The operator's answer is then the elements as one text, joined by commas, without brackets."""

    def answered(self, scalars: Scalars, tree: exp.Expr, answer: Bound) -> Bound:
        """Returns the value of the call.

        Parameters
        ----------
        answer : the operator's output column
        """
        if self.array is None:
            return answer
        brackets = [(Literal(text, ColumnType.TEXT), ColumnType.TEXT) for text in "[]"]
        whole = scalars.call(tree, "concat", [brackets[0], answer, brackets[1]])
        return scalars.cast(tree, whole, self.array)


class _Operand(NamedTuple):
    function: str
    value: Expression | None
    """None for COUNT(*)."""
    type: MaybeType
    by: Expression | None = None
    by_type: MaybeType = None
    condition: Expression | None = None
    """Rows for which this does not hold are left out."""
    array: ColumnType | None = None


def aggregated(inner: Scalars, tree: exp.Expr, call: AggregateCall, condition: Expression | None) -> Aggregated:
    """Returns the aggregate that computes a call.

    Parameters
    ----------
    inner : binder of expressions over the rows that are aggregated
    condition : the condition of FILTER; rows that do not meet it are left out

    Raises
    ------
    QueryError
        The operands do not fit; points at the place.
    """
    operand = _operand(inner, tree, call)
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
        raise inner.mismatch(tree, error) from None
    form = Aggregate("", operand.function, value, call.share, operand.by, call.separator, call.descending)
    return Aggregated(form, result, operand.array)


def _operand(inner: Scalars, tree: exp.Expr, call: AggregateCall) -> _Operand:
    """Returns the operand of a call, and the aggregate that computes it."""
    if call.operand is None:
        return _Operand(call.function, None, None)
    nested = next((part for part in (call.operand, call.by) if part is not None and find_aggregate(part) is not None), None)
    if nested is not None:
        hint = "aggregate in a SELECT in brackets, and again around it"
        message = f"{inner.text.written(nested)}: an aggregate within {inner.typed(tree)}"
        raise inner.text.error(nested, message, hint)
    typed = inner.typed(tree)
    if call.function == "count_if":
        return _Operand("count", None, None, condition=inner.condition(call.operand, typed))
    if call.function in ("bool_and", "bool_or"):
        return _Operand(call.function, inner.condition(call.operand, typed), ColumnType.BOOL)
    if call.function in ("string_agg", "string_agg_distinct"):
        told, _ = inner.as_text(call.operand, inner.value(call.operand))
        by = None if call.by is None else inner.value(call.by)[0]
        return _Operand(call.function, told, ColumnType.TEXT, by)
    value, type_ = inner.value(call.operand)
    if call.function == "array_agg":
        return _elements(inner, tree, value, type_)
    if call.function == "any_value":
        return _Operand("bool_and" if type_ is ColumnType.BOOL else "min", value, type_)
    by, by_type = (None, None) if call.by is None else inner.value(call.by)
    return _Operand(call.function, value, type_, by, by_type)


def _elements(inner: Scalars, tree: exp.Expr, value: Expression, type_: ColumnType) -> _Operand:
    """Returns the operand of ARRAY_AGG: each value, NULL included, as JSON text. string_agg joins these texts."""
    array = array_type(type_)
    if array is None:
        message = f"{inner.typed(tree)} takes no {TYPE_NAMES[type_]}: there is no array of this type"
        raise inner.text.error(tree, message, "CAST it to TEXT, or an array to JSON")
    json = to_json(inner, tree, (value, type_))
    text, _ = inner.cast(tree, json, ColumnType.TEXT)
    told = Call("coalesce", (text, Literal("null", ColumnType.TEXT)))
    return _Operand("string_agg", told, ColumnType.TEXT, array=array)
