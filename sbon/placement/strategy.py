"""The interface of placement strategies: candidates before they are asked, and the choice after they have answered."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from sbon.cost.latency import Latencies
from sbon.cost.model import Conditions, CostModel
from sbon.cost.problem import PlacementProblem
from sbon.cost.space import CostSpace
from sbon.placement import baselines
from sbon.placement.candidates import CandidateReport, Choice, Regions
from sbon.placement.config import PlacementConfig
from sbon.placement.joint import JointProblem
from sbon.placement.mapping import walk
from sbon.placement.regions import ranked_regions
from sbon.placement.relaxation import relax
from sbon.placement.remembered import NOTHING, Remembered
from sbon.types import NodeId, OperatorId


class Strategy(Protocol):
    """A placement strategy. Both steps are pure but for the draws from `rng`."""

    measures: bool
    """Tells whether RTTs reported by candidates change the choice."""

    def regions(
        self, problem: PlacementProblem, space: CostSpace, k: int, rng: np.random.Generator, remembered: Remembered = NOTHING
    ) -> Regions:
        """Returns up to `k` nodes for each unpinned operator, best first, from coordinates and from RTTs that pinned nodes remember.

        Only strategies with `measures` use remembered RTTs.
        """

    def around(self, problem: PlacementProblem, space: CostSpace, k: int, assignment: Mapping[OperatorId, NodeId]) -> Regions:
        """Returns up to `k` nodes for each unpinned operator, best first, given the others' nodes; {} if that changes nothing."""

    def choose(
        self,
        problem: PlacementProblem,
        regions: Regions,
        reports: Mapping[NodeId, CandidateReport],
        signatures: Mapping[OperatorId, str],
        latencies: Latencies,
    ) -> Choice:
        """Chooses among the candidates that have answered.

        Raises
        ------
        PlacementError
            The candidates cannot host all operators.
        DelayBoundError
            The candidates cannot do so within the query's delay bound.
        """


class LeastCost:
    """Minimises cost itself: candidates by predicted cost, the choice by measured RTTs, for all operators together."""

    measures = True

    def __init__(self, config: PlacementConfig, model: CostModel) -> None:
        self._config = config
        self._model = model

    def regions(
        self, problem: PlacementProblem, space: CostSpace, k: int, rng: np.random.Generator, remembered: Remembered = NOTHING
    ) -> Regions:
        """Returns nodes of least predicted cost, given the other operators' best points.

        Candidates of all operators and the pinned operators' nodes compete for every operator, so that neighbours may share a node.
        (Ranking again relative to the nodes predicted for the neighbours gained nothing in the evaluation: it gathers candidates around
        one guess, which may be wrong.)
        """
        # If nothing will be measured, a candidate that only looks good stays chosen.
        cautious = self._config.probes == 0
        return ranked_regions(problem, space, k, self._model, cautious=cautious, remembered=remembered)

    def around(self, problem: PlacementProblem, space: CostSpace, k: int, assignment: Mapping[OperatorId, NodeId]) -> Regions:
        """Returns the best nodes given those of `assignment`. A single operator's neighbours are pinned, so its candidates stay the
        same."""
        if len(problem.unpinned) <= 1 or any(operator not in assignment for operator in problem.unpinned):
            return {}
        return ranked_regions(problem, space, k, self._model, assignment, np.zeros((len(problem.unpinned), 3)))

    def choose(
        self,
        problem: PlacementProblem,
        regions: Regions,
        reports: Mapping[NodeId, CandidateReport],
        signatures: Mapping[OperatorId, str],
        latencies: Latencies,
    ) -> Choice:
        """Returns the exact minimum among all candidates of all operators."""
        shared = _shared(problem, regions)
        return JointProblem(problem, shared, reports, signatures, latencies, self._model).best()


def _shared(problem: PlacementProblem, regions: Regions) -> Regions:
    """Adds all operators' candidates to each operator's own, which come first."""
    everyone = tuple(dict.fromkeys(node for operator in problem.unpinned for node in regions[operator]))
    return {operator: tuple(dict.fromkeys((*regions[operator], *everyone))) for operator in problem.unpinned}


