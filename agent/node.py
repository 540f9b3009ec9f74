"""The agent: makes all components of one node and connects them over one `Host`.

It has no sockets, threads or clocks itself: the host has them. The daemon and the testbeds make it.

datagrams -> Gossip (members, coordinate) ---------> members and coordinates of all agents
streams   -> Peers -> Dispatch --------------------> deployment, migration, candidates, replication
                  \\-> Flow (data, acks) -----------> Operators, Engine
control   -> ControlRequests, OwnedQueries
"""

import os
from collections.abc import Callable
from typing import Any

import msgspec

import sbon_agent.logs
from sbon.addresses import format_address, parse_address
from sbon.connectors.interface import SourceConnector
from sbon.connectors.system_streams import SystemStreams
from sbon.control import ControlReply, ControlRequest
from sbon.cost.books import Books
from sbon.delivery.flow import Flow
from sbon.delivery.telling import Telling
from sbon.errors import ConfigError
from sbon.execution.delays import Delays
from sbon.execution.engine import Engine
from sbon.execution.host_reports import HostReports
from sbon.execution.instance import Instance
from sbon.execution.misfit_log import MisfitLog
from sbon.execution.operators import Operators
from sbon.execution.room import Room
from sbon.execution.sampling import Sampling
from sbon.extensions import Extensions
from sbon.membership.gossip import Gossip
from sbon.migration.migrations import Migrations
from sbon.peers.directory import Directory
from sbon.peers.peers import Peers
from sbon.ports import StreamHandler
from sbon.queries.homes import Homes
from sbon.queries.parts import QueryParts
from sbon.queries.placing import Placing
from sbon.queries.queries import OwnedQueries
from sbon.queries.replication import Replication
from sbon.queries.resuming import Resuming
from sbon.queries.wanted import Wanted
from sbon.query.plan import SourceParams
from sbon.rearranging.leaving import Leaving
from sbon.rearranging.multicasting import Multicasting
from sbon.rearranging.rebalancing import Rebalancing
from sbon.rearranging.remembering import Remembering
from sbon.rearranging.reviewing import Surroundings
from sbon.rearranging.surveying import Surveying
from sbon.reloading import Reload, reload_of
from sbon.sealing import KeyRing
from sbon.state_budget import DEFAULT_SHARE, StateBudget, room_of
from sbon.supervision.owners import Owners
from sbon.supervision.sharing import Sharing
from sbon.telemetry.recording import Recording
from sbon.types import Address, NodeId, OperatorId
from sbon.wire.entitlement import Authority
from sbon_agent.cluster_keys import ClusterKeys
from sbon_agent.config import AgentConfig
from sbon_agent.connectors.base import ConnectorContext
from sbon_agent.connectors.checking import InstalledConnectors
from sbon_agent.connectors.reaches import Reaches
from sbon_agent.connectors.registry import build_source
from sbon_agent.control_requests import ControlRequests
from sbon_agent.costs_file import CostsFile
from sbon_agent.dispatch import Dispatch
from sbon_agent.engine.engine import BuiltInEngine
from sbon_agent.extensions import installed
from sbon_agent.host import Host
from sbon_agent.hosting import EngineParts
from sbon_agent.kept_file import KeptFile
from sbon_agent.measuring import Measuring
from sbon_agent.periodic import PeriodicTasks
from sbon_agent.reactions.engine import EngineReactions
from sbon_agent.reactions.links import LinkReactions
from sbon_agent.reactions.membership import MembershipReactions
from sbon_agent.reactions.queries import QueryReactions
from sbon_agent.shutdown import Shutdown
from sbon_agent.state import StateFile
from sbon_agent.telemetry.log import DIRECTORY_NAME, Telemetry

STATE_FOLDER = "state"
"""Folder in the data directory for states of operators that memory does not hold."""
SPILL_FOLDER = "spill"
"""Folder in the data directory for batches that links keep on disk while their receivers are unreachable."""


