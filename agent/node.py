"""The agent: the parts of one node (`sbon_agent.assembly`) over one `Host`, from start to stop.

The agent has no sockets, threads or clocks itself: the host has them. The daemon and the testbeds make it.

datagrams -> Gossip (members, coordinate) ---------> members and coordinates of all agents
streams   -> Peers -> Dispatch --------------------> deployment, migration, candidates, replication
                  \\-> Flow (data, acks) -----------> Operators, Engine
control   -> ControlRequests, OwnedQueries
"""

from collections.abc import Callable

from sbon.addresses import format_address, parse_address
from sbon.control import ControlReply, ControlRequest
from sbon.errors import ConfigError
from sbon.extensions import Extensions
from sbon.reloading import Reload, reload_of
from sbon.sealing import KeyRing
from sbon.types import Address, NodeId
from sbon_agent.assembly.access import Access
from sbon_agent.assembly.execution import Execution
from sbon_agent.assembly.files import Files
from sbon_agent.assembly.monitoring import Monitoring
from sbon_agent.assembly.network import Network
from sbon_agent.assembly.optimisers import Optimisers
from sbon_agent.assembly.placement import Placement
from sbon_agent.assembly.queries import Queries
from sbon_agent.config import AgentConfig
from sbon_agent.control_requests import ControlRequests
from sbon_agent.dispatch import Dispatch
from sbon_agent.engine.engine import BuiltInEngine
from sbon_agent.extensions import installed
from sbon_agent.host import Host
from sbon_agent.hosting import MakeEngine
from sbon_agent.periodic import PeriodicTasks
from sbon_agent.shutdown import Shutdown


class Agent:
    """One node of the overlay."""

    def __init__(
        self,
        config: AgentConfig,
        host: Host,
        key_ring: KeyRing | None,
        extensions: Callable[[], Extensions] = installed,
        make_engine: MakeEngine = BuiltInEngine,
    ) -> None:
        if not config.name:
            raise ConfigError("the agent has no name")
        self.name: NodeId = config.name
        self.config = config
        self.host = host
        self.key_ring = key_ring
        self.extensions = extensions
        self._make_engine = make_engine
        self.files = Files(config.data_dir)
        self.monitoring = Monitoring(self)
        self.stopped = False
        self.dispatch = Dispatch(self)
        self.shutdown = Shutdown(self)
        self.periodic = PeriodicTasks(self)
        self.requests = ControlRequests(self)

    def start(self) -> Address:
        """Listens, joins the overlay, and returns the address under which others reach this agent.

        Raises
        ------
        ConfigError
            The address cannot be used.
        """
        self.network = Network(self)
        self.monitoring.telemetry.begin(f"{self.network.gossip.machine.own.boot:08x}")
        self.execution = Execution(self, self.network, self._make_engine)
        self.placement = Placement(self, self.network, self.execution)
        self.queries = Queries(self, self.network, self.execution, self.placement)
        self.optimisers = Optimisers(self, self.network, self.execution, self.placement)
        self.access = Access(self, self.network, self.execution, self.queries)
        self.queries.resuming.start(self.queries.owned, joins=bool(self.config.join), inherits=self.config.engine.inherits)
        self.network.gossip.join([parse_address(seed) for seed in self.config.join])
        self.periodic.start()
        self.optimisers.start()
        address = format_address(self.network.address)
        self.monitoring.recording.agent("started", address, self.config.labels)
        self.monitoring.log.info("agent.started", address=address, sealed=self.key_ring is not None)
        return self.network.address

    def leave(self, done: Callable[[], None], within_s: float | None = None) -> None:
        """Moves operators to other hosts, says goodbye, closes, then calls `done` (`sbon_agent.shutdown`)."""
        self.shutdown.begin(done, within_s)

    def stop(self) -> None:
        """Closes the agent at once, without telling the others."""
        if self.stopped:
            return
        self.stopped = True
        self.periodic.stop()
        self.queries.close()
        self.shutdown.close()
        self.optimisers.close()
        self.execution.close()
        self.network.gossip.close()
        self.network.peers.close()
        self.monitoring.recording.agent("stopped", format_address(self.network.address), self.config.labels)
        self.monitoring.telemetry.close()

    def reload(self, fresh: AgentConfig) -> Reload[AgentConfig]:
        """Applies the settings that take effect while running (`sbon.reloading.EFFECTS`); the others stay as they are.

        Raises
        ------
        ConfigError
            A setting cannot be used; no setting has changed.
        """
        change = reload_of(self.config, fresh)
        config = change.config
        if change.changes("connectors"):  # first, because only this can be refused
            self.execution.reaches.reconfigure(config.connectors)
        if change.changes("membership"):
            self.network.gossip.machine.reconfigure(config.membership)
        if change.changes("optimiser"):
            finding, moving = self.placement, self.optimisers
            for part in (finding.placing, finding.remembering, moving.rebalancing, moving.multicasting):
                part.reconfigure(config.optimiser)
        self.config = config
        return change

    def use_keys(self, key_ring: KeyRing) -> None:
        """Encrypts with another ring from now on; open connections keep their keys."""
        self.key_ring = self.network.gossip.key_ring = self.network.peers.key_ring = key_ring

    def control(self, request: ControlRequest, reply: Callable[[ControlReply], None]) -> Callable[[], None]:
        """Answers a request over the control socket. The returned function ends a stream of replies."""
        return self.requests.answer(request, reply)
