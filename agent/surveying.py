"""Asking candidates before they are used, and answering when asked (SBON, section 3.1.2: physical mapping, step 2).

A candidate measures its RTT to the nodes that the operator would exchange data with, and tells its free slots, its load, and which of the
wanted operators it runs already.
"""

from collections.abc import Callable, Sequence
from functools import partial

from agent.directory import Directory, Done
from agent.engine import Engine
from agent.gossip import Gossip
from sbon.errors import SbonError
from sbon.placement.candidates import CandidateReport
from sbon.types import NodeId
from sbon.wire import CandidateAnswer, CandidateAsk, Message

ABOUT_MAX = 256
"""Nodes that one question may ask to be measured: each costs a few datagrams, and nobody may make us flood the network."""


class Surveying:
    """Both sides of the question."""

    def __init__(self, directory: Directory, gossip: Gossip, engine: Engine) -> None:
        self._directory = directory
        self._gossip = gossip
        self._engine = engine

    def ask(
        self,
        node: NodeId,
        about: Sequence[NodeId],
        signatures: Sequence[str],
        timeout_s: float,
        done: Callable[[NodeId, CandidateReport | None], None],
    ) -> None:
        """Ask one candidate; None: no answer."""

        def answered(result: Message | SbonError) -> None:
            if not isinstance(result, CandidateAnswer):
                done(node, None)
                return
            rtts = {peer: rtt for peer, rtt in result.rtts_ms.items() if 0 <= rtt < float("inf")}
            done(node, CandidateReport(node, rtts, max(0, result.free_slots), max(0.0, result.load_ms), result.running))

        self._directory.request(node, CandidateAsk(about=tuple(about), signatures=tuple(signatures)), answered, timeout_s)

    def answer(self, question: CandidateAsk, respond: Done) -> None:
        """Measure, then answer."""
        about = sorted(set(question.about[:ABOUT_MAX]))
        waiting = set(about)
        rtts: dict[NodeId, float] = {}

        def measured(peer: NodeId, rtt_ms: float | None) -> None:
            waiting.discard(peer)
            if rtt_ms is None:
                # A few lost datagrams are no reason to know less than the filter remembers.
                rtt_ms = self._gossip.localiser.measured_rtt_ms(peer)
            if rtt_ms is not None:
                rtts[peer] = rtt_ms
            if not waiting:
                respond(self._answer(question, rtts))

        if not about:
            respond(self._answer(question, rtts))
        for peer in about:
            if peer == self._directory.me:
                measured(peer, 0.0)
            else:
                self._gossip.ping(peer, partial(measured, peer))

    def _answer(self, question: CandidateAsk, rtts: dict[NodeId, float]) -> CandidateAnswer:
        running = self._engine.running_signatures()
        return CandidateAnswer(
            node=self._directory.me,
            rtts_ms=rtts,
            free_slots=self._engine.free_slots,
            load_ms=self._gossip.localiser.coordinate.load_ms,
            running={signature: running[signature] for signature in question.signatures if signature in running},
        )