class Agent:
    """One node of the overlay."""

    def __init__(
        self,
        config: AgentConfig,
        host: Host,
        key_ring: KeyRing | None,
        extensions: Callable[[], Extensions] = installed,
        make_engine: Callable[[EngineParts], Engine] = BuiltInEngine,
    ) -> None:
        if not config.name:
            raise ConfigError("the agent has no name")
        self.name: NodeId = config.name
        self.address: Address = ("", 0)
        self.config = config
        self.host = host
        self.key_ring = key_ring
        self.extensions = extensions
        self._engine_from = make_engine
        self.started_at_s = host.now()
        self.log = sbon_agent.logs.structlog.get_logger("agent", node=config.name)
        self.misfit_log = MisfitLog(self.log)
        directory = None if not config.data_dir else _path(config.data_dir) / DIRECTORY_NAME
        self.telemetry = Telemetry(config.telemetry, directory, host, config.name)
        self.recording = Recording(self.telemetry.record, host.now, host.wall, self.telemetry.config.latency_window_s)
        self.system = SystemStreams()
        self.books = Books(config.name, config.hosting.uplink_bytes_per_s)
        self.costs_file = CostsFile(_path(config.data_dir) if config.data_dir else "")
        if (kept := self.costs_file.load()) is not None:
            self.books.restore(kept, host.now(), host.wall())
        self.state_file = StateFile(_path(config.data_dir) if config.data_dir else "")
        self.stopped = False
        self.dispatch = Dispatch(self)
        self.shutdown = Shutdown(self)

    # --------------------------------------------------------------------------------------------------- life cycle

    def start(self) -> Address:
        """Listens, and joins the overlay.

        Raises
        ------
        ConfigError
            The address cannot be used.
        """
        self._open_network()
        self._make_engine()
        self._make_queries()
        self._make_optimisers()
        self._make_control()
        self.resuming.start(self.queries, joins=bool(self.config.join), inherits=self.config.engine.inherits)
        self.gossip.join([parse_address(seed) for seed in self.config.join])
        self.periodic.start()
        self.rebalancing.start()
        self.multicasting.start()
        self.recording.agent("started", format_address(self.address), self.config.labels)
        self.log.info("agent.started", address=format_address(self.address), sealed=self.key_ring is not None)
        return self.address

    def _open_network(self) -> None:
        """Makes the network: sockets, connections, membership."""
        config, host = self.config, self.host
        self.peers = Peers(host, self.name, self.key_ring, config.peers, self.dispatch)
        bound = host.listen(parse_address(config.bind), self._datagram, self._accept)
        self.address = parse_address(config.advertise) if config.advertise else bound
        if self.address[1] == 0:
            self.address = (self.address[0], bound[1])
        saved = self.state_file.load(self.name)
        self.gossip = Gossip(
            host,
            config.membership,
            config.coordinate,
            self.name,
            self.address,
            dict(config.labels),
            saved.incarnation if saved is not None else 0,
            saved.coordinate if saved is not None else None,
            self.key_ring,
            MembershipReactions(self),
        )
        self.telemetry.begin(f"{self.gossip.machine.own.boot:08x}")
        self.directory = Directory(host, self.name, self.peers, self.gossip.address_of, self.dispatch)

    def _make_engine(self) -> None:
        """Makes the engine, and what moves its operators."""
        config, host = self.config, self.host
        data_dir = str(_path(config.data_dir or "."))
        self.reaches = Reaches(config.connectors, data_dir, self.name)
        self._context = ConnectorContext(
            host=host,
            node=self.name,
            labels=dict(config.labels),
            data_dir=data_dir,
            reach=self.reaches.own,
            system=self.system,
            extensions=self.extensions,
        )
        instances: dict[OperatorId, Instance] = {}
        limit_bytes = config.engine.memory_max or int(DEFAULT_SHARE * host.memory_bytes())
        disk = host.disk(os.path.join(data_dir, STATE_FOLDER))
        budget = StateBudget(limit_bytes, room_of(config.engine, limit_bytes, disk, process=f"{round(1e3 * host.wall())}-"))
        room = Room(self.name, instances, config.engine.operators_max, config.hosting, budget)
        disk, events = host.disk(os.path.join(data_dir, SPILL_FOLDER)), EngineReactions(self)
        self.flow = Flow(host, self.directory, LinkReactions(self), config.migration.remembered, config.links, disk)
        parts = EngineParts(
            self.name, host, self.flow, instances, budget, self.books, events, self._context, self.reaches, config.engine, config.links
        )
        self.engine = self._engine_from(parts)
        self.sampling = Sampling(host, self.books, self._source_of)
        self.operators = Operators(self.name, host, instances, self.flow, room, self.engine, events, config.links)
        place, latency_ms = self.flow.ends.place, self.gossip.latency_ms
        self.reports = HostReports(self.name, host, instances, place, self.books, budget, latency_ms, self.engine.expect)
        self.migrations = Migrations(
            host, self.directory, self.engine, self.operators, self.flow, config.migration, QueryReactions(self), self.gossip.departure_of
        )
        self.delays = Delays(self.name, instances, self.flow.ends.takes, self.gossip.latency_ms, self.directory.send)

    def _source_of(self, params: SourceParams) -> SourceConnector:
        return build_source(params, msgspec.structs.replace(self._context, reach=self.reaches.of(params)))

    def _make_queries(self) -> None:
        """Makes what turns statements into placed operators."""
        config, host = self.config, self.host
        self.sharing = Sharing(self.operators, config.hosting, lambda: self.measuring.cpu)
        self.surveying = Surveying(host, self.directory, self.gossip, self.operators, self.reports, self.sharing, self.extensions)
        self.replication = Replication(self.directory, self.gossip, host.wall, lambda why: self.log.warning("table.refused", reason=why))
        self.remembering = Remembering(host, self.directory, self.gossip, config.optimiser)
        self.placing = Placing(host, self.gossip, self.surveying, self.remembering, config.placement, config.optimiser, self.books)
        self.owners = Owners()
        self.homes = Homes(host, self.directory, self.gossip, self.operators, self.replication, self.owners)
        file = KeptFile(_path(config.data_dir) if config.data_dir else "")
        self.resuming = Resuming(host, self.directory, self.gossip, self.replication, self.reaches, file)
        parts = QueryParts(
            host,
            self.directory,
            self.gossip,
            self.placing,
            self.replication,
            self.homes,
            InstalledConnectors(self._context),
            self.reaches,
            self.resuming,
        )
        self.queries = OwnedQueries(parts, QueryReactions(self), self.books, self.owners, config.engine, lambda: self.config.optimiser)
        self.wanted = Wanted(self.directory, self.operators, self.homes, self.queries, lambda: self.config.engine.inherits)

    def _make_optimisers(self) -> None:
        """Makes the optimisers, which move running operators."""
        config, host = self.config, self.host
        self.telling = Telling(host, self.directory, self.operators, self.flow, self.migrations.is_leaving)
        around = Surroundings(
            host, self.directory, self.gossip, self.operators, self.flow, self.surveying, self.migrations, self.remembering, self.recording
        )
        self.rebalancing = Rebalancing(
            around, config.optimiser, config.placement, lambda operator: self.multicasting.is_considering(operator)
        )
        self.multicasting = Multicasting(around, config.optimiser, config.placement, self.telling)
        self.leaving = Leaving(around)

    def _make_control(self) -> None:
        """Makes what answers people, checks what others may say, and measures the agent itself."""
        self.measuring = Measuring(self)
        self.periodic = PeriodicTasks(self)
        self.keys = ClusterKeys(self.host, self.directory, self.gossip, lambda: self.config.key_file, lambda: self.key_ring, self.use_keys)
        self.authority = Authority(
            self.name,
            self.flow.ends,
            self.migrations,
            self.queries.register,
            self.gossip,
            self.config.peers.check_addresses,
            self.host.now,
            lambda event, peer, reason: self.log.warning(event, peer=peer, reason=reason),
        )
        self.requests = ControlRequests(self)

    def leave(self, done: Callable[[], None], within_s: float | None = None) -> None:
        """Moves operators to other hosts, says goodbye, closes, then calls `done` (`sbon_agent.shutdown`)."""
        self.shutdown.begin(done, within_s)

    def stop(self) -> None:
        """Closes at once, without telling the others."""
        if self.stopped:
            return
        self.stopped = True
        self.periodic.stop()
        self.resuming.close()
        self.queries.recovering.close()
        self.queries.ownership.close()
        self.shutdown.close()
        self.rebalancing.stop()
        self.multicasting.stop()
        self.leaving.close()
        self.migrations.close()
        self.flow.close()
        self.operators.close()
        if self.operators.room.budget.room is not None:
            self.operators.room.budget.room.close()
        self.gossip.close()
        self.peers.close()
        self.recording.agent("stopped", format_address(self.address), self.config.labels)
        self.telemetry.close()

    def reload(self, fresh: AgentConfig) -> Reload[AgentConfig]:
        """Applies the settings that take effect while running (`sbon.reloading.EFFECTS`); the others stay as they are.

        Raises
        ------
        ConfigError
            A setting cannot be used; all stay as they were.
        """
        change = reload_of(self.config, fresh)
        config = change.config
        if change.changes("connectors"):  # first, because only this can be refused
            self.reaches.reconfigure(config.connectors)
        if change.changes("membership"):
            self.gossip.machine.reconfigure(config.membership)
        if change.changes("optimiser"):
            for part in (self.placing, self.remembering, self.rebalancing, self.multicasting):
                part.reconfigure(config.optimiser)
        self.config = config
        return change

    def use_keys(self, key_ring: KeyRing) -> None:
        """Encrypts with another ring from now on; open connections keep their keys."""
        self.key_ring = self.gossip.key_ring = self.peers.key_ring = key_ring

    def control(self, request: ControlRequest, reply: Callable[[ControlReply], None]) -> Callable[[], None]:
        """Answers a request over the control socket. The returned function ends a stream of replies."""
        return self.requests.answer(request, reply)

    def _accept(self, peer: Address) -> StreamHandler:
        return self.peers.accept(peer)

    def _datagram(self, data: bytes, sender: Address, received_at: float) -> None:
        self.gossip.datagram(data, sender, received_at)


def _path(text: str) -> Any:
    from pathlib import Path

    return Path(text).expanduser()