class _Walking:
    """Base of strategies that rank candidates and take the first that runs the operator or has room. The model only tells which choices it
    forbids."""

    measures = False

    def __init__(self, model: CostModel) -> None:
        self._model = model

    def around(self, problem: PlacementProblem, space: CostSpace, k: int, assignment: Mapping[OperatorId, NodeId]) -> Regions:
        """Returns {}: these strategies do not look again."""
        return {}

    def choose(
        self,
        problem: PlacementProblem,
        regions: Regions,
        reports: Mapping[NodeId, CandidateReport],
        signatures: Mapping[OperatorId, str],
        latencies: Latencies,
    ) -> Choice:
        """Chooses the first candidate that runs the operator already, else the first with room, regardless of a delay bound.

        Raises
        ------
        DelayBoundError
            The choice exceeds the delay bound.
        """
        choice = walk(problem, regions, reports, signatures)
        refusal = self._model.refusal(choice.adds(problem, reports), choice.assignment, Conditions(latencies))
        if refusal is not None:
            raise refusal
        return choice


class Relaxation(_Walking):
    """RELAXATION: springs, then the nearest nodes in the full cost space (SBON, sections 3.1.2 and 3.1.3)."""

    def __init__(self, config: PlacementConfig, model: CostModel) -> None:
        super().__init__(model)
        self._config = config

    def regions(
        self, problem: PlacementProblem, space: CostSpace, k: int, rng: np.random.Generator, remembered: Remembered = NOTHING
    ) -> Regions:
        """Returns the `k` nodes nearest to each operator's rest point."""
        points = relax(problem, space, self._config, rng)
        return {operator: tuple(node for node, _ in space.index.nearest(point, k)) for operator, point in points.items()}


class Producer(_Walking):
    """PRODUCER; if that node has no room, other nodes near it."""

    def regions(
        self, problem: PlacementProblem, space: CostSpace, k: int, rng: np.random.Generator, remembered: Remembered = NOTHING
    ) -> Regions:
        """Returns the node of one producer first."""
        return _around(problem, baselines.at_producer(problem, rng), space, k)


class Consumer(_Walking):
    """CONSUMER; if that node has no room, other nodes near it."""

    def regions(
        self, problem: PlacementProblem, space: CostSpace, k: int, rng: np.random.Generator, remembered: Remembered = NOTHING
    ) -> Regions:
        """Returns the consumer's node first."""
        return _around(problem, baselines.at_consumer(problem), space, k)


class Random(_Walking):
    """RANDOM; if that node has no room, other nodes near it."""

    def regions(
        self, problem: PlacementProblem, space: CostSpace, k: int, rng: np.random.Generator, remembered: Remembered = NOTHING
    ) -> Regions:
        """Returns a random node first."""
        return _around(problem, baselines.at_random(problem, space.names, rng), space, k)


class IpMulticast(_Walking):
    """IP MULTICAST, for networks whose routes are known."""

    def __init__(self, routes: baselines.Routes, model: CostModel) -> None:
        super().__init__(model)
        self._routes = routes

    def regions(
        self, problem: PlacementProblem, space: CostSpace, k: int, rng: np.random.Generator, remembered: Remembered = NOTHING
    ) -> Regions:
        """Returns the branching point of the tree first."""
        return _around(problem, baselines.on_multicast_tree(problem, self._routes), space, k)


def _around(problem: PlacementProblem, assignment: Mapping[OperatorId, NodeId], space: CostSpace, k: int) -> Regions:
    """Returns the given node first, then the nearest to it."""
    result: Regions = {}
    nearest: dict[NodeId, tuple[NodeId, ...]] = {}
    for operator in problem.unpinned:
        node = assignment[operator]
        if node not in nearest:
            point = space.coordinate(node).vector
            nearest[node] = tuple(dict.fromkeys((node, *(name for name, _ in space.index.nearest(point, k)))))[:k]
        result[operator] = nearest[node]
    return result


def strategy_named(config: PlacementConfig, model: CostModel) -> Strategy:
    """Returns the strategy that the configuration selects, for this model."""
    match config.strategy:
        case "least-usage":
            return LeastCost(config, model)
        case "relaxation":
            return Relaxation(config, model)
        case "producer":
            return Producer(model)
        case "consumer":
            return Consumer(model)
        case "random":
            return Random(model)
