"""Checks that a query has one owner: no two agents own it under one ownership epoch, and an earlier owner stops once a new one has begun.

When the new owner's first version counts, the earlier owner's latest version may still be under way. If a majority of keepers has a version
that it sent later, that is an error.
"""

from sbon.supervision.owning import Owning, Phase
from sbon.types import NodeId, QueryId
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.checkers.base import CaseChecker


class Owners(CaseChecker):
    """Compares the versions of records that count with each other and with earlier ones."""

    def __init__(self, run: Case) -> None:
        super().__init__(run)
        self._owner: dict[tuple[QueryId, int], NodeId] = {}
        """Owner of a query by ownership epoch."""
        self._highest: dict[QueryId, int] = {}
        self._last: dict[tuple[QueryId, int, NodeId], int] = {}
        """Latest version that an earlier owner had sent when a higher epoch was first seen to count."""

    def look(self) -> str:
        """Returns the first query that has two owners."""
        owned = [
            (agent.name, query, one.machine) for _, agent in self.run.agents() for query, one in agent.queries.owned.ownership.owned.items()
        ]
        for name, query, machine in owned:
            if machine.phase is not Phase.KEPT:
                continue
            first = self._owner.setdefault((query, machine.counted), name)
            if first != name:
                return f"{query} is owned by {first} and by {name} under epoch {machine.counted}"
            highest = self._highest.setdefault(query, machine.counted)
            if machine.counted > highest:
                self._highest[query] = machine.counted
                self._note(query, [(other, its) for other, same, its in owned if same == query and its.counted < machine.counted])
            elif machine.counted < highest and machine.version > self._last.setdefault((query, machine.counted, name), machine.version):
                return f"{name} still owns {query} under epoch {machine.counted}, and {self._owner[query, highest]} under {highest}"
        return ""

    def _note(self, query: QueryId, former: list[tuple[NodeId, Owning]]) -> None:
        for name, machine in former:
            self._last.setdefault((query, machine.counted, name), machine.version)

    def converged(self) -> str:
        """Returns the first query that several agents own."""
        for name, query in self.run.ids.items():
            owners = [agent.name for _, agent in self.run.agents() if query in agent.queries.owned.records]
            if len(owners) > 1:
                return f"{name} is owned by {' and by '.join(owners)}"
        return ""
