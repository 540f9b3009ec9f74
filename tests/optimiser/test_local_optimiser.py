import math

import numpy as np
import pytest

from sbon.cost.space import CostSpace
from sbon.optimiser.config import OptimiserConfig
from sbon.optimiser.local import LocalOptimiser
from sbon.optimiser.views import Ask, Migrate, Neighbour, OperatorView, Stay, bodies
from sbon.placement.candidates import CandidateReport
from tests.placement_worlds import node

LINE = CostSpace({"a": node(0.0), "b": node(10.0), "c": node(50.0), "d": node(100.0)})


def view(here="d", **changes):
    """Returns a selective operator that is far from its producer at a; its consumer is at d."""
    neighbours = (Neighbour("a", 5000.0, True, "p"), Neighbour("d", 1000.0, False, "s"))
    return OperatorView(**{"id": "f", "here": here, "neighbours": neighbours, **changes})


def make(**config):
    return LocalOptimiser(OptimiserConfig(**config), np.random.default_rng(1))


def answers(ask, space=LINE, slots=5, load=None, noise=lambda: 1.0):
    return {
        name: CandidateReport(
            name, {peer: space.rtt_ms(name, peer) * noise() for peer in ask.about if peer != name}, slots, (load or {}).get(name, 0.0)
        )
        for name in ask.candidates
    }


def run(optimiser, subject, space=LINE, reviews=10, start=0.0, **how):
    """Reviews every 10 s until the verdict is more than waiting for certainty; returns it."""
    for index in range(reviews):
        now = start + 10.0 * index
        ask = optimiser.review(subject, space, now)
        if ask is None:
            return None
        verdict = optimiser.decide(subject, answers(ask, space, **how), space, now)
        if not isinstance(verdict, Stay) or not verdict.pending:
            return verdict
    raise AssertionError("still not sure")


def test_this_node_is_asked_first_and_like_the_others():
    ask = make(candidates=2).review(view(), LINE, now=0.0)

    assert ask == Ask("f", ("d", "a", "b"), ("a", "d"))


def test_a_far_operator_moves_once_it_is_sure():
    optimiser = make(confirmations=3)
    verdicts = []
    for now in (0.0, 10.0, 20.0):
        ask = optimiser.review(view(), LINE, now)
        verdicts.append(optimiser.decide(view(), answers(ask), LINE, now))

    assert [type(verdict) for verdict in verdicts] == [Stay, Stay, Migrate]
    assert verdicts[0].pending
    moved = verdicts[2]
    assert (moved.operator, moved.to, moved.usage_now, moved.usage_there) == ("f", "a", 250.0, 50.0)
    assert moved.saving_fraction == pytest.approx(0.8)
    assert moved.alternatives[0].node == "a"
    assert moved.alternatives[0].measured
    assert "a saves 80%" in moved.reason


def test_an_operator_at_its_best_place_stays_and_is_left_alone():
    optimiser = make(lookup_interval_s=60.0)
    verdict = run(optimiser, view(here="a"))

    assert isinstance(verdict, Stay)
    assert not verdict.pending
    assert optimiser.review(view(here="a"), LINE, now=10.0) is None
    assert optimiser.review(view(here="a"), LINE, now=61.0) is not None


def test_candidates_are_looked_for_when_the_best_point_has_moved_by_the_threshold():
    optimiser = make(displacement_threshold_ms=5.0)
    run(optimiser, view(here="a"))

    near = CostSpace({**LINE.coordinates, "a": node(4.0)})
    far = CostSpace({**LINE.coordinates, "a": node(6.0)})
    assert optimiser.review(view(here="a"), near, now=10.0) is None
    assert optimiser.review(view(here="a"), far, now=20.0) is not None


def test_an_operator_that_has_just_arrived_stays():
    optimiser = make(cooldown_s=30.0)

    assert optimiser.review(view(changes=1, since_change_s=29.0), LINE, now=0.0) is None
    assert optimiser.review(view(changes=1, since_change_s=30.0), LINE, now=0.0) is not None


def test_savings_below_the_threshold_do_not_move():
    assert isinstance(run(make(saving_min_fraction=0.85), view()), Stay)
    assert isinstance(run(make(saving_min_bytes=201.0), view()), Stay)
    assert isinstance(run(make(saving_min_fraction=0.6, saving_min_bytes=150.0), view()), Migrate)


def test_a_large_state_stays_unless_the_saving_pays_for_carrying_it():
    """10 MB over 50 ms cost 0.5 MB s; a saving of 200 bytes pays for that in 2,500 s."""
    heavy = view(state_bytes=10_000_000)

    assert isinstance(run(make(amortise_s=2000.0), heavy), Stay)
    assert isinstance(run(make(amortise_s=10_000.0), heavy), Migrate)


def test_earlier_migrations_raise_the_threshold_for_a_while():
    config = {"saving_min_fraction": 0.3, "damping": 1.0, "damping_half_life_s": 1000.0, "cooldown_s": 10.0}

    assert isinstance(run(make(**config), view(changes=2, since_change_s=11.0)), Stay)  # must save 90 %
    assert isinstance(run(make(**config), view(changes=2, since_change_s=2000.0)), Migrate)  # must save 45 %


def test_a_node_without_room_is_passed_over():
    optimiser = make()
    stay = run(optimiser, view(), slots=0)

    assert isinstance(stay, Stay)
    assert "has room for 0 operators" in stay.reason


def test_load_moves_an_operator_away():
    verdict = run(make(), view(here="a"), load={"a": 400.0})

    assert isinstance(verdict, Migrate)
    assert verdict.to == "b"


