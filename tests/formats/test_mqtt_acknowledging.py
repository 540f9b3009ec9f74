"""Acknowledgements that a broker waits for, across broken connections."""

from sbon.connectors.mqtt_acknowledging import Acknowledging
from sbon.formats.mqtt_packets import PUBACK, PUBCOMP, PUBREC, Message, answers


def message(mid: int, payload: bytes = b"x", *, qos: int = 1, is_repeated: bool = False) -> Message:
    return Message(b"plant", payload, qos, mid, is_repeated)


def test_messages_are_acknowledged_up_to_the_position_that_has_been_processed():
    one = Acknowledging()
    assert [one.is_new(message(mid, qos=qos), position) for position, (mid, qos) in enumerate([(7, 1), (3, 2), (9, 1)], 1)] == [True] * 3
    assert one.processed(0) == b""
    assert one.processed(2) == answers(PUBACK, [7]) + answers(PUBREC, [3])
    assert one.unacknowledged == 1
    assert one.processed(2) == b""
    assert one.processed(3) == answers(PUBACK, [9])


def test_a_message_that_is_here_and_comes_again_is_not_new_and_is_acknowledged_once():
    for qos, kind in ((1, PUBACK), (2, PUBREC)):
        one = Acknowledging()
        assert one.is_new(message(7, qos=qos), 1)
        assert not one.is_new(message(7, qos=qos, is_repeated=True), 2)
        assert one.again() == b""
        assert one.processed(1) == answers(kind, [7])


def test_at_qos_1_a_message_whose_acknowledgement_was_lost_is_new_again():
    one = Acknowledging()
    one.is_new(message(7), 1)
    one.processed(1)
    assert one.is_new(message(7, is_repeated=True), 2)


def test_at_qos_2_a_message_whose_acknowledgement_was_lost_is_known_until_the_broker_releases_it():
    one = Acknowledging()
    one.is_new(message(7, qos=2), 1)
    one.processed(1)
    assert not one.is_new(message(7, qos=2, is_repeated=True), 2)
    assert one.again() == answers(PUBREC, [7])
    assert one.again() == b""
    assert one.released([7]) == answers(PUBCOMP, [7])
    assert one.is_new(message(7, qos=2), 2)  # the number is free
    assert one.processed(2) == answers(PUBREC, [7])


def test_a_release_of_what_has_not_been_processed_is_answered_and_does_not_make_it_new():
    one = Acknowledging()
    one.is_new(message(7, qos=2), 1)
    assert one.released([7, 8]) == answers(PUBCOMP, [7, 8])
    assert not one.is_new(message(7, qos=2, is_repeated=True), 2)


def test_a_number_that_the_broker_has_given_to_another_message_does_not_hide_it():
    """A broker that has lost the state of its last minutes reuses numbers."""
    one = Acknowledging()
    one.is_new(message(7, b"before"), 1)
    assert one.is_new(message(7, b"after", is_repeated=True), 2)
    assert one.processed(1) == b""  # the broker does not wait for the first message any more
    assert one.processed(2) == answers(PUBACK, [7])
    one.is_new(message(8, b"same"), 3)
    assert one.is_new(message(8, b"same"), 4)  # not marked as repeated: another message with the same text


def test_a_new_session_waits_for_nothing():
    one = Acknowledging()
    one.is_new(message(7), 1)
    one.is_new(message(8, qos=2), 2)
    one.forget()
    assert one.unacknowledged == 0
    assert one.processed(2) == b""
    assert one.is_new(message(7, is_repeated=True), 3)
