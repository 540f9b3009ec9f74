"""Reads aggregate calls in SQL: which calls aggregate, what they aggregate, and with which options."""

from typing import NamedTuple

from sqlglot import exp

from sbon.query.aggregate_names import BY_NAME, BY_TREE
from sbon.query.dialect import Text
from sbon.query.limits import SEPARATOR_MAX
from sbon.query.params.aggregate import PAIR_FUNCTIONS, PERCENTILE_FUNCTIONS

_SAME_OF_DISTINCT = ("min", "max", "any_value", "bool_and", "bool_or", "bit_and", "bit_or")
"""Aggregates for which DISTINCT changes nothing, since repeating a value does not change their answer."""


class AggregateCall(NamedTuple):
    """One aggregate call as it was written."""

    function: str
    """One of `sbon.query.params.aggregate.AGGREGATE_FUNCTIONS`, or count_if or any_value, which are built from those."""
    operand: exp.Expr | None
    """The operand; None for COUNT(*)."""
    share: float = 0.5
    by: exp.Expr | None = None
    """The second operand; for string_agg, the expression that orders the texts."""
    separator: str = ""
    descending: bool = False


def aggregate_function(tree: exp.Expr) -> str | None:
    """Returns the aggregate function that a call names, or None if the tree is no aggregate call."""
    if isinstance(tree, exp.WithinGroup):
        return aggregate_function(tree.this)
    if isinstance(tree, exp.Anonymous):
        return BY_NAME.get(str(tree.this).lower())
    return BY_TREE.get(type(tree))


def find_aggregate(tree: exp.Expr) -> exp.Expr | None:
    """Returns the first aggregate in a tree; does not search OVER and subqueries."""
    if isinstance(tree, exp.Window | exp.Query):
        return None
    if aggregate_function(tree) is not None:
        return tree
    return next((found for child in tree.iter_expressions() if (found := find_aggregate(child)) is not None), None)


def has_aggregate(tree: exp.Select) -> bool:
    """Tells whether a value of the SELECT list or of HAVING contains an aggregate."""
    having = tree.args.get("having")
    return any(find_aggregate(part) is not None for part in [*tree.expressions, *([having] if having is not None else [])])


def read_aggregate(text: Text, tree: exp.Expr, function: str) -> AggregateCall:
    """Reads the parts of an aggregate call.

    Raises
    ------
    QueryError
        The call has options that its function does not take, or the wrong arguments.
    """
    if function in PERCENTILE_FUNCTIONS:
        return _percentile(text, tree, function)
    typed = str(tree.meta.get("typed", function))
    if function == "string_agg":
        return _texts(text, tree)
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
            hint = "only count(DISTINCT column) is supported; else aggregate in two steps: GROUP BY the column too, in a SELECT in brackets"
            raise text.error(tree, f"DISTINCT is not supported in {typed}", hint)
        return AggregateCall("count_distinct", operand.expressions[0])
    if isinstance(operand, exp.Star) or operand is None:
        if function != "count":
            raise text.error(tree, f"{typed} needs a column", "only COUNT takes *")
        return AggregateCall(function, None)
    if function == "array_agg":
        return AggregateCall(function, operand, separator=",")
    if function == "median":
        return AggregateCall("percentile_cont", operand, 0.5)
    return AggregateCall(function, operand)


def _pair(text: Text, tree: exp.Expr, function: str, typed: str) -> AggregateCall:
    operand, by = tree.this, tree.args.get("expression")
    extra = [value for key, value in tree.args.items() if key not in ("this", "expression") and value not in (None, False, [])]
    if extra or by is None or isinstance(operand, exp.Distinct | exp.Order | exp.Star):
        what = "which gives x of the row with the least or the greatest y" if function in ("arg_min", "arg_max") else "y before x"
        form = "(x, y)" if function in ("arg_min", "arg_max") else "(y, x)"
        raise text.error(tree, f"{typed} takes two arguments and no options", f"write {typed}{form}, {what}")
    return AggregateCall(function, operand, by=by)