def test_rtts_measured_on_one_side_only_are_predicted_on_both():
    """If only one side were predicted, a wrong prediction would look like a saving."""
    optimiser = make()
    ask = optimiser.review(view(), LINE, now=0.0)
    reports = answers(ask)
    reports["d"] = CandidateReport("d", {}, 5)
    verdict = optimiser.decide(view(), reports, LINE, now=0.0)

    best = verdict.alternatives[0]
    assert (best.usage_here_bytes, best.usage_bytes) == (250.0, 50.0)
    assert [a.measured for a in verdict.alternatives if a.node == "b"] == [False]


def test_predicted_savings_must_exceed_the_margin_of_prediction():
    def decide(margin):
        optimiser = make(prediction_margin=margin, confirmations=1, certainty=0.0)
        ask = optimiser.review(view(), LINE, now=0.0)
        return optimiser.decide(view(), {name: CandidateReport(name, {}, 5) for name in ask.candidates}, LINE, now=0.0)

    assert isinstance(decide(0.3), Migrate)
    assert isinstance(decide(1.0), Stay)


def test_who_answers_no_more_ends_the_attempt():
    optimiser = make()
    ask = optimiser.review(view(), LINE, now=0.0)
    assert optimiser.decide(view(), answers(ask), LINE, now=0.0).pending
    optimiser.review(view(), LINE, now=10.0)

    verdict = optimiser.decide(view(), {}, LINE, now=10.0)

    assert verdict == Stay("f", "no candidate has answered")


def test_a_neighbour_without_a_coordinate_leaves_the_operator_alone():
    subject = view(neighbours=(Neighbour("gone", 1000.0, True), Neighbour("d", 10.0, False)))

    assert make().review(subject, LINE, now=0.0) is None


def test_idle_operators_are_left_alone():
    assert make().review(view(neighbours=(Neighbour("a", 0.0, True),)), LINE, now=0.0) is None


def test_operators_that_hold_each_other_move_as_one_body():
    """Moved alone, each operator would pay for the link between them; together they save."""
    join = OperatorView("j", "d", (Neighbour("a", 1000.0, True, "p"), Neighbour("d", 1500.0, False, "w")), state_bytes=10)
    window = OperatorView("w", "d", (Neighbour("d", 1500.0, True, "j"), Neighbour("d", 100.0, False, "s")), changes=1, since_change_s=500.0)
    alone = OperatorView("x", "d", (Neighbour("a", 1.0, True, "y"),))

    (body,) = bodies([join, window, alone])

    assert body == OperatorView(
        "j",
        "d",
        (Neighbour("a", 1000.0, True, "p"), Neighbour("d", 100.0, False, "s")),
        changes=1,
        since_change_s=500.0,
        state_bytes=10,
        members=("j", "w"),
    )
    assert isinstance(run(make(), join), Stay)
    verdict = run(make(), body)
    assert isinstance(verdict, Migrate)
    assert verdict.operators == ("j", "w")


def test_forgotten_operators_are_looked_at_anew():
    optimiser = make()
    run(optimiser, view(here="a"))
    assert optimiser.review(view(here="a"), LINE, now=10.0) is None

    optimiser.forget("f")

    assert optimiser.review(view(here="a"), LINE, now=10.0) is not None


def far_and_near(**changes):
    """An operator between a strong producer at a and a weak one at d. The consumer is at d, so at a the weak rows would go to and fro."""
    neighbours = (Neighbour("a", 5000.0, True, "p"), Neighbour("d", 100.0, True, "q"), Neighbour("d", 100.0, False, "s"))
    return view(here="c", neighbours=neighbours, **changes)


def test_an_operator_stays_where_the_ways_of_its_queries_must_not_grow():
    verdict = run(make(candidates=1), far_and_near(delay_slack_ms=45.0))

    assert isinstance(verdict, Stay)
    assert verdict.reason == "a would save 92%, but lengthen the way of a query by 50 ms, expected at most 45 ms"
    assert run(make(candidates=1), far_and_near(delay_slack_ms=55.0)).to == "a"


def test_work_that_takes_longer_uses_up_slack_as_the_network_does():
    longer = run(make(candidates=1), far_and_near(delay_slack_ms=55.0, computing_ms={"a": 6.0}))
    full = run(make(candidates=1), far_and_near(delay_slack_ms=1e9, computing_ms={"a": math.inf}))

    assert longer.reason == "a would save 92%, but lengthen the way of a query by 56 ms, expected at most 55 ms"
    assert full.reason == "a would save 92%, but has no processor left for the work of a query with a bound"
    assert run(make(candidates=1), far_and_near(delay_slack_ms=55.0, computing_ms={"a": 4.0})).to == "a"
    assert run(make(candidates=1), far_and_near()).to == "a"


def test_beyond_its_bound_an_operator_may_only_move_where_the_ways_get_no_longer():
    assert isinstance(run(make(candidates=1), far_and_near(delay_slack_ms=-5.0)), Stay)
    assert run(make(), view(delay_slack_ms=-5.0)).to == "a"


def test_a_way_that_is_far_from_the_longest_may_grow():
    delays = (Neighbour("a", 5000.0, True, "p", 500.0), Neighbour("d", 100.0, True, "q", 0.0), Neighbour("d", 100.0, False, "s"))

    assert run(make(candidates=1), view(here="c", neighbours=delays, delay_slack_ms=1.0)).to == "a"


def test_a_body_bears_what_the_least_of_its_members_bears():
    first = view(delay_slack_ms=30.0)
    second = OperatorView("s", "d", (Neighbour("d", 1000.0, True, "f", 7.0), Neighbour("d", 1.0, False, "z")), delay_slack_ms=10.0)

    body = bodies([first, second])[0]
    assert body.delay_slack_ms == 10.0
    assert all(neighbour.delay_ms is None for neighbour in body.neighbours)
