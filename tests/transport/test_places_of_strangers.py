"""Limits on unfinished handshakes and on the rate of log lines."""

import pytest

from sbon.admission import FairSlots, LineLimit, source_of


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::9", "2001:db8:1:2::"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::"),
        ("node.example", "node.example"),
    ],
)
def test_a_source_is_what_one_party_has_for_itself(host, source):
    assert source_of(host) == source


def test_a_source_that_holds_its_share_displaces_its_own_oldest():
    places = FairSlots(total_max=10, per_source_max=2)
    assert [places.enter(key, "x") for key in "abcd"] == [None, None, "a", "b"]
    assert places.enter("e", "y") is None
    assert len(places) == 3


def test_a_source_that_holds_its_share_displaces_nobody_else():
    places = FairSlots(total_max=10, per_source_max=2)
    assert [places.enter(key, source) for key, source in (("y1", "y"), ("x1", "x"), ("x2", "x"))] == [None, None, None]
    assert places.enter("x3", "x") == "x1"


def test_when_all_are_taken_the_oldest_of_whoever_holds_most_goes():
    places = FairSlots(total_max=4, per_source_max=3)
    for key, source in (("y1", "y"), ("x1", "x"), ("x2", "x"), ("x3", "x")):
        assert places.enter(key, source) is None
    assert places.enter("z1", "z") == "x1"
    assert places.enter("z2", "z") == "x2"
    assert len(places) == 4


def test_whoever_has_left_frees_its_place_once():
    places = FairSlots(total_max=2, per_source_max=2)
    places.enter("a", "x")
    places.enter("b", "x")
    places.leave("a")
    places.leave("a")
    assert places.enter("c", "x") is None
    assert places.enter("d", "x") == "b"


def test_lines_are_limited_by_subject_and_in_all():
    limit = LineLimit(pause_s=60.0, lines_max=2)
    assert [limit.allows(subject, 0.0) for subject in ("x", "x", "y", "z")] == [True, False, True, False]
    assert not limit.allows("x", 59.9)
    assert limit.allows("z", 60.0)
    assert limit.allows("x", 60.0)
    assert not limit.allows("y", 60.0)
