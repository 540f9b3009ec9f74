"""The parts of one host that its migrations act through."""

from collections.abc import Callable
from dataclasses import dataclass

from sbon.delivery.flow import Flow
from sbon.execution.engine import Engine
from sbon.execution.instance import Instance
from sbon.execution.operators import Operators
from sbon.membership.members import MemberStatus
from sbon.migration.config import MigrationConfig
from sbon.peers.directory import Directory
from sbon.ports import Executor
from sbon.types import NodeId, OperatorId

Neighbours = dict[NodeId, tuple[OperatorId, ...]]


@dataclass(frozen=True)
class Parts:
    """Parts of one host that its migrations act through."""

    host: Executor
    directory: Directory
    engine: Engine
    operators: Operators
    flow: Flow
    config: MigrationConfig
    departure_of: Callable[[NodeId], MemberStatus | None]
    """Tells how another node has gone; None if it has not."""

    def neighbours(self, instance: Instance) -> Neighbours:
        """Returns the operators at the other ends of an operator's links, by host.

        A source that is gone for good is left out: it cannot grant a lock or be told anything, and would hold the operator here for ever.
        """
        neighbours: Neighbours = {}
        feeding = [i for i in instance.inputs.values() if not (i.lost and (i.told_lost or self.departure_of(i.node)))]
        ends = [(i.node, i.link.source) for i in feeding] + [(o.node, o.link.target) for o in instance.outputs.values()]
        for node, neighbour in ends:
            if neighbour not in neighbours.get(node, ()):
                neighbours[node] = (*neighbours.get(node, ()), neighbour)
        return neighbours
