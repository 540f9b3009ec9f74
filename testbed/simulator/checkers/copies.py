"""No operator runs twice, however often it is moved."""

from sbon.types import NodeId, OperatorId
from sbon_testbed.simulator.checkers.base import Checker
from sbon_testbed.simulator.run_state import ACTIVE


class Copies(Checker):
    """Looks for operators that are active on two hosts."""

    def look(self) -> str:
        """Returns the first operator that runs twice."""
        found: dict[OperatorId, NodeId] = {}
        for agent, instance in self.run.instances():
            if instance.state in ACTIVE:
                if instance.id in found:
                    return f"{instance.id} runs on {found[instance.id]} and on {agent.name} ({instance.state.value})"
                found[instance.id] = agent.name
        return ""
