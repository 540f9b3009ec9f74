"""The locks that the coordinator of a migration has on the neighbours of its operator."""

import math
from collections.abc import Mapping

from sbon.migration.actions import Action, AskLock, SendUnlock
from sbon.migration.config import MigrationConfig
from sbon.types import NodeId, OperatorId


class Locks:
    """Locks of one migration, by the hosts of the neighbours.

    Parameters
    ----------
    neighbours : the operators that have links with the moving one, by host
    """

    def __init__(self, neighbours: Mapping[NodeId, tuple[OperatorId, ...]], config: MigrationConfig, now: float) -> None:
        self.neighbours = dict(sorted(neighbours.items()))
        self.renew_at = now
        """Time at which the locks are to be requested again."""
        self._lease_s = config.lease_s
        self._renew_s = (config.lease_s - config.timeout_s) / 2
        self._leases: dict[NodeId, float] = {}
        self.renewed(now)

    def asks(self) -> list[Action]:
        """Returns the requests for all locks."""
        return [AskLock(node, operators) for node, operators in self.neighbours.items()]

    def unlocks(self, *, moved: bool) -> list[Action]:
        """Returns the messages that end all locks."""
        return [SendUnlock(node, moved=moved) for node in self.neighbours]

    def granted(self, node: NodeId, asked_at: float) -> None:
        """Records that a host has granted the lock that was requested at `asked_at`."""
        self._leases[node] = max(self._leases.get(node, asked_at), asked_at)

    @property
    def are_complete(self) -> bool:
        """Tells whether all neighbours have been locked."""
        return self._leases.keys() >= self.neighbours.keys()

    def renewed(self, now: float) -> None:
        """Records that the locks have just been requested."""
        self.renew_at = now + self._renew_s

    def hold_until(self) -> float:
        """Returns the latest time for a decision: the locks must hold until the messages about it have arrived."""
        return min(self._leases.values(), default=math.inf) + self._lease_s - self._renew_s
