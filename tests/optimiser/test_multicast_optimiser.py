import numpy as np
import pytest

from sbon.cost.network_usage import NetworkUsage
from sbon.cost.space import CostSpace
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.multicast import MulticastOptimiser
from sbon.optimiser.views import Ask, Branch, Insert, SourceView, Stay
from sbon.placement.candidates import CandidateReport
from tests.placement_worlds import node

CONFIG = OptimiserConfig(saving_min_fraction=0.1, confirmations=3, certainty=3.0, samples_max=10, damping=1.0)
OCEAN = CostSpace(
    {
        "here": node(0.0),
        "near": node(5.0),
        "c1": node(100.0, 3.0),
        "c2": node(100.0, -3.0),
        "c3": node(104.0),
        "x": node(101.0),
        "far": node(50, 90),
    }
)
"""A producer's side and, 100 ms of RTT away, three consumers and a node between them."""


def view(*consumers, rate=1000.0, slack_ms=float("inf"), **changes):
    branches = tuple(Branch(f"a>{c}:0", c, rate, slack_ms) for c in consumers or ("c1", "c2", "c3"))
    return SourceView(**{"id": "a", "here": "here", "branches": branches, **changes})


def answers(ask, space=OCEAN, slots=5, load=0.0, noise=lambda: 1.0):
    return {
        name: CandidateReport(
            name, {peer: space.rtt_ms(name, peer) * noise() for peer in ask.about if peer != name}, slots, 0.0 if name == "here" else load
        )
        for name in ask.candidates
    }


def run(subject, space=OCEAN, reviews=12, machine=None, **how):
    """Reviews every 10 s until the decision is other than to wait for certainty."""
    machine = machine or MulticastOptimiser(CONFIG, NetworkUsage(1.0))
    for index in range(reviews):
        ask = machine.review(subject, space, 10.0 * index)
        if ask is None:
            return None
        decision = machine.decide(subject, answers(ask, space, **how), space, 10.0 * index)
        if isinstance(decision, Insert) or not decision.pending:
            return decision
    raise AssertionError("still not sure")


def test_consumers_and_the_best_nodes_for_them_are_asked_for_their_rtts_to_all_of_them():
    ask = MulticastOptimiser(OptimiserConfig(candidates=2), NetworkUsage(1.0)).review(view(), OCEAN, 0.0)

    assert ask == Ask("a", ("here", "c1", "x"), ("here", "c1", "c2", "c3"))


def test_one_copy_crosses_the_ocean_once_it_is_sure():
    decision = run(view())

    assert isinstance(decision, Insert)
    assert (decision.to, set(decision.links)) == ("x", {"a>c1:0", "a>c2:0", "a>c3:0"})
    # By hand: 152.09 bytes in transit become 50.5 to x and 1.5811 + 1.5811 + 1.5 from there.
    assert decision.usage_now == pytest.approx(sum(OCEAN.rtt_ms("here", c) / 2 for c in ("c1", "c2", "c3")))
    assert decision.usage_there == pytest.approx(50.5 + sum(OCEAN.rtt_ms("x", c) / 2 for c in ("c1", "c2", "c3")))
    assert decision.saving_fraction == pytest.approx(1 - decision.usage_there / decision.usage_now)
    assert "seen in 3 reviews" in decision.reason


def test_one_consumer_gets_no_multicast_nor_do_consumers_on_the_operators_own_host():
    machine = MulticastOptimiser(OptimiserConfig(), NetworkUsage(1.0))

    assert machine.review(view("c1"), OCEAN, 0.0) is None
    assert machine.review(view("c1", "here", "here"), OCEAN, 0.0) is None
    assert machine.review(view("c1", "c2", rate=0.0), OCEAN, 0.0) is None


def test_two_consumers_on_one_node_are_served_from_there():
    decision = run(view("c1", "c1"))

    assert isinstance(decision, Insert)
    assert decision.to == "c1"


