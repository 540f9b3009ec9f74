"""Requests between agents, in virtual time: replies, errors, and how many may be open for how long."""

import msgspec
import pytest

from sbon.errors import LinkError, LocalProtocolError, MigrationError, ProtocolError, QueryError, SbonError, UnsupportedError
from sbon.handshake import Versions
from sbon.peers.directory import Directory
from sbon.peers.open_requests import ErrorReply
from sbon.wire.messages import encode
from sbon.wire.replication import Unwanted, WantedAsk
from tests.peers.world import PORT


def test_a_request_dials_by_itself_and_gets_its_reply(world, pair):
    ada, bob = pair
    outcomes = [ada.ask(bob.address, bytes([n])) for n in range(5)]
    assert not any(outcomes)
    world.until(lambda: all(outcomes))

    assert outcomes == [[b"re: " + bytes([n])] for n in range(5)]
    assert ada.peers.counters["dials"] == 1
    assert ada.log == []


def test_replies_may_come_late_and_out_of_order(world, pair):
    ada, bob = pair
    waiting = []
    bob.answer = lambda payload, respond: waiting.append((payload, respond))
    first, second = ada.ask(bob.address, b"1"), ada.ask(bob.address, b"2")
    world.until(lambda: len(waiting) == 2)
    for payload, respond in reversed(waiting):
        respond(payload * 2)
    world.until(lambda: first and second)

    assert (first, second) == ([b"11"], [b"22"])


@pytest.mark.parametrize(
    "error", [MigrationError("abandoned"), QueryError("no such column", line=2, column=7, hint="did you mean x"), SbonError("else")]
)
def test_an_error_keeps_its_class_and_its_details(world, pair, error):
    ada, bob = pair
    bob.answer = lambda payload, respond: respond(error)
    outcome = ada.ask(bob.address, b"?")
    world.until(lambda: outcome)

    assert type(outcome[0]) is type(error)
    assert str(outcome[0]) == str(error)
    if isinstance(error, QueryError):
        assert (outcome[0].line, outcome[0].column, outcome[0].hint) == (2, 7, "did you mean x")


def test_an_error_raised_by_the_handler_is_the_reply_and_protocol_errors_of_the_peer_do_not_look_like_ours(world, pair):
    ada, bob = pair

    def refuse(payload, respond):
        raise MigrationError("not now")

    bob.answer = refuse
    outcome = ada.ask(bob.address, b"?")
    bob_error = ErrorReply.of(LocalProtocolError("bob's bug")).error()
    world.until(lambda: outcome)

    assert isinstance(outcome[0], MigrationError)
    assert type(bob_error) is SbonError
    assert not isinstance(bob_error, ProtocolError)


def test_a_request_times_out_once_and_its_late_reply_is_counted(world, pair):
    ada, bob = pair
    waiting = []
    bob.answer = lambda payload, respond: waiting.append(respond)
    outcome = ada.ask(bob.address, b"?", timeout_s=1.0)
    world.until(lambda: outcome)
    waiting[0](b"too late")
    world.run(1.0)

    assert len(outcome) == 1
    assert isinstance(outcome[0], LinkError)
    assert "within 1 s" in str(outcome[0])
    assert ada.peers.counters["replies_late"] == 1


def test_answering_twice_is_our_bug(world, pair):
    ada, bob = pair
    waiting = []
    bob.answer = lambda payload, respond: waiting.append(respond)
    ada.ask(bob.address, b"?")
    world.until(lambda: waiting)
    waiting[0](b"once")
    with pytest.raises(LocalProtocolError, match="answered twice"):
        waiting[0](b"twice")


def test_a_request_to_nobody_fails_at_once_and_says_why(world):
    ada = world.boot(0, "ada")
    nobody = (world.simulated.machines[1].ip, PORT)
    outcome = ada.ask(nobody, b"?", timeout_s=20.0)
    world.until(lambda: outcome, timeout_s=1.0)

    assert isinstance(outcome[0], LinkError)
    assert "refused" in str(outcome[0])
    world.run(30.0)
    assert ada.peers.counters["dials"] == 1
    assert ada.peers._remotes == {}


def test_a_request_meant_for_another_agent_is_not_sent(world, pair):
    ada, bob = pair
    outcomes = []
    for name in ("carol", "bob"):
        ada.peers.request(bob.address, name.encode(), outcomes.append, 5.0, expect=name)
    world.until(lambda: len(outcomes) == 2)

    assert isinstance(outcomes[0], LinkError)
    assert "is bob, expected carol" in str(outcomes[0])
    assert outcomes[1] == b"re: bob"
    assert len(bob.connections) == 1


