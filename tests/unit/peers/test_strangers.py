"""Who is not let in, in virtual time: agents of other clusters, namesakes, and whoever speaks nonsense or not at all."""

import pytest

from sbon.errors import LinkError, RemoteProtocolError
from tests.unit.peers.world import OTHER_RING, RING, connect


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
