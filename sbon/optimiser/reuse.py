"""Which running operators serve a new query, and which queries an operator serves (SBON, section 3.2)."""

from collections.abc import Callable, Iterable

from sbon.query.plan import Plan, SinkParams, SourceParams
from sbon.types import OperatorId, QueryId


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


class Uses:
    """Which queries use an operator. The operator may go when the last of them has ended."""

    def __init__(self) -> None:
        self._queries: dict[OperatorId, set[QueryId]] = {}

    def add(self, operator: OperatorId, query: QueryId) -> None:
        """The query uses the operator from now on; saying it twice counts once."""
        self._queries.setdefault(operator, set()).add(query)

    def remove(self, operator: OperatorId, query: QueryId) -> bool:
        """The query does not use the operator any more; True if no other does."""
        queries = self._queries.get(operator, set())
        queries.discard(query)
        if not queries:
            self._queries.pop(operator, None)
        return not queries

    def end(self, query: QueryId) -> list[OperatorId]:
        """The query has ended: the operators that nobody uses any more, in order of id."""
        return [operator for operator in sorted(self._queries) if query in self._queries[operator] and self.remove(operator, query)]

    def queries(self, operator: OperatorId) -> tuple[QueryId, ...]:
        """Queries that use an operator, in order of id."""
        return tuple(sorted(self._queries.get(operator, ())))

    def operators(self) -> Iterable[OperatorId]:
        """Operators in use, in order of id."""
        return sorted(self._queries)
