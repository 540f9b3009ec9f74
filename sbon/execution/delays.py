"""Measures the network delay from the sources to each operator of this host, and tells it to the hosts downstream.

The agent calls `sample` every second.

The delay of an operator is that of the longest path to it, counting links only: over all inputs, the greatest sum of the delay at the
link's source and half the RTT from there. Hosts tell their operators' delays along outgoing links when they change, and repeat them
periodically because messages may be lost. So the host of a running operator knows the delay up to the operator, for queries that want to
share it, and the host of a sink knows the delay of its query.
"""

from collections.abc import Callable, Mapping

from sbon.execution.ends import Input, Output
from sbon.execution.instance import Instance
from sbon.types import LinkId, NodeId, OperatorId
from sbon.wire.reports import UpstreamDelay

CHANGE_MS = 0.5
"""Smallest change worth telling, in ms; it must also exceed CHANGE_FRACTION of the delay. Smaller changes are noise."""
CHANGE_FRACTION = 0.02
REPEAT_S = 30.0
DELAY_MS_MAX = 1e7
"""Greatest plausible delay, in ms (hours); greater ones are ignored."""


class Delays:
    """Computes and exchanges the delays of this host's operators.

    Parameters
    ----------
    takes : finds the receiving end of a link on this host
    latency_ms : returns the one-way latency to a node, None if it is unknown
    send : sends a message to another host; returns False if there is no connection
    """

    def __init__(
        self,
        me: NodeId,
        instances: Mapping[OperatorId, Instance],
        takes: Callable[[LinkId], tuple[Instance, Input] | None],
        latency_ms: Callable[[NodeId], float | None],
        send: Callable[[NodeId, UpstreamDelay], bool],
    ) -> None:
        self._me = me
        self._instances = instances
        self._takes = takes
        self._latency_ms = latency_ms
        self._send = send
        self._told: dict[LinkId, tuple[NodeId, float, float]] = {}

    def sample(self, now: float) -> None:
        """Computes all delays and tells those that have changed; called once a second."""
        told: dict[LinkId, tuple[NodeId, float, float]] = {}
        for instance in self._instances.values():
            delay_ms = instance.figures.upstream_delay_ms = self._delay_ms(instance)
            if delay_ms is None:
                continue
            for output in instance.outputs.values():
                before = self._told.get(output.link.id)
                if before is not None and before[0] == output.node and _same(before[1], delay_ms) and now - before[2] < REPEAT_S:
                    told[output.link.id] = before
                elif self._tell(output, delay_ms):
                    told[output.link.id] = (output.node, delay_ms, now)
        self._told = told

    def told(self, message: UpstreamDelay) -> None:
        """Takes the delay that the host upstream of a link has sent. Implausible values are ignored."""
        if 0 <= message.delay_ms <= DELAY_MS_MAX:
            self._set(message.link, message.delay_ms)

    def _delay_ms(self, instance: Instance) -> float | None:
        """Returns the delay of an operator in ms; None while part of it is unknown."""
        longest = 0.0
        for incoming in instance.inputs.values():
            way = self._latency_ms(incoming.node)
            if way is None or incoming.delay_ms is None:
                return None
            longest = max(longest, incoming.delay_ms + way)
        return longest

    def _tell(self, output: Output, delay_ms: float) -> bool:
        if output.node == self._me:
            self._set(output.link.id, delay_ms)
            return True
        return self._send(output.node, UpstreamDelay(link=output.link.id, delay_ms=delay_ms))

    def _set(self, link: LinkId, delay_ms: float) -> None:
        found = self._takes(link)
        if found is not None:
            found[1].delay_ms = delay_ms


def _same(before_ms: float, now_ms: float) -> bool:
    return abs(now_ms - before_ms) <= max(CHANGE_MS, CHANGE_FRACTION * before_ms)