def test_consumers_in_opposite_directions_get_none():
    space = CostSpace({"here": node(0.0), "w": node(-50.0), "e": node(50.0), "n": node(0.0, 50.0)})

    assert isinstance(run(view("w", "e"), space), Stay)


def test_consumers_on_the_way_are_left_where_they_are():
    decision = run(view("near", "c1", "c2"))

    assert isinstance(decision, Insert)
    assert set(decision.links) == {"a>c1:0", "a>c2:0"}


def test_a_consumer_whose_query_bears_no_longer_way_keeps_its_own_link():
    """Through x, the path to c3 is as long as before; the paths to c1 and c2 are 2 ms longer."""
    branches = (Branch("a>c1:0", "c1", 1000.0, 0.5), Branch("a>c2:0", "c2", 1000.0), Branch("a>c3:0", "c3", 1000.0, 0.0))
    space = CostSpace({name: OCEAN.coordinates[name] for name in ("here", "c1", "c2", "c3", "x")})
    machine = MulticastOptimiser(CONFIG, NetworkUsage(1.0))
    subject = SourceView("a", "here", branches)
    decision = None
    for now in (0.0, 10.0, 20.0, 30.0, 40.0):
        ask = machine.review(subject, space, now)
        decision = machine.decide(subject, answers(ask, space), space, now)
        if isinstance(decision, Insert):
            break

    assert isinstance(decision, Insert)
    assert decision.to == "x"
    assert set(decision.links) == {"a>c2:0", "a>c3:0"}


def test_full_and_loaded_nodes_are_passed_over():
    full = run(view(), slots=0)
    loaded = run(view(), load=500.0)

    assert isinstance(full, Stay)
    assert "room for 0 operators" in full.reason
    assert isinstance(loaded, Stay)


def test_noise_alone_makes_no_multicast():
    """c1 and c2 are more than 120 degrees apart, so separate links are best. Single noisy pings sometimes say otherwise."""
    space = CostSpace({"here": node(0.0), "c1": node(20.0, 40.0), "c2": node(20.0, -40.0), "x": node(5.0)})
    for seed in range(5):
        rng = np.random.default_rng(seed)
        machine = MulticastOptimiser(OptimiserConfig(), NetworkUsage(1.0))
        for review in range(360):
            ask = machine.review(view("c1", "c2"), space, 10.0 * review)
            if ask is not None:
                decision = machine.decide(
                    view("c1", "c2"), answers(ask, space, noise=lambda rng=rng: rng.lognormal(0, 0.1)), space, 10.0 * review
                )
                assert isinstance(decision, Stay), f"seed {seed}, review {review}: {decision.reason}"


def test_multicasts_that_were_given_up_again_raise_the_threshold_for_a_while():
    space = CostSpace({name: OCEAN.coordinates[name] for name in ("here", "c1", "c2")})  # a multicast saves 47 %

    assert isinstance(run(view("c1", "c2"), space), Insert)
    assert isinstance(run(view("c1", "c2", changes=5, since_change_s=40.0), space), Stay)
    assert isinstance(run(view("c1", "c2", changes=5, since_change_s=7200.0), space), Insert)
    assert (
        MulticastOptimiser(OptimiserConfig(), NetworkUsage(1.0)).review(view("c1", "c2", changes=1, since_change_s=29.0), space, 0.0)
        is None
    )


def test_another_look_comes_with_another_consumer_or_after_a_while():
    machine = MulticastOptimiser(OptimiserConfig(saving_min_fraction=0.9), NetworkUsage(1.0))
    first = machine.review(view("c1", "c2"), OCEAN, 0.0)
    machine.decide(view("c1", "c2"), answers(first), OCEAN, 0.0)

    assert machine.review(view("c1", "c2"), OCEAN, 10.0) is None
    assert machine.review(view("c1", "c2", "c3"), OCEAN, 20.0) is not None
    machine.decide(view("c1", "c2", "c3"), answers(first), OCEAN, 20.0)
    assert machine.review(view("c1", "c2", "c3"), OCEAN, 30.0) is None
    assert machine.review(view("c1", "c2", "c3"), OCEAN, 90.0) is not None
