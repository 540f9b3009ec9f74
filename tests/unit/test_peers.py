"""Connections between agents, in virtual time: dialling, requests, keep-alive, congestion and every way to lose a peer."""

import msgspec
import numpy as np
import pytest

from agent.network.connection import ErrorReply
from agent.network.peers import PeerConfig
from sbon.errors import LinkError, LocalProtocolError, MigrationError, ProtocolError, QueryError, RemoteProtocolError, SbonError
from sbon.sealing import KeyRing
from testbed.virtual.network import NetworkConfig
from testbed.virtual.world import SimulatedWorld
from tests.peer_worlds import Recorder

RING, OTHER_RING = KeyRing([bytes(32)]), KeyRing([bytes(range(32))])
PORT = 7946


class World:
    """Three machines, 20 ms apart."""

    def __init__(self, machines=3, **network):
        rtt_ms = np.full((machines, machines), 20.0)
        np.fill_diagonal(rtt_ms, 0.0)
        self.simulated = SimulatedWorld(rtt_ms, seed=11, network=NetworkConfig(**({"jitter_ms": 0.0} | network)))

    def boot(self, number, name, ring=None, **config):
        machine = self.simulated.machines[number]
        return Recorder(machine.boot(), name, ring, (machine.ip, PORT), **config)

    def run(self, seconds):
        self.simulated.time.run_until(self.simulated.time.now_s + seconds)

    def until(self, condition, timeout_s=30.0):
        time = self.simulated.time
        assert time.run_while(lambda: not condition(), time.now_s + timeout_s), "the condition never held"


@pytest.fixture
def world():
    return World()


@pytest.fixture(params=[None, RING], ids=["plain", "sealed"])
def pair(request, world):
    return world.boot(0, "ada", request.param), world.boot(1, "bob", request.param)


def connect(world, ada, bob):
    ada.peers.want(bob.address)
    world.until(lambda: ada.peers.is_connected(bob.address))


def test_a_wanted_connection_is_reported_with_the_name_of_the_peer(world, pair):
    ada, bob = pair
    ada.peers.want(bob.address)
    assert ada.log == []
    world.until(lambda: ada.log)

    assert ada.log == [("connected", bob.address, "bob")]
    assert ada.peers.node_at(bob.address) == "bob"


def test_messages_arrive_in_order_and_are_answered_on_the_same_connection(world, pair):
    ada, bob = pair
    assert ada.peers.send(bob.address, b"early") is False
    connect(world, ada, bob)
    assert all(ada.peers.send(bob.address, bytes([n]) * n) for n in range(1, 50))
    world.until(lambda: len(bob.messages) == 49)

    assert bob.messages == [bytes([n]) * n for n in range(1, 50)]
    assert bob.connections[0].node == "ada"
    assert bob.connections[0].send(b"back")
    world.until(lambda: ada.messages)
    assert ada.messages == [b"back"]
    assert ada.connections[0].node == "bob"


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


def test_a_wanted_address_is_redialled_with_growing_pauses_until_somebody_listens(world):
    ada = world.boot(0, "ada")
    address = (world.simulated.machines[1].ip, PORT)
    ada.peers.want(address)
    world.run(60.0)
    dials = ada.peers.counters["dials"]
    world.boot(1, "bob")
    world.until(lambda: ada.log, timeout_s=5.1)

    assert 12 <= dials <= 35  # 5 s at most and 2.5 s at least between two, after five quick ones
    assert ada.log == [("connected", address, "bob")]


def test_wanting_again_dials_without_waiting_out_the_pause(world):
    ada = world.boot(0, "ada")
    address = (world.simulated.machines[1].ip, PORT)
    ada.peers.want(address)
    world.run(60.0)
    world.boot(1, "bob")
    ada.peers.want(address)
    world.until(lambda: ada.log, timeout_s=0.3)

    assert ada.names() == ["connected"]


def test_wanting_a_connection_that_a_request_opened_reports_it(world, pair):
    ada, bob = pair
    outcome = ada.ask(bob.address, b"?")
    world.until(lambda: outcome)
    ada.peers.want(bob.address)
    ada.peers.want(bob.address)
    assert ada.log == []
    world.run(1.0)

    assert ada.log == [("connected", bob.address, "bob")]


def test_an_agent_restarted_under_another_name_is_reported_by_it(world):
    ada, bob = world.boot(0, "ada"), world.boot(1, "bob")
    connect(world, ada, bob)
    world.run(5.0)
    bob.host.kill()
    world.boot(1, "carol")
    world.until(lambda: len(ada.log) == 3)

    assert ada.names() == ["connected", "lost", "connected"]
    assert ada.log[2] == ("connected", bob.address, "carol")


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


