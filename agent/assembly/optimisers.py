"""Makes the optimisers, which move running operators."""

from typing import TYPE_CHECKING

from sbon.delivery.sender_notices import Telling
from sbon.rearranging.leaving import Leaving
from sbon.rearranging.multicasting import Multicasting
from sbon.rearranging.rebalancing import Rebalancing
from sbon.rearranging.reviewing import Surroundings
from sbon_agent.assembly.execution import Execution
from sbon_agent.assembly.network import Network
from sbon_agent.assembly.placement import Placement

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class Optimisers:
    """Optimisers of one host: they find better hosts, make multicasts, and move operators away before the agent leaves."""

    def __init__(self, agent: "Agent", network: Network, execution: Execution, placement: Placement) -> None:
        config, host = agent.config, agent.host
        flow, operators, migrations = execution.flow, execution.operators, execution.migrations
        self.telling = Telling(host, network.directory, operators, flow, migrations.is_leaving)
        around = Surroundings(
            host,
            network.directory,
            network.gossip,
            operators,
            flow,
            placement.candidate_questions,
            migrations,
            placement.remembering,
            agent.monitoring.recording,
        )
        self.rebalancing = Rebalancing(
            around, config.optimiser, config.placement, lambda operator: self.multicasting.is_considering(operator)
        )
        self.multicasting = Multicasting(around, config.optimiser, config.placement, self.telling)
        self.leaving = Leaving(around)

    def start(self) -> None:
        """Begins to review operators."""
        self.rebalancing.start()
        self.multicasting.start()

    def stop(self) -> None:
        """Stops reviews; a departure under way continues."""
        self.rebalancing.stop()
        self.multicasting.stop()

    def close(self) -> None:
        """Stops reviews and a departure."""
        self.stop()
        self.leaving.close()