def _texts(text: Text, tree: exp.Expr) -> AggregateCall:
    """Reads STRING_AGG([DISTINCT] x, ',' [ORDER BY y [DESC]]), LISTAGG or GROUP_CONCAT; ORDER BY may stand in WITHIN GROUP."""
    called = tree.this if isinstance(tree, exp.WithinGroup) else tree
    typed = str(called.meta.get("typed", "string_agg"))
    form = f"write {typed}(x, ',' ORDER BY y), or {typed}(DISTINCT x, ',')"
    arguments = list(called.expressions or [called.this, called.args.get("separator")])
    order = tree.expression if isinstance(tree, exp.WithinGroup) else None
    if isinstance(arguments[0], exp.Order):
        order, arguments[0] = arguments[0], arguments[0].this
    distinct = isinstance(arguments[0], exp.Distinct)
    if distinct:
        arguments[:1] = arguments[0].expressions
    operand, separator, *more = [*(argument for argument in arguments if argument is not None), None, None][: max(2, len(arguments))]
    if isinstance(separator, exp.Order):
        order, separator = separator, separator.this
    options = [value for key, value in called.args.items() if key not in ("this", "expressions", "separator") and value]
    if any(more) or options or operand is None or isinstance(operand, exp.Star | exp.Distinct):
        raise text.error(tree, f"{typed} takes a column and a separator", form)
    if separator is not None and not (isinstance(separator, exp.Literal) and separator.args.get("is_string")):
        raise text.error(separator, f"the separator of {typed} is a literal text", form)
    between = "," if separator is None else str(separator.this)
    if len(between) > SEPARATOR_MAX:
        raise text.error(tree, f"the separator of {typed} has {len(between)} characters, expected at most {SEPARATOR_MAX}", form)
    function = "string_agg_distinct" if distinct else "string_agg"
    if order is None:
        return AggregateCall(function, operand, separator=between)
    if len(order.expressions) != 1:
        raise text.error(tree, f"ORDER BY of {typed} takes one column", form)
    by, descending = order.expressions[0].this, bool(order.expressions[0].args.get("desc"))
    if bool(order.expressions[0].args.get("nulls_first")) != descending:
        raise text.error(
            tree, f"NULLS FIRST and NULLS LAST are not supported in {typed}", "as in PostgreSQL, NULLs come last, with DESC first"
        )
    if distinct and by != operand:
        raise text.error(tree, f"{typed}(DISTINCT x) is ordered by x itself", form)
    return AggregateCall(function, operand, by=None if distinct else by, separator=between, descending=descending)


def _percentile(text: Text, tree: exp.Expr, function: str) -> AggregateCall:
    """Reads PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x), or the form with the operand first: QUANTILE_CONT(x, 0.5)."""
    called = tree.this if isinstance(tree, exp.WithinGroup) else tree
    typed = str(called.meta.get("typed", function))
    form = f"write {typed}(column, 0.99)"
    given = called.expressions or [called.this, called.args.get("expression") or called.args.get("quantile")]
    arguments = [argument for argument in given if argument is not None]
    descending = False
    if isinstance(tree, exp.WithinGroup):
        order = tree.expression.expressions
        if len(arguments) != 1 or len(order) != 1:
            raise text.error(
                tree,
                f"{typed} takes one share and one column in ORDER BY, which has {len(order)}",
                f"write {typed}(0.99) WITHIN GROUP (ORDER BY column)",
            )
        descending = bool(order[0].args.get("desc"))
        arguments.insert(0, order[0].this)
    if len(arguments) != 2:
        raise text.error(tree, f"{typed} got {len(arguments)} arguments, expected 2", form)
    operand, share = arguments
    if descending and function != "percentile_cont":
        raise text.error(tree, f"{typed} with DESC is not supported", "leave DESC out, and write 1 - share for the share")
    if isinstance(operand, exp.Distinct | exp.Star):
        raise text.error(tree, f"{typed} takes a column and no options", form)
    number = float(share.this) if isinstance(share, exp.Literal) and not share.args.get("is_string") else -1.0
    if not 0.0 <= number <= 1.0:
        raise text.error(share, f"the share of {typed} is a number from 0 to 1", form)
    return AggregateCall(function, operand, 1.0 - number if descending else number)
