"""Links: numbering, credit, acknowledgement, resend."""

import pytest

from sbon.errors import LocalProtocolError
from sbon.links.config import LinkConfig
from sbon.links.receiver import LinkReceiver, Verdict
from sbon.links.sender import LinkSender


class Payload:
    def __init__(self, rows: int, size_bytes: int = 100) -> None:
        self.rows = rows
        self.size_bytes = size_bytes


def make_sender(window_batches: int = 4, window_bytes: int = 10_000) -> LinkSender:
    return LinkSender("a>b:0", LinkConfig(window_batches=window_batches, window_bytes=window_bytes))


def send_all(sender: LinkSender) -> list[int]:
    numbers = []
    while (batch := sender.peek()) is not None:
        sender.sent(batch)
        numbers.append(batch.sequence)
    return numbers


def test_batches_are_numbered_from_one_and_sent_once():
    sender = make_sender()
    sender.offer(0.0, 0, Payload(3))
    sender.offer(0.0, 0, Payload(4))

    assert send_all(sender) == [1, 2]
    assert send_all(sender) == []


def test_credit_ends_at_the_window_and_comes_back_with_acknowledgements():
    sender = make_sender(window_batches=2)
    sender.offer(0.0, 0, Payload(1))
    assert sender.has_credit
    sender.offer(0.0, 0, Payload(1))
    assert not sender.has_credit

    assert sender.acknowledge(1, credit=2)
    assert sender.has_credit


def test_credit_also_ends_with_the_bytes():
    sender = make_sender(window_batches=100, window_bytes=1024)
    sender.offer(0.0, 0, Payload(1, size_bytes=5000))
    assert not sender.has_credit


def test_a_rewind_sends_everything_unacknowledged_again():
    sender = make_sender()
    for _ in range(3):
        sender.offer(0.0, 0, Payload(1))
    send_all(sender)
    sender.acknowledge(1, credit=4)

    sender.rewind()

    assert send_all(sender) == [2, 3]
    assert sender.batches_resent == 2


def test_an_acknowledgement_of_something_never_sent_changes_nothing():
    sender = make_sender()
    sender.offer(0.0, 0, Payload(1))

    assert not sender.acknowledge(7, credit=4)
    assert not sender.acknowledge(-1, credit=4)
    assert sender.held == 1


def test_a_late_acknowledgement_does_not_take_credit_back():
    sender = make_sender(window_batches=2)
    for _ in range(2):
        sender.offer(0.0, 0, None)
    send_all(sender)
    sender.acknowledge(2, credit=2)
    sender.acknowledge(1, credit=2)
    assert sender.has_credit
    for _ in range(3):
        sender.offer(0.0, 0, None)
    assert send_all(sender) == [3, 4]


def test_credit_that_a_peer_grants_beyond_the_window_is_not_used():
    sender = make_sender(window_batches=2)
    for _ in range(9):
        sender.offer(0.0, 0, None)
    assert send_all(sender) == [1, 2]
    sender.acknowledge(1, credit=1000)

    assert send_all(sender) == [3]


def test_a_restored_sender_continues_the_sequence_and_sends_what_was_held():
    sender = make_sender()
    for rows in (1, 2, 3):
        sender.offer(0.0, 0, Payload(rows))
    send_all(sender)
    sender.acknowledge(1, credit=4)

    restored = LinkSender.restored("a>b:0", LinkConfig(window_batches=4), sender.export())
    restored.offer(0.0, 0, Payload(4))

    assert send_all(restored) == [2, 3, 4]
    assert restored.rows_offered == 10


def test_a_restored_sender_refuses_a_broken_sequence():
    sender = make_sender()
    for _ in range(3):
        sender.offer(0.0, 0, None)
    following, offered, acknowledged, held = sender.export()
    with pytest.raises(LocalProtocolError):
        LinkSender.restored("a>b:0", LinkConfig(), (following, offered, acknowledged, held[:1]))


def test_a_receiver_takes_each_number_once_and_in_order():
    receiver = LinkReceiver("a>b:0", LinkConfig())

    assert receiver.accept(1) is Verdict.ACCEPTED
    assert receiver.accept(1) is Verdict.DUPLICATE
    assert receiver.accept(3) is Verdict.GAP
    assert receiver.accept(4) is Verdict.GAP_TOLD
    assert receiver.accept(2) is Verdict.ACCEPTED
    assert receiver.accept(3) is Verdict.ACCEPTED


def test_a_dishonest_sender_cannot_fill_the_receiver():
    receiver = LinkReceiver("a>b:0", LinkConfig(window_batches=2))
    verdicts = [receiver.accept(sequence) for sequence in range(1, 20)]
    assert verdicts.count(Verdict.ACCEPTED) == 4


def test_batches_are_processed_in_the_order_of_acceptance_only():
    receiver = LinkReceiver("a>b:0", LinkConfig())
    receiver.accept(1)
    receiver.accept(2)
    with pytest.raises(LocalProtocolError):
        receiver.process(2, rows=1)
    receiver.process(1, rows=5)
    assert (receiver.processed, receiver.rows_processed) == (1, 5)


def test_what_a_receiver_has_no_room_for_is_asked_for_again_when_it_has():
    receiver = LinkReceiver("a>b:0", LinkConfig(window_batches=64, window_bytes=1024))
    assert receiver.accept(1, 1500) is Verdict.ACCEPTED
    assert receiver.accept(2, 1500) is Verdict.ACCEPTED
    assert receiver.accept(3, 1500) is Verdict.FULL
    assert receiver.accept(4, 1500) is Verdict.GAP_TOLD
    receiver.process(1, rows=1)
    assert not receiver.wants_more()  # still more than a window waits
    receiver.process(2, rows=1)
    assert receiver.wants_more()
    assert not receiver.wants_more()
    assert receiver.accept(3, 1500) is Verdict.ACCEPTED
