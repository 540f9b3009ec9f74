"""Finds lost operators that work through their whole input once more, because their sources give the same rows again. Pure functions."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from sbon.query.params.joined import LookupParams
from sbon.query.params.rowwise import FunctionParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import LinkSpec, OperatorSpec
from sbon.supervision.rows_made import ROW_BY_ROW
from sbon.types import NodeId, OperatorId

BY_ORDER = (FunctionParams, LookupParams)
"""Operators whose rows depend on the order of their input. Those of all others depend on event times, and on values among equal times."""


def from_zero(
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    lost: Collection[OperatorId],
    in_midst: Collection[OperatorId] = (),
) -> frozenset[OperatorId]:
    """Returns the lost operators that work through their whole input once more.

    Parameters
    ----------
    in_midst : lost sources that begin in the midst of their files
    """
    found: set[OperatorId] = set()
    for operator, spec in specs.items():
        if operator not in lost or operator in in_midst or isinstance(spec.params, SinkParams):
            continue  # a sink cannot take back the rows that it has passed on
        feeding = {link.source for link in links if link.target == operator}
        if reads_again(spec) or (feeding and feeding <= found):
            found.add(operator)
    return frozenset(found)


def files_away(
    specs: Mapping[OperatorId, OperatorSpec], links: Sequence[LinkSpec], away: Collection[OperatorId], nodes: Mapping[OperatorId, NodeId]
) -> frozenset[OperatorId]:
    """Returns the sources that are away and read their files again if they are lost, with operators that work row by row behind one on its
    host. Each of these either goes on, or works through the whole file once more.

    Parameters
    ----------
    specs : all operators of the query, upstream first
    """
    found: set[OperatorId] = set()
    for operator, spec in specs.items():
        feeding = [link.source for link in links if link.target == operator]
        is_behind = len(feeding) == 1 and feeding[0] in found and nodes.get(feeding[0]) == nodes.get(operator)
        if operator in away and (reads_again(spec) or (is_behind and isinstance(spec.params, ROW_BY_ROW))):
            found.add(operator)
    return frozenset(found)


def in_another_order(specs: Iterable[OperatorId], links: Sequence[LinkSpec], zero: Collection[OperatorId]) -> frozenset[OperatorId]:
    """Returns the operators that work through their whole input once more, and may give their rows in another order than before, because it
    is left to chance which of several inputs comes first.

    Parameters
    ----------
    specs : all operators of the query, upstream first
    """
    found: set[OperatorId] = set()
    for operator in specs:
        feeding = [link.source for link in links if link.target == operator]
        if operator in zero and (len(feeding) > 1 or not found.isdisjoint(feeding)):
            found.add(operator)
    return frozenset(found)


def gives_same_rows(
    specs: Mapping[OperatorId, OperatorSpec],
    links: Sequence[LinkSpec],
    zero: Collection[OperatorId],
    unordered: Collection[OperatorId],
    late: Collection[OperatorId],
) -> frozenset[OperatorId]:
    """Returns the operators that work through their whole input once more and give the same rows as before, perhaps in another order.

    Parameters
    ----------
    specs : all operators of the query, upstream first
    zero, unordered : see `from_zero`, `in_another_order`
    late : operators that have left out late rows. Which rows are late may depend on the order of the inputs
    """
    found: set[OperatorId] = set()
    for operator, spec in specs.items():
        feeding = {link.source for link in links if link.target == operator}
        is_free = not isinstance(spec.params, BY_ORDER) and operator not in late
        if operator in zero and feeding <= found and (operator not in unordered or is_free):
            found.add(operator)
    return frozenset(found)


def is_table(spec: OperatorSpec) -> bool:
    """Tells whether a source gives versions of a lookup table. Its watermark is the stream's end from the start, and it goes on."""
    return isinstance(spec.params, SourceParams) and spec.params.is_table


def reads_again(spec: OperatorSpec) -> bool:
    """Tells whether a source gives the same rows again when it is made again."""
    return isinstance(spec.params, SourceParams) and spec.params.connector == "file" and not spec.params.is_table
