"""Every cost model: a move costs the difference of two assignments, optimisers follow the model, and a refusal names the bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.latency import KnownLatencies
from sbon.cost.model import Conditions, SumOfLinks
from sbon.cost.network_usage import NetworkUsage
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.errors import DelayBoundError, PlacementError
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.full import FullOptimiser
from sbon.optimiser.local import LocalOptimiser
from sbon.optimiser.multicast import MulticastOptimiser
from sbon.optimiser.refuges import refuges
from sbon.optimiser.views import Branch, Insert, Migrate, Neighbour, OperatorView, SourceView, Stay
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon.placement.optimal import optimal_assignment
from tests.examples import examples
from tests.placement_worlds import node, place


class Hops(SumOfLinks):
    """Counts links between nodes, whatever their rates and latencies; a loaded host counts like a link."""

    def of_links(self, rate_bytes_per_s, latency_ms):
        return np.where(np.asarray(latency_ms) > 0, 1.0, 0.0) * np.ones_like(rate_bytes_per_s)

    def of_hosts(self, rate_bytes_per_s, load_ms):
        return np.where(np.asarray(load_ms) > 50.0, 1.0, 0.0) * np.ones_like(rate_bytes_per_s)


class Longest(SumOfLinks):
    """A model that is no sum over links."""

    is_sum = False


MODELS = [NetworkUsage(), NetworkUsage(1.5), Hops()]
NODES = ["n0", "n1", "n2", "n3"]


@st.composite
def placed_problems(draw):
    """Draws problems of any shape: parallel links, diamonds, operators without links, latencies that differ by direction."""
    pinned = {f"p{i}": draw(st.sampled_from(NODES)) for i in range(draw(st.integers(0, 3)))}
    unpinned = tuple(f"u{i}" for i in range(draw(st.integers(1, 4))))
    everyone = [*pinned, *unpinned]
    pairs = [(a, b) for index, a in enumerate(everyone) for b in everyone[index + 1 :]]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=6)) if pairs else []
    links = tuple(PlacementLink(*pair, draw(st.floats(0, 1e6))) for pair in chosen)
    assignment = {**pinned, **{operator: draw(st.sampled_from(NODES)) for operator in unpinned}}
    rtt = np.array(draw(st.lists(st.floats(0.1, 300), min_size=16, max_size=16))).reshape(4, 4)
    loads = draw(st.dictionaries(st.sampled_from(NODES), st.floats(0, 200)))
    return PlacementProblem(pinned, unpinned, links), assignment, Conditions(KnownLatencies(NODES, rtt), loads)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@examples(150)
@given(found=placed_problems(), to=st.sampled_from(NODES), which=st.integers(0, 3))
def test_a_move_costs_the_difference_of_two_assignments(model, found, to, which):
    problem, assignment, conditions = found
    operator = problem.unpinned[which % len(problem.unpinned)]
    before = model.of_assignment(problem, assignment, conditions)
    after = model.of_assignment(problem, {**assignment, operator: to}, conditions)

    assert model.of_move(problem, assignment, operator, to, conditions) == pytest.approx(after - before, rel=1e-9, abs=1e-6 + 1e-9 * before)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@examples(50)
@given(found=placed_problems())
def test_exact_placement_finds_what_no_assignment_undercuts(model, found):
    problem, assignment, conditions = found
    unloaded = Conditions(conditions.latencies)
    best, cost = optimal_assignment(problem, conditions.latencies, NODES, model)

    assert cost == pytest.approx(model.of_assignment(problem, best, unloaded))
    assert cost <= model.of_assignment(problem, assignment, unloaded) * (1 + 1e-9) + 1e-9


LINE = CostSpace({"a": node(0.0), "b": node(10.0), "c": node(50.0), "d": node(100.0), "e": node(104.0)})
HEAVY_AND_TWO_LIGHT = (Neighbour("a", 5000.0, True, "p"), Neighbour("d", 10.0, False, "s"), Neighbour("d", 10.0, False, "t"))
"""Network usage places an operator at the heavy stream at a, hops at the two light streams at d."""


def measured(ask, load=None):
    return CandidateReport(ask.node, {peer: LINE.rtt_ms(ask.node, peer) for peer in ask.about}, 5, (load or {}).get(ask.node, 0.0))


@pytest.mark.parametrize(("model", "where"), [(NetworkUsage(), "a"), (Hops(), "d"), (None, "a")])
def test_placement_follows_its_model(model, where):
    pinned = {str(index): neighbour.node for index, neighbour in enumerate(HEAVY_AND_TWO_LIGHT)}
    links = tuple(PlacementLink(str(index), "f", n.rate_bytes_per_s) for index, n in enumerate(HEAVY_AND_TWO_LIGHT))
    problem = PlacementProblem(pinned, ("f",), links)
    decision = place(FullOptimiser(problem, {}, LINE, PlacementConfig(), np.random.default_rng(1), model=model), measured)

    assert decision.assignment["f"] == where
    assert decision.usage_here == (model or NetworkUsage()).of_assignment(problem, decision.assignment, Conditions(KnownLatencies(
        LINE.names, LINE.rtt_matrix_ms(LINE.names, LINE.names))))  # fmt: skip


def reviewed(optimiser, view, verdicts):
    """Repeats reviews until the optimiser is sure; returns its verdict."""
    for now in range(0, 200, 10):
        ask = optimiser.review(view, LINE, now)
        if ask is None:
            return None
        reports = {name: CandidateReport(name, {p: LINE.rtt_ms(name, p) for p in ask.about if p != name}, 5) for name in ask.candidates}
        verdict = optimiser.decide(view, reports, LINE, now)
        if isinstance(verdict, verdicts) or not verdict.pending:
            return verdict
    raise AssertionError("still not sure")


@pytest.mark.parametrize(("model", "where"), [(NetworkUsage(), "a"), (Hops(), "d")])
def test_the_local_optimiser_follows_its_model(model, where):
    optimiser = LocalOptimiser(OptimiserConfig(saving_min_bytes=0.0), np.random.default_rng(1), model=model)
    verdict = reviewed(optimiser, OperatorView("f", "c", HEAVY_AND_TWO_LIGHT), Migrate)

    assert isinstance(verdict, Migrate), verdict.reason
    assert verdict.to == where
    stays = LocalOptimiser(OptimiserConfig(), np.random.default_rng(1), model=model)
    assert isinstance(reviewed(stays, OperatorView("f", where, HEAVY_AND_TWO_LIGHT), Migrate), Stay)


def test_multicasts_follow_their_model():
    """A multicast saves a copy over 100 ms and adds a hop: worth it by network usage, not by hops."""
    view = SourceView("a", "a", (Branch("a>d:0", "d", 1000.0), Branch("a>e:0", "e", 1000.0)))

    assert isinstance(reviewed(MulticastOptimiser(OptimiserConfig(), NetworkUsage()), view, Insert), Insert)
    assert not isinstance(reviewed(MulticastOptimiser(OptimiserConfig(), Hops()), view, Insert), Insert)


@pytest.mark.parametrize(("model", "where"), [(NetworkUsage(), "a"), (Hops(), "d")])
def test_leaving_follows_its_model(model, where):
    reports = {name: CandidateReport(name, {}, 1) for name in "abde"}

    assert refuges(OperatorView("f", "c", HEAVY_AND_TWO_LIGHT), reports, LINE, model)[0] == where


def test_a_refusal_names_the_bound_and_what_was_reached():
    problem = PlacementProblem({"p": "a", "s": "d"}, (), (PlacementLink("p", "s", 1.0),), delay_bound_ms=30.0)
    conditions = Conditions(KnownLatencies(["a", "d"], np.array([[0.0, 100.0], [100.0, 0.0]])))
    refusal = NetworkUsage().refusal(problem, problem.pinned, conditions)

    assert isinstance(refusal, DelayBoundError)
    assert (refusal.bound_ms, refusal.reachable_ms) == (30.0, 50.0)
    assert NetworkUsage().refusal(PlacementProblem(problem.pinned, (), problem.links), problem.pinned, conditions) is None


def test_exact_placement_refuses_a_model_that_is_no_sum():
    with pytest.raises(PlacementError, match="Longest is no sum over links and hosts"):
        optimal_assignment(PlacementProblem({"p": "n0"}, ("f",), ()), KnownLatencies(NODES, np.zeros((4, 4))), NODES, Longest())
