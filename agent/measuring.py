"""What the agent measures of itself, once a second and with each probe: for `sys.*` streams, for gossip, and for the telemetry log."""

from collections import deque
from typing import TYPE_CHECKING, Any

from sbon.cost_space.load import LoadDimension
from sbon.membership.digest import make_digest
from sbon.membership.members import Capacity
from sbon.types import NodeId

if TYPE_CHECKING:
    from agent.node import Agent

LOG_EVERY = 10
"""Samples between two records of the telemetry log."""
MIGRATIONS_KEPT = 200


class Measuring:
    """Takes the samples and hands them to whoever wants them."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self._load = LoadDimension(agent.config.load)
        self._samples = 0
        self.cpu = 0.0
        self.migrations: deque[dict[str, Any]] = deque(maxlen=MIGRATIONS_KEPT)
        """Those that this host has coordinated, newest last."""

    def probe(self, peer: NodeId, rtt_ms: float, estimated_ms: float) -> None:
        """A probe was answered."""
        agent = self._agent
        if agent.system.wanted("sys.probes"):
            member = agent.gossip.members.get(peer)
            peer_region = member.labels.get("region") if member is not None else None
            agent.system.push("sys.probes", (self._now_us(), agent.name, self._region, peer, peer_region, rtt_ms, estimated_ms))
        agent.telemetry.record("probe", peer=peer, rtt_ms=round(rtt_ms, 3), estimated_ms=round(estimated_ms, 3))

    def sample(self) -> None:
        """Once a second."""
        agent = self._agent
        self._samples += 1
        self.cpu = agent.host.load_fraction()
        load_ms = self._load.update(self.cpu, agent.host.now())
        agent.gossip.localiser.set_load(load_ms)
        digest = make_digest(agent.engine.running_signatures())
        agent.gossip.machine.announce(digest, Capacity(agent.engine.free_slots, round(self.cpu, 2)))
        if agent.system.wanted("sys.load"):
            memory = agent.host.memory_fraction()
            operators = len(agent.engine.instances)
            cpu = min(1.0, self.cpu)  # people expect a share; what waits beyond it is in load_ms
            agent.system.push("sys.load", (self._now_us(), agent.name, self._region, cpu, memory, load_ms, operators))
        if agent.system.wanted("sys.links"):
            self._push_links()
        if self._samples % LOG_EVERY == 0:
            self._log()

    def _push_links(self) -> None:
        agent, now_us = self._agent, self._now_us()
        for instance in list(agent.engine.instances.values()):
            for output in instance.outputs.values():
                rates = (output.row_rate.per_s, output.byte_rate.per_s)
                row = (now_us, agent.name, self._region, output.node, output.link.id, instance.id, *rates, output.sender.held)
                agent.system.push("sys.links", row)

    def _log(self) -> None:
        agent = self._agent
        coordinate = agent.gossip.localiser.coordinate
        error = agent.gossip.localiser.median_relative_error()
        agent.telemetry.record(
            "coordinate",
            vector=[round(x, 3) for x in coordinate.vector],
            height_ms=round(coordinate.height_ms, 3),
            error=round(coordinate.error, 4),
            load_ms=round(coordinate.load_ms, 3),
            median_relative_error=None if error is None else round(error, 4),
        )
        agent.telemetry.record("load", cpu=self.cpu, operators=len(agent.engine.instances))
        for report in agent.engine.reports():
            agent.telemetry.record(
                "operator",
                operator=report.id,
                state=report.state,
                rows_in=report.rows_in,
                rows_out=report.rows_out,
                rows_per_s_in=report.rows_per_s_in,
                rows_per_s_out=report.rows_per_s_out,
                bytes_per_s_out=report.bytes_per_s_out,
                late_rows=report.late_rows,
                queue_batches=report.queue_batches,
                state_rows=report.state_rows,
            )

    @property
    def _region(self) -> str | None:
        return self._agent.config.labels.get("region")

    def _now_us(self) -> int:
        return int(self._agent.host.wall() * 1e6)
