import numpy as np
import pytest

from sbon.cost.network_usage import NetworkUsage
from sbon.cost.problem import PlacementLink, PlacementProblem
from sbon.cost.space import CostSpace
from sbon.errors import DelayBoundError, LocalProtocolError, PlacementError
from sbon.optimiser.decision import Decision
from sbon.optimiser.full import RECALLING_NODES_MAX, AskCandidate, AskRemembered, FullOptimiser
from sbon.placement import regions
from sbon.placement.candidates import CandidateReport, Reuse
from sbon.placement.config import PlacementConfig
from sbon.placement.optimal import optimal_assignment
from sbon.placement.regions import ranked_regions
from tests.placement_worlds import aggregate, join_tree, node, place, synthetic_space, truth_of, truthful, usage

LINE = CostSpace({"a": node(0.0), "b": node(10.0), "c": node(50.0), "d": node(100.0)})
FILTER = PlacementProblem({"p": "a", "s": "d"}, ("f",), (PlacementLink("p", "f", 5000.0), PlacementLink("f", "s", 1000.0)))
CHAIN = PlacementProblem(
    {"p": "a", "s": "d"},
    ("f", "g"),
    (PlacementLink("p", "f", 5000.0), PlacementLink("f", "g", 3000.0), PlacementLink("g", "s", 1000.0)),
)


def make(problem, space=LINE, signatures=None, hosts=None, **config):
    return FullOptimiser(problem, signatures or {}, space, PlacementConfig(**config), np.random.default_rng(1), hosts)


def offers(slots=10, running=None, load=None):
    """Returns answers of candidates whose measurements equal the predictions by the coordinates of LINE."""

    def answer(ask):
        rtts = {peer: LINE.rtt_ms(ask.node, peer) for peer in ask.about}
        found = {s: op for s, op in (running or {}).get(ask.node, {}).items() if s in ask.signatures}
        return CandidateReport(
            ask.node, rtts, slots.get(ask.node, 0) if isinstance(slots, dict) else slots, (load or {}).get(ask.node, 0), found
        )

    return answer


def test_candidates_are_asked_about_the_operators_neighbours():
    actions = make(FILTER, candidates=2, candidates_max=4).begin()

    assert actions == [
        AskCandidate("a", ("d",), ()),
        AskCandidate("b", ("a", "d"), ()),
        AskCandidate("c", ("a", "d"), ()),
        AskCandidate("d", (), ()),  # a measures the RTT to d
    ]


def test_a_selective_operator_goes_to_its_producer():
    decision = place(make(FILTER), offers())

    assert decision.assignment == {"p": "a", "s": "d", "f": "a"}
    assert decision.usage_here == 50.0  # 1,000 bytes/s over 50 ms
    assert decision.usage_producer == 50.0
    assert decision.usage_consumer == 250.0
    assert [(link.source_node, link.target_node, link.latency_ms, link.measured) for link in decision.links] == [
        ("a", "a", 0.0, True),
        ("a", "d", 50.0, True),
    ]


def test_relaxation_takes_the_nearest_node_to_the_rest_point():
    decision = place(make(FILTER, strategy="relaxation"), offers())

    assert decision.assignment["f"] == "b"  # the springs rest at 16.7 of 100 ms


def test_a_node_without_room_is_passed_over():
    assert place(make(FILTER), offers(slots={"b": 1, "c": 1, "d": 1})).assignment["f"] == "b"
    assert place(make(FILTER, strategy="relaxation"), offers(slots={"c": 1})).assignment["f"] == "c"


def test_two_operators_do_not_share_one_place():
    decision = place(make(CHAIN), offers(slots={"a": 2, "b": 1, "c": 1}))  # one of a's two slots is for the source

    assert sorted((decision.assignment["f"], decision.assignment["g"])) == ["a", "b"]
    assert decision.assignment["f"] == "a"  # f has the higher rates


def test_a_loaded_node_is_avoided_as_if_it_were_farther_away():
    assert place(make(FILTER), offers(load={"a": 1000.0})).assignment["f"] == "b"
    assert place(make(FILTER, load_weight=0.0), offers(load={"a": 1000.0})).assignment["f"] == "a"


def test_who_does_not_answer_is_not_used():
    answer = offers()
    decision = place(make(FILTER), lambda ask: None if ask.node == "a" else answer(ask))

    assert decision.assignment["f"] == "b"


def test_measured_rtts_overrule_predicted_ones():
    """b is really far from all nodes, which coordinates do not show."""
    slots = {"b": 1, "c": 1}

    def answer(ask):
        rtts = {peer: 500.0 if "b" in (ask.node, peer) else LINE.rtt_ms(ask.node, peer) for peer in ask.about}
        return CandidateReport(ask.node, rtts, slots.get(ask.node, 0))

    assert place(make(FILTER), answer).assignment["f"] == "c"


