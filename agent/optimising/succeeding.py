"""Telling where operators run whose old host was to tell it, and has died: the last thing that a new host does for a migration.

Once decided, the old host repeats the new place to neighbours and owners until each has answered. If it fails meanwhile, those that have
not heard would send to it, or miss the operator there, for ever; the new host, once it runs the operator, knows as much and tells them.
"""

from collections.abc import Callable, Iterable
from functools import partial

from agent.directory import Directory
from agent.engine.engine import Engine
from agent.engine.instance import Instance
from agent.host import Host
from sbon.errors import SbonError
from sbon.types import NodeId, OperatorId
from sbon.wire.links import Moved
from sbon.wire.messages import Message


class Succeeding:
    """All operators of this host that have come from elsewhere.

    Parameters
    ----------
    is_gone : whether a node is not among the members any more
    concerned : whom the place of an operator concerns
    retry_s : pause after a word that nobody answered
    """

    def __init__(
        self,
        host: Host,
        directory: Directory,
        engine: Engine,
        is_gone: Callable[[NodeId], bool],
        concerned: Callable[[Instance], Iterable[NodeId]],
        retry_s: float,
    ) -> None:
        self._host = host
        self._directory = directory
        self._engine = engine
        self._is_gone = is_gone
        self._concerned = concerned
        self._retry_s = retry_s
        self._came_from: dict[OperatorId, NodeId] = {}

    def arrived(self, instance: Instance, old: NodeId) -> None:
        """It runs here now; its old host tells of it, unless that has gone already."""
        self._came_from = {name: node for name, node in self._came_from.items() if name in self._engine.instances}
        self._came_from[instance.id] = old
        if self._is_gone(old):
            self._tell_all(instance)

    def gone(self, node: NodeId) -> None:
        """A host has failed, left, or been started anew, and tells nothing any more."""
        for operator, old in self._came_from.items():
            instance = self._engine.instances.get(operator)
            if old == node and instance is not None:
                self._tell_all(instance)

    def _tell_all(self, instance: Instance) -> None:
        for node in sorted(set(self._concerned(instance))):
            self._tell(node, instance)

    def _tell(self, node: NodeId, instance: Instance) -> None:
        if self._engine.instances.get(instance.id) is not instance or self._is_gone(node):
            return

        def answered(result: Message | SbonError) -> None:
            if isinstance(result, SbonError):
                self._host.call_at(self._host.now() + self._retry_s, partial(self._tell, node, instance))

        self._directory.request(node, Moved(operator=instance.id, node=self._directory.me, epoch=instance.epoch), answered)