def test_a_killed_peer_is_lost_and_its_open_requests_fail_at_once(world, pair):
    ada, bob = pair
    bob.answer = lambda payload, respond: None
    connect(world, ada, bob)
    outcome = ada.ask(bob.address, b"?", timeout_s=60.0)
    world.run(0.5)
    bob.host.kill()
    world.until(lambda: outcome, timeout_s=1.0)

    assert isinstance(outcome[0], LinkError)
    assert "lost before its reply" in str(outcome[0])
    assert ada.names() == ["connected", "lost"]


def test_a_machine_that_falls_silent_is_lost_within_seconds(world, pair):
    ada, bob = pair
    connect(world, ada, bob)
    world.run(20.0)
    assert ada.names() == ["connected"]
    world.simulated.network.power(1, on=False)
    world.until(lambda: len(ada.log) == 2, timeout_s=7.1)

    assert "silent for" in ada.log[1][2]
    assert ada.peers.counters["connections_silent"] == 1


def test_an_acceptor_drops_a_dialler_that_falls_silent(world, pair):
    ada, bob = pair
    connect(world, ada, bob)
    world.run(1.0)
    world.simulated.network.power(0, on=False)
    world.until(lambda: not bob.peers._connections, timeout_s=10.0)

    assert bob.peers.counters["connections_silent"] == 1
    assert bob.log == []


def test_an_idle_connection_stays_while_wanted_even_if_only_the_acceptor_speaks(world, pair):
    ada, bob = pair
    connect(world, ada, bob)
    ada.peers.send(bob.address, b"hello")
    world.until(lambda: bob.messages)
    for _ in range(60):
        bob.connections[0].send(b"news")
        world.run(1.0)

    assert ada.names() == ["connected"]
    assert len(ada.messages) == 60
    assert bob.peers.counters["connections_silent"] == 0


def test_an_unwanted_connection_closes_after_its_idle_time_without_a_report(world, pair):
    ada, bob = pair
    connect(world, ada, bob)
    ada.peers.unwant(bob.address)
    world.run(10.0)
    assert bob.peers._connections
    world.run(10.0)

    assert not bob.peers._connections
    assert not ada.peers._connections
    assert ada.peers._remotes == {}
    assert ada.names() == ["connected"]


def test_a_process_that_slept_does_not_take_its_peers_for_dead(world, pair):
    """A stopped laptop or a starved process finds its timers late and the peers' bytes unread in its buffers."""
    ada, bob = pair
    connect(world, ada, bob)
    connection = next(iter(ada.peers._connections))
    connection._received_at_s -= 1000
    ada.peers._check_at_s -= 1000
    ada.peers._check()

    assert ada.names() == ["connected"]
    world.run(10.0)
    assert ada.names() == ["connected"]


def test_both_may_dial_each_other_at_once(world, pair):
    ada, bob = pair
    ada.peers.want(bob.address)
    bob.peers.want(ada.address)
    world.until(lambda: ada.log and bob.log)
    ada.peers.send(bob.address, b"from ada")
    bob.peers.send(ada.address, b"from bob")
    world.until(lambda: ada.messages and bob.messages)

    assert len(ada.peers._connections) == len(bob.peers._connections) == 2
    assert (ada.messages, bob.messages) == ([b"from bob"], [b"from ada"])


@pytest.mark.parametrize(("ours", "theirs"), [(RING, OTHER_RING), (RING, None), (None, RING)])
def test_agents_without_a_common_key_never_connect_and_both_count_it(world, ours, theirs):
    ada, bob = world.boot(0, "ada", ours), world.boot(1, "bob", theirs)
    outcome = ada.ask(bob.address, b"?")
    world.until(lambda: outcome)

    assert isinstance(outcome[0], LinkError)
    assert "key" in str(outcome[0])
    assert bob.peers.counters["handshakes_failed"] == ada.peers.counters["handshakes_failed"] == 1
    assert bob.connections == []


def test_a_connection_to_ourselves_or_a_namesake_is_refused(world):
    ada, twin = world.boot(0, "ada"), world.boot(1, "ada")
    for address in (ada.address, twin.address):
        outcome = ada.ask(address, b"?")
        world.until(lambda outcome=outcome: outcome)
        assert isinstance(outcome[0], LinkError)


def test_a_congested_connection_refuses_large_messages_takes_small_ones_and_says_when_it_is_writable():
    world = World(stream_buffer_bytes=100_000)
    ada, bob = world.boot(0, "ada"), world.boot(1, "bob")
    connect(world, ada, bob)
    sent = 0
    while ada.peers.send(bob.address, bytes(30_000)):
        sent += 1
    small = 0
    while ada.peers.send(bob.address, b"acknowledged" * 100):
        small += 1
    waiting = ada.ask(bob.address, bytes(30_000))

    assert sent == 4
    assert small == 256 * 1024 // 1209  # slack_bytes_max, frame headers included
    world.until(lambda: waiting)
    assert ada.names() == ["connected", "writable"]
    assert len(bob.messages) == sent + small


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


