"""Placement keeps a delay bound, or refuses it and names the shortest delay that it can reach."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sbon.cost.delay import longest_delay_ms
from sbon.cost.latency import KnownLatencies
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.cost_space.coordinate import Coordinate
from sbon.errors import DelayBoundError, PlacementError
from sbon.optimiser.full import FullOptimiser
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.optimal import optimal_assignment
from sbon_testbed.placement.queries import diamonds
from tests.examples import examples, seeds
from tests.placement_worlds import aggregate, join_tree, place, synthetic_space, truth_of, truthful, usage


@st.composite
def bounded_worlds(draw, tree: bool):
    """Draws nodes with random latencies, a small plan over them, and a bound that is sometimes unreachable."""
    count = draw(st.integers(2, 4))
    half = np.array([[draw(st.floats(0.0, 100.0)) for _ in range(count)] for _ in range(count)])
    names = [f"n{i}" for i in range(count)]
    operators = [f"o{i}" for i in range(draw(st.integers(2, 6)))]
    links = []
    for index, source in enumerate(operators[:-1]):
        after = st.sampled_from(operators[index + 1 :])
        targets = [draw(after)] if tree else draw(st.lists(after, min_size=1, max_size=2))
        links += [PlacementLink(source, target, draw(st.floats(0.0, 1000.0))) for target in targets]
    fed = {link.target for link in links}
    pinned = {op: draw(st.sampled_from(names)) for op in operators if op == operators[-1] or op not in fed or draw(st.integers(0, 3)) == 0}
    if tree:  # every operator feeds one other, pinned ones in the middle too
        assert all(sum(link.source == op for link in links) == 1 for op in operators[:-1])
    unpinned = tuple(op for op in operators if op not in pinned)
    bound = draw(st.floats(0.0, 250.0))
    return KnownLatencies(names, half + half.T), names, PlacementProblem(pinned, unpinned, tuple(links), bound)


def all_placements(problem, truth, names):
    """The plain twin: returns the delay and the usage of every assignment."""
    found = []
    for nodes in itertools.product(names, repeat=len(problem.unpinned)):
        assignment = {**problem.pinned, **dict(zip(problem.unpinned, nodes, strict=True))}
        found.append((longest_delay_ms(problem, assignment, truth), usage(problem, assignment, truth)))
    return found


@given(bounded_worlds(tree=True))
@examples(150)
def test_on_trees_the_choice_is_the_least_usage_within_the_bound(world):
    truth, names, problem = world
    assume(problem.unpinned)
    everything = all_placements(problem, truth, names)
    within = [cost for delay, cost in everything if problem.in_time(delay)]

    if not within:
        with pytest.raises(DelayBoundError) as refused:
            optimal_assignment(problem, truth, names)
        assert refused.value.reachable_ms == pytest.approx(min(delay for delay, _ in everything))
        return
    assignment, cost = optimal_assignment(problem, truth, names)
    assert problem.in_time(longest_delay_ms(problem, assignment, truth))
    assert cost == pytest.approx(min(within), abs=1e-9)


@given(bounded_worlds(tree=False))
@examples(150)
def test_on_any_plan_the_bound_is_kept_where_it_can_be(world):
    truth, names, problem = world
    assume(problem.unpinned)
    everything = all_placements(problem, truth, names)
    within = [cost for delay, cost in everything if problem.in_time(delay)]

    if not within:
        with pytest.raises(DelayBoundError) as refused:
            optimal_assignment(problem, truth, names)
        assert refused.value.reachable_ms >= min(delay for delay, _ in everything) * (1 - 1e-9)
        return
    assignment, cost = optimal_assignment(problem, truth, names)
    assert problem.in_time(longest_delay_ms(problem, assignment, truth))
    assert cost >= min(within) * (1 - 1e-9) - 1e-9


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 8)))
def test_on_diamonds_the_choice_is_hardly_dearer_than_the_least_usage_within_the_bound(seed):
    space = synthetic_space(6, seed)
    truth = truth_of(space, 0.4, seed)
    free = diamonds(list(space.names), np.random.default_rng(seed), 1)
    everything = all_placements(free, truth, space.names)
    fastest, cheapest = min(everything)[0], min(everything, key=lambda found: found[1])[0]
    for share in (0.0, 0.3, 0.6, 0.9):
        bound = fastest + share * (cheapest - fastest)
        problem = PlacementProblem(free.pinned, free.unpinned, free.links, bound)

        _, cost = optimal_assignment(problem, truth, space.names)

        # Observed: equal in 160 of 160.
        assert cost <= 1.05 * min(cost for delay, cost in everything if problem.in_time(delay))


@pytest.mark.parametrize("strategy", ["least-usage", "relaxation", "producer", "consumer"])
def test_a_strategy_keeps_the_bound_or_names_it(strategy):
    space = synthetic_space(80, 9)
    truth = truth_of(space, 0.1, 9)
    kept, refused = [], []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        free = aggregate(space, rng) if seed % 2 else join_tree(space, rng, 5)
        direct = max(truth.one_way_ms(free.pinned[p], free.pinned["c"]) for p in free.producers)
        problem = PlacementProblem(free.pinned, free.unpinned, free.links, direct * rng.uniform(0.7, 1.2))
        try:
            kept.append(place(FullOptimiser(problem, {}, space, PlacementConfig(strategy=strategy), rng), truthful(truth)))
        except DelayBoundError as error:
            refused.append(error)

    assert all(decision.delay_ms <= decision.delay_bound_ms * (1 + 1e-9) for decision in kept)
    assert all(f"delay bound of {error.bound_ms:.6g} ms; the best reachable delay is" in str(error) for error in refused)
    assert all(error.reachable_ms > error.bound_ms for error in refused)
    assert kept
    assert refused


@given(st.integers(0, 200))
@examples(25)
def test_what_the_consumer_alone_could_keep_is_never_refused(seed):
    """With all operators at the consumer, the delay is that of the slowest direct path; such a bound can always be kept."""
    space = synthetic_space(60, seed)
    truth = KnownLatencies(space.names, space.rtt_matrix_ms(space.names, space.names))
    free = join_tree(space, np.random.default_rng(seed), 4)
    direct = max(truth.one_way_ms(free.pinned[p], free.pinned["c"]) for p in free.producers)
    problem = PlacementProblem(free.pinned, free.unpinned, free.links, direct)

    decision = place(FullOptimiser(problem, {}, space, PlacementConfig(), np.random.default_rng(seed)), truthful(truth))

    assert problem.in_time(decision.delay_ms)
    assert decision.usage_here <= decision.usage_consumer * (1 + 1e-9)


@given(bounded_worlds(tree=False), st.data())
@examples(80)
def test_room_and_bound_are_kept_together(world, data):
    truth, names, problem = world
    assume(problem.unpinned)
    space = CostSpace({name: Coordinate((float(index), 0.0, 0.0), 1.0, 0.1) for index, name in enumerate(names)})
    room = {name: data.draw(st.integers(0, 3)) for name in names}

    def answer(ask):
        return CandidateReport(ask.node, {peer: 2 * truth.one_way_ms(ask.node, peer) for peer in ask.about}, room[ask.node])

    try:
        decision = place(FullOptimiser(problem, {}, space, PlacementConfig(probes=1000), np.random.default_rng(1)), answer)
    except PlacementError:
        return
    assert problem.in_time(decision.delay_ms)
    for name in names:
        fresh = sum(decision.assignment[op] == name for op in problem.unpinned)
        assert fresh == 0 or fresh <= room[name] - sum(node == name for node in problem.pinned.values())
