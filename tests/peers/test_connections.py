"""Connections between agents, in virtual time: dialling, keep-alive, congestion and every way to lose a peer."""

import pytest

from sbon.errors import LinkError
from sbon.peer_settings import PeerConfig
from tests.peers.world import PORT, World, connect


def test_a_wanted_connection_is_reported_with_the_name_of_the_peer(world, pair):
    ada, bob = pair
    ada.peers.want(bob.address)
    assert ada.log == []
    world.until(lambda: ada.log)

    assert ada.log == [("connected", bob.address, "bob")]
    assert not ada.peers.send(bob.address, b"for another", expect="carol")
    assert ada.peers.send(bob.address, b"for bob", expect="bob")
    world.until(lambda: bob.messages)
    assert bob.messages == [b"for bob"]


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


def test_wanting_again_right_after_an_attempt_waits_for_the_least_pause_alone(world):
    ada = world.boot(0, "ada")
    address = (world.simulated.machines[1].ip, PORT)
    ada.peers.want(address)
    world.run(60.0)
    dials = ada.peers.counters["dials"]
    world.until(lambda: ada.peers.counters["dials"] > dials, timeout_s=5.1)
    world.run(0.05)  # the attempt has failed: the next pause is 2.5 s at least
    world.boot(1, "bob")
    ada.peers.want(address)
    world.until(lambda: ada.log, timeout_s=0.5)

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


def test_a_slow_line_that_one_end_fills_for_long_is_not_taken_for_dead():
    world = World(bandwidth_bytes_per_s=50_000.0, stream_buffer_bytes=4_000_000)
    ada, bob = world.boot(0, "ada"), world.boot(1, "bob")
    connect(world, ada, bob)
    for _ in range(40):
        assert ada.peers.send(bob.address, bytes(50_000))
    world.until(lambda: len(bob.messages) == 40, timeout_s=45.0)

    assert ada.names() == ["connected"]
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
    connection._alive.received_at_s -= 1000
    ada.peers._checks._due_at_s -= 1000
    ada.peers._checks._check()

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
