"""Makes the parts that decide which agents may send what: the authority over messages, and the cluster's keys."""

from typing import TYPE_CHECKING

from sbon.wire.entitlement import Authority
from sbon_agent.assembly.execution import Execution
from sbon_agent.assembly.network import Network
from sbon_agent.assembly.queries import Queries
from sbon_agent.cluster_keys import ClusterKeys

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class Access:
    """Access control of one agent: cluster keys, and the authority over messages."""

    def __init__(self, agent: "Agent", network: Network, execution: Execution, queries: Queries) -> None:
        host, gossip, log = agent.host, network.gossip, agent.monitoring.log
        self.keys = ClusterKeys(host, network.directory, gossip, lambda: agent.config.key_file, lambda: agent.key_ring, agent.use_keys)
        self.authority = Authority(
            agent.name,
            execution.flow.ends,
            execution.migrations,
            queries.owned.register,
            gossip,
            agent.config.peers.check_addresses,
            host.now,
            lambda event, peer, reason: log.warning(event, peer=peer, reason=reason),
        )
