"""Pieces of a state arrive once and in order whatever happens to them on the way, and no more of them are kept than the window allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import LinkError, LocalProtocolError
from sbon.pacing import Window
from sbon.state_pieces import Arrival, Piece, PieceSender, Turn
from tests.examples import examples


def arrival(bytes_max: int = 10**9) -> Arrival:
    return Arrival("q.1", 1, "here", 0.0, 5.0, bytes_max)


@examples(200)
@given(
    st.integers(1, 60),
    st.integers(1, 12),
    st.lists(st.sampled_from(["send", "lose", "deliver", "twice", "effect", "answer", "forget answer", "again"]), max_size=80),
)
def test_every_piece_is_taken_once_and_in_order(window: int, pieces: int, events: list[str]):
    sender, receiver = PieceSender(Window(window, window)), arrival()
    way: list[Piece] = []
    answers: list[int] = []
    taken: list[int] = []
    effects: list[int] = []

    def deliver(piece: Piece) -> None:
        try:
            turn = receiver.arrived(piece.index, piece.last, len(piece.data), 0.0)
        except LinkError:
            return
        if turn is Turn.TAKE:
            taken.append(piece.index)
        elif turn is Turn.ANSWER:
            answers.append(piece.index)

    def step(event: str) -> None:
        if event == "send" and sender.has_room() and sender.next_index < pieces:
            way.append(sender.offer(bytes(10), last=sender.next_index == pieces - 1))
        elif event == "lose" and way:
            del way[0]
        elif event in ("deliver", "twice") and way:
            deliver(way[0] if event == "twice" else way.pop(0))
        elif event == "effect" and len(effects) < len(taken):
            receiver.had_effect()
            effects.append(taken[len(effects)])
            answers.append(effects[-1])
        elif event == "answer" and answers:
            sender.answered(answers.pop(0))
        elif event == "forget answer" and answers:
            del answers[0]
        elif event == "again":
            way[:] = list(sender.again())

    for event in events:
        step(event)
        assert sender.held_bytes <= window + 10
        assert sender.answered_below <= len(effects)
    for _ in range(pieces + 1):  # in the end the way is good
        for event in ("again", *["deliver"] * pieces, *["effect"] * pieces, *["answer"] * 3 * (pieces + len(events)), *["send"] * pieces):
            step(event)
    assert taken == effects == list(range(pieces))
    assert sender.answered_below == pieces
    assert sender.again() == ()


def test_nothing_comes_behind_the_last_piece():
    receiver = arrival()
    assert receiver.arrived(0, True, 5, 0.0) is Turn.TAKE
    with pytest.raises(LocalProtocolError, match="behind the last"):
        receiver.arrived(1, False, 5, 0.0)


def test_a_state_that_is_too_large_is_refused():
    receiver = arrival(bytes_max=10)
    receiver.arrived(0, False, 8, 0.0)
    with pytest.raises(LocalProtocolError, match="state_bytes_max"):
        receiver.arrived(1, False, 8, 0.0)


def test_an_arrival_asks_once_a_period_when_it_hears_nothing():
    receiver = arrival()
    assert not receiver.must_ask(4.9)
    assert receiver.must_ask(5.0)
    assert not receiver.must_ask(6.0)
    assert receiver.must_ask(10.0)
