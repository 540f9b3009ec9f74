"""Checks that coordinates are finite and within their bounds."""

from sbon.cost_space.coordinate import check
from sbon.errors import CoordinateError
from sbon_testbed.simulator.checkers.base import CaseChecker


class Coordinates(CaseChecker):
    """Checks every agent's own coordinate and those that it knows of others."""

    def look(self) -> str:
        """Returns the first coordinate that no correct node would have."""
        for _, agent in self.run.agents():
            for name in (agent.name, *agent.network.gossip.members):
                coordinate = agent.network.gossip.localiser.coordinate if name == agent.name else agent.network.gossip.coordinate_of(name)
                try:
                    if coordinate is not None:
                        check(coordinate)
                except CoordinateError as problem:
                    return f"{agent.name} has a wrong coordinate of {name}: {problem}"
        return ""
