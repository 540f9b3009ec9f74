"""Checks that no operator runs twice, however often it is moved or made again.

A copy that was wrongly declared lost runs on, without links, until its host asks whether it is still wanted. So two copies may exist for a
while, but never two of one generation.
"""

from sbon.supervision.generations import generation
from sbon.types import NodeId, OperatorId
from sbon_testbed.simulator.case import ACTIVE
from sbon_testbed.simulator.checkers.base import CaseChecker


class Copies(CaseChecker):
    """Looks for operators that are active on two hosts."""

    def look(self) -> str:
        """Returns the first operator with two copies of one generation."""
        return self._twice(by_generation=True)

    def converged(self) -> str:
        """Returns the first operator that runs twice."""
        return self._twice(by_generation=False)

    def _twice(self, *, by_generation: bool) -> str:
        found: dict[tuple[OperatorId, int], NodeId] = {}
        for agent, instance in self.run.instances():
            if instance.state in ACTIVE:
                key = (instance.id, generation(instance.epoch) if by_generation else 0)
                if key in found:
                    return f"{instance.id} runs on {found[key]} and on {agent.name} ({instance.state.value})"
                found[key] = agent.name
        return ""
