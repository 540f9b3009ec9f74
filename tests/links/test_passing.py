"""Receivers are told who gives on their links: each event in each state, and the final knowledge over a network that loses messages."""

import random

import pytest

from sbon.errors import LocalProtocolError
from sbon.links.passing import Ask, Noted, Passing


def asked(turn: int = 1) -> Passing:
    machine = Passing()
    assert machine.passed("a", turn) == [Ask("a")]
    return machine


def waiting() -> Passing:
    machine = asked()
    assert machine.refused("a", 10.0) == []
    return machine


def test_receiver_that_answers_is_told_and_not_asked_again():
    machine = asked()
    assert (machine.is_telling("a"), machine.is_telling("b"), machine.next_wake()) == (True, False, None)

    assert machine.answered("a") == [Noted("a")]
    assert not machine.is_telling("a")
    assert machine.wake(100.0) == []
    assert machine.passed("a", 2) == [Ask("a")]


def test_end_that_passes_again_meanwhile_waits_for_the_answer_and_is_told_at_once():
    machine = asked()
    assert machine.passed("a", 2) == []

    assert machine.answered("a") == [Ask("a")]
    assert machine.answered("a") == [Noted("a")]


def test_receiver_that_refuses_is_asked_after_pauses_that_double():
    machine, now, pauses = asked(), 10.0, []
    for _ in range(7):
        machine.refused("a", now)
        due = machine.next_wake()
        assert machine.wake(due - 0.01) == []
        assert machine.wake(due) == [Ask("a")]
        assert machine.next_wake() is None
        pauses.append(due - now)
        now = due

    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    assert machine.passed("a", 2) == []
    machine.answered("a")
    machine.refused("a", 0.0)
    assert machine.next_wake() == 0.5, "the receiver has answered in between"


def test_end_that_passes_during_a_pause_is_told_after_it():
    machine = waiting()
    assert machine.passed("a", 2) == []

    assert machine.wake(10.5) == [Ask("a")]
    assert machine.answered("a") == [Noted("a")], "the later turn was asked for"


def test_end_that_is_gone_is_told_no_more():
    machine = asked()
    assert machine.gone("a") == []

    assert not machine.is_telling("a")
    assert machine.wake(100.0) == []


@pytest.mark.parametrize("make", [Passing, waiting], ids=["nothing", "waiting"])
def test_answers_to_nothing_that_was_asked_are_mistakes(make):
    for event in (Passing.answered, Passing.gone, lambda machine, link: machine.refused(link, 11.0)):
        with pytest.raises(LocalProtocolError, match="not being asked"):
            event(make(), "a")


def test_links_wait_by_themselves():
    machine = waiting()
    assert machine.passed("b", 1) == [Ask("b")]
    machine.refused("b", 10.2)

    assert machine.wake(10.5) == [Ask("a")]
    assert machine.next_wake() == 10.7
    assert machine.wake(11.0) == [Ask("b")]


@pytest.mark.parametrize("seed", range(20))
def test_receivers_know_the_last_turn_whatever_is_lost(seed):
    rng, machine, now = random.Random(seed), Passing(), 0.0
    turns, known, under_way, told = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0), {}, set()

    def perform(actions):
        for action in actions:
            if isinstance(action, Ask):
                assert action.link not in under_way, "two requests at a time"
                under_way[action.link] = turns[action.link]
            else:
                assert known[action.link] == turns[action.link]
                told.add(action.link)

    for step in range(400):
        now += 0.1
        link = rng.choice("abc")
        if step < 200 and rng.random() < 0.2:
            turns[link] += 1
            told.discard(link)
            perform(machine.passed(link, turns[link]))
        elif link in under_way:
            turn = under_way.pop(link)
            heard = rng.random() < (0.5 if step < 200 else 1.0)
            if heard or rng.random() < 0.5:  # the request arrives, though its answer may be lost
                known[link] = max(known[link], turn)
            perform(machine.answered(link) if heard else machine.refused(link, now))
        perform(machine.wake(now))

    assert known == turns
    assert told == {link for link, turn in turns.items() if turn}
    assert not any(machine.is_telling(link) for link in "abc")