def test_the_circle_widens_until_somebody_has_room():
    space = synthetic_space(120, 2)
    problem = aggregate(space, np.random.default_rng(2))
    asked = []

    def answer(ask):
        asked.append(ask.node)
        return CandidateReport(ask.node, dict.fromkeys(ask.about, 50.0), 1 if len(asked) > 70 else 0)

    decision = place(make(problem, space), answer)

    assert decision.assignment["a"] in asked[70:]
    assert len(asked) <= len(set(asked)) + 5  # only the links of the choice are asked about again
    assert len(set(asked)) <= 120


@pytest.mark.parametrize("strategy", ["least-usage", "relaxation", "producer", "consumer", "random"])
def test_an_operator_that_nobody_can_host_is_named(strategy):
    with pytest.raises(PlacementError, match="no node can host operator 'f'"):
        place(make(FILTER, strategy=strategy), offers(slots=0))
    with pytest.raises(PlacementError, match="no node can host operator 'f'"):
        place(make(FILTER, strategy=strategy), lambda ask: None)


@pytest.mark.parametrize("strategy", ["least-usage", "relaxation"])
def test_a_running_operator_in_the_region_serves_and_its_inputs_are_dropped(strategy):
    running = {"b": {"sum": "q1.g"}, "d": {"sum": "q7.g"}}
    decision = place(make(CHAIN, signatures={"p": "src", "f": "flt", "g": "sum"}, strategy=strategy), offers(running=running))

    assert decision.reused["g"].operator in ("q1.g", "q7.g")
    assert decision.dropped == ("p", "f")
    assert set(decision.assignment) == {"g", "s"}
    assert [(link.source, link.target) for link in decision.links] == [("g", "s")]


def test_least_usage_reuses_the_operator_that_costs_least():
    """The operator at d already runs on the consumer's node."""
    running = {"b": {"sum": "q1.g"}, "d": {"sum": "q7.g"}}
    decision = place(make(CHAIN, signatures={"g": "sum"}), offers(running=running))

    assert decision.reused == {"g": Reuse("q7.g", "d")}
    assert decision.usage_here == 0.0


def test_an_operator_that_feeds_a_new_one_too_is_kept():
    """A diamond: f feeds g, which is reused, and h, which is not."""
    problem = PlacementProblem(
        {"p": "a", "s": "d"},
        ("f", "g", "h"),
        (
            PlacementLink("p", "f", 5000.0),
            PlacementLink("f", "g", 3000.0),
            PlacementLink("f", "h", 3000.0),
            PlacementLink("g", "s", 1000.0),
            PlacementLink("h", "s", 1000.0),
        ),
    )
    decision = place(make(problem, signatures={"f": "flt", "g": "sum", "h": "max"}), offers(running={"a": {"sum": "q1.g"}}))

    assert decision.dropped == ()
    assert decision.reused == {"g": Reuse("q1.g", "a")}
    assert [(link.source, link.target) for link in decision.links] == [("p", "f"), ("f", "h"), ("g", "s"), ("h", "s")]


@pytest.mark.parametrize("strategy", ["least-usage", "relaxation"])
@pytest.mark.parametrize(("delay_ms", "shared"), [({"q1.f": 20.0}, True), ({"q1.f": 60.0}, False), ({}, False)])
def test_under_a_delay_bound_a_running_operator_serves_only_if_its_own_delay_leaves_time(strategy, delay_ms, shared):
    problem = PlacementProblem(FILTER.pinned, FILTER.unpinned, FILTER.links, delay_bound_ms=75.0)

    def answer(ask):
        rtts = {peer: LINE.rtt_ms(ask.node, peer) for peer in ask.about}
        return CandidateReport(ask.node, rtts, 9, 0.0, {"flt": "q1.f"} if ask.node == "b" else {}, upstream_delay_ms=delay_ms)

    optimiser = make(problem, signatures={"f": "flt"}, strategy=strategy)
    if strategy == "relaxation" and delay_ms.get("q1.f") == 60.0:
        with pytest.raises(DelayBoundError, match=r"bound of 75 ms; the best reachable delay is 105\.0 ms"):
            place(optimiser, answer)
        return
    decision = place(optimiser, answer)

    assert (decision.reused == {"f": Reuse("q1.f", "b")}) == shared
    assert decision.delay_ms == pytest.approx(20.0 + 45.0 if shared else 50.0)


def test_a_source_that_runs_already_is_shared():
    decision = place(make(FILTER, signatures={"p": "src"}), offers(running={"a": {"src": "q1.p"}}))

    assert decision.reused == {"p": Reuse("q1.p", "a")}
    assert decision.dropped == ()


