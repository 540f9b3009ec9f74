"""Tells splitters that ask a dealer how their instances do.

The agent calls `sample` every second. The host of an instance then tells the splitter's host the instance's figures, along the link between
them. Messages may be lost: the next one has the same sums.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from sbon.execution.ends import Output
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.query.params.matched import MatchParams
from sbon.query.params.streams import SplitParams
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.reports import InstanceFigures

WAIT_MS_MAX = 1e7
"""Longest plausible wait, in ms; clocks that disagree by more are ignored."""


class Clocks(Protocol):
    """The clocks of this machine."""

    def now(self) -> float: ...
    def wall(self) -> float: ...


class Dealings:
    """Passes the figures of instances on to splitters.

    Parameters
    ----------
    gives : finds the sending end of a link on this host
    send : sends a message to another host; returns False if there is no connection
    """

    def __init__(
        self,
        me: NodeId,
        instances: Mapping[OperatorId, Instance],
        gives: Callable[[LinkId], tuple[Instance, Output] | None],
        clocks: Clocks,
        send: Callable[[NodeId, InstanceFigures], bool],
    ) -> None:
        self._me = me
        self._instances = instances
        self._gives = gives
        self._clocks = clocks
        self._send = send

    def sample(self) -> None:
        """Tells the figures of all instances of this host; called once a second."""
        for instance in self._instances.values():
            params = instance.spec.params
            if not isinstance(params, MatchParams) or params.dealt is None or params.dealt.opens is None:
                continue
            figures = instance.figures
            waiting = sum(incoming.queued_rows - incoming.sliced for incoming in instance.inputs.values())
            wait_ms = min(WAIT_MS_MAX, max(0.0, (self._clocks.wall() - instance.waiting.earliest_s) * 1e3)) if waiting else 0.0
            for link, incoming in instance.inputs.items():
                told = InstanceFigures(link, figures.rows_in, figures.accounts.cpu_ns, waiting, wait_ms)
                if incoming.node == self._me:
                    self.told(told)
                else:
                    self._send(incoming.node, told)

    def told(self, message: InstanceFigures) -> None:
        """Hands the figures of an instance to its splitter, if that is here and no copy of it is being made."""
        found = self._gives(message.link)
        if found is None:
            return
        instance, output = found
        part = output.link.part
        is_copied = instance.state is not State.RUNNING or instance.log is not None
        if not isinstance(instance.spec.params, SplitParams) or part is None or is_copied or instance.operator is None:
            return
        from sbon.dealing.measured import InstanceTold
        from sbon.operators.asking_splitter import AskingSplitter

        assert isinstance(instance.operator, AskingSplitter)
        report = InstanceTold(message.rows, message.cpu_ns, message.waiting, message.wait_ms / 1e3)
        instance.operator.told(self._clocks.now(), part.index, report)
