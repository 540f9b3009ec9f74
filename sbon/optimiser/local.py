"""The local optimiser: re-places the operators of this node, one at a time (SBON, section 3.2). A machine without I/O.

    review -> None                 nothing to do: cooling down, or the best point has not moved
           -> Ask -> decide -> Stay       no saving, or not sure of it yet
                            -> Migrate

The best point is where the operator's cost would be least, given its neighbours' coordinates. When it has moved by the
displacement threshold, or some time has passed, candidates near it are asked for their RTTs to the neighbours. The saving of a candidate
is the cost here minus the cost there, both from RTTs measured in the same way at the same time.

Noise must not move operators back and forth: a saving must be measured repeatedly (`sbon.optimiser.trials`). The threshold rises with each
recent migration and falls with time, so that even nodes of equal cost do not swap operators for ever.
"""

import math
from collections.abc import Container, Mapping

import numpy as np

from sbon.cost.latency import LatenciesOfPairs
from sbon.cost.model import Conditions, CostModel
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.cost_space.coordinate import Coordinate
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.knowledge import compared_ms
from sbon.optimiser.slack import Way, lengthening_ms
from sbon.optimiser.trials import REMEMBERED_MAX, REQUIRED_FRACTION_MAX, Certainty, Trials, noise_of_a_node, raised
from sbon.optimiser.views import Alternative, Ask, Migrate, OperatorView, Stay, Verdict
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.median import median_points
from sbon.placement.models import model_of
from sbon.placement.regions import ranked_regions
from sbon.placement.relaxation import relax
from sbon.placement.remembered import NOTHING, Remembered
from sbon.types import FloatArray, NodeId, OperatorId

Point = tuple[float, float, float]
Key = tuple[OperatorId, ...]


