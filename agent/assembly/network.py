"""Makes the parts that connect an agent with others: sockets, connections to peers, membership and coordinates."""

from typing import TYPE_CHECKING

from sbon.addresses import parse_address
from sbon.membership.gossip import Gossip
from sbon.peers.directory import Directory
from sbon.peers.peers import Peers
from sbon.ports import StreamHandler
from sbon.types import Address
from sbon_agent.reactions.membership import MembershipReactions

if TYPE_CHECKING:
    from sbon_agent.node import Agent


class Network:
    """Connections of one agent. Making this object opens the agent's ports.

    Raises
    ------
    ConfigError
        The address cannot be used.
    """

    def __init__(self, agent: "Agent") -> None:
        config, host = agent.config, agent.host
        self.peers = Peers(host, agent.name, agent.key_ring, config.peers, agent.dispatch)
        bound = host.listen(parse_address(config.bind), self._datagram, self._accept)
        host_name, port = parse_address(config.advertise) if config.advertise else bound
        self.address: Address = (host_name, port or bound[1])
        """Address under which others reach this agent."""
        saved = agent.files.state.load(agent.name)
        self.gossip = Gossip(
            host,
            config.membership,
            config.coordinate,
            agent.name,
            self.address,
            dict(config.labels),
            saved.incarnation if saved is not None else 0,
            saved.coordinate if saved is not None else None,
            agent.key_ring,
            MembershipReactions(agent),
        )
        self.directory = Directory(host, agent.name, self.peers, self.gossip.address_of, agent.dispatch)

    def _accept(self, peer: Address) -> StreamHandler:
        return self.peers.accept(peer)

    def _datagram(self, data: bytes, sender: Address, received_at: float) -> None:
        self.gossip.datagram(data, sender, received_at)
