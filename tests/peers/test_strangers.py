"""Strangers are not let in, in virtual time: agents of other clusters, namesakes, and whoever speaks nonsense or not at all."""

import pytest

from sbon.errors import LinkError, RemoteProtocolError
from tests.peer_worlds import Recorder
from tests.peers.world import OTHER_RING, PORT, RING, connect


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


def half_open(world, ada, machine, count):
    host = world.simulated.boot(machine)
    strangers = [Stranger() for _ in range(count)]
    for stranger in strangers:
        host.connect(ada.address, stranger)
        world.run(0.001)
    return strangers


def test_the_oldest_handshake_of_a_source_that_opens_too_many_gives_way(world, monkeypatch):
    said = []
    monkeypatch.setattr("sbon.peers.incoming.log.warning", lambda event, **details: said.append((event, details["source"])))
    ada, bob = world.boot(0, "ada", handshaking_per_source_max=2), world.boot(2, "bob")
    strangers = half_open(world, ada, 1, 5)
    world.until(lambda: ada.peers.counters["handshakes_displaced"] == 3, timeout_s=1.0)
    world.until(lambda: sum(s.closed_because is not None for s in strangers) == 3, timeout_s=1.0)

    assert [s.closed_because is not None for s in strangers] == [True, True, True, False, False]
    assert said == [("peer.displaced", world.simulated.machines[1].ip)], "one line a minute for each source"
    outcome = bob.ask(ada.address, b"?")
    world.until(lambda: outcome, timeout_s=1.0)
    assert outcome == [b"re: ?"]
    world.until(lambda: all(s.closed_because for s in strangers), timeout_s=4.1)
    assert ada.peers.counters["handshakes_timed_out"] == 2


def test_a_member_gets_a_place_of_whoever_holds_most(world):
    ada, bob = world.boot(0, "ada", handshaking_max=4), world.boot(2, "bob")
    strangers = half_open(world, ada, 1, 4)
    outcome = bob.ask(ada.address, b"?")
    world.until(lambda: outcome, timeout_s=1.0)

    assert outcome == [b"re: ?"]
    assert [s.closed_because is not None for s in strangers] == [True, False, False, False]
    assert ada.peers.counters["connections_refused"] == 0


def test_one_that_holds_all_connections_makes_room_for_another(world):
    ada, bob = world.boot(0, "ada", incoming_max=3), world.boot(2, "bob")
    many = [world.boot(1, "greedy")]
    machine = world.simulated.machines[1]
    many += [Recorder(many[0].host, f"greedy{number}", None, (machine.ip, PORT + number)) for number in (1, 2)]
    for greedy in many:
        greedy.peers.want(ada.address)
    world.until(lambda: len(ada.peers._incoming) == 3)
    outcome = bob.ask(ada.address, b"?")
    world.until(lambda: outcome, timeout_s=1.0)

    assert outcome == [b"re: ?"]
    assert ada.peers.counters["connections_displaced"] >= 1
