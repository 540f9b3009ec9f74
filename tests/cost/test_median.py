"""Medians against a plain minimiser of rate x distance, which springs do not minimise."""

import numpy as np
import pytest
from scipy.optimize import minimize

from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.placement.median import median_points
from tests.placement_worlds import node


def test_operator_goes_to_whom_most_of_its_rate_comes_from_however_far_the_others_are():
    space = CostSpace({"a": node(0.0), "b": node(100.0), "c": node(400.0)})
    links = tuple(PlacementLink(name, "f", rate) for name, rate in (("p", 900.0), ("q", 100.0), ("r", 150.0)))
    (point,) = median_points(PlacementProblem({"p": "a", "q": "b", "r": "c"}, ("f",), links), space)

    assert point == pytest.approx((0.0, 0.0, 0.0), abs=1.0)  # the mean would be at 61


@pytest.mark.parametrize("seed", range(3))
def test_sum_of_rate_times_distance_is_the_least(seed: int):
    rng = np.random.default_rng(seed)
    places, rates = rng.normal(0, 80, 5), rng.uniform(1, 10, 5)
    space = CostSpace({f"n{i}": node(float(x)) for i, x in enumerate(places)})
    links = tuple(PlacementLink(f"p{i}", "f", float(rate)) for i, rate in enumerate(rates))
    (point,) = median_points(PlacementProblem({f"p{i}": f"n{i}" for i in range(5)}, ("f",), links), space)
    anchors = space.vectors_ms[space.rows([f"n{i}" for i in range(5)])]

    def cost(place):
        return float((rates * np.linalg.norm(anchors - place, axis=1)).sum())

    best = min(cost(anchor) for anchor in anchors)
    best = min(
        best, minimize(cost, anchors.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9, "maxiter": 4000}).fun
    )
    assert cost(point) <= best * 1.005
