"""Chooses where to look for an operator's node: the candidates of least predicted cost."""

from collections.abc import Mapping
from itertools import islice

import numpy as np
import numpy.typing as npt

from sbon.cost.model import CostModel
from sbon.cost.problem import PlacementProblem, reachable
from sbon.cost.space import CostSpace
from sbon.placement.candidates import Regions
from sbon.placement.median import median_points
from sbon.placement.remembered import NOTHING, Remembered, interleaved
from sbon.types import FloatArray, NodeId, OperatorId

SCAN_MAX = 4096
"""Largest number of nodes that are all ranked; in larger spaces only those near the operators' points."""
NEARBY = 128
"""Nodes near each operator's point that are ranked in a larger space."""


def ranked_regions(
    problem: PlacementProblem,
    space: CostSpace,
    k: int,
    model: CostModel,
    placed: Mapping[OperatorId, NodeId] | None = None,
    points: FloatArray | None = None,
    *,
    cautious: bool = False,
    remembered: Remembered = NOTHING,
) -> Regions:
    """Returns the `k` best nodes for each operator by the predicted cost of its links and its host.

    The other ends of links are assumed at their nodes, if pinned or `placed`, else at the points where they would minimise usage (without a
    height, which is the same for every candidate). `points`, (unpinned, 3), may be given if they are known already.

    If pinned nodes have reported RTTs that they remember, every other candidate is the best by these RTTs, where they are known. The rest
    are the best by coordinates alone, which rest on many samples, so that a single changed or wrong RTT does not mislead them.
    """
    if not problem.unpinned:
        return {}
    placed = placed or {}
    points = median_points(problem, space) if points is None else points
    predicted = Ranking(problem, space, k, model, points, cautious=cautious).regions(placed)
    if not any(remembered.get(node) for node in problem.pinned_nodes):
        return predicted
    known = Ranking(problem, space, k, model, points, cautious=cautious, remembered=remembered).regions(placed)
    must = _last_resort(problem, space)
    return {operator: _with(must, tuple(islice(interleaved(known[operator], region), k)), k) for operator, region in predicted.items()}


