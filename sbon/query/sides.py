"""Decides where each condition of a join is evaluated: on one side, on the pairs, or after the join."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sbon.query.expression import Column, Expression
from sbon.query.fold import met
from sbon.query.projection import types_of
from sbon.query.relation import BOUNDS, Join
from sbon.query.rewrite import columns_of, substitute
from sbon.schema import ColumnType


@dataclass
class SharedOut:
    """The conditions on a join, by the place where they are evaluated."""

    pushed: tuple[list[Expression], list[Expression]] = field(default_factory=lambda: ([], []))
    """Evaluated before the join, over the columns of the left and the right side."""
    residual: list[Expression] = field(default_factory=list)
    """Evaluated on pairs, over the output columns."""
    above: list[Expression] = field(default_factory=list)
    """Evaluated after the join, where a left row may have NULLs beside it; over the output columns."""


def shared_out(join: Join, conditions: Iterable[Expression]) -> SharedOut:
    """Distributes the conditions in a join and those around it.

    The two sides of an equality have the same value in every pair, so a condition on one may be checked on both. In a left join, conditions
    of ON decide on pairs and leave out no left row; conditions around the join apply to its output.
    """
    parts = SharedOut()
    if not join.outer:
        for condition in met([*join.residual, *conditions]):
            sides = _sides_of(join, condition)
            if _of_window(join, condition):
                parts.above.append(condition)
            elif len(sides) == 2:
                parts.residual.append(condition)
            else:
                _push(parts, join, condition, 1 if sides == {1} else 0, both=True)
        return parts
    for condition in met(join.residual):
        if _sides_of(join, condition) == {1} and not _of_window(join, condition):
            _push(parts, join, condition, 1, both=False)
        else:
            parts.residual.append(condition)
    for condition in met(conditions):
        if 1 in _sides_of(join, condition) or _of_window(join, condition):
            parts.above.append(condition)
        else:
            _push(parts, join, condition, 0, both=True)
    return parts


def _sides_of(join: Join, condition: Expression) -> set[int]:
    names = set(columns_of([condition]))
    return {side for name, side, _ in join.columns if name in names}


def _of_window(join: Join, condition: Expression) -> bool:
    """Tells whether the condition uses a bound of the windows, which neither side has."""
    return join.window is not None and any(name in BOUNDS for name in columns_of([condition]))


def _push(parts: SharedOut, join: Join, condition: Expression, side: int, *, both: bool) -> None:
    names = columns_of([condition])
    parts.pushed[side].append(substitute(condition, _inner(join, side)))
    same = same_columns(join)
    twins: Mapping[str, str] = (
        {right: left.name for right, left in same.items()} if side else {left.name: right for right, left in same.items()}
    )
    if both and names and all(name in twins for name in names):
        other = _inner(join, 1 - side)
        parts.pushed[1 - side].append(substitute(condition, {name: other[twins[name]] for name in names}))


def _inner(join: Join, side: int) -> dict[str, Expression]:
    return {name: Column(inner) for name, at, inner in join.columns if at == side}


def same_columns(join: Join) -> dict[str, Column]:
    """Returns the columns of the right side that equal one of the left side in every pair. Floats are left out: 0.0 equals -0.0."""
    types = (types_of(join.left), types_of(join.right))
    out = {(side, inner): name for name, side, inner in join.columns}
    same: dict[str, Column] = {}
    for left, right in join.keys:
        if not isinstance(left, Column) or not isinstance(right, Column) or types[0][left.name] is ColumnType.FLOAT:
            continue
        if types[0][left.name] is types[1][right.name] and (0, left.name) in out and (1, right.name) in out:
            same.setdefault(out[1, right.name], Column(out[0, left.name]))
    return same