def test_without_reuse_every_query_has_its_own():
    decision = place(make(FILTER, signatures={"f": "flt"}, reuse=False), offers(running={"a": {"flt": "q1.f"}}))

    assert decision.reused == {}


def test_nodes_said_to_run_an_operator_are_asked_too():
    space = synthetic_space(60, 4)
    problem = aggregate(space, np.random.default_rng(4))
    first = [ask.node for ask in make(problem, space, {"a": "sum"}).begin()]
    stranger = next(name for name in space.names if name not in first)

    asked = [ask.node for ask in make(problem, space, {"a": "sum"}, {"sum": [stranger]}).begin()]

    assert set(asked) == {*first, stranger}


def test_all_pinned_needs_no_question():
    problem = PlacementProblem({"p": "a", "s": "d"}, (), (PlacementLink("p", "s", 1000.0),))
    (decision,) = make(problem).begin()

    assert isinstance(decision, Decision)
    assert decision.usage_here == 50.0


def test_answers_that_nobody_waits_for_change_nothing():
    optimiser = make(FILTER)
    optimiser.begin()
    decided = []
    for name in ("d", "b", "c", "a"):
        assert optimiser.answered(CandidateReport("stranger", {}, 9)) == []
        decided = optimiser.answered(CandidateReport(name, {}, 9))
    while not isinstance(decided[0], Decision):
        decided = [action for ask in decided for action in optimiser.unanswered(ask.node)]

    assert optimiser.answered(CandidateReport("a", {}, 9)) == []
    assert optimiser.unanswered("a") == []
    with pytest.raises(LocalProtocolError):
        optimiser.begin()


def test_a_pinned_node_that_is_not_known_yet_is_taken_to_be_at_the_origin_and_hosts_nothing_else():
    problem = PlacementProblem({"p": "new", "s": "d"}, ("f",), FILTER.links)
    decision = place(make(problem), lambda ask: CandidateReport(ask.node, {}, 9))

    assert decision.assignment["p"] == "new"
    assert decision.assignment["f"] == "a"


def test_the_explanation_shows_every_candidate_in_numbers():
    decision = place(make(FILTER), offers(running={"c": {"flt": "q1.f"}}, slots={"a": 3, "b": 2, "c": 1, "d": 1}))
    placed = {view.operator: view for view in decision.explanation}

    assert placed["p"].pinned
    assert placed["p"].candidates == ()
    assert [(c.node, c.usage_bytes, c.measured, c.free_slots) for c in placed["f"].candidates] == [
        ("a", 50.0, True, 3),
        ("b", 70.0, True, 2),
        ("c", 150.0, True, 1),
        ("d", 250.0, True, 1),
    ]


def test_probes_stay_within_the_budget():
    space = synthetic_space(100, 5)
    truth = truth_of(space, 0.2, 5)
    for seed in range(5):
        problem = join_tree(space, np.random.default_rng(seed), 6)
        decision = place(make(problem, space, probes=60), truthful(truth))
        assert decision.rtts_measured <= 5 * 60


def test_the_same_seed_gives_the_same_decision():
    space = synthetic_space(100, 6)
    truth = truth_of(space, 0.2, 6)
    problem = join_tree(space, np.random.default_rng(6), 6)
    for strategy in ("least-usage", "relaxation", "random"):
        decisions = [place(make(problem, space, strategy=strategy), truthful(truth)) for _ in range(2)]
        assert decisions[0] == decisions[1]


def test_measured_candidates_come_close_to_the_optimum():
    space = synthetic_space(150, 7)
    truth = truth_of(space, 0.2, 7)
    penalties = []
    for seed in range(12):
        problem = aggregate(space, np.random.default_rng(seed))
        decision = place(make(problem, space), truthful(truth))
        penalties.append(usage(problem, decision.assignment, truth) / optimal_assignment(problem, truth, space.names)[1] - 1)
    assert np.mean(penalties) < 0.06  # 0.019 observed


def test_usage_at_the_producers_is_the_mean_over_them():
    space = synthetic_space(40, 8)
    problem = join_tree(space, np.random.default_rng(8), 4)
    problem = PlacementProblem(problem.pinned, problem.unpinned, (*problem.links, PlacementLink("p0", "c", 700.0)))
    truth = truth_of(space, 0.0, 8)
    decision = place(make(problem, space), truthful(truth))

    there = sorted({problem.pinned[producer] for producer in problem.producers})
    each = [usage(problem, {**dict.fromkeys(problem.unpinned, node), **problem.pinned}, truth) for node in there]
    assert decision.usage_producer == pytest.approx(sum(each) / len(each))


# Ten nodes on a line, and one off the line that is at least 300 ms from all others by coordinates.
TEN = CostSpace({f"n{i}": node(10.0 * i) for i in range(10)} | {"odd": node(0.0, 300.0)})
UNION = PlacementProblem(
    {"p": "n0", "q": "n4", "s": "n9"},
    ("f",),
    (PlacementLink("p", "f", 2000.0), PlacementLink("q", "f", 3000.0), PlacementLink("f", "s", 4000.0)),
)
FEW = {"candidates": 2, "candidates_max": 4}


