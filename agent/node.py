"""The agent: makes all components of one node and connects them over one `Host`.

It has no sockets, threads or clocks itself: the host has them. The daemon and the testbeds make it.

datagrams -> Gossip (members, coordinate) ---------> members and coordinates of all agents
streams   -> Peers -> Directory -> Answers --------> deployment, migration, candidates, replication
                  \\-> Engine.flow (data, acks) ----> operators
control   -> ControlRequests, OwnedQueries
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import sbon_agent.logs
from sbon.control import ControlReply, ControlRequest
from sbon.errors import ConfigError, LinkError, SbonError, UnsupportedError
from sbon.extensions import Extensions
from sbon.links.batch import Batch
from sbon.links.frames import Data
from sbon.membership.members import MemberStatus
from sbon.query.plan import Plan, SinkParams
from sbon.sealing import KeyRing
from sbon.types import Address, NodeId, OperatorId
from sbon.wire.authority import Way
from sbon.wire.links import Acknowledge, DeadEnd, Moved, NoSuchLink
from sbon.wire.messages import Message, decode, encode
from sbon.wire.reports import UpstreamDelay
from sbon_agent.authority import Authority
from sbon_agent.cluster_keys import ClusterKeys
from sbon_agent.config import AgentConfig, format_address, parse_address
from sbon_agent.connectors.base import ConnectorContext, SinkConnector
from sbon_agent.connectors.reaches import Reaches
from sbon_agent.connectors.system import SystemStreams
from sbon_agent.control_requests import ControlRequests
from sbon_agent.directory import Directory, Done
from sbon_agent.engine.delays import Delays
from sbon_agent.engine.ends import Output
from sbon_agent.engine.engine import Engine
from sbon_agent.engine.handing import Handing
from sbon_agent.engine.instance import Instance
from sbon_agent.extensions import installed
from sbon_agent.gossip import Gossip
from sbon_agent.host import Host, StreamHandler, Timer
from sbon_agent.measuring import Measuring
from sbon_agent.migration.departure import MigrationRecord
from sbon_agent.migration.migrations import Migrations
from sbon_agent.misfit_log import MisfitLog
from sbon_agent.network.connection import Connection
from sbon_agent.network.peers import Peers
from sbon_agent.optimising.leaving import Leaving
from sbon_agent.optimising.multicasting import Multicasting
from sbon_agent.optimising.rebalancing import Rebalancing
from sbon_agent.optimising.remembering import Remembering
from sbon_agent.optimising.reviewing import Surroundings
from sbon_agent.optimising.sharing import Sharing
from sbon_agent.optimising.surveying import Surveying
from sbon_agent.queries.answers import Answers
from sbon_agent.queries.deployment import Deployed
from sbon_agent.queries.homes import Homes
from sbon_agent.queries.kept_file import KeptFile
from sbon_agent.queries.placing import Placed, Placing
from sbon_agent.queries.queries import OwnedQueries
from sbon_agent.queries.record import QueryRecord
from sbon_agent.queries.replication import Replication
from sbon_agent.queries.resuming import Resuming
from sbon_agent.queries.tails import Tail
from sbon_agent.reloading import Reload, reload_of
from sbon_agent.state import StateFile
from sbon_agent.telemetry.figures import operator_statistics
from sbon_agent.telemetry.log import DIRECTORY_NAME, Telemetry
from sbon_agent.telemetry.recording import Recording
from sbon_agent.upkeep import Upkeep


class Agent:
    """One node of the overlay."""

    def __init__(self, config: AgentConfig, host: Host, key_ring: KeyRing | None, extensions: Callable[[], Extensions] = installed) -> None:
        if not config.name:
            raise ConfigError("the agent has no name")
        self.name: NodeId = config.name
        self.address: Address = ("", 0)
        self.config = config
        self.host = host
        self.key_ring = key_ring
        self.extensions = extensions
        self.started_at_s = host.now()
        self.log = sbon_agent.logs.structlog.get_logger("agent", node=config.name)
        self.misfit_log = MisfitLog(self.log)
        directory = None if not config.data_dir else _path(config.data_dir) / DIRECTORY_NAME
        self.telemetry = Telemetry(config.telemetry, directory, host, config.name)
        self.recording = Recording(self.telemetry, host)
        self.system = SystemStreams()
        self.state_file = StateFile(_path(config.data_dir) if config.data_dir else "")
        self._leave_timer: Timer | None = None
        self._on_left: list[Callable[[], None]] = []
        self._on_leaving: list[Callable[[float], None]] = []
        self._stopped = False

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
        self._make_answers()
        self.resuming.start(self.queries, joins=bool(self.config.join))
        self.gossip.join([parse_address(seed) for seed in self.config.join])
        self.upkeep.start()
        self.rebalancing.start()
        self.multicasting.start()
        self.recording.agent("started", format_address(self.address), self.config.labels)
        self.log.info("agent.started", address=format_address(self.address), sealed=self.key_ring is not None)
        return self.address

    def _open_network(self) -> None:
        """Makes the network: sockets, connections, membership."""
        config, host = self.config, self.host
        self.peers = Peers(host, self.name, self.key_ring, config.peers, self)
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
            self,
        )
        self.telemetry.begin(f"{self.gossip.machine.own.boot:08x}")
        self.directory = Directory(host, self.name, self.peers, self.gossip.address_of, self)

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
        self.engine = Engine(
            host,
            self.directory,
            self,
            self._context,
            self.reaches,
            config.engine,
            config.links,
            config.migration.remembered,
            config.hosting,
        )
        self.migrations = Migrations(host, self.directory, self.engine, config.migration, self, self.gossip.departure_of)
        self.delays = Delays(host, self.directory, self.gossip, self.engine)

    def _make_queries(self) -> None:
        """Makes what turns statements into placed operators."""
        config, host = self.config, self.host
        self.sharing = Sharing(self.engine, config.hosting, lambda: self.measuring.cpu)
        self.surveying = Surveying(host, self.directory, self.gossip, self.engine, self.sharing)
        self.replication = Replication(self.directory, self.gossip, host.wall, lambda why: self.log.warning("table.refused", reason=why))
        self.remembering = Remembering(host, self.directory, self.gossip, config.optimiser)
        self.placing = Placing(host, self.gossip, self.surveying, self.remembering, config.placement, config.optimiser)
        self.homes = Homes(host, self.directory, self.gossip, self.engine, self.replication)
        file = KeptFile(_path(config.data_dir) if config.data_dir else "")
        self.resuming = Resuming(host, self.directory, self.gossip, self.replication, self.reaches, file)
        self.queries = OwnedQueries(
            host, self.directory, self.gossip, self.placing, self.replication, self.homes, self, self._context, self.reaches, self.resuming
        )

    def _make_optimisers(self) -> None:
        """Makes the optimisers, which move running operators."""
        config, host = self.config, self.host
        self.handing = Handing(host, self.directory, self.engine, self.migrations.is_leaving)
        around = Surroundings(
            host, self.directory, self.gossip, self.engine, self.surveying, self.migrations, self.remembering, self.recording
        )
        self.rebalancing = Rebalancing(
            around, config.optimiser, config.placement, lambda operator: self.multicasting.is_considering(operator)
        )
        self.multicasting = Multicasting(around, config.optimiser, config.placement, self.handing)
        self.leaving = Leaving(around)

    def _make_answers(self) -> None:
        """Makes what answers other agents and people, and measures the agent itself."""
        self.measuring = Measuring(self)
        self.upkeep = Upkeep(self)
        self.keys = ClusterKeys(self.host, self.directory, self.gossip, lambda: self.config.key_file, lambda: self.key_ring, self.use_keys)
        self.answers = Answers(
            self.directory,
            self.engine,
            self.migrations,
            self.surveying,
            self.sharing,
            self.handing,
            self.remembering,
            self.queries,
            self.homes,
            self.replication,
            self.keys,
        )
        self.authority = Authority(
            self.host, self.name, self.engine.flow, self.migrations, self.queries, self.gossip, self.config.peers.check_addresses
        )
        self.requests = ControlRequests(self)

    def leave(self, done: Callable[[], None], within_s: float | None = None) -> None:
        """Moves operators to other hosts, says goodbye, closes, then calls `done`. Called again in the meantime, it closes at once.

        Parameters
        ----------
        within_s : longest time for moving operators; None for the configured `leaving_s`
        """
        config = self.config
        self._on_left.append(done)
        if self.leaving.begun or self._stopped:
            self._left("told again")
            return
        self.rebalancing.stop()
        self.multicasting.stop()
        within_s = config.leaving_s if within_s is None else within_s
        self.log.info("agent.leaving", within_s=within_s)
        for told in self._on_leaving:
            told(within_s + config.leave_timeout_s)
        self.leaving.begin(within_s, config.optimiser, config.placement, self._say_goodbye)

    def when_leaving(self, call: Callable[[float], None]) -> None:
        """Registers a call for when the agent begins to leave; it gets the seconds that leaving may take."""
        self._on_leaving.append(call)

    def when_left(self, call: Callable[[], None]) -> None:
        """Registers a call for when the agent has left."""
        self._on_left.append(call)

    def _say_goodbye(self) -> None:
        self.upkeep.save()
        end = self.host.now() + self.config.leave_timeout_s
        self._leave_timer = self.host.call_at(end, partial(self._left, "the goodbye took longer than leave_timeout_s"))
        self.gossip.leave()

    def left(self) -> None:
        """Closes: the departure has been announced, or there was nobody to tell."""
        self._left("said goodbye")

    def _left(self, why: str) -> None:
        if not self._stopped:
            self.log.info("agent.left", why=why)
            self.stop()
        told, self._on_left = self._on_left, []
        for done in told:
            done()

    def stop(self) -> None:
        """Closes at once, without telling the others."""
        if self._stopped:
            return
        self._stopped = True
        self.upkeep.stop()
        self.resuming.close()
        if self._leave_timer is not None:
            self._leave_timer.cancel()
        self.rebalancing.stop()
        self.multicasting.stop()
        self.leaving.close()
        self.migrations.close()
        self.engine.close()
        self.gossip.close()
        self.peers.close()
        self.recording.agent("stopped", format_address(self.address), self.config.labels)
        self.telemetry.close()

    def reload(self, fresh: AgentConfig) -> Reload:
        """Applies the settings that take effect while running (`sbon_agent.reloading.EFFECTS`); the others stay as they are.

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

    # ----------------------------------------------------------------------------------------- callbacks of the host

    def _datagram(self, data: bytes, sender: Address, received_at: float) -> None:
        self.gossip.datagram(data, sender, received_at)

    def _accept(self, peer: Address) -> StreamHandler:
        return self.peers.accept(peer)

    # --------------------------------------------------------------------------- callbacks of the connections (PeerEvents)

    def message(self, connection: Connection, payload: bytes) -> None:
        """Handles a one-way message."""
        try:
            message = decode(payload)
        except UnsupportedError as problem:
            self.authority.unsupported(connection.node, problem)
            return
        if self.authority.check(self.authority.speaker(connection), message, Way.TOLD, connection.node) is not None:
            return
        match message:
            case Acknowledge():
                self.engine.flow.acknowledged(message)
            case NoSuchLink():
                self.engine.flow.unknown_there(message)
            case DeadEnd():
                self.engine.flow.dead_end_told(message)
            case UpstreamDelay():
                self.delays.told(message)
            case Moved(operator, node, epoch):
                self.answers.moved(operator, node, epoch)

    def data(self, connection: Connection, data: Data) -> None:
        """Handles a batch of a link.

        A sender without the right is told that the link is unknown: it may be the source's new host, whose announcement is still on its
        way.
        """
        if self.authority.check(self.authority.speaker(connection), data, Way.TOLD, connection.node) is not None:
            connection.send(encode(NoSuchLink(link=data.link)))
            return
        self.engine.flow.receive(data, lambda answer: connection.send(encode(answer)))

    def request(self, connection: Connection, payload: bytes, respond: Callable[[bytes | SbonError], None]) -> None:
        """Handles a request of another agent."""
        try:
            message = decode(payload)
        except UnsupportedError as problem:
            self.authority.unsupported(connection.node, problem)
            raise
        answer: Done = lambda result: respond(result if isinstance(result, SbonError) else encode(result))  # noqa: E731
        self.handle(self.authority.speaker(connection), message, answer, connection.node)

    def handle(self, sender: NodeId, message: Message, respond: Done, claimed: NodeId = "") -> None:
        """Handles a request of another agent, or of this one.

        Parameters
        ----------
        sender : the agent that asks; empty if that cannot be shown
        claimed : the name that it uses
        """
        if self._stopped:
            raise LinkError(f"{self.name} is stopping")
        if sender != self.name and (problem := self.authority.check(sender, message, Way.ASKED, claimed)) is not None:
            raise problem
        self.answers.handle(sender, message, respond)

    def connected(self, address: Address, node: NodeId) -> None:
        """Resends on a wanted connection that is open again."""
        self.engine.flow.reconnected(node)

    def no_common_key(self, address: Address) -> None:
        """Passes on that the agent at an address holds none of our cluster keys."""
        self.keys.no_common_key(address)

    def lost(self, address: Address, reason: str) -> None:
        """Logs that a wanted connection is lost; it is dialled again."""
        self.log.info("connection.lost", address=format_address(address), reason=reason)

    def writable(self, address: Address) -> None:
        """Sends on a connection that has room again."""
        for node in self.directory.node_at(address):
            self.engine.flow.writable(node, self.peers.drained_bytes_per_s(address))

    # ----------------------------------------------------------------------------- callbacks of the gossip (GossipEvents)

    def rtt_measured(self, peer: NodeId, rtt_ms: float, estimated_ms: float) -> None:
        """Records an answered probe."""
        self.measuring.probe(peer, rtt_ms, estimated_ms)

    def member_changed(self, name: NodeId, before: MemberStatus | None, after: MemberStatus) -> None:
        """Logs a member's new status, and tells everything that depends on it."""
        self.log.info(f"member.{after.value}", member=name, before=before.value if before is not None else None)
        member = self.gossip.members.get(name)
        self.recording.member(name, before.value if before is not None else None, after.value, member.incarnation if member else 0)
        if after in (MemberStatus.FAILED, MemberStatus.LEFT):
            self.migrations.node_failed(name, left=after is MemberStatus.LEFT)
            self.queries.node_failed(name, left=after is MemberStatus.LEFT)
        elif after is MemberStatus.ALIVE:
            self.resuming.member_alive()
            if before is None:  # its row was forgotten, so it is unknown whether it is the same process
                self.upkeep.ask_whether_wanted(name)
            if self.gossip.address_of(name) is not None and name in self.engine.flow.destinations():
                self.directory.keep(self.engine.flow.destinations())

    def member_updated(self, name: NodeId, restarted: bool) -> None:
        """Handles a member with a new address, or that has restarted."""
        if restarted:
            self.log.info("member.restarted", member=name)
            self.upkeep.ask_whether_wanted(name)
            self.resuming.member_alive()
        self.directory.keep(self.engine.flow.destinations())

    def push_pull(self, address: Address) -> None:
        """Exchanges tables with the agent at an address."""
        self.replication.exchange(address)

    def name_conflict(self, address: Address) -> None:
        """Logs that another agent uses this agent's name."""
        self.log.error("name.conflict", other=format_address(address), hint="give one of the two another name")

    # ----------------------------------------------------------------------------- callbacks of the engine (EngineEvents)

    def operator_failed(self, instance: Instance) -> None:
        """Logs and records an operator that has failed."""
        self.log.error("operator.failed", operator=instance.id, reason=instance.reason)
        self.telemetry.record(operator_statistics(instance, self.name))

    def operator_refused(self, operator: OperatorId, asked_by: NodeId, reason: str) -> None:
        """Logs that an operator could not be made for another agent."""
        self.log.warning("operator.refused", operator=operator, asked_by=asked_by, reason=reason)

    def operator_finished(self, instance: Instance) -> None:
        """Handles an operator whose input has ended."""
        self.misfit_log.look_at(instance, self.host.now())
        self.queries.finished(instance.id)

    def operator_destroyed(self, operator: OperatorId) -> None:
        """Handles an operator that has been removed."""
        self.recording.sink_ended(operator)
        self.migrations.destroyed(operator)

    def delivered(self, instance: Instance, batch: Batch) -> None:
        """Records a batch that a sink has taken, and passes it on to watchers of a tail."""
        self.recording.delivered(instance, batch.stimulus_s, batch.rows)
        if isinstance(instance.sink, Tail):
            instance.sink.publish()

    def link_broken(self, instance: Instance, output: Output, reason: str) -> None:
        """Logs an output that has been removed because its consumer is gone."""
        self.log.warning("link.broken", link=output.link.id, reason=reason, rows_unacknowledged=output.sender.rows_held)

    def link_spills(self, output: Output, event: str, reason: str) -> None:
        """Logs that a link's batches go to disk, or no longer do."""
        tell = self.log.warning if event == "stopped" else self.log.info
        fields = {"reason": reason} if reason else {}
        tell(f"spill.{event}", link=output.link.id, to=output.node, rows_unacknowledged=output.sender.rows_held, **fields)

    def rows_left_out(self, output: Output, rows: int, reason: str) -> None:
        """Logs a batch that could not be packed; for each link, when the number of such batches has doubled."""
        if output.left_out.bit_count() == 1:
            lost = {"rows": rows, "batches_so_far": output.left_out, "rows_so_far": output.sender.rows_left_out}
            self.log.error("batch.unpackable", link=output.link.id, reason=reason, **lost)

    def arrived_at_prepared(self, operator: OperatorId) -> None:
        """Activates a migrated operator for which data has arrived."""
        self.migrations.arrived_at_prepared(operator)

    def make_sink(self, instance: Instance, params: SinkParams) -> SinkConnector | None:
        """Makes the agent's own sink for `tail`; None for other connectors."""
        if params.connector != "tail":
            return None
        query = next(iter(instance.users))
        tail = self.queries.tails[query] = Tail(query, instance.spec.schema)
        return tail

    # ------------------------------------------------------------------------- callbacks of queries and migrations

    def query_changed(self, record: QueryRecord) -> None:
        """Logs and records a query's new state."""
        self.log.info(f"query.{record.state.value}", query=record.id, name=record.name, reason=record.reason)
        self.recording.query(record)

    def placed(self, plan: Plan, placed: Placed, deployed: Deployed) -> None:
        """Records a placement that has been deployed."""
        self.recording.placement(plan, placed.decision)

    def migration_ended(self, record: MigrationRecord) -> None:
        """Logs and records a migration that has ended, and tells the local optimiser."""
        event = "migration.committed" if record.committed else "migration.abandoned"
        fields: dict[str, Any] = {
            "operator": record.operator,
            "queries": list(record.queries),
            "here": record.here,
            "there": record.there,
            "reason": record.reason,
            "outcome": record.outcome,
            "pause_ms": round(record.pause_s * 1000, 3),
            "seconds": round(record.seconds, 6),
            "state_bytes": record.state_bytes,
            "copy_s": round(record.copy_s, 6),
            "rounds": record.rounds,
        }
        self.log.info(event, **fields)
        self.recording.migration(record)
        self.measuring.migrations.append({"committed": record.committed, "at_wall_s": self.host.wall(), **fields})
        self.rebalancing.migration_ended(record)

    def operator_arrived(self, instance: Instance) -> None:
        """Handles an operator that runs here now and ran elsewhere before."""
        self.log.info("operator.arrived", operator=instance.id, epoch=instance.epoch)
        instance.arrived_at_s = self.host.now()
        if instance.is_multicast:
            self.multicasting.tend(instance)


def _path(text: str) -> Any:
    from pathlib import Path

    return Path(text).expanduser()
