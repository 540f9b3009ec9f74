import numpy as np
import pytest

from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.errors import PlacementError
from sbon.placement.config import PlacementConfig
from sbon.placement.relaxation import relax, spring_weights
from tests.placement_worlds import join_tree, node, synthetic_space


def exact_rest(problem, space):
    """The plain twin: forces vanish where every operator is at the weighted mean of its neighbours, a linear system."""
    among, fixed = spring_weights(problem)
    anchors = space.vectors_ms[space.rows(list(problem.pinned.values()))]
    points = np.linalg.solve(np.eye(len(among)) - among, fixed @ anchors)
    return dict(zip(problem.unpinned, points, strict=True))


def test_one_operator_rests_at_the_weighted_mean_of_its_neighbours():
    space = CostSpace({"a": node(0.0), "b": node(100.0)})
    problem = PlacementProblem({"p": "a", "c": "b"}, ("f",), (PlacementLink("p", "f", 3000.0), PlacementLink("f", "c", 1000.0)))

    point = relax(problem, space, PlacementConfig(force_threshold=0.001), np.random.default_rng(1))["f"]

    assert point == pytest.approx((25.0, 0.0, 0.0), abs=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_springs_come_to_the_rest_that_the_linear_system_has(seed):
    rng = np.random.default_rng(seed)
    space = synthetic_space(30, seed)
    problem = join_tree(space, rng, 7)

    points = relax(problem, space, PlacementConfig(force_threshold=1e-6, iterations_max=20_000), rng)

    for operator, point in exact_rest(problem, space).items():
        assert points[operator] == pytest.approx(tuple(point), abs=1e-3)


def test_the_papers_threshold_is_near_the_rest():
    rng = np.random.default_rng(3)
    space = synthetic_space(30, 3)
    problem = join_tree(space, rng, 4)

    points = relax(problem, space, PlacementConfig(), rng)

    for operator, point in exact_rest(problem, space).items():
        assert np.linalg.norm(np.array(points[operator]) - point) < 5.0


def test_an_operator_that_has_a_place_starts_from_it():
    space = CostSpace({"a": node(0.0), "b": node(100.0)})
    problem = PlacementProblem({"p": "a", "c": "b"}, ("f",), (PlacementLink("p", "f", 1.0), PlacementLink("f", "c", 1.0)))

    point = relax(problem, space, PlacementConfig(), np.random.default_rng(1), {"f": (50.3, 0.0, 0.0)})["f"]

    assert point == (50.3, 0.0, 0.0)  # the force there is below the threshold


def test_a_pinned_node_without_a_coordinate_is_named():
    problem = PlacementProblem({"p": "lost"}, ("f",), (PlacementLink("p", "f", 1.0),))
    with pytest.raises(PlacementError, match="'lost' has no coordinate"):
        relax(problem, CostSpace({"a": node(0.0)}), PlacementConfig(), np.random.default_rng(1))
