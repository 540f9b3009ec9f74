import numpy as np
import pytest

from sbon.cost.latency import EstimatedLatencies, KnownLatencies
from sbon.cost.network_usage import network_usage, usage_of_assignment
from sbon.cost.space import CostSpace
from sbon.errors import PlacementError, ShapeError
from sbon.placement.problem import PlacementLink
from tests.placement_worlds import node


def test_usage_is_rate_times_latency_over_links():
    assert network_usage(np.array([1000.0, 500.0]), np.array([10.0, 40.0])) == 30.0


def test_rates_and_latencies_of_different_length_are_refused():
    with pytest.raises(ShapeError, match="expected two vectors of one length"):
        network_usage(np.array([1000.0]), np.array([10.0, 40.0]))


def test_links_within_a_node_carry_nothing_over_the_network():
    truth = KnownLatencies(["a", "b"], np.array([[7.0, 20.0], [20.0, 7.0]]))
    links = [PlacementLink("source", "filter", 1e6), PlacementLink("filter", "sink", 1000.0)]

    assert usage_of_assignment(links, {"source": "a", "filter": "a", "sink": "b"}, truth) == 10.0


def test_an_operator_without_a_node_is_named():
    truth = KnownLatencies(["a"], np.zeros((1, 1)))
    with pytest.raises(PlacementError, match="'sink' has no node"):
        usage_of_assignment([PlacementLink("source", "sink", 1.0)], {"source": "a"}, truth)


def test_latency_is_half_the_rtt_and_measured_before_predicted():
    latencies = EstimatedLatencies(CostSpace({"a": node(0.0, height=1.0), "b": node(30.0, 40.0, height=2.0), "c": node(0.0)}))

    assert latencies.one_way_ms("a", "b") == 26.5
    latencies.learn("a", {"b": 80.0})
    latencies.learn("b", {"a": 100.0})
    assert latencies.one_way_ms("a", "b") == latencies.one_way_ms("b", "a") == 45.0
    assert latencies.matrix_ms(["a", "b"], ["b", "c"]).tolist() == [[45.0, 0.5], [0.0, 26.0]]


def test_measurements_that_are_no_numbers_are_left_out():
    latencies = EstimatedLatencies(CostSpace({"a": node(0.0), "b": node(10.0)}))
    latencies.learn("a", {"b": float("nan")})
    latencies.learn("b", {"a": -1.0})

    assert latencies.measured_rtt_ms("a", "b") is None
    assert latencies.one_way_ms("a", "b") == 5.0
