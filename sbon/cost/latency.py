"""One-way latencies between nodes: predicted by coordinates, measured, or known. A link's latency is half its RTT."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from sbon.cost.space import CostSpace
from sbon.errors import ShapeError
from sbon.types import FloatArray, NodeId


class Latencies(Protocol):
    """What placement asks of a network."""

    def one_way_ms(self, source: NodeId, target: NodeId) -> float:
        """Latency of a link between two nodes; 0 within one."""

    def matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """(sources, targets) of the same."""


class EstimatedLatencies:
    """Half the measured RTT where there is one, else what the coordinates predict.

    A pair measured from both ends counts with the mean of the two RTTs: links are used in one direction, but RTTs are symmetric up to
    noise and the mean has less of it.
    """

    def __init__(self, space: CostSpace, caution: float = 0.0) -> None:
        self.space = space
        self._caution = caution
        self._rtt_ms: dict[NodeId, dict[NodeId, float]] = {}

    def cautious(self, caution: float) -> "EstimatedLatencies":
        """The same measurements; predictions count as dearer by `caution` times the error estimates of both nodes."""
        other = EstimatedLatencies(self.space, caution)
        other._rtt_ms = self._rtt_ms
        return other

    def learn(self, node: NodeId, rtts_ms: Mapping[NodeId, float]) -> None:
        """Take RTTs that `node` has measured. Later words of one node about one peer replace earlier ones."""
        own = self._rtt_ms.setdefault(node, {})
        own.update((peer, rtt) for peer, rtt in rtts_ms.items() if np.isfinite(rtt) and rtt >= 0)

    def measured_rtt_ms(self, a: NodeId, b: NodeId) -> float | None:
        """The RTT measured by either end; None if neither has."""
        words = [rtts[peer] for rtts, peer in ((self._rtt_ms.get(a, {}), b), (self._rtt_ms.get(b, {}), a)) if peer in rtts]
        return sum(words) / len(words) if words else None

    def one_way_ms(self, source: NodeId, target: NodeId) -> float:
        """Latency of a link between two nodes; 0 within one."""
        if source == target:
            return 0.0
        measured = self.measured_rtt_ms(source, target)
        return float(self._predicted_ms([source], [target])[0, 0]) if measured is None else measured / 2

    def matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """(sources, targets) of the same."""
        result = self._predicted_ms(sources, targets)
        columns = {node: column for column, node in enumerate(targets)}
        rows = {node: row for row, node in enumerate(sources)}
        for node, rtts in self._rtt_ms.items():
            for peer in rtts:
                value = self.one_way_ms(node, peer)
                if node in rows and peer in columns:
                    result[rows[node], columns[peer]] = value
                if peer in rows and node in columns:
                    result[rows[peer], columns[node]] = value
        return result

    def _predicted_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        latency = self.space.rtt_matrix_ms(sources, targets) / 2
        if self._caution:
            errors = self.space.errors
            latency *= 1 + self._caution * (errors[self.space.rows(sources)][:, None] + errors[self.space.rows(targets)][None, :])
        return latency


class KnownLatencies:
    """From a matrix of RTTs: the truth of a test or a testbed."""

    def __init__(self, nodes: Sequence[NodeId], rtt_ms: FloatArray) -> None:
        if rtt_ms.shape != (len(nodes), len(nodes)):
            raise ShapeError(f"RTT matrix {rtt_ms.shape}, expected {(len(nodes), len(nodes))} for {len(nodes)} nodes")
        self._row = {node: row for row, node in enumerate(nodes)}
        self._one_way_ms: FloatArray = rtt_ms / 2
        np.fill_diagonal(self._one_way_ms, 0.0)

    def one_way_ms(self, source: NodeId, target: NodeId) -> float:
        """Latency of a link between two nodes; 0 within one."""
        return float(self._one_way_ms[self._row[source], self._row[target]])

    def matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """(sources, targets) of the same."""
        return self._one_way_ms[np.ix_([self._row[node] for node in sources], [self._row[node] for node in targets])].copy()
