"""Plans of one query beside the present one, as its record keeps them: one that is about to take its place, and what is left of former
ones (docs/replanning.md)."""

from collections.abc import Mapping

from sbon.supervision.own_changes import OwnChanges
from sbon.supervision.replanning import OtherPlan
from sbon.types import LinkId, NodeId, OperatorId, QueryId
from sbon.wire.authority import query_of

RETIRED_MAX = 1_000
"""Most operators that are remembered which a query has given up."""


class Plans:
    """Other plans of one query."""

    def __init__(self) -> None:
        self.other: OtherPlan | None = None
        """The plan that is about to take the place of the present one; None if none is."""
        self.step = ""
        """Describes how far that is; empty if nothing is under way."""
        self.retiring: dict[OperatorId, NodeId] = {}
        """Operators of a plan that is not wanted any more, which may not have ended yet, with their hosts."""
        self.retired: tuple[OperatorId, ...] = ()
        """The latest operators made for the query that it has given up."""
        self.joined: dict[LinkId, int] = {}
        """Rows that a source had given before a link of a later plan began, by first names."""
        self.is_replanned = False
        """The query has had another plan: the rows in the file of its sink are not those of the present links."""
        self.own = OwnChanges()
        """Changes without a person."""

    def moved(self, operator: OperatorId, node: NodeId, epoch: int) -> bool:
        """Takes the new host of an operator; returns whether it is not one of the present plan."""
        if operator in self.retiring:
            self.retiring[operator] = node
        return operator in self.retiring or (self.other is not None and self.other.moved(operator, node, epoch))

    def gives_up(self, query: QueryId, operators: Mapping[OperatorId, NodeId]) -> None:
        """Notes that the query does not use some operators any more, and no plan is about to take the place of the present one."""
        self.other = None
        self.retiring = {**self.retiring, **operators}
        self.retired = (*self.retired, *(one for one in operators if query_of(one) == query))[-RETIRED_MAX:]
