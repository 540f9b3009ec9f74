"""Rewrites SELECT DISTINCT, which keeps each row once per window, as GROUP BY all columns."""

from sqlglot import exp

from sbon.query.aggregate_calls import has_aggregate
from sbon.query.dialect import Text
from sbon.query.literals import identifier
from sbon.query.relation import BOUNDS, Relation
from sbon.query.scope import Scope
from sbon.query.window_time import end_of
from sbon.query.windows import WindowCall

_FORM = "write SELECT DISTINCT window_start, keys FROM TUMBLE(stream, ts, INTERVAL '10 seconds')"


def grouped_for_distinct(text: Text, tree: exp.Select, relation: Relation, scope: Scope, call: WindowCall | None) -> exp.Select:
    """Returns the SELECT with GROUP BY instead of DISTINCT; unchanged if it has no DISTINCT.

    Raises
    ------
    QueryError
        DISTINCT stands beside aggregates, or no column is a time, so that every row would have to be kept for ever.
    """
    distinct = tree.args.get("distinct")
    if distinct is None:
        return tree
    items = [end_of(item.unalias()) for item in tree.expressions]
    first = tree.expressions[0]
    if tree.args.get("group") is not None or has_aggregate(tree):
        raise text.keyword_error(
            first, "DISTINCT", "DISTINCT beside GROUP BY or aggregates", "GROUP BY gives each group once: leave it out"
        )
    for item in tree.expressions:
        if item.is_star:
            raise text.error(item, "* does not go with DISTINCT", "name the columns")
    known = BOUNDS if call is not None else tuple(column.name for column in scope.columns if column.column in relation.times)
    if not any(isinstance(item, exp.Column) and identifier(item.this) in known for item in items):
        message = "DISTINCT without a time window would keep every row for ever"
        raise text.keyword_error(first, "DISTINCT", message, _FORM)
    copy = tree.copy()
    copy.set("distinct", None)
    # Group by position: names of the list may also be those of other input columns.
    copy.set("group", exp.Group(expressions=[exp.Literal.number(number) for number in range(1, len(items) + 1)]))
    return copy
