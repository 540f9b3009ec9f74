"""Makes the parts that run operators on this host: the engine, links, connectors, and migrations to and from other hosts."""

from typing import TYPE_CHECKING

import msgspec

from sbon.connectors.interface import SourceConnector
from sbon.cost.store import CostStore
from sbon.delivery.flow import Flow
from sbon.execution.dealings import Dealings
from sbon.execution.delays import Delays
from sbon.execution.host_reports import HostReports
from sbon.execution.instance import Instance
from sbon.execution.operators import Operators
from sbon.execution.room import Room
from sbon.execution.sampling import Sampling
from sbon.migration.migrations import Migrations
from sbon.query.params.source import SourceParams
from sbon.state_budget import DEFAULT_SHARE, StateBudget, room_of
from sbon.types import OperatorId
from sbon_agent.assembly.network import Network
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.reaches import Reaches
from sbon_agent.connectors.registry import build_source
from sbon_agent.hosting import EngineParts, MakeEngine
from sbon_agent.positions import Positions
from sbon_agent.reactions.engine import EngineReactions
from sbon_agent.reactions.links import LinkReactions
from sbon_agent.reactions.queries import QueryReactions

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class Execution:
    """The operators of one host, and the parts that run and move them."""

    def __init__(self, agent: "Agent", network: Network, make_engine: MakeEngine) -> None:
        name, config, host, files = agent.name, agent.config, agent.host, agent.files
        directory, gossip = network.directory, network.gossip
        self.cost_store = CostStore(name, config.hosting.uplink_bytes_per_s)
        if (kept := files.costs.load()) is not None:
            self.cost_store.restore(kept, host.now(), host.wall())
        self.reaches = Reaches(config.connectors, files.folder, name)
        self.context = ConnectorContext(
            host=host,
            node=name,
            labels=dict(config.labels),
            data_dir=files.folder,
            reach=self.reaches.own,
            system=agent.monitoring.system,
            extensions=agent.extensions,
            positions=Positions(host, files.folder if config.data_dir else "", config.engine.position_bytes_min),
        )
        instances: dict[OperatorId, Instance] = {}
        limit_bytes = config.engine.memory_max or int(DEFAULT_SHARE * host.memory_bytes())
        disk = host.disk(files.operator_states)
        budget = StateBudget(limit_bytes, room_of(config.engine, limit_bytes, disk, process=f"{round(1e3 * host.wall())}-"))
        room = Room(name, instances, config.engine.operators_max, config.hosting, budget)
        disk, events = host.disk(files.spilled_batches), EngineReactions(agent)
        self.flow = Flow(host, directory, LinkReactions(agent), config.migration.remembered, config.links, disk)
        parts = EngineParts(
            name, host, self.flow, instances, budget, self.cost_store, events, self.context, self.reaches, config.engine, config.links
        )
        self.engine = make_engine(parts)
        self.sampling = Sampling(host, self.cost_store, self._source_of)
        self.operators = Operators(name, host, instances, self.flow, room, self.engine, events, config.links)
        place, latency_ms = self.flow.ends.place, gossip.latency_ms
        self.reports = HostReports(
            name, host, instances, place, self.cost_store, budget, latency_ms, self.engine.expect, self.context.positions.of
        )
        self.migrations = Migrations(
            host, directory, self.engine, self.operators, self.flow, config.migration, QueryReactions(agent), gossip.departure_of
        )
        self.delays = Delays(name, instances, self.flow.ends.takes, latency_ms, directory.send)
        self.dealings = Dealings(name, instances, self.flow.ends.gives, host, directory.send)

    def _source_of(self, params: SourceParams) -> SourceConnector:
        return build_source(params, msgspec.structs.replace(self.context, reach=self.reaches.of(params)))

    def close(self) -> None:
        """Ends migrations, links and operators, and removes states from disk."""
        self.migrations.close()
        self.flow.close()
        self.context.positions.close()
        self.operators.close()
        if self.operators.room.budget.room is not None:
            self.operators.room.budget.room.close()
