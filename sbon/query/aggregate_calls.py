"""Aggregates as SQL writes them: which calls are aggregates, of what, and with which options."""

from typing import NamedTuple

from sqlglot import exp

from sbon.query.dialect import Text

_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Min: "min",
    exp.Max: "max",
    exp.Avg: "avg",
    exp.First: "first",
    exp.FirstValue: "first",
    exp.Last: "last",
    exp.LastValue: "last",
    exp.Stddev: "stddev",
    exp.StddevSamp: "stddev",
    exp.ApproxDistinct: "approx_count_distinct",
}
_PERCENTILE = "approx_percentile"


class AggregateCall(NamedTuple):
    """One aggregate as it was written."""

    function: str
    operand: exp.Expr | None
    """None: COUNT(*)."""
    share: float


def aggregate_function(tree: exp.Expr) -> str | None:
    """The function of a call that aggregates; None: it does not."""
    if isinstance(tree, exp.Anonymous):
        return _PERCENTILE if str(tree.this).lower() == _PERCENTILE else None
    return _AGGREGATES.get(type(tree))


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
    operand = tree.this
    extra = [value for key, value in tree.args.items() if key not in ("this", "big_int") and value not in (None, False, [])]
    if extra or isinstance(operand, exp.Order):
        raise text.error(tree, f"{function} takes one argument", "order and options of aggregates are not supported")
    if isinstance(operand, exp.Distinct):
        if function in ("min", "max") and len(operand.expressions) == 1:
            return AggregateCall(function, operand.expressions[0], 0.5)
        if function != "count" or len(operand.expressions) != 1:
            raise text.error(tree, f"DISTINCT is not supported in {function}", "only count(DISTINCT column) has it")
        return AggregateCall("count_distinct", operand.expressions[0], 0.5)
    if isinstance(operand, exp.Star) or operand is None:
        if function != "count":
            raise text.error(tree, f"{function} needs a column", "only COUNT takes *")
        return AggregateCall(function, None, 0.5)
    return AggregateCall(function, operand, 0.5)


def _percentile(text: Text, tree: exp.Expr) -> AggregateCall:
    form = f"write {_PERCENTILE}(column, 0.99)"
    if len(tree.expressions) != 2:
        raise text.error(tree, f"{_PERCENTILE} got {len(tree.expressions)} arguments, expected 2", form)
    operand, share = tree.expressions
    number = float(share.this) if isinstance(share, exp.Literal) and not share.args.get("is_string") else -1.0
    if not 0.0 <= number <= 1.0:
        raise text.error(share, f"the share of {_PERCENTILE} is a number from 0 to 1", form)
    return AggregateCall(_PERCENTILE, operand, number)