def recalling(problem=UNION, space=TEN, neighbour_rtts=3, **config):
    return FullOptimiser(problem, {}, space, PlacementConfig(**{**FEW, **config}), np.random.default_rng(1), neighbour_rtts=neighbour_rtts)


def asked_first(remembered):
    machine = recalling()
    machine.begin()
    return [action.node for action in machine.recalled(remembered)]


def test_pinned_nodes_are_first_asked_what_they_remember_of_the_candidates_those_of_the_highest_rates_first():
    (question,) = recalling().begin()

    assert isinstance(question, AskRemembered)
    assert list(question.about) == ["n9", "n4", "n0"]
    assert question.about == {"n9": ("n4", "n5", "n6"), "n4": ("n5", "n6"), "n0": ("n4", "n5", "n6")}


def test_a_node_that_looks_far_becomes_a_candidate_once_its_neighbours_remember_it_near():
    near = {"n0": {"odd": 1.0}, "n4": {"odd": 1.0}, "n9": {"odd": 1.0}}

    assert asked_first({}) == ["n4", "n5", "n6", "n7"]
    assert asked_first(near) == ["odd", "n4", "n5", "n6"]


def test_every_other_candidate_is_one_by_coordinates_whatever_is_said_to_be_remembered():
    lies = {pinned: dict.fromkeys((f"n{i}" for i in (1, 2, 7, 8)), 0.001) for pinned in ("n0", "n4", "n9")}

    assert asked_first(lies)[1::2] == ["n4", "n5"]
    assert set(asked_first(lies)[::2]) < {"n1", "n2", "n7", "n8"}


def test_what_strangers_are_said_to_be_is_ignored():
    assert asked_first({"n4": {"stranger": 0.1, "n4": 99.0}, "stranger": {"n1": 0.1}}) == asked_first({})


@pytest.mark.parametrize("settings", [{"candidates": 10, "candidates_max": 20}, {"probes": 0}, {"strategy": "relaxation"}])
def test_nobody_is_asked_what_it_remembers_where_that_changes_no_candidate(settings):
    assert all(isinstance(action, AskCandidate) for action in recalling(**settings).begin())
    assert all(isinstance(action, AskCandidate) for action in recalling(neighbour_rtts=0).begin())


def test_of_many_sources_a_bounded_number_is_asked_what_it_remembers():
    space = CostSpace({f"m{i:02d}": node(float(i)) for i in range(60)})
    links = tuple(PlacementLink(f"p{i}", "f", 1000.0 + i) for i in range(40))
    (question,) = recalling(PlacementProblem({f"p{i}": f"m{i:02d}" for i in range(40)}, ("f",), links), space).begin()

    assert list(question.about) == [f"m{i}" for i in range(39, 39 - RECALLING_NODES_MAX, -1)]


def test_what_is_remembered_is_taken_once_and_only_when_asked_for():
    machine = recalling()
    with pytest.raises(LocalProtocolError, match="recalled"):
        machine.recalled({})
    machine.begin()
    machine.recalled({})
    with pytest.raises(LocalProtocolError, match="recalled"):
        machine.recalled({})


def test_the_last_resort_of_a_bounded_query_stays_among_the_candidates():
    bounded = PlacementProblem(UNION.pinned, UNION.unpinned, UNION.links, delay_bound_ms=1000.0)
    told = {pinned: dict.fromkeys((f"n{i}" for i in (1, 2, 7, 8)), 0.001) for pinned in ("n0", "n4", "n9")}

    assert "n9" not in ranked_regions(UNION, TEN, 4, NetworkUsage(1.0), remembered=told)["f"]
    assert "n9" in ranked_regions(bounded, TEN, 4, NetworkUsage(1.0), remembered=told)["f"]


def test_in_a_large_space_remembered_nodes_are_ranked_with_those_nearby(monkeypatch):
    monkeypatch.setattr(regions, "SCAN_MAX", 5)
    monkeypatch.setattr(regions, "NEARBY", 3)

    crowd = {f"m{i}": node(1000.0 + 10 * i) for i in range(3000)} | {"odd": node(0.0, 20_000.0)}
    space = CostSpace({f"n{i}": node(10.0 * i) for i in range(10)} | crowd)
    told = {pinned: {"odd": 1.0} for pinned in ("n0", "n4", "n9")}

    assert ranked_regions(UNION, space, 1, NetworkUsage(1.0))["f"] == ("n4",)
    assert ranked_regions(UNION, space, 1, NetworkUsage(1.0), remembered=told)["f"] == ("odd",)
