"""Pieces of a state arrive once and in order, despite loss and reordering. No more are kept than the window allows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import LinkError, LocalProtocolError
from sbon.migration.pacing import Window
from sbon.migration.pieces import Piece, PieceReceiver, PieceSender, Turn
from tests.examples import examples


def make_receiver(bytes_max: int = 10**9) -> PieceReceiver:
    return PieceReceiver("q.1", bytes_max)


@examples(200)
@given(
    st.integers(1, 60),
    st.integers(1, 12),
    st.lists(st.sampled_from(["send", "lose", "deliver", "twice", "effect", "answer", "forget answer", "again"]), max_size=80),
)
def test_every_piece_is_taken_once_and_in_order(window: int, pieces: int, events: list[str]):
    sender, receiver = PieceSender(Window(window, window)), make_receiver()
    way: list[Piece] = []
    answers: list[int] = []
    taken: list[int] = []
    effects: list[int] = []

    def deliver(piece: Piece) -> None:
        try:
            turn = receiver.arrived(piece.index, piece.last, len(piece.data))
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
    for _ in range(pieces + 1):  # in the end the path works
        for event in ("again", *["deliver"] * pieces, *["effect"] * pieces, *["answer"] * 3 * (pieces + len(events)), *["send"] * pieces):
            step(event)
    assert taken == effects == list(range(pieces))
    assert sender.answered_below == pieces
    assert sender.again() == ()


def test_nothing_comes_behind_the_last_piece():
    receiver = make_receiver()
    assert receiver.arrived(0, True, 5) is Turn.TAKE
    with pytest.raises(LocalProtocolError, match="after the last"):
        receiver.arrived(1, False, 5)


def test_a_state_that_is_too_large_is_refused():
    receiver = make_receiver(bytes_max=10)
    receiver.arrived(0, False, 8)
    with pytest.raises(LocalProtocolError, match="state_bytes_max"):
        receiver.arrived(1, False, 8)
