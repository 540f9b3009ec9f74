"""Checks that after the faults all agents see exactly the running agents alive."""

from sbon.membership.members import MemberStatus
from sbon_testbed.simulator.checkers.base import CaseChecker


class Members(CaseChecker):
    """Compares the agents' tables of members."""

    def converged(self) -> str:
        """Returns the first agent whose table differs from the truth."""
        running = sorted(agent.name for _, agent in self.run.agents())
        for _, agent in self.run.agents():
            seen = sorted(name for name, member in agent.network.gossip.members.items() if member.status is MemberStatus.ALIVE)
            if seen != running:
                return f"{agent.name} sees {', '.join(seen)} alive, expected {', '.join(running)}"
        return ""
