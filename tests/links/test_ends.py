"""The table of links' ends: every rule, and the same result however the network reorders, loses or repeats news."""

import random
from itertools import product

import msgspec
import pytest

from sbon.errors import LocalProtocolError
from sbon.links.ends import RULES, Age, End, Ends, ForgetDelay, Place, SendAgain, Side, Step, Version, age, hear, pause_s
from sbon.query.plan import LinkSpec

LINK = LinkSpec("q.1>q.2:0", "q.1", "q.2", 0, 1.0, 1.0, handed=3)
UP, DOWN = object(), object()
"""Operators of this host that own the ends."""


def end_at(node: str = "far", epoch: int = 5) -> End:
    end = End(LINK, node, epoch)
    end.name("next", 6)
    end.name("later", 8)
    return end


def facts(end: End) -> tuple:
    return end.node, end.epoch, end.former, end.link.source, end.link.handed, dict(end.named)


SAME = ("far", 5, None, "q.1", 3, {6: "next", 8: "later"})
AGAIN, FORGOTTEN = [SendAgain(LINK.id)], [ForgetDelay(LINK.id)]


@pytest.mark.parametrize(
    ("other", "place", "news", "then", "actions"),
    [
        (Side.TAKES, Place("q.2", "there", Version(0, 6)), Age.MOVED, ("there", 6, "far", "q.1", 3, {8: "later"}), AGAIN),
        (Side.TAKES, Place("q.2", "far", Version(0, 7)), Age.MOVED, ("far", 7, None, "q.1", 3, {8: "later"}), AGAIN),
        (Side.TAKES, Place("q.2", "there", Version(0, 5)), Age.KNOWN, SAME, []),
        (Side.TAKES, Place("q.2", "there", Version(0, 4)), Age.LATE, SAME, []),
        (Side.GIVES, Place("q.1", "there", Version(3, 6)), Age.MOVED, ("there", 6, "far", "q.1", 3, {8: "later"}), FORGOTTEN),
        (Side.GIVES, Place("q.1", "far", Version(3, 6)), Age.MOVED, ("far", 6, None, "q.1", 3, {8: "later"}), []),
        (Side.GIVES, Place("q.1", "there", Version(3, 5)), Age.KNOWN, SAME, []),
        (Side.GIVES, Place("q.1", "there", Version(3, 4)), Age.LATE, SAME, []),
        (Side.GIVES, Place("q.1~m", "far", Version(4, 0)), Age.PASSED, ("far", 0, None, "q.1~m", 4, {}), []),
        (Side.GIVES, Place("q.1~m", "there", Version(4, 0)), Age.PASSED, ("there", 0, "far", "q.1~m", 4, {}), []),
        (Side.GIVES, Place("q.1~m", "there", Version(2, 9)), Age.LATE, SAME, []),
    ],
)
def test_news_of_each_age_changes_what_the_rules_say(other, place, news, then, actions):
    end = end_at()
    assert age(end.place(other).version, place.version) is news

    assert hear(end, other, place) == actions
    assert facts(end) == then
    assert hear(end, other, place) == [], "repeated news changes nothing"
    assert facts(end) == then


def test_rules_are_complete_and_each_step_is_used():
    assert set(product(Side, Age)) - set(RULES) == {(Side.TAKES, Age.PASSED)}
    assert {step for steps in RULES.values() for step in steps} == set(Step)
    assert all(not RULES[side, news] for side in Side for news in (Age.KNOWN, Age.LATE))


def test_taking_end_cannot_pass():
    with pytest.raises(LocalProtocolError, match="cannot pass to another operator"):
        hear(end_at(), Side.TAKES, Place("q.2", "there", Version(1, 0)))


def table(remembered: int = 2) -> Ends[object, End, End]:
    """Returns the table of a host: `UP` gives rows to q.2 over two links and to q.9 over one, `DOWN` takes rows from q.1 over two links."""
    ends: Ends[object, End, End] = Ends(remembered)
    for number in range(2):
        ends.add_giving(UP, End(msgspec.structs.replace(LINK, id=f"out{number}", source="q.up"), "far", 0))
        ends.add_taking(DOWN, End(msgspec.structs.replace(LINK, id=f"in{number}", target="q.down"), "near", 0))
    ends.add_giving(UP, End(LinkSpec("other", "q.up", "q.9", 0, 1.0, 1.0), "far", 0))
    return ends


def test_move_is_for_all_links_of_the_operator_and_for_no_other():
    ends = table()

    assert ends.moved("q.2", "there", 1) == [SendAgain("out0"), SendAgain("out1")]
    assert ends.moved("q.2", "there", 1) == []
    assert ends.moved("q.1", "there", 1) == [ForgetDelay("in0"), ForgetDelay("in1")]
    assert [end.node for end in ends.giving()] == ["there", "there", "far"]
    assert [end.node for _, end in ends.beside("q.1")] == ["there", "there"]


