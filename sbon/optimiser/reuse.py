"""Which operators of a new query running ones may stand in for (SBON, section 3.2)."""

from collections.abc import Callable

from sbon.query.plan import Plan, SinkParams, SourceParams
from sbon.types import OperatorId


def shareable_signatures(plan: Plan, read_whole: Callable[[SourceParams], bool] = lambda params: False) -> dict[OperatorId, str]:
    """Signatures of the operators of a plan that another query's may stand in for.

    Not those of sinks, whose answers have one owner. Nor of a source that a query wants from its beginning (`read_whole`), or of anything
    behind one: whoever came later to a running one would miss what it has given.
    """
    own = {operator.id for operator in plan.operators if isinstance(operator.params, SourceParams) and read_whole(operator.params)}
    reached = len(own) + 1
    while len(own) != reached:
        reached = len(own)
        own |= {link.target for link in plan.links if link.source in own}
    return {
        operator.id: operator.signature
        for operator in plan.operators
        if operator.signature and operator.id not in own and not isinstance(operator.params, SinkParams)
    }
