"""Questions of the full optimiser to candidates and their answers, and how many probes of its budget are left."""

from collections.abc import Mapping, Sequence

import msgspec

from sbon.cost.latency import EstimatedLatencies
from sbon.cost.space import CostSpace
from sbon.optimiser.asking import AskCandidate
from sbon.placement.candidates import CandidateReport
from sbon.types import NodeId, OperatorId


class Inquiry:
    """Questions to candidates about one query, and their answers.

    Parameters
    ----------
    space : coordinates of all nodes that may be asked, and of pinned nodes
    pinned_nodes : nodes that operators are pinned to; their latencies are known even without a coordinate
    signatures : of operators that a running one may replace; each node is asked for all of them
    probes : RTTs that may be asked for, in all

    Attributes
    ----------
    reports : the latest answer of each node that has not failed to answer, with all RTTs that it has reported
    latencies : between nodes, by these RTTs and by coordinates
    asked : nodes asked so far, each with the peers that it was asked about
    """

    def __init__(self, space: CostSpace, pinned_nodes: Sequence[NodeId], signatures: Mapping[OperatorId, str], probes: int) -> None:
        self._space = space
        self._pinned_nodes = frozenset(pinned_nodes)
        self._signatures = tuple(sorted(set(signatures.values())))
        self._probes = probes
        self._outstanding: set[NodeId] = set()
        self.reports: dict[NodeId, CandidateReport] = {}
        self.latencies = EstimatedLatencies(space)
        self.asked: dict[NodeId, set[NodeId]] = {}

    @property
    def is_open(self) -> bool:
        """Tells whether a node that was asked has neither answered nor been given up."""
        return bool(self._outstanding)

    @property
    def probes_left(self) -> int:
        """RTTs that may still be asked for; negative if the budget is overspent."""
        return self._probes - sum(len(peers) for peers in self.asked.values())

    def answered(self, report: CandidateReport) -> bool:
        """Takes an answer; returns False, and ignores it, if nobody waits for it."""
        if report.node not in self._outstanding:
            return False
        self._outstanding.discard(report.node)
        before = self.reports.get(report.node)
        rtts = {**(before.rtts_ms if before is not None else {}), **report.rtts_ms}
        self.reports[report.node] = msgspec.structs.replace(report, rtts_ms=rtts)
        self.latencies.learn(report.node, {peer: rtt for peer, rtt in report.rtts_ms.items() if self._placed(peer)})
        return True

    def unanswered(self, node: NodeId) -> bool:
        """Gives a node up and drops what it has answered before; returns False if nobody waits for it."""
        if node not in self._outstanding:
            return False
        self._outstanding.discard(node)
        self.reports.pop(node, None)
        return True

    def want(self, about: dict[NodeId, dict[NodeId, None]], pairs: Sequence[tuple[NodeId, NodeId]], limit: int) -> None:
        """Adds pairs to the questions `about` nodes, as far as they are new, at most `limit`; either end may be asked."""
        taken = 0
        for pair in pairs:
            if taken >= limit:
                return
            for node, peer in (pair, pair[::-1]):
                if not self.is_unmeasured(node, peer) or peer in about.get(node, ()) or node in about.get(peer, ()):
                    break
                if (
                    node in about or node in self.reports or (node in self._space and node not in self.asked)
                ) and peer not in self.asked.get(node, ()):
                    about.setdefault(node, {})[peer] = None
                    taken += 1
                    break

    def questions(self, about: Mapping[NodeId, Mapping[NodeId, None]]) -> list[AskCandidate]:
        """Returns the questions to nodes about their peers, and waits for the answers from now on."""
        result: list[AskCandidate] = []
        for node, peers in about.items():
            self.asked.setdefault(node, set()).update(peers)
            self._outstanding.add(node)
            result.append(AskCandidate(node, tuple(peers), self._signatures))
        return result

    def is_unmeasured(self, a: NodeId, b: NodeId) -> bool:
        """Tells whether the latency between two nodes is only predicted."""
        return a != b and self.latencies.measured_rtt_ms(a, b) is None

    def _placed(self, node: NodeId) -> bool:
        """Tells whether a node's latencies are known: it has a coordinate, or is pinned and assumed at the origin."""
        return node in self._pinned_nodes or node in self._space