def test_passing_is_for_one_link_and_a_move_of_the_operator_before_is_not_for_it_any_more():
    ends = table()
    passed = msgspec.structs.replace(LINK, id="in1", source="q.1~m", handed=4)

    assert ends.passed(passed, "near") == []
    assert [end.link.id for _, end in ends.beside("q.1")] == ["in0"]
    assert [end.link.id for _, end in ends.beside("q.1~m")] == ["in1"]
    assert ends.moved("q.1", "there", 9) == [ForgetDelay("in0")]
    assert ends.moved("q.1~m", "third", 1) == [ForgetDelay("in1")], "the multicast has epochs of its own"
    assert ends.passed(msgspec.structs.replace(passed, source="q.1", handed=3), "near") == []
    assert [(end.node, end.link.source) for _, end in ends.beside("q.1~m")] == [("third", "q.1~m")], "late news changes nothing"
    assert ends.passed(msgspec.structs.replace(passed, id="in7"), "near") == [], "this host has no such link"


@pytest.mark.parametrize("seed", range(20))
def test_order_loss_and_repetition_of_news_do_not_count_as_long_as_the_last_one_is_heard(seed):
    rng, ends = random.Random(seed), table()
    news = [(node, epoch) for epoch, node in enumerate("abcdef", 1)]
    heard = [*rng.choices(news, k=10), news[-1]]
    rng.shuffle(heard)
    moves = [ends.moved("q.2", node, epoch) for node, epoch in heard]

    highest, expected = 0, 0
    for _, epoch in heard:  # the plain twin: a move counts if it is the highest so far
        highest, expected = max(highest, epoch), expected + (epoch > highest)
    assert sum(bool(actions) for actions in moves) == expected
    assert {(end.node, end.epoch) for _, end in ends.beside("q.2")} == {("f", 6)}


def test_operators_that_have_left_are_found_until_they_return_or_are_too_many():
    ends = table(remembered=2)
    assert ends.place("a") is None
    ends.left("a", "there", 3)
    ends.moved("a", "old", 2)
    assert ends.place("a") == ("there", 3)
    ends.moved("a", "third", 4)
    assert ends.place("a") == ("third", 4)
    ends.left("b", "there", 1)
    ends.moved("a", "fourth", 5)
    ends.left("c", "there", 1)
    assert [ends.place(operator) for operator in "abc"] == [("fourth", 5), None, ("there", 1)], "the oldest entry goes first"
    ends.moved("b", "there", 2)
    assert ends.place("b") is None, "news about a dropped entry does not bring it back"
    ends.returned("a")
    assert ends.place("a") is None


def test_places_are_those_of_both_sides_and_of_what_has_left():
    ends = table()
    ends.left("q.2", "there", 7)

    assert [(place.node, place.epoch) for place in ends.places("q.2")] == [("far", 0), ("far", 0), ("there", 7)]
    assert [(place.node, place.epoch) for place in ends.places("q.1")] == [("near", 0), ("near", 0)]
    assert ends.places("nobody") == []


def test_link_belongs_to_one_operator_here():
    ends = table()

    assert ends.claimed(UP, ["new"], ["out0"]) is None
    assert ends.claimed(DOWN, ["in0"], ["out0"]) == "out0"
    assert ends.claimed(UP, ["in1"], ["out0"]) == "in1"
    ends.drop_taking("in1")
    ends.drop_taking("in1")
    ends.drop_giving("out1")
    assert (ends.takes("in1"), ends.gives("out1")) == (None, None)
    assert ends.claimed(UP, ["in1"], ["out1"]) is None
    assert ends.takes("in0")[0] is DOWN
    assert ends.gives("out0")[0] is UP


def test_pauses_double_up_to_the_longest_one():
    assert [pause_s(tries) for tries in range(1, 9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def test_of_several_ends_of_a_link_the_one_that_has_begun_anew_last_is_found():
    """A multicast fed by a former copy of an operator may still own an end of a link that the present copy owns, too."""
    ends: Ends = Ends(10)
    former, latest, other = (End(msgspec.structs.replace(LINK, id=name), "far", 0) for name in (LINK.id, f"{LINK.id}+12", f"{LINK.id}+3"))
    for owner, end in ((UP, former), (DOWN, latest), (UP, other)):
        ends.add_giving(owner, end)
        ends.add_taking(owner, end)
    assert ends.gives_first(LINK.id) == ends.takes_first(LINK.id) == (DOWN, latest)
    assert ends.gives_first("other") is None
