"""Finds the rows and columns of a file that a query needs: the connector may skip the rest.

A file that is read as fast as possible is not shared with other queries (`sbon.optimiser.reuse`). So its source may apply the filters and
projections that follow it directly in its plan. The signature of such a source includes them.
"""

from collections.abc import Sequence

import msgspec

from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.params.kinds import Params
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import Reads, SourceParams
from sbon.query.plan import OperatorSpec, Plan
from sbon.query.rewrite import columns_of, conjuncts
from sbon.query.signature import signature

COMPARISONS = frozenset({"eq", "lt", "le", "gt", "ge"})


def with_reads(plan: Plan) -> Plan:
    """Returns the plan with `Reads` for each of its file sources."""
    specs = {operator.id: operator for operator in plan.operators}
    behind: dict[str, list[Params]] = {}
    for link in plan.links:
        behind.setdefault(link.source, []).append(specs[link.target].params)
    return msgspec.structs.replace(plan, operators=tuple(_narrowed(one, behind.get(one.id, [])) for one in plan.operators))


def _narrowed(operator: OperatorSpec, behind: Sequence[Params]) -> OperatorSpec:
    params = operator.params
    if not isinstance(params, SourceParams) or params.connector != "file" or params.is_table:
        return operator
    if dict(params.options).get("replay", "fast") != "fast":
        return operator
    reads = _needed_by(behind)
    if reads is None:
        return operator
    params = msgspec.structs.replace(params, reads=reads)
    place = operator.pinned or ""
    return msgspec.structs.replace(operator, params=params, signature=signature(params, operator.schema, [], place))


def _needed_by(behind: Sequence[Params]) -> Reads | None:
    """Returns the rows and columns that these operators need of their input; None: all, or unknown."""
    used: set[str] = set()
    conditions: tuple[Expression, ...] = ()
    for params in behind:
        if not isinstance(params, MapParams) or params.columns is None:
            return None
        predicate = [] if params.predicate is None else [params.predicate]
        used.update(columns_of([*predicate, *(value for _, value in params.columns)]))
        conditions = tuple(part for part in conjuncts(params.predicate) if is_simple(part))
    return Reads(tuple(sorted(used)), conditions if len(behind) == 1 else ()) if behind else None


def is_simple(condition: Expression) -> bool:
    """Tells whether a condition compares a column with a constant."""
    if not isinstance(condition, Call) or condition.function not in COMPARISONS or len(condition.arguments) != 2:
        return False
    left, right = condition.arguments
    pair = (left, right) if isinstance(left, Column) else (right, left)
    return isinstance(pair[0], Column) and isinstance(pair[1], Literal) and pair[1].value is not None
