import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.latency import KnownLatencies
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.cost_space.coordinate import Coordinate
from sbon.errors import PlacementError
from sbon.optimiser.full import FullOptimiser
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.elimination import minimise
from sbon.placement.median import median_points
from sbon.placement.optimal import optimal_assignment
from sbon.placement.relaxation import relax
from tests.examples import examples
from tests.placement_worlds import place, truth_of, truthful, usage

RATE = st.one_of(st.just(0.0), st.floats(1e-3, 1e12), st.floats(1e-300, 1e300))
POSITION = st.floats(-1e5, 1e5)


@st.composite
def worlds(draw, rates=RATE, is_whole=False):
    """Draws a space and a DAG over it, which may have parallel links.

    Parameters
    ----------
    is_whole : the first operator is unpinned and feeds the last one, a pinned consumer
    """
    count = draw(st.integers(2, 7))
    space = CostSpace(
        {
            f"n{i}": Coordinate((draw(POSITION), draw(POSITION), draw(POSITION)), draw(st.floats(0, 1000)), 0.1, draw(st.floats(0, 100)))
            for i in range(count)
        }
    )
    operators = [f"o{i}" for i in range(draw(st.integers(2 if is_whole else 1, 6)))]
    pinned = {op: f"n{draw(st.integers(0, count - 1))}" for op in operators if draw(st.booleans())}
    pairs = st.tuples(st.integers(0, len(operators) - 1), st.integers(0, len(operators) - 1)).filter(lambda p: p[0] < p[1])
    links = draw(st.lists(st.tuples(pairs, rates), max_size=8)) if len(operators) > 1 else []
    if is_whole:
        node = pinned.pop(operators[0], "n0")
        pinned.setdefault(operators[-1], node)
        links.append(((0, len(operators) - 1), draw(rates)))
    unpinned = tuple(op for op in operators if op not in pinned)
    return space, PlacementProblem(pinned, unpinned, tuple(PlacementLink(operators[a], operators[b], r) for (a, b), r in links))


@given(worlds(), st.floats(0.01, 1.0))
@examples(80)
def test_springs_stay_finite_and_within_the_space_for_any_rates(world, delta):
    space, problem = world
    points = relax(problem, space, PlacementConfig(delta=delta, iterations_max=300), np.random.default_rng(1))

    reach = max(1.0, float(np.abs(space.vectors_ms).max()))
    for point in points.values():
        assert np.isfinite(point).all()
        assert np.abs(point).max() <= reach * (1 + 1e-9)


@given(worlds(rates=st.floats(1.0, 1000.0)))
@examples(60)
def test_springs_converge_for_any_ordinary_rates(world):
    """If every operator is linked to a pinned one, relaxation ends with no force above the threshold."""
    space, problem = world
    if any(not any(other in problem.pinned for other, _ in problem.neighbours(op)) for op in problem.unpinned):
        return
    config = PlacementConfig(iterations_max=1_000_000)
    points = relax(problem, space, config, np.random.default_rng(1))
    again = relax(problem, space, config, np.random.default_rng(1), points)

    assert points == again


@given(worlds())
@examples(80)
def test_medians_are_finite_and_within_the_space(world):
    space, problem = world
    points = median_points(problem, space)

    reach = max(1.0, float(np.abs(space.vectors_ms).max()))
    assert np.isfinite(points).all()
    assert not len(points) or np.abs(points).max() <= reach * (1 + 1e-6)


@given(worlds(rates=st.floats(0.0, 1e6)), st.sampled_from(["least-usage", "relaxation", "random"]), st.integers(0, 5))
@examples(80)
def test_no_strategy_beats_the_optimum_and_all_place_everything(world, strategy, seed):
    space, problem = world
    truth = truth_of(space, 0.3, seed)
    _, best = optimal_assignment(problem, truth, space.names)
    optimiser = FullOptimiser(problem, {}, space, PlacementConfig(strategy=strategy), np.random.default_rng(seed))

    decision = place(optimiser, truthful(truth))

    assert set(decision.assignment) == {*problem.pinned, *problem.unpinned}
    assert usage(problem, decision.assignment, truth) >= best * (1 - 1e-9)


@given(worlds(rates=st.floats(0.0, 1e6)), st.integers(0, 5))
@examples(60)
def test_least_usage_is_optimal_where_all_nodes_are_candidates_and_predictions_are_true(world, seed):
    space, problem = world
    truth = KnownLatencies(space.names, space.rtt_matrix_ms(space.names, space.names))
    _, best = optimal_assignment(problem, truth, space.names)
    config = PlacementConfig(load_weight=0.0, probes=10_000)

    decision = place(FullOptimiser(problem, {}, space, config, np.random.default_rng(seed)), truthful(truth))

    assert usage(problem, decision.assignment, truth) <= best * (1 + 1e-9) + 1e-9


@given(worlds(), st.data())
@examples(60)
def test_nobody_gets_more_operators_than_it_has_room_for(world, data):
    space, problem = world
    room = {name: data.draw(st.integers(0, 2)) for name in space.names}
    for strategy in ("least-usage", "relaxation"):
        optimiser = FullOptimiser(problem, {}, space, PlacementConfig(strategy=strategy), np.random.default_rng(1))
        try:
            decision = place(optimiser, lambda ask: CandidateReport(ask.node, {}, room[ask.node]))
        except PlacementError:
            continue
        for name in space.names:
            fresh = [op for op in problem.unpinned if decision.assignment[op] == name]
            assert not fresh or len(fresh) <= room[name] - sum(node == name for node in problem.pinned.values())


@given(worlds(rates=st.floats(0.0, 1e6), is_whole=True), st.integers(0, 5))
@examples(60)
def test_least_usage_is_never_dearer_than_everything_at_the_consumer(world, seed):
    """Compares usages under the measured latencies. The node of the consumer is a candidate like any other."""
    space, problem = world
    truth = truth_of(space, 0.5, seed)
    config = PlacementConfig(load_weight=0.0, probes=10_000)

    decision = place(FullOptimiser(problem, {}, space, config, np.random.default_rng(seed)), truthful(truth))

    assert decision.usage_here <= decision.usage_consumer * (1 + 1e-9) + 1e-9


@st.composite
def cost_tables(draw):
    """Draws costs of single variables and pairs, up to five variables: trees, cycles, cliques, isolated variables."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    cost = st.one_of(st.integers(0, 50).map(float), st.just(float("inf")))
    table = st.integers(0, 50).map(float)
    unary = [np.array([draw(cost) for _ in range(size)]) for size in sizes]
    pairs = [(a, b) for a in range(len(sizes)) for b in range(a + 1, len(sizes)) if draw(st.booleans())]
    return unary, {(a, b): np.array([[draw(table) for _ in range(sizes[b])] for _ in range(sizes[a])]) for a, b in pairs}


@given(cost_tables())
@examples(150)
def test_elimination_finds_what_trying_everything_finds(tables):
    unary, pairwise = tables

    def total(choice):
        return sum(costs[index] for costs, index in zip(unary, choice, strict=True)) + sum(
            costs[choice[a], choice[b]] for (a, b), costs in pairwise.items()
        )

    chosen, cost = minimise(unary, pairwise)

    assert cost == min(total(choice) for choice in itertools.product(*(range(len(costs)) for costs in unary)))
    assert total(chosen) == cost
