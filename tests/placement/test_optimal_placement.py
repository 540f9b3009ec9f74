import itertools

import numpy as np
import pytest

from sbon.cost.latency import KnownLatencies
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.errors import PlacementError
from sbon.placement.elimination import minimise
from sbon.placement.optimal import optimal_assignment
from tests.placement_worlds import join_tree, synthetic_space, truth_of, usage


def exhaustive(problem, truth, nodes):
    """The plain twin: tries every assignment."""
    return min(
        usage(problem, {**problem.pinned, **dict(zip(problem.unpinned, choice, strict=True))}, truth)
        for choice in itertools.product(nodes, repeat=len(problem.unpinned))
    )


@pytest.mark.parametrize("seed", range(4))
def test_optimum_of_a_tree_equals_that_of_an_exhaustive_search(seed):
    space = synthetic_space(7, seed)
    truth = truth_of(space, 0.5, seed)
    problem = join_tree(space, np.random.default_rng(seed), 4)

    assignment, found = optimal_assignment(problem, truth, space.names)

    assert found == pytest.approx(exhaustive(problem, truth, space.names))
    assert usage(problem, assignment, truth) == pytest.approx(found)


@pytest.mark.parametrize("seed", range(4))
def test_optimum_of_a_diamond_equals_that_of_an_exhaustive_search(seed):
    space = synthetic_space(6, seed)
    truth = truth_of(space, 0.5, seed)
    rng = np.random.default_rng(seed)
    links = tuple(
        PlacementLink(a, b, float(rng.uniform(1, 1000)))
        for a, b in [("p", "s"), ("s", "l"), ("s", "r"), ("l", "j"), ("r", "j"), ("s", "j"), ("j", "c")]
    )
    problem = PlacementProblem({"p": "n000", "c": "n005"}, ("s", "l", "r", "j"), links)

    assert optimal_assignment(problem, truth, space.names)[1] == pytest.approx(exhaustive(problem, truth, space.names))


def test_large_tables_are_made_in_slices_and_give_the_same():
    rng = np.random.default_rng(5)
    size = 130  # 130^3 exceeds one block
    unary = [rng.uniform(size=size) for _ in range(3)]
    pairs = {pair: rng.uniform(size=(size, size)) for pair in [(0, 1), (1, 2), (0, 2)]}

    chosen, cost = minimise(unary, pairs)

    total = unary[0][:, None, None] + unary[1][None, :, None] + unary[2][None, None, :]
    total = total + pairs[0, 1][:, :, None] + pairs[1, 2][None, :, :] + pairs[0, 2][:, None, :]
    assert cost == pytest.approx(total.min())
    assert total[tuple(chosen)] == pytest.approx(cost)


def test_a_plan_too_dense_for_an_exact_answer_is_refused():
    count = 5
    names = [f"n{i}" for i in range(600)]
    operators = tuple(f"o{i}" for i in range(count))
    links = tuple(PlacementLink(a, b, 1.0) for a, b in itertools.combinations(operators, 2))
    problem = PlacementProblem({}, operators, links)

    with pytest.raises(PlacementError, match="exact placement needs"):
        optimal_assignment(problem, KnownLatencies(names, np.zeros((600, 600))), names)


def test_nothing_allowed_costs_infinity():
    assert minimise([np.array([np.inf, np.inf])], {})[1] == np.inf


def test_a_problem_names_the_link_whose_end_is_unknown():
    with pytest.raises(PlacementError, match="ends at 'x'"):
        PlacementProblem({"p": "a"}, ("f",), (PlacementLink("p", "x", 1.0),))
