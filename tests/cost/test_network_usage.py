import numpy as np
import pytest

from sbon.cost.latency import EstimatedLatencies, KnownLatencies
from sbon.cost.model import Conditions
from sbon.cost.network_usage import NetworkUsage
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.errors import PlacementError
from tests.placement_worlds import node


def usage(links, assignment, truth, **load_ms):
    problem = PlacementProblem({}, tuple(dict.fromkeys(end for link in links for end in (link.source, link.target))), tuple(links))
    return NetworkUsage(load_weight=2.0).of_assignment(problem, assignment, Conditions(truth, load_ms))


def test_usage_is_rate_times_latency_over_links():
    truth = KnownLatencies(["a", "b", "c"], np.array([[0.0, 20.0, 0.0], [20.0, 0.0, 80.0], [0.0, 80.0, 0.0]]))
    links = [PlacementLink("source", "filter", 1000.0), PlacementLink("filter", "sink", 500.0)]

    assert usage(links, {"source": "a", "filter": "b", "sink": "c"}, truth) == 30.0


def test_load_counts_like_rtt_on_each_link_of_its_operators():
    truth = KnownLatencies(["a", "b"], np.array([[0.0, 20.0], [20.0, 0.0]]))

    assert usage([PlacementLink("source", "sink", 1000.0)], {"source": "a", "sink": "b"}, truth, b=5.0) == 10.0 + 2 * 5.0 / 2


def test_links_within_a_node_carry_nothing_over_the_network():
    truth = KnownLatencies(["a", "b"], np.array([[7.0, 20.0], [20.0, 7.0]]))
    links = [PlacementLink("source", "filter", 1e6), PlacementLink("filter", "sink", 1000.0)]

    assert usage(links, {"source": "a", "filter": "a", "sink": "b"}, truth) == 10.0


def test_an_operator_without_a_node_is_named():
    truth = KnownLatencies(["a"], np.zeros((1, 1)))
    with pytest.raises(PlacementError, match="'sink' has no node"):
        usage([PlacementLink("source", "sink", 1.0)], {"source": "a"}, truth)


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
