"""Exchanges RTTs that nodes have already measured; nothing is measured for it. The optimisers use it.

This host asks the nodes of an operator's neighbours before it looks for candidates, and answers such questions of other hosts.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from sbon.cost_space.localiser import Localiser
from sbon.errors import SbonError
from sbon.membership.gossip import Gossip
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.knowledge import RttKnowledge
from sbon.peers.directory import Directory, Done
from sbon.ports import Clock
from sbon.types import NodeId
from sbon.wire.candidates import Rtts, RttsAsk
from sbon.wire.messages import Message

NEAREST_MAX = 256
ABOUT_MAX = 256
"""Most nodes that a question may name. With `NEAREST_MAX`, this keeps an answer below some 20 kB."""


class Remembering:
    """Asks other nodes for RTTs, and answers their questions."""

    def __init__(self, host: Clock, directory: Directory, gossip: Gossip, config: OptimiserConfig) -> None:
        self._host = host
        self._directory = directory
        self._gossip = gossip
        self._config = config
        self._knowledge = RttKnowledge()
        self.counters = {"remembered_rtts_bad": 0}

    def reconfigure(self, config: OptimiserConfig) -> None:
        """Uses other settings from now on."""
        self._config = config

    def stale(self, nodes: Iterable[NodeId]) -> list[NodeId]:
        """Returns the nodes that should be asked again, each once."""
        if not self._config.neighbour_rtts:
            return []
        now, span_s = self._host.now(), self._config.lookup_interval_s
        return [node for node in dict.fromkeys(nodes) if self._knowledge.stale(node, now, span_s)]

    def refresh(self, about: Mapping[NodeId, Iterable[NodeId]], done: Callable[[], None]) -> None:
        """Asks each node for the RTTs to its nearest nodes and to the given ones; calls `done` when all have answered or timed out."""
        waiting = set(about)
        if not waiting:
            done()
            return

        def answered(node: NodeId, result: Message | SbonError) -> None:
            told = result.remembered if isinstance(result, Rtts) else None
            self.counters["remembered_rtts_bad"] += self._knowledge.heard(node, told, self._host.now())
            waiting.discard(node)
            if not waiting:
                done()

        for node in sorted(about):
            ask = RttsAsk(nearest=self._config.neighbour_rtts, about=tuple(about[node])[:ABOUT_MAX])
            self._directory.request(node, ask, partial(answered, node), self._config.answer_timeout_s)

    def remembered(self, nodes: Iterable[NodeId]) -> dict[NodeId, dict[NodeId, float]]:
        """Returns the RTTs that these nodes have reported, in ms."""
        return self._knowledge.remembered(nodes, self._host.now())

    def answer(self, question: RttsAsk, respond: Done) -> None:
        """Answers with the RTTs that probing has measured here."""
        respond(told_by(self._gossip.localiser, question, self._host.now()))


def told_by(localiser: Localiser, question: RttsAsk, now: float) -> Rtts:
    """Returns the answer to a question for RTTs that this node has measured."""
    nearest = min(max(question.nearest, 0), NEAREST_MAX)
    told = localiser.remembered(nearest, question.about[:ABOUT_MAX], now)
    return Rtts(remembered=tuple((peer, round(rtt_ms, 3), round(age_s, 1)) for peer, rtt_ms, age_s in told))
