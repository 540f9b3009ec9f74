"""How long the way from the producers to each operator here is: every host adds its links to what the hosts upstream have told.

The delay of an operator is the longest way to it over the links alone: of each input, the delay where it begins plus half the RTT from
there. Hosts tell it along their outgoing links when it has changed, and now and then in any case, since the word may be lost. So the
host of a running operator knows what a query that shares it has behind it, and the host of a sink knows the delay of its query.
"""

from sbon.types import LinkId, NodeId
from sbon.wire.reports import UpstreamDelay
from sbon_agent.engine.ends import Output
from sbon_agent.engine.engine import Engine
from sbon_agent.engine.flow import Router
from sbon_agent.engine.instance import Instance
from sbon_agent.gossip import Gossip
from sbon_agent.host import Host

CHANGE_MS = 0.5
"""Changes below it, or below CHANGE_FRACTION, are noise that nobody needs to hear of."""
CHANGE_FRACTION = 0.02
REPEAT_S = 30.0
DELAY_MS_MAX = 1e7
"""Hours. More is nonsense."""


class Delays:
    """Keeps the delays of one host's operators."""

    def __init__(self, host: Host, router: Router, gossip: Gossip, engine: Engine) -> None:
        self._host = host
        self._router = router
        self._gossip = gossip
        self._engine = engine
        self._told: dict[LinkId, tuple[NodeId, float, float]] = {}

    def sample(self) -> None:
        """Once a second: add up, and tell the hosts downstream."""
        now = self._host.now()
        told: dict[LinkId, tuple[NodeId, float, float]] = {}
        for instance in self._engine.instances.values():
            delay_ms = instance.upstream_delay_ms = self._delay_ms(instance)
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
        """The host upstream of a link has told; nonsense is not believed."""
        if 0 <= message.delay_ms <= DELAY_MS_MAX:
            self._set(message.link, message.delay_ms)

    def _delay_ms(self, instance: Instance) -> float | None:
        """None while something is not known."""
        longest = 0.0
        for incoming in instance.inputs.values():
            way = self._latency_ms(incoming.node)
            if way is None or incoming.delay_ms is None:
                return None
            longest = max(longest, incoming.delay_ms + way)
        return longest

    def _latency_ms(self, node: NodeId) -> float | None:
        """One way: measured, or what the coordinates say."""
        if node == self._router.me:
            return 0.0
        rtt_ms = self._gossip.localiser.measured_rtt_ms(node)
        if rtt_ms is None:
            rtt_ms = self._gossip.estimated_rtt_ms(self._router.me, node)
        return None if rtt_ms is None else rtt_ms / 2

    def _tell(self, output: Output, delay_ms: float) -> bool:
        if output.node == self._router.me:
            self._set(output.link.id, delay_ms)
            return True
        return self._router.send(output.node, UpstreamDelay(link=output.link.id, delay_ms=delay_ms))

    def _set(self, link: LinkId, delay_ms: float) -> None:
        incoming = self._engine.flow.input(link)
        if incoming is not None:
            incoming.delay_ms = delay_ms


def _same(before_ms: float, now_ms: float) -> bool:
    return abs(now_ms - before_ms) <= max(CHANGE_MS, CHANGE_FRACTION * before_ms)
