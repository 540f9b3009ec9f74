"""Placement for worst-case latency: operators on nodes, valued by the greatest peak of cumulative excess of any node (Mace, section IX-B).

A move takes an operator from the node that is furthest behind to another. Only two nodes change, so a move costs two series of `intervals`
numbers, whatever the number of operators and nodes; all targets of one operator are one matrix.
"""

from collections.abc import Iterator

import numpy as np

from sbon.cost.excess import peak_excess
from sbon.cost.load import NodeLoad
from sbon.cost.node_excess import Nodes
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

TARGETS = 16
"""Nodes that are tried first for an operator: those with the least load at the times of the operator's load."""
DISTURBED = 0.01
"""Share of operators that `disturb` moves, at least 2."""


class LatencyPlacement:
    """An assignment of operators to nodes as a configuration for `sbon.search.strategies`; its value is Mace's worst case in seconds.

    Where capacity varies, excess is divided by the whole capacity of its node: the value is less than the real time.

    Parameters
    ----------
    work : (operators, intervals), deterministic load
    nodes : capacities and cores
    width_s : width of an interval
    rng : for draws
    node_of : (operators,), the assignment at first; drawn if left out
    pinned : (operators,), operators that never move; none if left out. Needs `node_of`
    already : (nodes, intervals), load beside that of the operators; 0 if left out

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Examples
    --------
    >>> two = Nodes(np.ones(2), np.ones(2, dtype=int))
    >>> placement = LatencyPlacement(np.array([[2.0, 0.0], [2.0, 0.0]]), two, 1.0, np.random.default_rng(1), np.array([0, 0]))
    >>> placement.value(), placement.values_after(np.array([[0, 1], [1, 1]]))
    (3.0, array([1., 1.]))
    """

    def __init__(
        self,
        work: FloatArray,
        nodes: Nodes,
        width_s: float,
        rng: np.random.Generator,
        node_of: IntArray | None = None,
        *,
        pinned: IntArray | None = None,
        already: FloatArray | None = None,
    ) -> None:
        count = len(nodes.cores)
        if pinned is not None and (node_of is None or pinned.shape != node_of.shape):
            raise ShapeError("pinned operators without an assignment of the same shape, expected one")
        self._rng, self._nodes, self._already = rng, count, already
        self._capacity = nodes.per_interval(width_s, work.shape[1])
        self._speed = nodes.capacity_per_s * nodes.cores
        self._mean = self._capacity.mean(axis=1)
        self._share = self._capacity.sum(axis=1) / self._capacity.sum()
        self._may_move = np.ones(len(work), dtype=bool) if pinned is None else ~pinned.astype(bool)
        self._own_s = self._alone(work, nodes, width_s)
        self._start = np.zeros(len(work), dtype=np.int64) if node_of is None else node_of
        self._load = NodeLoad(work, self._start, count, already)
        self._peaks_s = self._peaks()
        self._greatest: list[tuple[int, float]] | None = None
        """The three nodes that are furthest behind, the furthest last, and by how much; None until it is asked for."""
        if node_of is None:
            self.scatter()

    @property
    def node_of(self) -> IntArray:
        """Returns the assignment: (operators,)."""
        return self._load.node_of.copy()

    def value(self) -> float:
        """Returns the worst case of Mace, in s."""
        return float(self._peaks_s.max())

    def neighbourhoods(self) -> Iterator[IntArray]:
        """Yields moves (operator, node) away from the node that is furthest behind, by operator: likely nodes first, then all of them."""
        worst = int(self._peaks_s.argmax())
        movable = self._load.operators_on(worst)
        movable = movable[self._may_move[movable]]
        work = self._load.work[movable]
        # Operators that work most while the node is behind come first.
        behind = np.maximum(self._load.of_nodes[worst] - self._capacity[worst], 0.0)
        movable = movable[np.argsort(-(work @ behind), kind="stable")]
        for size in (TARGETS, self._nodes):
            if size > TARGETS and self._nodes <= TARGETS:
                return
            for operator in movable.tolist():
                targets = np.arange(self._nodes)
                if size < self._nodes:
                    targets = np.argpartition(self._load.of_nodes @ self._load.work[operator] / self._mean, size)[:size]
                targets = targets[targets != worst]
                yield np.column_stack((np.full(len(targets), operator), targets))

    def values_after(self, moves: IntArray) -> FloatArray:
        """Returns the value after each move (operator, node): (moves,), s."""
        operators, targets = moves[:, 0], moves[:, 1]
        sources = self._load.node_of[operators]
        one = operators[0]
        work = self._load.work[one] if (operators == one).all() else self._load.work[operators]
        arriving = self._with(targets, self._load.of_nodes[targets] + work, operators, None)
        if work.ndim == 1:
            leaving = self._with(sources[:1], (self._load.of_nodes[sources[0]] - work)[None], None, operators[:1])
        else:
            leaving = self._with(sources, self._load.of_nodes[sources] - work, None, operators)
        return np.where(sources == targets, self.value(), np.maximum(np.maximum(arriving, leaving), self._others(sources, targets)))

    def apply(self, move: IntArray) -> None:
        """Moves an operator to a node."""
        operator, target = move.tolist()
        source = int(self._load.node_of[operator])
        self._load.move(operator, target)
        changed = np.array([source, target])
        self._peaks_s[changed] = self._peaks(changed)
        self._greatest = None

    def scatter(self) -> None:
        """Draws a node for each operator, by the nodes' capacities."""
        drawn = self._rng.choice(self._nodes, len(self._start), p=self._share)
        self.restore(np.where(self._may_move, drawn, self._start))

    def arrange(self) -> None:
        """Gives each operator, the greatest first, to the node with the least load relative to its capacity at the times of the operator's
        load."""
        work, node_of = self._load.work, np.where(self._may_move, -1, self._start)
        of_nodes = np.zeros_like(self._load.of_nodes) if self._already is None else self._already.copy()
        for operator in np.flatnonzero(~self._may_move).tolist():
            of_nodes[node_of[operator]] += work[operator]
        relative = of_nodes / self._capacity
        squares = (work**2).sum(axis=1)
        by_node = 0.5 / self._mean
        order = np.argsort(-squares, kind="stable")
        for operator in order[self._may_move[order]].tolist():
            one = work[operator]
            node = int((relative @ one + squares[operator] * by_node).argmin())
            relative[node] += one / self._capacity[node]
            node_of[operator] = node
        self.restore(node_of)

    def disturb(self) -> None:
        """Moves some operators to random nodes."""
        movable = np.flatnonzero(self._may_move)
        if not movable.size:
            return
        chosen = self._rng.choice(movable, min(len(movable), max(2, round(DISTURBED * len(movable)))), replace=False)
        for operator in chosen.tolist():
            self._load.move(operator, int(self._rng.choice(self._nodes, p=self._share)))
        self._peaks_s, self._greatest = self._peaks(), None

    def snapshot(self) -> IntArray:
        """Returns the assignment."""
        return self.node_of

    def restore(self, taken: IntArray) -> None:
        """Goes back to an earlier assignment; adds up the loads again, so that rounding errors do not accumulate."""
        self._load = NodeLoad(self._load.work, taken, self._nodes, self._already)
        self._peaks_s, self._greatest = self._peaks(), None

    def _alone(self, work: FloatArray, nodes: Nodes, width_s: float) -> FloatArray | None:
        """Returns the peak in s of each operator alone on one core of each node, (operators, nodes); None if no node has several cores."""
        if (nodes.cores == 1).all():
            return None
        found = np.empty((len(work), self._nodes))
        one = nodes.of_one_core(width_s, work.shape[1])
        for node in range(self._nodes):
            alike = nodes.left is None and node and nodes.capacity_per_s[node] == nodes.capacity_per_s[node - 1]
            found[:, node] = found[:, node - 1] if alike else peak_excess(work, one[node]) / nodes.capacity_per_s[node]
        found[:, nodes.cores == 1] = 0.0  # the node's whole load is on this core
        return found

    def _peaks(self, which: IntArray | None = None) -> FloatArray:
        which = np.arange(self._nodes) if which is None else which
        return self._with(which, self._load.of_nodes[which], None, None)

    def _with(self, nodes: IntArray, load: FloatArray, joining: IntArray | None, leaving: IntArray | None) -> FloatArray:
        """Returns the peaks in s of some nodes with other loads, including those of single operators on them."""
        found: FloatArray = peak_excess(load, self._capacity[nodes]) / self._speed[nodes]
        if self._own_s is None:
            return found
        for row, node in enumerate(nodes.tolist()):
            there = self._load.node_of == node
            if leaving is not None:
                there[leaving[row]] = False
            own = float(self._own_s[there, node].max(initial=0.0))
            found[row] = max(found[row], own, 0.0 if joining is None else float(self._own_s[joining[row], node]))
        return found

    def _others(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """Returns the greatest peak of all nodes but two, for each pair."""
        if self._greatest is None:
            order = np.argpartition(-self._peaks_s, min(2, self._nodes - 1))[:3]
            self._greatest = [(node, float(self._peaks_s[node])) for node in order[np.argsort(self._peaks_s[order])].tolist()]
        found = np.zeros(len(sources))
        for node, peak_s in self._greatest:
            found[(sources != node) & (targets != node)] = peak_s
        return found
