"""The local optimiser: re-places the operators of this node, one at a time (SBON, section 3.2). `sbon.optimiser.reviewing` says how.

Candidates are looked for near an operator's best point, where its cost would be least, given its neighbours' coordinates: when that point
has moved by the displacement threshold, or some time has passed.
"""

import math
from collections.abc import Mapping

import numpy as np

from sbon.cost.latency import LatenciesOfPairs
from sbon.cost.model import Conditions, CostModel
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.knowledge import compared_ms
from sbon.optimiser.reviewing import Optimiser
from sbon.optimiser.slack import Way, lengthening_ms
from sbon.optimiser.trials import Trials
from sbon.optimiser.views import Alternative, Migrate, OperatorView
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.median import median_points
from sbon.placement.models import model_of
from sbon.placement.regions import ranked_regions
from sbon.placement.relaxation import relax
from sbon.placement.remembered import NOTHING, Remembered
from sbon.types import FloatArray, NodeId


class LocalOptimiser(Optimiser[OperatorView, Alternative]):
    """Re-places the operators of one node.

    Parameters
    ----------
    config, placement : settings of the thresholds; settings of points and candidates
    rng : used for springs of operators without a point yet
    model : instead of the configured one
    """

    def __init__(
        self,
        config: OptimiserConfig,
        rng: np.random.Generator,
        placement: PlacementConfig | None = None,
        model: CostModel | None = None,
    ) -> None:
        self._placement = placement if placement is not None else PlacementConfig()
        super().__init__(config, model if model is not None else model_of(self._placement))
        self._rng = rng

    def promising(self, view: OperatorView, space: CostSpace, count: int, remembered: Remembered = NOTHING) -> tuple[NodeId, ...]:
        """Returns the nodes of least cost by remembered and predicted RTTs, which the neighbours' nodes should be asked about."""
        if not view.about or any(node not in space for node in view.about):
            return ()
        return self._ranked(view, space, self._mark(view, space), count, remembered)

    def _mark(self, view: OperatorView, space: CostSpace) -> FloatArray:
        """Returns the operator's best point, (1, 3)."""
        problem = problem_of_view(view)
        if self._placement.strategy == "relaxation":
            return np.array([relax(problem, space, self._placement, self._rng, {view.id: space.coordinates[view.here].vector})[view.id]])
        return median_points(problem, space)

    def _differs(self, mark: FloatArray, before: FloatArray) -> bool:
        return math.dist(mark[0], before[0]) >= max(self._config.displacement_threshold_ms, 1e-9)

    def _candidates(self, view: OperatorView, space: CostSpace, mark: FloatArray, remembered: Remembered) -> tuple[NodeId, ...]:
        """Returns the nodes of least known cost; the neighbours' own nodes come first."""
        k = self._config.candidates
        rate: dict[NodeId, float] = {}
        for neighbour in view.neighbours:
            rate[neighbour.node] = rate.get(neighbour.node, 0.0) + neighbour.rate_bytes_per_s
        # Sharing a node with the neighbour of the highest rate needs no prediction: that link costs nothing there.
        heaviest = min(sorted(rate), key=lambda node: -rate[node])
        ranked = self._ranked(view, space, mark, k + 1, remembered)
        return tuple(node for node in dict.fromkeys((heaviest, *ranked)) if node != view.here)[:k]

    def _ranked(self, view: OperatorView, space: CostSpace, points: FloatArray, k: int, remembered: Remembered) -> tuple[NodeId, ...]:
        """Returns the `k` nodes of least cost, taken alternately from the ranking by remembered RTTs and that by coordinates alone."""
        return ranked_regions(problem_of_view(view), space, k, self._model, points=points, remembered=remembered)[view.id]

    def _considered(
        self, view: OperatorView, node: NodeId, reports: Mapping[NodeId, CandidateReport], space: CostSpace, trials: Trials
    ) -> Alternative:
        here, there = reports.get(view.here), reports[node]
        predicted = 0.0
        one_way_ms: dict[tuple[NodeId, NodeId], float] = {}
        ways = []
        for neighbour in view.neighbours:
            here_ms, there_ms, measured = compared_ms(view.here, node, neighbour.node, reports, space)
            one_way_ms[neighbour.node, view.here], one_way_ms[neighbour.node, node] = here_ms, there_ms
            if not measured:
                predicted += float(self._model.of_links(neighbour.rate_bytes_per_s, np.array(max(here_ms, there_ms))))
            ways.append(Way(neighbour.upstream, here_ms, there_ms, neighbour.delay_ms))
        problem, latencies = problem_of_view(view), LatenciesOfPairs(one_way_ms)
        load_here = here.load_ms if here is not None else space.coordinates[view.here].load_ms
        loaded = Conditions(latencies, {view.here: load_here, node: there.load_ms})
        placed = {**problem.pinned, view.id: view.here}
        cost_here = self._model.of_assignment(problem, placed, loaded)
        saving = -self._model.of_move(problem, placed, view.id, node, loaded) / cost_here if cost_here > 0 else 0.0
        # Carrying the state within this time costs as much as a link of that rate: the saving must pay for it.
        carrying = float(self._model.of_links(view.state_bytes / self._config.amortise_s, np.array(space.rtt_ms(view.here, node) / 2)))
        least_bytes = max(self._config.saving_min_bytes, carrying)
        mean, seen = trials.see(node, saving)
        return Alternative(
            node=node,
            usage_bytes=self._model.of_assignment(problem, {**placed, view.id: node}, Conditions(latencies)),
            usage_here_bytes=self._model.of_assignment(problem, placed, Conditions(latencies)),
            saving_fraction=mean,
            required_fraction=self._required(view, cost_here, predicted, self._config.saving_min_fraction, least_bytes),
            measured=predicted == 0,
            load_ms=there.load_ms,
            free_slots=there.free_slots,
            seen=seen,
            lengthening_ms=lengthening_ms(ways) + view.computing_ms.get(node, 0.0),
        )

    def _hindrance(self, view: OperatorView, considered: Alternative) -> str:
        room, slack_ms = len(view.operators), max(view.delay_slack_ms, 0.0)
        if math.isinf(considered.lengthening_ms):
            return "has no processor left for the work of a query with a bound"
        if considered.lengthening_ms > slack_ms:
            return f"lengthen the way of a query by {considered.lengthening_ms:.3g} ms, expected at most {slack_ms:.3g} ms"
        return f"has room for {considered.free_slots} operators, expected {room}" if considered.free_slots < room else ""

    def _change(self, view: OperatorView, best: Alternative, reason: str, considered: tuple[Alternative, ...]) -> Migrate:
        self._remember(view).mark = None  # if the move is called off, another look comes at once
        usages = best.usage_here_bytes, best.usage_bytes
        return Migrate(view.id, view.operators, best.node, *usages, best.saving_fraction, reason, considered)


def problem_of_view(view: OperatorView) -> PlacementProblem:
    """Returns the problem of placing this operator alone, with all neighbours pinned."""
    pinned = {f"\0{index}": neighbour.node for index, neighbour in enumerate(view.neighbours)}
    links = tuple(PlacementLink(end, view.id, neighbour.rate_bytes_per_s) for end, neighbour in zip(pinned, view.neighbours, strict=True))
    return PlacementProblem(pinned, (view.id,), links)
