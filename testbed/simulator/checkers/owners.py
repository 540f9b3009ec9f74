"""A query has one owner: no two agents own it under one ownership epoch, and no former owner goes on once another one has begun.

A former owner's latest version may be under way when the new owner's first one counts; of any further one, a majority would have it only by
a mistake.
"""

from sbon.supervision.owning import Phase
from sbon.types import NodeId, QueryId
from sbon_testbed.simulator.checkers.base import Checker
from sbon_testbed.simulator.run_state import Run

LATE_MAX = 1
"""Versions of a former owner that may count after the first one of the new owner."""


class Owners(Checker):
    """Compares the versions of records that count with each other and with their past."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._owner: dict[tuple[QueryId, int], NodeId] = {}
        """Who owns a query under an epoch."""
        self._highest: dict[QueryId, int] = {}
        self._late: dict[tuple[QueryId, int], set[int]] = {}
        """Versions of an owner that were first seen to count after a higher epoch."""
        self._counted: dict[tuple[QueryId, int, NodeId], int] = {}
        """The latest version of an owner that was seen to count."""

    def look(self) -> str:
        """Returns the first query that has two owners."""
        for _, agent in self.run.agents():
            for query, one in agent.queries.ownership.owned.items():
                machine = one.machine
                if machine.phase is not Phase.KEPT:
                    continue
                term, version = (query, machine.epoch), machine.version
                if self._counted.get((*term, agent.name)) == version:
                    continue
                self._counted[(*term, agent.name)] = version
                name = self._owner.setdefault(term, agent.name)
                if name != agent.name:
                    return f"{query} is owned by {name} and by {agent.name} under epoch {machine.epoch}"
                highest = self._highest[query] = max(machine.epoch, self._highest.get(query, 0))
                if machine.epoch == highest:
                    continue
                late = self._late.setdefault(term, set())
                late.add(version)
                if len(late) > LATE_MAX:
                    return f"{agent.name} still owns {query} under epoch {machine.epoch}, and {self._owner[query, highest]} under {highest}"
        return ""

    def converged(self) -> str:
        """Returns the first query that several agents own."""
        for asked in self.run.reference.queries:
            query = self.run.ids[asked.name]
            owners = [agent.name for _, agent in self.run.agents() if query in agent.queries.records]
            if len(owners) > 1:
                return f"{asked.name} is owned by {' and by '.join(owners)}"
        return ""