def test_a_handler_that_finds_nonsense_drops_the_connection(world, pair):
    ada, bob = pair
    connect(world, ada, bob)

    def nonsense(connection, payload):
        raise RemoteProtocolError("no such message")

    bob.message = nonsense
    ada.peers.send(bob.address, b"???")
    world.until(lambda: len(ada.log) >= 2)

    assert ada.names()[:2] == ["connected", "lost"]
    assert bob.peers.counters["frames_bad"] == 1


class Stranger:
    """Speaks TCP and nothing else."""

    def __init__(self, data=b""):
        self.data, self.closed_because, self.got = data, None, b""

    def connected(self, stream):
        self.stream = stream
        if self.data:
            stream.write(self.data)

    def received(self, data):
        self.got += data

    def writable(self):
        pass

    def closed(self, reason):
        self.closed_because = reason


def test_strangers_are_dropped_at_nonsense_or_after_the_handshake_time(world):
    ada = world.boot(0, "ada")
    host = world.simulated.boot(1)
    loud, silent = Stranger(b"GET / HTTP/1.1\r\n\r\n"), Stranger()
    host.connect(ada.address, loud)
    host.connect(ada.address, silent)
    world.until(lambda: loud.closed_because, timeout_s=1.0)
    assert silent.closed_because is None
    world.until(lambda: silent.closed_because, timeout_s=6.1)

    assert ada.peers.counters["handshakes_failed"] == 1
    assert not ada.peers._connections


def test_strangers_cannot_take_all_places_for_handshakes(world):
    ada, bob = world.boot(0, "ada", handshaking_max=2), world.boot(2, "bob")
    host = world.simulated.boot(1)
    strangers = [Stranger() for _ in range(4)]
    for stranger in strangers:
        host.connect(ada.address, stranger)
    world.until(lambda: sum(s.closed_because is not None for s in strangers) == 2, timeout_s=1.0)

    assert ada.peers.counters["connections_refused"] == 2
    world.run(7.0)
    outcome = bob.ask(ada.address, b"?")
    world.until(lambda: outcome)
    assert outcome == [b"re: ?"]


def test_an_error_reply_that_cannot_be_read_fails_the_request_and_drops_the_peer(world, monkeypatch):
    ada, bob = world.boot(0, "ada"), world.boot(1, "bob")
    monkeypatch.setattr(msgspec.msgpack, "encode", lambda value: b"\xc1")
    bob.answer = lambda payload, respond: respond(SbonError("x"))
    outcome = ada.ask(bob.address, b"?")
    world.until(lambda: outcome)

    assert "cannot be read" in str(outcome[0])
    assert ada.peers.counters["frames_bad"] == 1


def test_closing_says_goodbye_fails_requests_and_reports_nothing_more(world, pair):
    ada, bob = pair
    bob.peers.want(ada.address)
    connect(world, ada, bob)
    world.run(1.0)
    bob.answer = lambda payload, respond: None
    outcome = ada.ask(bob.address, b"?")
    ada.peers.close()
    late = ada.ask(bob.address, b"?")
    world.until(lambda: len(bob.log) == 2, timeout_s=1.0)

    assert isinstance(outcome[0], LinkError)
    assert isinstance(late[0], LinkError)
    assert "closed by the peer: leaving" in bob.log[1][2]
    assert ada.names() == ["connected"]
    world.run(60.0)
    assert ada.names() == ["connected"]
    assert not ada.peers._connections


def test_a_partition_loses_the_connection_and_its_end_brings_it_back(world, pair):
    ada, bob = pair
    connect(world, ada, bob)
    world.simulated.network.partition([[0], [1]])
    world.until(lambda: len(ada.log) == 2, timeout_s=10.0)
    world.simulated.network.heal()
    world.until(lambda: len(ada.log) == 3, timeout_s=15.0)

    assert ada.names() == ["connected", "lost", "connected"]


@pytest.mark.parametrize(
    "values",
    [
        {"dial_backoff_s_min": 0},
        {"dial_backoff_s_max": 0.1},
        {"silence_timeout_s": 1.0},
        {"idle_s": 0},
        {"requests_max": 0},
        {"frame_bytes_max": 1},
    ],
)
def test_settings_out_of_range_are_refused(values):
    with pytest.raises(ValueError, match="expected"):
        PeerConfig(**values)
