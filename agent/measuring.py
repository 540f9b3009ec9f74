"""Samples the agent's own figures, once a second and with each probe, for `sys.*` streams, gossip and the telemetry log."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sbon.cost_space.load import LoadDimension
from sbon.execution.telemetry_rows import link_rates, operator_statistics
from sbon.membership.digest import make_digest
from sbon.membership.members import Capacity
from sbon.telemetry.rows import CoordinateSample, Load
from sbon.types import NodeId

if TYPE_CHECKING:
    from sbon_agent.node import Agent

LOG_EVERY = 10
"""Number of samples between two records of the telemetry log."""
MIGRATIONS_KEPT = 200


class Measuring:
    """Takes the samples and passes them on."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._load = LoadDimension(agent.config.load)
        self._samples = 0
        self.cpu = 0.0
        """Use of the processors and pressure of waiting work at the last sample, 0 to 2."""
        self.migrations: deque[dict[str, Any]] = deque(maxlen=MIGRATIONS_KEPT)
        """Migrations that this host has coordinated, newest last."""
        self.loop_lag: Callable[[], dict[str, Any]] | None = None
        """Returns how late the event loop is; None if it is not measured."""

    def probe(self, peer: NodeId, rtt_ms: float, estimated_ms: float) -> None:
        """Records an answered probe."""
        agent, monitoring = self._agent, self._agent.monitoring
        if monitoring.system.wanted("sys.probes"):
            member = agent.network.gossip.members.get(peer)
            peer_region = member.labels.get("region") if member is not None else None
            monitoring.system.push("sys.probes", (self._now_us(), agent.name, self._region, peer, peer_region, rtt_ms, estimated_ms))
        monitoring.recording.probe(peer, rtt_ms, estimated_ms)

    def sample(self) -> None:
        """Takes all samples; called once a second."""
        agent, gossip, operators = self._agent, self._agent.network.gossip, self._agent.execution.operators
        self._samples += 1
        self.cpu = agent.host.processors().load
        load_ms = self._load.update(self.cpu, agent.host.now())
        gossip.localiser.set_load(load_ms)
        digest = make_digest(frozenset(signature for signature, _ in operators.shareable()))
        gossip.machine.announce(digest, Capacity(operators.room.free_slots(agent.host.now()), round(self.cpu, 2)))
        if agent.monitoring.system.wanted("sys.load"):
            memory = agent.host.memory_fraction()
            cpu = agent.host.processors().use  # without the pressure of waiting work, which is part of load_ms
            row = (self._now_us(), agent.name, self._region, cpu, memory, load_ms, len(operators.instances))
            agent.monitoring.system.push("sys.load", row)
        if agent.monitoring.system.wanted("sys.links"):
            self._push_links()
        if self._samples % LOG_EVERY == 0:
            self._log()

    def _push_links(self) -> None:
        agent, now_us = self._agent, self._now_us()
        for instance in list(agent.execution.operators.instances.values()):
            for output in instance.outputs.values():
                rates = (output.row_rate.per_s, output.byte_rate.per_s)
                row = (now_us, agent.name, self._region, output.node, output.link.id, instance.id, *rates, output.sender.held)
                agent.monitoring.system.push("sys.links", row)

    def _log(self) -> None:
        agent, gossip, operators = self._agent, self._agent.network.gossip, self._agent.execution.operators
        coordinate = gossip.localiser.coordinate
        error = gossip.localiser.median_relative_error()
        record = agent.monitoring.telemetry.record
        record(
            CoordinateSample(
                vector_ms=tuple(round(float(x), 3) for x in coordinate.vector),
                height_ms=round(float(coordinate.height_ms), 3),
                error=round(float(coordinate.error), 4),
                load_ms=round(float(coordinate.load_ms), 3),
                median_relative_error=None if error is None else round(float(error), 4),
            )
        )
        dropped = agent.monitoring.telemetry.counters["records_dropped"]
        load_ms = float(coordinate.load_ms)
        lag = self.loop_lag() if self.loop_lag is not None else {}
        memory, slots = agent.host.memory_fraction(), operators.room.free_slots(agent.host.now())
        load, use, _ = agent.host.processors()
        record(Load(use, memory, load_ms, len(operators.instances), slots, dropped, lag.get("p50_ms"), lag.get("p99_ms"), load - use))
        bandwidths = dict(agent.execution.cost_store.bandwidths.from_node(agent.name))
        for instance in operators.instances.values():
            record(operator_statistics(instance, agent.name, agent.host.now()))
            for row in link_rates(instance, gossip, bandwidths):
                record(row)

    @property
    def _region(self) -> str | None:
        return self._agent.config.labels.get("region")

    def _now_us(self) -> int:
        return int(self._agent.host.wall() * 1e6)
