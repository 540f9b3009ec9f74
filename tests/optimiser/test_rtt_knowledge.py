import math

import numpy as np
import pytest

from sbon.cost.network_usage import NetworkUsage
from sbon.cost.space import CostSpace
from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import Coordinate
from sbon.cost_space.localiser import Localiser
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.knowledge import AGE_S_MAX, REMEMBERED_NODES_MAX, RTTS_MAX, RttKnowledge, rtt_matrix_ms
from sbon.optimiser.local import LocalOptimiser
from sbon.optimiser.multicast import MulticastOptimiser
from sbon.optimiser.views import Branch, Neighbour, OperatorView, SourceView
from tests.placement_worlds import node

SPACE = CostSpace({"a": node(0.0), "b": node(100.0), "near": node(50.0), "far": node(50.0, 300.0), "here": node(50.0, 200.0)})


def test_what_a_node_tells_is_known_until_it_tells_something_else():
    knowledge = RttKnowledge()

    assert knowledge.heard("a", [("near", 12.0, 3.0), ("far", 20.0, 0.0)], now=100.0) == 0
    assert knowledge.remembered(["a", "b"], 110.0) == {"a": {"near": 12.0, "far": 20.0}, "b": {}}
    knowledge.heard("a", [("far", 21.0, 0.0)], now=120.0)
    assert knowledge.remembered(["a"], 120.0) == {"a": {"far": 21.0}}


def test_a_node_is_asked_again_after_a_while():
    knowledge = RttKnowledge()
    assert knowledge.stale("a", 0.0, 60.0)
    knowledge.heard("a", [], now=10.0)

    assert not knowledge.stale("a", 69.0, 60.0)
    assert knowledge.stale("a", 70.0, 60.0)


@pytest.mark.parametrize(
    ("rtt_ms", "age_s"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1e9, 1.0), (5.0, -1.0), (5.0, math.nan)]
)
def test_nonsense_is_counted_and_left_out(rtt_ms, age_s):
    knowledge = RttKnowledge()

    assert knowledge.heard("a", [("x", rtt_ms, age_s), ("y", 5.0, 0.0)], now=0.0) == 1
    assert knowledge.remembered(["a"], 0.0) == {"a": {"y": 5.0}}


def test_memory_is_bounded_and_old_news_is_forgotten():
    knowledge = RttKnowledge()
    assert knowledge.heard("a", [(f"n{i}", 5.0, 0.0) for i in range(RTTS_MAX + 7)], now=0.0) == 7
    for index in range(REMEMBERED_NODES_MAX):
        knowledge.heard(f"m{index}", [("x", 5.0, AGE_S_MAX - 10.0)], now=0.0)

    assert knowledge.remembered(["a"], 0.0) == {"a": {}}
    assert knowledge.remembered(["m5"], 9.0) == {"m5": {"x": 5.0}}
    assert knowledge.remembered(["m5"], 11.0) == {"m5": {}}


def test_measured_rtts_stand_before_predicted_ones():
    matrix = rtt_matrix_ms(SPACE, ["near", "far", "a"], ["a", "b"], {"a": {"far": 7.0, "stranger": 1.0, "a": 99.0}, "b": {}})

    assert matrix.tolist() == [[50.0, 50.0], [7.0, SPACE.rtt_ms("far", "b")], [0.0, 100.0]]


def test_a_good_node_with_a_bad_coordinate_is_asked_once_neighbours_remember_it():
    subject = OperatorView("f", "here", (Neighbour("a", 1000.0, True), Neighbour("b", 1000.0, False)))
    remembered = {"a": {"far": 4.0}, "b": {"far": 97.0, "near": 150.0}}

    without = LocalOptimiser(OptimiserConfig(candidates=3), np.random.default_rng(1)).review(subject, SPACE, 0.0)
    with_them = LocalOptimiser(OptimiserConfig(candidates=4), np.random.default_rng(1)).review(subject, SPACE, 0.0, remembered)

    assert without.candidates == ("here", "a", "b", "near")
    assert with_them.candidates == ("here", "a", "b", "far", "near")


def test_candidates_for_a_multicast_are_found_by_what_consumers_remember():
    subject = SourceView("f", "a", (Branch("f>x:0", "b", 1000.0), Branch("f>y:0", "near", 1000.0)))
    remembered = {"b": {"far": 1.0}, "near": {"far": 1.0}, "a": {"far": 30.0}}

    without = MulticastOptimiser(OptimiserConfig(candidates=2), NetworkUsage(1.0)).review(subject, SPACE, 0.0)
    with_them = MulticastOptimiser(OptimiserConfig(candidates=2), NetworkUsage(1.0)).review(subject, SPACE, 0.0, remembered)

    assert "far" not in without.candidates
    assert "far" in with_them.candidates


def test_a_node_tells_its_nearest_and_those_asked_for_with_their_age():
    localiser = Localiser(CoordinateConfig(), np.random.default_rng(1))
    for index, rtt_ms in enumerate((30.0, 10.0, 20.0, 40.0)):
        localiser.observe(f"p{index}", Coordinate((rtt_ms, 0.0, 0.0), 0.0, 0.5), rtt_ms, float(index))

    told = localiser.remembered(2, ["p3", "p1", "stranger"], now=10.0)

    assert told == [("p1", 10.0, 9.0), ("p2", 20.0, 8.0), ("p3", 40.0, 7.0)]
    assert localiser.remembered(-1, [], now=10.0) == []
