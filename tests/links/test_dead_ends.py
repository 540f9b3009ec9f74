"""Outputs that an operator gives up, and the dead end that it reports to its feeders if all outputs are obstructed."""

import pytest

from sbon.links.dead_ends import REASON_LENGTH_MAX, Absence, Obstruction, Way, judge, obstruction

PATIENCE_S = 120.0
FAILED = Absence("failed", 130.0)
JUST_FAILED = Absence("failed", 50.0)
TOLD = Obstruction("c on fra, which failed 130 s ago", True)


def way(name="a", **facts) -> Way:
    return Way(f"s>{name}:0", name, "nyc", **facts)


@pytest.mark.parametrize(
    ("facts", "reason", "for_good"),
    [
        ({"absence": FAILED}, "a on nyc, which failed 130 s ago", True),
        ({"absence": JUST_FAILED}, "a on nyc, which failed 50 s ago", False),
        ({"absence": Absence("failed", PATIENCE_S)}, "a on nyc, which failed 120 s ago", False),
        ({"absence": Absence("left", 1.0)}, "a on nyc, which left 1 s ago", True),
        ({"is_unknown_there": True}, "a on nyc, which does not run it (any more)", True),
        ({"told": TOLD}, "a on nyc, which leads only to c on fra, which failed 130 s ago", True),
        (
            {"told": Obstruction("c on fra, which failed 50 s ago", False)},
            "a on nyc, which leads only to c on fra, which failed 50 s ago",
            False,
        ),
    ],
)
def test_a_way_is_obstructed_by_absence_by_ignorance_and_by_what_lies_behind(facts, reason, for_good):
    assert obstruction(way(**facts), PATIENCE_S) == Obstruction(reason, for_good)
    assert obstruction(way(), PATIENCE_S) is None


@pytest.mark.parametrize("facts", [{"absence": FAILED}, {"is_unknown_there": True}, {"told": TOLD}])
def test_what_is_gone_for_good_is_given_up_where_there_is_another_way(facts):
    judgement = judge([way(**facts), way("b")], PATIENCE_S)
    assert set(judgement.given_up) == {"s>a:0"}
    assert judgement.dead_end is None


def test_what_may_come_back_is_not_given_up():
    judgement = judge([way(absence=JUST_FAILED), way("b")], PATIENCE_S)
    assert (judgement.given_up, judgement.dead_end) == ({}, None)
    assert set(judgement.obstructed) == {"s>a:0"}, "but its obstruction is reported"


def test_the_only_way_is_kept_and_told_of():
    judgement = judge([way(told=TOLD)], PATIENCE_S)
    assert judgement.given_up == {}
    assert judgement.dead_end == Obstruction("a on nyc, which leads only to c on fra, which failed 130 s ago", True)


def test_of_ways_that_are_all_gone_the_last_is_kept():
    judgement = judge([way(absence=FAILED), way("b", absence=FAILED)], PATIENCE_S)
    assert set(judgement.given_up) == {"s>a:0"}
    assert judgement.dead_end == Obstruction("b on nyc, which failed 130 s ago", True)


def test_a_dead_end_may_be_one_for_a_while():
    judgement = judge([way(absence=JUST_FAILED), way("b", absence=Absence("failed", 60.0))], PATIENCE_S)
    assert judgement.given_up == {}
    assert judgement.dead_end == Obstruction("a on nyc, which failed 50 s ago and b on nyc, which failed 60 s ago", False)


def test_a_multicast_gives_up_even_its_last_way():
    judgement = judge([way(absence=FAILED, may_be_last=True)], PATIENCE_S)
    assert set(judgement.given_up) == {"s>a:0"}
    assert judgement.dead_end is None


def test_while_the_disk_takes_it_nobody_is_given_up_but_who_has_forgotten():
    assert judge([way(absence=FAILED, has_disk=True), way("b")], PATIENCE_S).given_up == {}
    assert judge([way(absence=FAILED, has_disk=True)], PATIENCE_S).dead_end is None
    assert set(judge([way(is_unknown_there=True, has_disk=True), way("b")], PATIENCE_S).given_up) == {"s>a:0"}


def test_an_operator_without_outputs_is_no_dead_end():
    assert judge([], PATIENCE_S).dead_end is None


def test_a_reason_does_not_grow_for_ever():
    told = Obstruction("x" * 1000, True)
    assert len(judge([way(told=told), way("b", told=told)], PATIENCE_S).dead_end.reason) <= REASON_LENGTH_MAX
