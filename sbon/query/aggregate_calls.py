"""Aggregates as SQL writes them: which calls are aggregates, of what, and with which options."""

from typing import NamedTuple

from sqlglot import exp

from sbon.query.aggregate_names import BY_NAME, BY_TREE
from sbon.query.dialect import Text
from sbon.query.plan import PAIR_FUNCTIONS

_PERCENTILE = "approx_percentile"
_SAME_OF_DISTINCT = ("min", "max", "any_value", "bool_and", "bool_or", "bit_and", "bit_or")
"""Aggregates that a value counts for once, however often it is there."""


class AggregateCall(NamedTuple):
    """One aggregate as it was written."""

    function: str
    """One of `sbon.query.plan.AGGREGATE_FUNCTIONS`, or count_if or any_value, which are made of these."""
    operand: exp.Expr | None
    """None: COUNT(*)."""
    share: float = 0.5
    by: exp.Expr | None = None
    """The second operand."""


def aggregate_function(tree: exp.Expr) -> str | None:
    """The function of a call that aggregates; None: it does not."""
    if isinstance(tree, exp.Anonymous):
        return BY_NAME.get(str(tree.this).lower())
    return BY_TREE.get(type(tree))


def find_aggregate(tree: exp.Expr) -> exp.Expr | None:
    """The first aggregate in a tree, subqueries left out."""
    if isinstance(tree, exp.Window | exp.Query):
        return None
    if aggregate_function(tree) is not None:
        return tree
    return next((found for child in tree.iter_expressions() if (found := find_aggregate(child)) is not None), None)


def has_aggregate(tree: exp.Select) -> bool:
    """Some value of the SELECT list or of HAVING aggregates."""
    having = tree.args.get("having")
    return any(find_aggregate(part) is not None for part in [*tree.expressions, *([having] if having is not None else [])])


def read_aggregate(text: Text, tree: exp.Expr, function: str) -> AggregateCall:
    """The parts of a call that aggregates.

    Raises
    ------
    QueryError
        It has options that its function does not take, or other arguments.
    """
    if function == _PERCENTILE:
        return _percentile(text, tree)
    typed = str(tree.meta.get("typed", function))
    if function in PAIR_FUNCTIONS:
        return _pair(text, tree, function, typed)
    operands = tree.expressions if isinstance(tree, exp.Anonymous) else [tree.this]
    known = ("expressions",) if isinstance(tree, exp.Anonymous) else ("this", "big_int")
    extra = [value for key, value in tree.args.items() if key not in ("this", *known) and value not in (None, False, [])]
    operand = operands[0] if operands else None
    if extra or len(operands) > 1 or isinstance(operand, exp.Order):
        raise text.error(tree, f"{typed} takes one argument", "order and options of aggregates are not supported")
    if isinstance(operand, exp.Distinct):
        if function in _SAME_OF_DISTINCT and len(operand.expressions) == 1:
            return AggregateCall(function, operand.expressions[0])
        if len(operand.expressions) != 1:
            hint = "join the columns to one text: CONCAT(a, '|', CAST(b AS TEXT))"
            raise text.error(tree, f"{typed}(DISTINCT ...) takes one column", hint)
        if function != "count":
            hint = "count(DISTINCT column) has it; aggregate in two steps: GROUP BY the column as well, in a SELECT in brackets"
            raise text.error(tree, f"DISTINCT is not supported in {typed}", hint)
        return AggregateCall("count_distinct", operand.expressions[0])
    if isinstance(operand, exp.Star) or operand is None:
        if function != "count":
            raise text.error(tree, f"{typed} needs a column", "only COUNT takes *")
        return AggregateCall(function, None)
    return AggregateCall(function, operand)


def _pair(text: Text, tree: exp.Expr, function: str, typed: str) -> AggregateCall:
    operand, by = tree.this, tree.args.get("expression")
    extra = [value for key, value in tree.args.items() if key not in ("this", "expression") and value not in (None, False, [])]
    if extra or by is None or isinstance(operand, exp.Distinct | exp.Order | exp.Star):
        what = "the x of the row with the least or the greatest y" if function in ("arg_min", "arg_max") else "of y and x"
        form = "(x, y)" if function in ("arg_min", "arg_max") else "(y, x)"
        raise text.error(tree, f"{typed} takes two arguments and no options", f"write {typed}{form}, {what}")
    return AggregateCall(function, operand, by=by)


def _percentile(text: Text, tree: exp.Expr) -> AggregateCall:
    form = f"write {_PERCENTILE}(column, 0.99)"
    if len(tree.expressions) != 2:
        raise text.error(tree, f"{_PERCENTILE} got {len(tree.expressions)} arguments, expected 2", form)
    operand, share = tree.expressions
    number = float(share.this) if isinstance(share, exp.Literal) and not share.args.get("is_string") else -1.0
    if not 0.0 <= number <= 1.0:
        raise text.error(share, f"the share of {_PERCENTILE} is a number from 0 to 1", form)
    return AggregateCall(_PERCENTILE, operand, number)
