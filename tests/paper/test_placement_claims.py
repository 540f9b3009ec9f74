"""Claims of the placement paper (SBON, Pietzuch et al., ICDE 2006), tested on our own networks."""

import numpy as np

from sbon.cost.latency import KnownLatencies
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.optimiser.full import FullOptimiser
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.optimal import optimal_assignment
from sbon.placement.relaxation import relax
from tests.placement_worlds import aggregate, join_tree, place, synthetic_space, truth_of, truthful, usage


def penalty_mean(strategy: str, queries: int = 30) -> float:
    """Returns the mean of usage over OPTIMAL's usage, minus 1, for the paper's query and coordinates with errors of 15 %."""
    space = synthetic_space(150, 11)
    truth = truth_of(space, 0.15, 11)
    rng = np.random.default_rng(11)
    penalties = []
    for _ in range(queries):
        problem = aggregate(space, rng)
        decision = place(FullOptimiser(problem, {}, space, PlacementConfig(strategy=strategy), rng), truthful(truth))
        penalties.append(usage(problem, decision.assignment, truth) / optimal_assignment(problem, truth, space.names)[1] - 1)
    return float(np.mean(penalties))


def test_relaxation_beats_producer_consumer_and_random():
    """Section 4.1, table 1: relaxation has 15 %, the others 43, 60 and 81 %. Our strategy beats all of them."""
    penalty = {name: penalty_mean(name) for name in ("least-usage", "relaxation", "producer", "consumer", "random")}

    # Observed: 0.02, 0.26, 0.43, 0.49, 0.80.
    assert penalty["relaxation"] < min(penalty["producer"], penalty["consumer"], penalty["random"])
    assert penalty["least-usage"] < penalty["relaxation"] / 3
    assert penalty["least-usage"] < 0.08


def energy(problem, space, points):
    """Returns equation 3: the sum of rate x latency^2, in the latency dimensions."""
    at = {**points, **{operator: space.coordinates[node].vector for operator, node in problem.pinned.items()}}
    return sum(
        link.rate_bytes_per_s * float(np.sum((np.array(at[link.source]) - np.array(at[link.target])) ** 2)) for link in problem.links
    )


def test_springs_minimise_rate_times_latency_squared():
    """Section 3.1.2, equations 2 and 3: no small move of any operator lowers the energy of the rest point."""
    rng = np.random.default_rng(12)
    space = synthetic_space(40, 12)
    problem = join_tree(space, rng, 6)
    points = relax(problem, space, PlacementConfig(force_threshold=1e-7, iterations_max=50_000), rng)
    lowest = energy(problem, space, points)

    for operator in problem.unpinned:
        for _ in range(20):
            moved = {**points, operator: tuple(np.array(points[operator]) + rng.normal(0, 1, size=3))}
            assert energy(problem, space, moved) > lowest


def test_a_point_between_two_equal_neighbours_is_unique_only_under_the_square():
    """Section 3.1.2: all points between two neighbours of equal rates have equal network usage; the square picks the middle."""
    space = synthetic_space(2, 13)
    truth = KnownLatencies(space.names, space.rtt_matrix_ms(space.names, space.names))
    problem = PlacementProblem(
        {"p": space.names[0], "c": space.names[1]}, ("f",), (PlacementLink("p", "f", 10.0), PlacementLink("f", "c", 10.0))
    )

    at_either = [usage(problem, {**problem.pinned, "f": name}, truth) for name in space.names]
    assert at_either[0] == at_either[1]
    for seed in range(3):
        point = relax(problem, space, PlacementConfig(force_threshold=1e-6), np.random.default_rng(seed))["f"]
        assert np.allclose(point, space.vectors_ms.mean(axis=0), atol=1e-4)


def test_an_operator_is_placed_where_it_runs_already_within_the_region():
    """Section 3.1.3, step 4: the first candidate that already runs the operator is preferred to nearer candidates."""
    space = synthetic_space(50, 14)
    rng = np.random.default_rng(14)
    problem = aggregate(space, rng)
    optimiser = FullOptimiser(problem, {"a": "agg"}, space, PlacementConfig(strategy="relaxation"), rng)
    asks = optimiser.begin()
    candidates = [ask.node for ask in asks if ask.node not in problem.pinned_nodes]
    host = candidates[-1]
    (decision,) = [
        action
        for ask in asks
        for action in optimiser.answered(CandidateReport(ask.node, {}, 5, 0.0, {"agg": "q0.a"} if ask.node == host else {}))
    ]

    assert decision.reused["a"].node == host
    assert set(decision.dropped) == {"p0", "p1", "p2", "p3"}
