"""Reacts to answered probes and to changes of members; implements `sbon.membership.gossip.GossipEvents`."""

from typing import TYPE_CHECKING

from sbon.addresses import format_address
from sbon.membership.members import MemberStatus
from sbon.types import Address, NodeId

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class MembershipReactions:
    """Logs and records changes of membership, and passes them to the other parts of the node."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    def rtt_measured(self, peer: NodeId, rtt_ms: float, estimated_ms: float) -> None:
        """Records an answered probe."""
        self._agent.monitoring.measuring.probe(peer, rtt_ms, estimated_ms)

    def member_changed(self, name: NodeId, before: MemberStatus | None, after: MemberStatus) -> None:
        """Logs a member's new status, and tells the parts that depend on it."""
        self._agent.monitoring.log.info(f"member.{after.value}", member=name, before=before.value if before is not None else None)
        member = self._agent.network.gossip.members.get(name)
        self._agent.monitoring.recording.member(
            name, before.value if before is not None else None, after.value, member.incarnation if member else 0
        )
        if after in (MemberStatus.FAILED, MemberStatus.LEFT):
            self._agent.execution.migrations.node_failed(name, left=after is MemberStatus.LEFT)
            self._agent.queries.owned.node_failed(name, left=after is MemberStatus.LEFT)
        elif after is MemberStatus.ALIVE:
            self._agent.queries.resuming.member_alive()
            if before in (None, MemberStatus.FAILED):
                # The member's row was forgotten, so it may be a new process; or it has recovered operators elsewhere that still run here.
                self._agent.queries.wanted.ask(name)
            self._agent.queries.owned.node_alive(name)
            if self._agent.network.gossip.address_of(name) is not None and name in self._agent.execution.flow.outgoing.destinations():
                self._agent.network.directory.keep(self._agent.execution.flow.outgoing.destinations())
            self._agent.network.directory.hurry(name)

    def member_updated(self, name: NodeId, restarted: bool) -> None:
        """Handles a member with a new address, or that has restarted."""
        if restarted:
            self._agent.monitoring.log.info("member.restarted", member=name)
            self._agent.queries.wanted.ask(name)
            self._agent.queries.resuming.member_alive()
            self._agent.queries.owned.node_alive(name)
        self._agent.network.directory.keep(self._agent.execution.flow.outgoing.destinations())
        self._agent.network.directory.hurry(name)

    def member_forgotten(self, name: NodeId) -> None:
        """Drops the costs that a departed member has reported."""
        self._agent.execution.cost_store.forget(name)

    def push_pull(self, address: Address) -> None:
        """Exchanges tables with the agent at an address."""
        self._agent.queries.replication.exchange(address)

    def name_conflict(self, address: Address) -> None:
        """Logs that another agent uses this agent's name."""
        self._agent.monitoring.log.error("name.conflict", other=format_address(address), hint="give one of the two another name")

    def left(self) -> None:
        """Closes the agent after its departure has been announced, or if there was nobody to tell."""
        self._agent.shutdown.end("said goodbye")
