import msgspec
import numpy as np
import pytest

from sbon.cost.network_usage import NetworkUsage
from sbon.cost.problem import PlacementLink, PlacementProblem, problem_of
from sbon.errors import PlacementError
from sbon.links.link_names import link_id
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.reuse import shareable_signatures
from sbon.placement.baselines import at_consumer, at_producer, at_random, on_multicast_tree
from sbon.placement.config import PlacementConfig
from sbon.placement.strategy import IpMulticast
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from tests.placement_worlds import synthetic_space

JOIN = PlacementProblem(
    {"p": "a", "q": "b", "s": "z"},
    ("f", "j"),
    (PlacementLink("p", "f", 10.0), PlacementLink("f", "j", 5.0), PlacementLink("q", "j", 5.0), PlacementLink("j", "s", 1.0)),
)
ROUTES = {("a", "z"): ["a", "r1", "r3", "z"], ("b", "z"): ["b", "r2", "r3", "z"]}


def test_producer_takes_one_producers_node_for_all_operators():
    nodes = {tuple(at_producer(JOIN, np.random.default_rng(seed)).values()) for seed in range(20)}

    assert nodes == {("a", "a"), ("b", "b")}


def test_consumer_takes_the_consumers_node():
    assert at_consumer(JOIN) == {"f": "z", "j": "z"}


def test_random_draws_a_node_for_each_operator():
    first = at_random(JOIN, ["y", "x", "w"], np.random.default_rng(1))

    assert first == at_random(JOIN, ["w", "x", "y"], np.random.default_rng(1))
    assert set(first) == {"f", "j"}


def test_multicast_places_an_operator_where_the_routes_of_its_producers_meet():
    assert on_multicast_tree(JOIN, lambda a, b: ROUTES[a, b]) == {"f": "a", "j": "r3"}


def test_a_query_without_pinned_ends_is_refused():
    alone = PlacementProblem({}, ("f",), ())
    for place in (
        lambda: at_consumer(alone),
        lambda: at_producer(alone, np.random.default_rng(1)),
        lambda: on_multicast_tree(alone, lambda a, b: [a, b]),
        lambda: at_random(alone, [], np.random.default_rng(1)),
    ):
        with pytest.raises(PlacementError, match="'f'"):
            place()


def test_multicast_is_a_strategy_too():
    space = synthetic_space(20, 1)
    problem = PlacementProblem({"p": "n000", "s": "n007"}, ("f",), (PlacementLink("p", "f", 10.0), PlacementLink("f", "s", 1.0)))
    rng = np.random.default_rng(1)

    assert IpMulticast(lambda a, b: [a, "n003", b], NetworkUsage()).regions(problem, space, 2, rng)["f"][0] == "n000"


def plan():
    schema = ()
    operators = (
        OperatorSpec("q.0", MapParams(None, None), schema, None, "a", "sig0"),
        OperatorSpec("q.1", MapParams(None, None), schema, None, None, "sig1"),
        OperatorSpec("q.2", SinkParams("out", "tail", ()), schema, None, "z", "sig2"),
    )
    links = tuple(LinkSpec(link_id(a, b, 0), a, b, 0, 1.0, rate) for a, b, rate in (("q.0", "q.1", 100.0), ("q.1", "q.2", 10.0)))
    return Plan("q", "q", "", operators, links)


def test_a_plan_becomes_a_problem():
    assert problem_of(plan()) == PlacementProblem(
        {"q.0": "a", "q.2": "z"}, ("q.1",), (PlacementLink("q.0", "q.1", 100.0), PlacementLink("q.1", "q.2", 10.0))
    )


def test_sinks_are_never_shared():
    assert shareable_signatures(plan()) == {"q.0": "sig0", "q.1": "sig1"}


def test_what_is_read_from_its_beginning_is_not_shared_nor_what_is_behind_it():
    source, *others = plan().operators
    read = msgspec.structs.replace(source, params=SourceParams("s", "file", (), (), None))
    whole = msgspec.structs.replace(plan(), operators=(read, *others))

    assert shareable_signatures(whole, lambda params: params.connector == "file") == {}
    assert shareable_signatures(whole, lambda params: params.connector != "file") == {"q.0": "sig0", "q.1": "sig1"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"candidates": 0},
        {"candidates": 200},
        {"probes": -1},
        {"delta": 0.0},
        {"delta": 1.5},
        {"force_threshold": 0.0},
        {"load_weight": -1.0},
    ],
)
def test_settings_of_placement_out_of_range_are_refused(wrong):
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        msgspec.convert(wrong, PlacementConfig)


@pytest.mark.parametrize(
    "wrong",
    [{"interval_s": 0.0}, {"saving_min_fraction": 1.0}, {"confirmations": 0}, {"samples_max": 1}, {"damping": -1.0}, {"candidates": 0}],
)
def test_settings_of_the_optimiser_out_of_range_are_refused(wrong):
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        msgspec.convert(wrong, OptimiserConfig)
