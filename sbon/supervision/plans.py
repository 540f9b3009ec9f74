"""Plans of one query beside the present one, as its record keeps them: the plan that is about to replace it, and the rest of former plans
(docs/replanning.md)."""

from collections.abc import Mapping

from sbon.supervision.own_changes import OwnChanges
from sbon.supervision.replanning import OtherPlan
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.authority import query_of

RETIRED_MAX = 1_000
"""Most operators that a query has given up and remembers."""


class Plans:
    """Other plans of one query."""

    def __init__(self) -> None:
        self.other: OtherPlan | None = None
        """The plan that is about to replace the present one; None if there is none."""
        self.step = ""
        """The present step of the change to another plan; empty if none is under way."""
        self.retiring: dict[OperatorId, NodeId] = {}
        """Operators of former or rejected plans that may not have ended yet, with their hosts."""
        self.retired: tuple[OperatorId, ...] = ()
        """The latest operators made for the query that it has given up."""
        self.joined: dict[LinkId, int] = {}
        """Rows that a source had given before a link of a later plan began, by the link's first name."""
        self.is_replanned = False
        """True if the query has had another plan: the rows in the file of its sink are not only those of the present links."""
        self.own = OwnChanges()
        """Changes of the plan that no person has asked for."""

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> bool:
        """Takes the new host of an operator; returns True if the operator belongs to another plan than the present one."""
        if operator in self.retiring:
            self.retiring[operator] = node
        return operator in self.retiring or (self.other is not None and self.other.moved(operator, node, epoch))

    def gives_up(self, query: QueryId, operators: Mapping[OperatorId, NodeId]) -> None:
        """Notes that the query no longer uses some operators, and that no plan is about to replace the present one."""
        self.other = None
        self.retiring = {**self.retiring, **operators}
        self.retired = (*self.retired, *(one for one in operators if query_of(one) == query))[-RETIRED_MAX:]
