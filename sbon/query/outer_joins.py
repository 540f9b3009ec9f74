"""Builds RIGHT and FULL joins from left ones.

`a RIGHT JOIN b` is `b LEFT JOIN a` with the columns in the author's order. `a FULL JOIN b` is `a LEFT JOIN b` and those rows of
`b LEFT JOIN a` that have no partner. Rows without an event time take part in no join, so a row
whose partner has no event time counts as one without a partner. A FULL JOIN costs twice as much, as both joins keep the rows of both
sides.
"""

from dataclasses import replace

from sbon.query.expression import Call, Column, Expression
from sbon.query.relation import Join, Relation, Select, Union


def mirrored(join: Join) -> Join:
    """Returns the same join with its sides exchanged and the bounds of `right - left` negated."""
    columns = tuple((name, 1 - side, inner) for at in (1, 0) for name, side, inner in join.columns if side == at)
    keys = tuple((right, left) for left, right in join.keys)
    return replace(
        join,
        left=join.right,
        right=join.left,
        left_time=join.right_time,
        right_time=join.left_time,
        keys=keys,
        before_us=join.after_us,
        after_us=join.before_us,
        columns=columns,
    )


def outer_join(join: Join, side: str) -> Relation:
    """Returns the join as LEFT, RIGHT or FULL; unchanged if `side` is empty."""
    if not side:
        return join
    left = replace(join, outer=True)
    if side == "LEFT":
        return left
    turned = replace(mirrored(join), outer=True)
    if side == "RIGHT":
        return _arranged(turned, left, ())
    time = next(name for name, at, inner in left.columns if (at, inner) == (0, left.left_time))
    return Union((_arranged(left, left, ()), _arranged(turned, left, (Call("is_null", (Column(time),)),))))


def _arranged(join: Join, like: Join, conditions: tuple[Expression, ...]) -> Select:
    return Select(join, conditions, tuple((column.name, Column(column.name), column.type) for column in like.schema))
