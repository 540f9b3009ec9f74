"""One-way latencies between nodes: predicted by coordinates, measured, or known. A link's latency is half its RTT."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sbon.cost.space import CostSpace
from sbon.errors import ShapeError
from sbon.types import FloatArray, NodeId


class Latencies(Protocol):
    """The latencies that placement needs of a network."""

    def one_way_ms(self, source: NodeId, target: NodeId) -> float:
        """Returns the latency of a link between two nodes; 0 within one."""

    def matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """Returns the latencies of all pairs in ms, (sources, targets)."""


class EstimatedLatencies:
    """Half the measured RTT if there is one, else the coordinates' prediction.

    A pair measured from both ends counts with the mean of the two RTTs: links are used in one direction, but RTTs are symmetric up to
    noise, and the mean is less noisy.
    """

    def __init__(self, space: CostSpace, *, cautious: bool = False) -> None:
        self.space = space
        self._cautious = cautious
        self._rtt_ms: dict[NodeId, dict[NodeId, float]] = {}

    def cautious(self) -> "EstimatedLatencies":
        """Returns latencies from the same measurements, with predictions that are higher the less reliable the coordinates of their ends
        are."""
        other = EstimatedLatencies(self.space, cautious=True)
        other._rtt_ms = self._rtt_ms
        return other

    def learn(self, node: NodeId, rtts_ms: Mapping[NodeId, float]) -> None:
        """Takes RTTs that `node` has measured. A later value of one node about one peer replaces an earlier one."""
        sane = {peer: rtt for peer, rtt in rtts_ms.items() if 0 <= rtt < math.inf}
        if sane:
            self._rtt_ms.setdefault(node, {}).update(sane)

    def measured_rtt_ms(self, a: NodeId, b: NodeId) -> float | None:
        """Returns the RTT measured by either end; None if neither has measured it."""
        words = [rtts[peer] for rtts, peer in ((self._rtt_ms.get(a, {}), b), (self._rtt_ms.get(b, {}), a)) if peer in rtts]
        return sum(words) / len(words) if words else None

    def one_way_ms(self, source: NodeId, target: NodeId) -> float:
        """Returns the latency of a link between two nodes; 0 within one."""
        if source == target:
            return 0.0
        measured = self.measured_rtt_ms(source, target)
        return float(self._predicted_ms([source], [target])[0, 0]) if measured is None else measured / 2

    def matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """Returns the latencies of all pairs in ms, (sources, targets)."""
        result = self._predicted_ms(sources, targets)
        for row, column, value in self._measured(sources, targets):
            result[row, column] = value
        return result

    def is_measured(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> npt.NDArray[np.bool_]:
        """Tells which RTTs have been measured, (sources, targets); those within a node count as measured."""
        result: npt.NDArray[np.bool_] = np.array([[source == target for target in targets] for source in sources], dtype=bool)
        result = result.reshape(len(sources), len(targets))
        for row, column, _ in self._measured(sources, targets):
            result[row, column] = True
        return result

    def _measured(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> Iterator[tuple[int, int, float]]:
        """Yields row, column and one-way latency of the measured pairs."""
        columns = {node: column for column, node in enumerate(targets)}
        rows = {node: row for row, node in enumerate(sources)}
        for node, rtts in self._rtt_ms.items():
            here, there = rows.get(node), columns.get(node)
            if here is None and there is None:
                continue
            for peer in rtts:
                row, column = rows.get(peer), columns.get(peer)
                if here is not None and column is not None:
                    yield here, column, self.one_way_ms(node, peer)
                if there is not None and row is not None:
                    yield row, there, self.one_way_ms(node, peer)

    def _predicted_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        s, t = np.array(self.space.rows(sources), dtype=np.intp), np.array(self.space.rows(targets), dtype=np.intp)
        return self.space.rtt_of_rows_ms(s, t, cautious=self._cautious) / 2


class LatenciesOfPairs:
    """Latencies of given pairs of nodes, each in one direction; 0 within a node."""

    def __init__(self, one_way_ms: Mapping[tuple[NodeId, NodeId], float]) -> None:
        self._one_way_ms = one_way_ms

    def one_way_ms(self, source: NodeId, target: NodeId) -> float:
        """Returns the latency of a link between two nodes."""
        return 0.0 if source == target else self._one_way_ms[source, target]

    def matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """Returns the latencies of all pairs in ms, (sources, targets)."""
        return np.array([[self.one_way_ms(source, target) for target in targets] for source in sources])


class KnownLatencies:
    """Latencies from a matrix of RTTs, as tests and testbeds know them."""

    def __init__(self, nodes: Sequence[NodeId], rtt_ms: FloatArray) -> None:
        if rtt_ms.shape != (len(nodes), len(nodes)):
            raise ShapeError(f"RTT matrix {rtt_ms.shape}, expected {(len(nodes), len(nodes))} for {len(nodes)} nodes")
        self._row = {node: row for row, node in enumerate(nodes)}
        self._one_way_ms: FloatArray = rtt_ms / 2
        np.fill_diagonal(self._one_way_ms, 0.0)

    def one_way_ms(self, source: NodeId, target: NodeId) -> float:
        """Returns the latency of a link between two nodes; 0 within one."""
        return float(self._one_way_ms[self._row[source], self._row[target]])

    def matrix_ms(self, sources: Sequence[NodeId], targets: Sequence[NodeId]) -> FloatArray:
        """Returns the latencies of all pairs in ms, (sources, targets)."""
        return self._one_way_ms[np.ix_([self._row[node] for node in sources], [self._row[node] for node in targets])].copy()
