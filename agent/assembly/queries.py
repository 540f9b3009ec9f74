"""Makes the parts that own queries: they turn statements into running operators, replicate tables to all agents, and resume queries after a
restart."""

from typing import TYPE_CHECKING

from sbon.queries.homes import Homes
from sbon.queries.parts import QueryParts
from sbon.queries.queries import OwnedQueries
from sbon.queries.replication import Replication
from sbon.queries.resuming import Resuming
from sbon.queries.wanted import Wanted
from sbon.supervision.owners import Owners
from sbon_agent.assembly.execution import Execution
from sbon_agent.assembly.network import Network
from sbon_agent.assembly.placement import Placement
from sbon_agent.connectors.checking import InstalledConnectors
from sbon_agent.reactions.queries import QueryReactions

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class Queries:
    """Queries that one agent owns, and its knowledge of other agents' queries."""

    def __init__(self, agent: "Agent", network: Network, execution: Execution, placement: Placement) -> None:
        host, log = agent.host, agent.monitoring.log
        directory, gossip, operators = network.directory, network.gossip, execution.operators
        owners = Owners()
        self.replication = Replication(directory, gossip, host.wall, lambda why: log.warning("table.refused", reason=why))
        self.homes = Homes(host, directory, gossip, operators, self.replication, owners)
        self.resuming = Resuming(host, directory, gossip, self.replication, execution.reaches, agent.files.statements)
        parts = QueryParts(
            host,
            directory,
            gossip,
            placement.placing,
            self.replication,
            self.homes,
            InstalledConnectors(execution.context),
            execution.reaches,
            self.resuming,
        )
        events, settings = QueryReactions(agent), agent.config.engine
        self.owned = OwnedQueries(parts, events, execution.cost_store, owners, settings, lambda: agent.config.optimiser)
        self.wanted = Wanted(directory, operators, self.homes, self.owned, lambda: agent.config.engine.inherits)

    def close(self) -> None:
        """Ends work that waits for other agents."""
        self.resuming.close()
        self.owned.recovering.close()
        self.owned.ownership.close()