class _Memory:
    """The optimiser's memory of one operator or body."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self.point: Point | None = None
        """Best point when candidates were last looked for."""
        self.looked_at_s = -math.inf
        self.here: NodeId = ""


class LocalOptimiser:
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
        self._config = config
        self._placement = placement if placement is not None else PlacementConfig()
        self._model = model if model is not None else model_of(self._placement)
        self._rng = rng
        self._memory: dict[Key, _Memory] = {}
        self._noise = noise_of_a_node(config)

    def review(
        self, view: OperatorView, coordinates: Mapping[NodeId, Coordinate] | CostSpace, now: float, remembered: Remembered = NOTHING
    ) -> Ask | None:
        """Returns the nodes to ask about moving the operator; None if there is no reason to look.

        `coordinates` must include nodes that may be asked, and neighbours. To review many operators, build one `CostSpace`. `remembered`
        holds RTTs that the neighbours' nodes know from their probing.
        """
        space = coordinates if isinstance(coordinates, CostSpace) else CostSpace(coordinates)
        memory = self._remember(view)
        if view.since_migration_s is not None and view.since_migration_s < self._config.cooldown_s:
            return None
        nodes = tuple(dict.fromkeys(neighbour.node for neighbour in view.neighbours))
        if view.here not in space or not nodes or any(node not in space for node in nodes):
            return None
        if sum(neighbour.rate_bytes_per_s for neighbour in view.neighbours) <= 0:
            return None
        if memory.trials.watched:
            watched = tuple(node for node in memory.trials.watched if node in space)
            return Ask(view.id, (view.here, *watched), nodes)
        problem = problem_of_view(view)
        points = self._points(problem, space, view)
        point = float(points[0, 0]), float(points[0, 1]), float(points[0, 2])
        if memory.point is not None:
            moved = math.dist(point, memory.point) >= max(self._config.displacement_threshold_ms, 1e-9)
            if not moved and now - memory.looked_at_s < self._config.lookup_interval_s:
                return None
        memory.point, memory.looked_at_s = point, now
        candidates = self._candidates(problem, space, view, points, remembered)
        return Ask(view.id, (view.here, *candidates), nodes) if candidates else None

    def decide(
        self,
        view: OperatorView,
        reports: Mapping[NodeId, CandidateReport],
        coordinates: Mapping[NodeId, Coordinate] | CostSpace,
        now: float,
    ) -> Verdict:
        """Decides from the answers to an Ask. `reports` holds the answers by node, this node's own included."""
        space = coordinates if isinstance(coordinates, CostSpace) else CostSpace(coordinates)
        memory = self._remember(view)
        if any(node not in space for node in (view.here, *(neighbour.node for neighbour in view.neighbours))):
            memory.trials.end()
            return Stay(view.id, "a neighbour's node has no coordinate any more")
        candidates = memory.trials.begin(node for node in reports if node != view.here and node in space)
        alternatives = [self._alternative(view, node, reports, space, memory.trials) for node in candidates]
        memory.trials.learn()
        alternatives.sort(key=lambda a: (-a.saving_fraction, a.node))
        return self._verdict(view, memory, tuple(alternatives))

    def promising(self, view: OperatorView, space: CostSpace, count: int, remembered: Remembered = NOTHING) -> tuple[NodeId, ...]:
        """Returns the nodes of least cost by remembered and predicted RTTs, which the neighbours' nodes should be asked about."""
        nodes = tuple(dict.fromkeys(neighbour.node for neighbour in view.neighbours))
        if not nodes or any(node not in space for node in nodes):
            return ()
        problem = problem_of_view(view)
        return self._ranked(problem, space, view, self._points(problem, space, view), count, remembered)

    def forget(self, operator: OperatorId) -> None:
        """Drops an operator that no longer runs here."""
        for key in [key for key in self._memory if operator in key]:
            del self._memory[key]

    def keep(self, here: Container[OperatorId]) -> None:
        """Drops all operators that are not in `here`, since most end without notice."""
        self._memory = {key: memory for key, memory in self._memory.items() if all(operator in here for operator in key)}

    def _verdict(self, view: OperatorView, memory: _Memory, alternatives: tuple[Alternative, ...]) -> Verdict:
        """Decides to move, to measure again, or to stay."""
        room = len(view.operators)
        slack_ms = max(view.delay_slack_ms, 0.0)
        hopeful = [
            a for a in alternatives if a.saving_fraction > a.required_fraction and a.free_slots >= room and a.lengthening_ms <= slack_ms
        ]
        if not hopeful:
            memory.trials.end()
            return Stay(view.id, _why_not(alternatives, room, slack_ms), alternatives)
        certainty, best = memory.trials.judge(hopeful)
        if certainty is Certainty.SURE:
            memory.point = None
            reason = (
                f"{best.node} saves {best.saving_fraction:z.0%} of the cost of {best.usage_here_bytes:.4g} bytes in transit on "
                f"{view.here}, seen in {best.seen} reviews; {best.required_fraction:.0%} required"
            )
            return Migrate(
                view.id, view.operators, best.node, best.usage_here_bytes, best.usage_bytes, best.saving_fraction, reason, alternatives
            )
        if certainty is Certainty.NOISE:
            return Stay(view.id, f"the saving of {best.saving_fraction:z.0%} on {best.node} stays within the noise", alternatives)
        reason = f"{best.node} may save {best.saving_fraction:z.0%}, seen in {best.seen} reviews; asking again"
        return Stay(view.id, reason, alternatives, pending=True)

    def _alternative(
        self, view: OperatorView, node: NodeId, reports: Mapping[NodeId, CandidateReport], space: CostSpace, trials: Trials
    ) -> Alternative:
        """Compares one candidate with this node, link by link: measured on both sides, or else predicted on both."""
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
        mean, seen = trials.see(node, saving)
        return Alternative(
            node=node,
            usage_bytes=self._model.of_assignment(problem, {**placed, view.id: node}, Conditions(latencies)),
            usage_here_bytes=self._model.of_assignment(problem, placed, Conditions(latencies)),
            saving_fraction=mean,
            required_fraction=self._required(view, node, cost_here, predicted, space),
            measured=predicted == 0,
            load_ms=there.load_ms,
            free_slots=there.free_slots,
            seen=seen,
            lengthening_ms=lengthening_ms(ways),
        )

    def _required(self, view: OperatorView, node: NodeId, cost_here: float, predicted: float, space: CostSpace) -> float:
        """Returns the saving that a move must exceed, as a share of the cost here."""
        config = self._config
        if cost_here <= 0:
            return REQUIRED_FRACTION_MAX
        # Carrying the state within this time costs what a link of that rate costs: the saving must pay for it.
        carrying = float(self._model.of_links(view.state_bytes / config.amortise_s, np.array(space.rtt_ms(view.here, node) / 2)))
        by_fraction = min(config.saving_min_fraction * raised(config, view.migrations, view.since_migration_s), REQUIRED_FRACTION_MAX)
        return (
            max(by_fraction, config.saving_min_bytes / cost_here, carrying / cost_here) + config.prediction_margin * predicted / cost_here
        )

    def _points(self, problem: PlacementProblem, space: CostSpace, view: OperatorView) -> FloatArray:
        """Returns the operator's best point, (1, 3)."""
        if self._placement.strategy == "relaxation":
            return np.array([relax(problem, space, self._placement, self._rng, {view.id: space.coordinates[view.here].vector})[view.id]])
        return median_points(problem, space)

    def _candidates(
        self, problem: PlacementProblem, space: CostSpace, view: OperatorView, points: FloatArray, remembered: Remembered
    ) -> tuple[NodeId, ...]:
        """Returns the nodes of least known cost; the neighbours' own nodes come first."""
        k = self._config.candidates
        ranked = self._ranked(problem, space, view, points, k + 1, remembered)
        rate: dict[NodeId, float] = {}
        for neighbour in view.neighbours:
            rate[neighbour.node] = rate.get(neighbour.node, 0.0) + neighbour.rate_bytes_per_s
        # Sharing a node with the neighbour of the highest rate needs no prediction: that link costs nothing there.
        heaviest = min(sorted(rate), key=lambda node: -rate[node])
        return tuple(node for node in dict.fromkeys((heaviest, *ranked)) if node != view.here)[:k]

    def _ranked(
        self, problem: PlacementProblem, space: CostSpace, view: OperatorView, points: FloatArray, k: int, remembered: Remembered
    ) -> tuple[NodeId, ...]:
        """Returns the `k` nodes of least cost, taken alternately from the ranking by remembered RTTs and that by coordinates alone."""
        return ranked_regions(problem, space, k, self._model, points=points, remembered=remembered)[view.id]

    def _remember(self, view: OperatorView) -> _Memory:
        memory = self._memory.pop(view.operators, None)
        if memory is None or memory.here != view.here:
            memory = _Memory(Trials(self._config, self._noise))
            memory.here = view.here
        self._memory[view.operators] = memory
        while len(self._memory) > REMEMBERED_MAX:
            del self._memory[next(iter(self._memory))]
        return memory


def problem_of_view(view: OperatorView) -> PlacementProblem:
    """Returns the problem of placing this operator alone, with all neighbours pinned."""
    pinned = {f"\0{index}": neighbour.node for index, neighbour in enumerate(view.neighbours)}
    links = tuple(PlacementLink(end, view.id, neighbour.rate_bytes_per_s) for end, neighbour in zip(pinned, view.neighbours, strict=True))
    return PlacementProblem(pinned, (view.id,), links)


def _why_not(alternatives: tuple[Alternative, ...], room: int, slack_ms: float) -> str:
    if not alternatives:
        return "no candidate has answered"
    best = alternatives[0]
    if best.saving_fraction > best.required_fraction and best.lengthening_ms > slack_ms:
        return (
            f"{best.node} would save {best.saving_fraction:z.0%}, but lengthen the way of a query by {best.lengthening_ms:.3g} ms, "
            f"expected at most {slack_ms:.3g} ms"
        )
    if best.saving_fraction > best.required_fraction:
        return f"{best.node} would save {best.saving_fraction:z.0%}, but has room for {best.free_slots} operators, expected {room}"
    return f"the best alternative, {best.node}, saves {best.saving_fraction:z.1%}; {best.required_fraction:.0%} required"