class Ranking:
    """Ranks nodes for the operators of one query, again whenever some of them have been placed.

    Under a delay bound, nodes through which even the direct way from a producer to a consumer would take too long come last, and the
    consumer's node is among the candidates: with everything there, no way is longer than the direct ones.

    Parameters
    ----------
    points : (unpinned, 3), if they are known already
    cautious : nodes with less reliable coordinates come later
    remembered : RTTs that pinned nodes have reported; they count instead of predicted ones
    """

    def __init__(
        self,
        problem: PlacementProblem,
        space: CostSpace,
        k: int,
        model: CostModel,
        points: FloatArray | None = None,
        *,
        cautious: bool = False,
        remembered: Remembered = NOTHING,
    ) -> None:
        self._problem = problem
        self._space = space
        self._k = k
        self._remembered = remembered
        self._links = problem.links_of_each()
        self._column = {operator: column for column, operator in enumerate(problem.unpinned)}
        self._points = median_points(problem, space) if points is None else points
        self._rows = self._rows_ranked()
        self._nodes = space.columns[:, self._rows]
        self._heights_ms = space.cautious_heights_ms if cautious else space.columns[3]
        self._model = model
        self._one_way_ms: dict[NodeId, FloatArray] = {}
        rates = np.array([sum(rate for _, rate in self._links[operator]) for operator in problem.unpinned])
        self._host_cost = model.of_hosts(rates[:, None], self._nodes[4])
        self._late = None if problem.delay_bound_ms is None else self._too_late(problem.delay_bound_ms)
        self._last_resort = _last_resort(problem, space)

    def regions(self, placed: Mapping[OperatorId, NodeId]) -> Regions:
        """Returns the best `k` nodes for each operator, best first, with the other operators where they are pinned or `placed`."""
        cost = self._predicted_cost({**placed, **self._problem.pinned})
        if self._late is not None:
            cost[self._late] += float(cost.max(initial=0.0)) + 1.0
        best = min(self._k, len(self._rows))
        result: Regions = {}
        for operator, costs in zip(self._problem.unpinned, cost, strict=True):
            near = np.argpartition(costs, best - 1)[:best] if best < len(self._rows) else np.arange(len(self._rows))
            # Rows are in order of name, which decides between equals.
            order = near[np.lexsort((near, costs[near]))]
            region = tuple(self._space.names[row] for row in self._rows[order].tolist())
            result[operator] = _with(self._last_resort, region, self._k)
        return result

    def _rows_ranked(self) -> npt.NDArray[np.intp]:
        space = self._space
        if len(space) <= SCAN_MAX:
            return np.arange(len(space))
        near = space.index.around(self._points, max(NEARBY, 4 * self._k))
        pinned = np.array([space.row[node] for node in self._problem.pinned_nodes if node in space], dtype=np.intp)
        known = {peer for node in self._problem.pinned_nodes for peer in self._remembered.get(node, ()) if peer in space}
        return np.union1d(np.union1d(near, pinned), np.array([space.row[peer] for peer in sorted(known)], dtype=np.intp))

    def _predicted_cost(self, fixed: Mapping[OperatorId, NodeId]) -> FloatArray:
        """Returns the predicted cost of each operator's links and host, (unpinned, rows)."""
        cost = self._host_cost.copy()
        floating: dict[OperatorId, FloatArray] = {}
        for operator, column in self._column.items():
            for other, rate in self._links[operator]:
                if other in fixed:
                    latency = self._one_way_to(fixed[other])
                else:
                    if other not in floating:
                        floating[other] = self._distance_to(self._points[self._column[other]], 0.0) / 2
                    latency = floating[other]
                cost[column] += self._model.of_links(rate, latency)
        return cost

    def _one_way_to(self, node: NodeId) -> FloatArray:
        """Returns the predicted latencies to a node, (rows,); they are kept, since most ends stay where they are."""
        if node not in self._one_way_ms:
            row = self._space.rows([node])[0]
            rtt = self._distance_to(self._space.columns[:3, row], float(self._heights_ms[row]))
            self._put_remembered(node, rtt)
            rtt[self._rows == row] = 0.0
            rtt /= 2
            self._one_way_ms[node] = rtt
        return self._one_way_ms[node]

    def _put_remembered(self, node: NodeId, rtt_ms: FloatArray) -> None:
        """Puts the RTTs that the node has reported in place of predicted ones."""
        told = [(self._space.row[peer], rtt) for peer, rtt in self._remembered.get(node, {}).items() if peer in self._space]
        if told:
            rows, rtts = zip(*told, strict=True)
            rtt_ms[np.searchsorted(self._rows, rows)] = rtts

    def _distance_to(self, point: FloatArray, height_ms: float) -> FloatArray:
        squared = np.zeros(len(self._rows))
        for axis in range(3):
            difference = self._nodes[axis] - point[axis]
            difference *= difference
            squared += difference
        np.sqrt(squared, out=squared)
        squared += self._heights_ms[self._rows]
        squared += height_ms
        return squared

    def _too_late(self, bound_ms: float) -> npt.NDArray[np.bool_]:
        """Tells whether the path from a producer over each node to a consumer is predicted to be too long, (unpinned, rows)."""
        up, down = reachable(self._problem)
        late = np.zeros((len(self._problem.unpinned), len(self._rows)), dtype=bool)
        for operator, column in self._column.items():
            arrival, departure = np.zeros(len(self._rows)), np.zeros(len(self._rows))
            for producer in sorted(up[operator] & self._problem.pinned.keys()):
                arrival = np.maximum(arrival, self._one_way_to(self._problem.pinned[producer]))
            for consumer in sorted(down[operator] & self._problem.pinned.keys()):
                departure = np.maximum(departure, self._one_way_to(self._problem.pinned[consumer]))
            late[column] = arrival + departure > bound_ms
        return late


def _with(must: NodeId | None, region: tuple[NodeId, ...], k: int) -> tuple[NodeId, ...]:
    """Returns up to `k` candidates, including `must`."""
    return region if must is None or must in region else (*region[: k - 1], must)


def _last_resort(problem: PlacementProblem, space: CostSpace) -> NodeId | None:
    """Returns the node of a consumer of a query with a delay bound; None without a bound."""
    if problem.delay_bound_ms is None:
        return None
    return next((problem.pinned[operator] for operator in problem.consumers[::-1] if problem.pinned[operator] in space), None)