def test_an_agent_of_a_former_release_is_not_asked_for_what_it_does_not_know(world, pair):
    ada, bob = pair
    bob.peers.versions = Versions(2, 2)
    outcomes = []
    for protocol in (3, 2):
        ada.peers.request(bob.address, b"do", outcomes.append, 5.0, protocol=protocol)
    world.until(lambda: len(outcomes) == 2)

    assert (type(outcomes[0]), str(outcomes[0])) == (UnsupportedError, "bob speaks protocol 2, but this needs 3")
    assert outcomes[1] == b"re: do"
    assert len(bob.connections) == 1


def test_requests_to_one_address_are_bounded(world):
    ada, bob = world.boot(0, "ada", requests_max=3), world.boot(1, "bob")
    bob.answer = lambda payload, respond: None
    outcomes = [ada.ask(bob.address, b"?") for _ in range(4)]
    assert not any(outcomes)
    world.run(0.5)

    assert [len(outcome) for outcome in outcomes] == [0, 0, 0, 1]
    assert "3 requests to" in str(outcomes[3][0])


def test_a_peer_that_asks_too_much_is_told_so(world):
    ada, bob = world.boot(0, "ada"), world.boot(1, "bob", requests_max=3)
    bob.answer = lambda payload, respond: None
    outcomes = [ada.ask(bob.address, b"?") for _ in range(4)]
    world.until(lambda: outcomes[3])

    assert "more than 3 requests" in str(outcomes[3][0])
    assert bob.peers.counters["requests_refused"] == 1


def test_a_request_that_is_never_answered_frees_its_place(world):
    ada, bob = world.boot(0, "ada"), world.boot(1, "bob", answer_timeout_s=2.0)
    bob.answer = lambda payload, respond: None
    outcome = ada.ask(bob.address, b"?", timeout_s=60.0)
    world.until(lambda: outcome, timeout_s=5.0)

    assert "no answer within 2 s" in str(outcome[0])
    assert bob.peers.counters["requests_unanswered"] == 1


def test_an_oversized_reply_becomes_an_error_and_an_oversized_request_is_our_bug(world):
    ada, bob = world.boot(0, "ada", frame_bytes_max=65536), world.boot(1, "bob", frame_bytes_max=65536)
    bob.answer = lambda payload, respond: respond(bytes(65537))
    outcome = ada.ask(bob.address, b"?")
    world.until(lambda: outcome)

    assert "reply of 65537 bytes" in str(outcome[0])
    with pytest.raises(LocalProtocolError, match="65537 bytes"):
        ada.ask(bob.address, bytes(65537))
    with pytest.raises(LocalProtocolError, match="65537 bytes"):
        ada.peers.send(bob.address, bytes(65537))


def test_an_error_reply_that_cannot_be_read_fails_the_request_and_drops_the_peer(world, monkeypatch):
    ada, bob = world.boot(0, "ada"), world.boot(1, "bob")
    monkeypatch.setattr(msgspec.msgpack, "encode", lambda value: b"\xc1")
    bob.answer = lambda payload, respond: respond(SbonError("x"))
    outcome = ada.ask(bob.address, b"?")
    world.until(lambda: outcome)

    assert "cannot be decoded" in str(outcome[0])
    assert ada.peers.counters["frames_bad"] == 1


def test_who_is_meant_by_name_is_asked_and_nobody_else_who_has_that_address_now(world):
    """Another agent may have been given the address of one that is gone; it would answer for itself, as if it were the other."""
    ada, bob = world.boot(0, "ada"), world.boot(1, "bob")
    bob.answer = lambda payload, respond: respond(encode(Unwanted(queries=("carol.q1",))))
    directory = Directory(ada.host, "ada", ada.peers, {"bob": bob.address, "carol": bob.address}.get, ada)
    answers = {"bob": [], "carol": []}
    for name, heard in answers.items():
        directory.request(name, WantedAsk(queries=("carol.q1",)), heard.append)
    world.until(lambda: all(answers.values()))

    assert answers["bob"] == [Unwanted(queries=("carol.q1",))]
    assert isinstance(answers["carol"][0], LinkError)
    assert "is bob, expected carol" in str(answers["carol"][0])
