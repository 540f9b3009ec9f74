"""Sender and receiver of a state in pieces, one call at a time."""

import pytest

from sbon.errors import LinkError
from sbon.migration.pacing import Window
from sbon.migration.pieces import PieceReceiver, PieceSender, Turn


def test_a_piece_is_acknowledged_once_it_has_been_applied_and_again_when_it_is_repeated():
    receiver = PieceReceiver("q.1", 100)
    assert receiver.arrived(0, False, 1) is Turn.TAKE
    assert receiver.arrived(0, False, 1) is Turn.WAIT
    receiver.had_effect()
    assert receiver.arrived(0, False, 1) is Turn.ANSWER


def test_a_piece_behind_a_missing_one_is_not_taken():
    receiver = PieceReceiver("q.1", 100)
    receiver.arrived(0, False, 1)
    with pytest.raises(LinkError, match="piece 2, expected 1"):
        receiver.arrived(2, True, 1)
    assert receiver.next_index == 1


class Measured(Window):
    """A window that records how long pieces took."""

    def __init__(self) -> None:
        super().__init__(1000, 1000)
        self.took_s: list[float] = []

    def answered(self, size_bytes: int, took_s: float) -> None:
        self.took_s.append(took_s)


def test_only_pieces_that_were_sent_once_measure_the_path():
    window = Measured()
    sender = PieceSender(window)
    for now in (0.0, 1.0):
        sender.offer(b"x", last=False, now=now)
    assert sender.answered(0, now=0.5)
    assert window.took_s == [0.5]

    assert [piece.index for piece in sender.again()] == [1]
    sender.offer(b"y", last=True, now=5.0)
    assert sender.answered(1, now=6.0)
    assert window.took_s == [0.5]
    assert sender.answered(2, now=6.5)
    assert window.took_s == [0.5, 1.5]
    assert (sender.held_bytes, sender.sent_bytes) == (0, 3)
