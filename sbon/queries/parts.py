"""The parts of one agent that its queries act through."""

from dataclasses import dataclass

from sbon.membership.gossip import Gossip
from sbon.peers.directory import Directory
from sbon.ports import Executor
from sbon.queries.homes import Homes
from sbon.queries.placing import Placing
from sbon.queries.ports import Connectors, Reaches
from sbon.queries.replication import Replication
from sbon.queries.resuming import Resuming


@dataclass(frozen=True)
class QueryParts:
    """Parts of one agent that its queries act through."""

    host: Executor
    directory: Directory
    gossip: Gossip
    placing: Placing
    replication: Replication
    homes: Homes
    connectors: Connectors
    reaches: Reaches
    resuming: Resuming
