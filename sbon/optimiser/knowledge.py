"""RTTs that neighbours remember from their own probing, beside those that coordinates predict. No I/O.

Coordinates say much about nodes in data centres and little about nodes behind home lines. But every node measures its RTT to many others
all the time. A candidate for an operator is good by its RTTs to the operator's neighbours, and the neighbours' nodes remember these. So
every other candidate is the best by measured RTTs, where they are known. The rest are the best by coordinates, which are less exact but
rest on more samples: where RTTs swing within minutes, they say more than a single RTT. A chosen candidate is measured again before anything
moves; remembered RTTs only decide which nodes are asked.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sbon.cost.space import CostSpace
from sbon.placement.candidates import CandidateReport
from sbon.placement.remembered import Remembered
from sbon.types import FloatArray, NodeId

REMEMBERED_NODES_MAX = 1024
"""Neighbours' nodes remembered; the one heard from longest ago makes room."""
RTTS_MAX = 512
"""Most RTTs taken from one answer, so that no peer can fill this agent's memory."""
RTT_MS_MAX = 60_000.0
AGE_S_MAX = 3600.0
"""Older measurements say less than a fresh coordinate."""


class RttKnowledge:
    """The round-trip times that the nodes of neighbours have reported."""

    def __init__(self) -> None:
        self._heard: OrderedDict[NodeId, tuple[float, dict[NodeId, tuple[float, float]]]] = OrderedDict()

    def heard(self, node: NodeId, told: Iterable[tuple[NodeId, float, float]] | None, now: float) -> int:
        """Replaces a node's last answer with (peer, RTT in ms, age in s) each; returns how many entries were invalid.

        None: the node has not answered, and will be asked again when an answer would have grown stale.
        """
        if told is None:
            self._keep(node, self._heard.get(node, (0.0, {}))[1], now)
            return 0
        known: dict[NodeId, tuple[float, float]] = {}
        refused = 0
        for peer, rtt_ms, age_s in told:
            if not (0 < rtt_ms <= RTT_MS_MAX) or not (0 <= age_s < math.inf) or len(known) >= RTTS_MAX:
                refused += 1
            elif peer != node and age_s <= AGE_S_MAX:
                known[peer] = (rtt_ms, now - age_s)
        self._keep(node, known, now)
        return refused

    def _keep(self, node: NodeId, known: dict[NodeId, tuple[float, float]], now: float) -> None:
        self._heard[node] = (now, known)
        self._heard.move_to_end(node)
        while len(self._heard) > REMEMBERED_NODES_MAX:
            self._heard.popitem(last=False)

    def stale(self, node: NodeId, now: float, span_s: float) -> bool:
        """Tells whether the node has not been heard from within `span_s`."""
        found = self._heard.get(node)
        return found is None or now - found[0] >= span_s

    def remembered(self, nodes: Iterable[NodeId], now: float) -> dict[NodeId, dict[NodeId, float]]:
        """Returns the RTTs that these nodes have reported, as far as they are young enough."""
        found: dict[NodeId, dict[NodeId, float]] = {}
        for node in nodes:
            _, known = self._heard.get(node, (0.0, {}))
            found[node] = {peer: rtt_ms for peer, (rtt_ms, at_s) in known.items() if now - at_s <= AGE_S_MAX}
        return found


def measured_rtt_ms(a: NodeId, b: NodeId, asked: CandidateReport | None, other: CandidateReport | None = None) -> float | None:
    """Returns the RTT measured by `a`, which was asked, to `b`, or by `b` to `a`; 0 within a node, None if it has to be predicted."""
    if a == b:
        return 0.0
    for report, peer in ((asked, b), (other, a)):
        if report is not None and peer in report.rtts_ms:
            return report.rtts_ms[peer]
    return None


def compared_ms(
    here: NodeId, there: NodeId, peer: NodeId, reports: Mapping[NodeId, CandidateReport], space: CostSpace
) -> tuple[float, float, bool]:
    """Returns the one-way latencies to a peer from here and from there: measured on both sides (True), or else predicted on both."""
    rtt_here, rtt_there = measured_rtt_ms(here, peer, reports.get(here)), measured_rtt_ms(there, peer, reports.get(there))
    if rtt_here is None or rtt_there is None:
        return space.rtt_ms(here, peer) / 2, space.rtt_ms(there, peer) / 2, False
    return rtt_here / 2, rtt_there / 2, True


def rtt_matrix_ms(space: CostSpace, names: Sequence[NodeId], nodes: Sequence[NodeId], remembered: Remembered) -> FloatArray:
    """Returns RTTs, (names, nodes): remembered by the node of the column where known, else predicted; 0 where both are one node."""
    matrix = space.rtt_matrix_ms(names, nodes)
    row = {name: index for index, name in enumerate(names)}
    for column, node in enumerate(nodes):
        known = [(row[peer], rtt_ms) for peer, rtt_ms in remembered.get(node, {}).items() if peer in row and peer != node]
        if known:
            rows, rtts_ms = zip(*known, strict=True)
            matrix[np.array(rows), column] = rtts_ms
    return matrix
