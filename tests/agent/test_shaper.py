"""The testbed's shaper over the virtual world, where its delays can be read off the clock exactly."""

import msgspec
import numpy as np
import pytest

from sbon.errors import ConfigError
from sbon.peers.shaped_stream import HELD_BYTES_MAX
from sbon_agent.network.shaper import Shape, ShapedHost, shaped_by
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.simulator.world import SimulatedWorld
from tests.peer_worlds import Recorder

EARLY_S = 0.0005


class World:
    """Two machines with nothing between them; all delays are the shaper's."""

    def __init__(self):
        self.simulated = SimulatedWorld(np.zeros((2, 2)), seed=3, network=NetworkConfig(jitter_ms=0.0))
        self.addresses = [(machine.ip, 7946) for machine in self.simulated.machines]
        self.near = ShapedHost(self.simulated.boot(0))
        self.far = self.simulated.boot(1)
        self.heard = []
        self.accepted = []
        self.far.listen(self.addresses[1], lambda data, sender, at: self.heard.append((self.now, data)), self._accept)
        self.near.listen(self.addresses[0], lambda *_: None, lambda peer: End(self))

    @property
    def now(self):
        return self.simulated.time.now_s

    def _accept(self, peer):
        self.accepted.append(End(self))
        return self.accepted[-1]

    def run(self, seconds):
        self.simulated.time.run_until(self.now + seconds)

    def shape(self, **fields):
        far = "{}:{}".format(*self.addresses[1])
        if "delay_ms" in fields:
            fields["delays_ms"] = {far: fields.pop("delay_ms")}
        if fields.pop("block", False):
            fields["blocked"] = [far]
        self.near.update(fields)

    def dial(self):
        end = End(self)
        self.near.connect(self.addresses[1], end)
        return end


class End:
    """A stream handler that records its events with their instants."""

    def __init__(self, world):
        self.world, self.stream, self.log = world, None, []

    def connected(self, stream):
        self.stream = stream
        self.log.append((self.world.now, "connected"))

    def received(self, data):
        self.log.append((self.world.now, data))

    def writable(self):
        self.log.append((self.world.now, "writable"))

    def closed(self, reason):
        self.log.append((self.world.now, f"closed: {reason}"))

    def data(self):
        return b"".join(entry for _, entry in self.log if isinstance(entry, bytes))


@pytest.fixture
def world():
    return World()


def test_datagrams_take_the_delay_of_their_path_and_follow_its_changes(world):
    world.shape(delay_ms=40.0)
    world.near.send_datagram(b"slow", world.addresses[1])
    world.run(1.0)
    world.shape(delay_ms=10.0)
    world.near.send_datagram(b"quick", world.addresses[1])
    world.shape()
    world.near.send_datagram(b"at once", world.addresses[1])
    world.run(1.0)

    assert [data for _, data in world.heard] == [b"slow", b"at once", b"quick"]
    assert [round(at, 6) for at, _ in world.heard] == [0.04 - EARLY_S, 1.0, 1.01 - EARLY_S]


def test_a_dialled_stream_is_delayed_both_ways_and_takes_a_round_trip_to_open(world):
    world.shape(delay_ms=40.0)
    mine = world.dial()
    world.run(0.2)
    assert mine.log == [(pytest.approx(0.08 - EARLY_S), "connected")]
    mine.stream.write(b"there")
    world.run(0.2)
    world.accepted[0].stream.write(b"and back")
    world.run(0.2)

    assert world.accepted[0].log[1:] == [(pytest.approx(0.24 - EARLY_S), b"there")]
    assert mine.log[1:] == [(pytest.approx(0.44 - EARLY_S), b"and back")]


def test_streams_keep_their_order_whatever_the_jitter_and_the_changes(world):
    world.shape(delay_ms=20.0, jitter_ms=30.0)
    mine = world.dial()
    world.run(1.0)
    for n in range(200):
        world.shape(delay_ms=float(n % 3) * 20, jitter_ms=float(n % 2) * 30)
        mine.stream.write(bytes([n]))
        world.accepted[0].stream.write(bytes([n]))
        world.run(0.001)
    world.run(5.0)

    assert mine.data() == world.accepted[0].data() == bytes(range(200))


def test_jitter_has_the_mean_asked_for(world):
    world.shape(delay_ms=5.0, jitter_ms=10.0)
    sent = {}
    for n in range(2000):
        sent[n.to_bytes(2, "big")] = world.now
        world.near.send_datagram(n.to_bytes(2, "big"), world.addresses[1])
        world.run(0.001)
    world.run(5.0)
    delays_ms = [(at - sent[data]) * 1000 for at, data in world.heard]

    assert len(delays_ms) == 2000
    assert min(delays_ms) >= 4.4
    assert 13.5 < np.mean(delays_ms) < 16.5  # 14.7 with this seed


def test_datagrams_are_lost_at_the_rate_asked_for_and_streams_lose_nothing(world):
    world.shape(delay_ms=0.0, loss=0.3)
    mine = world.dial()
    world.run(0.1)
    for _ in range(1000):
        world.near.send_datagram(b"x", world.addresses[1])
        mine.stream.write(b"y")
    world.run(1.0)

    assert 640 < len(world.heard) < 760
    assert len(world.heard) + world.near.counters["datagrams_shaped_away"] == 1000
    assert len(world.accepted[0].data()) == 1000


def test_a_block_holds_streams_and_loses_datagrams_until_it_is_lifted(world):
    world.shape(delay_ms=10.0)
    mine = world.dial()
    world.run(1.0)
    mine.stream.write(b"on its way ")
    world.near.send_datagram(b"on its way", world.addresses[1])
    world.shape(delay_ms=10.0, block=True)
    mine.stream.write(b"held")
    world.near.send_datagram(b"lost", world.addresses[1])
    world.accepted[0].stream.write(b"held too")
    world.run(3.0)
    assert world.heard == []
    assert mine.data() == world.accepted[0].data() == b""
    world.shape(delay_ms=10.0)
    world.run(1.0)

    assert world.accepted[0].data() == b"on its way held"
    assert mine.data() == b"held too"
    assert world.heard == []


def test_dialling_through_a_block_is_given_up_and_leaves_nothing_behind(world):
    world.shape(delay_ms=10.0, block=True)
    mine = world.dial()
    world.run(11.0)
    assert mine.log == [(10.0, "closed: timed out")]
    world.shape()
    world.run(5.0)

    assert world.accepted == []
    assert world.near._streams == {}


def test_dialling_goes_on_when_a_block_is_lifted_in_time(world):
    world.shape(delay_ms=10.0, block=True)
    mine = world.dial()
    world.run(5.0)
    world.shape(delay_ms=10.0)
    world.run(20.0)

    assert [entry for _, entry in mine.log] == ["connected"]


def test_closing_delivers_what_was_written_and_each_end_hears_of_it_once(world):
    world.shape(delay_ms=40.0)
    mine = world.dial()
    world.run(1.0)
    mine.stream.write(b"last words")
    mine.stream.close()
    world.run(10.0)

    assert world.accepted[0].data() == b"last words"
    assert [entry for _, entry in mine.log] == ["connected", "closed: closed"]
    assert "closed" in world.accepted[0].log[-1][1]
    assert world.near._streams == {}


def test_the_far_ends_close_comes_behind_its_last_bytes(world):
    world.shape(delay_ms=40.0)
    mine = world.dial()
    world.run(1.0)
    world.accepted[0].stream.write(b"last words")
    world.accepted[0].stream.close()
    world.run(1.0)

    assert [entry for _, entry in mine.log][1] == b"last words"
    assert mine.log[1][0] == pytest.approx(1.04 - EARLY_S)
    assert "closed" in mine.log[2][1]


def test_a_stream_closed_under_a_block_goes_after_its_linger_time(world):
    mine = world.dial()
    world.run(1.0)
    world.shape(block=True)
    mine.stream.write(b"never seen")
    mine.stream.close()
    world.run(6.0)
    world.shape()
    world.run(1.0)

    assert world.near._streams == {}
    assert "closed" in mine.log[-1][1]


def test_a_stream_that_holds_too_much_is_congested_until_it_has_left(world):
    world.shape(delay_ms=40.0)
    mine = world.dial()
    world.run(1.0)
    sent = 0
    while not mine.stream.congested:
        mine.stream.write(bytes(65536))
        sent += 65536
    assert sent == HELD_BYTES_MAX + 65536
    world.run(5.0)

    assert not mine.stream.congested
    assert [entry for _, entry in mine.log] == ["connected", "writable"]
    assert len(world.accepted[0].data()) == sent


def test_connecting_to_nobody_is_told_through_the_shaper(world):
    world.shape(delay_ms=10.0)
    mine = End(world)
    world.near.connect(("10.0.0.1", 9), mine)
    world.run(1.0)

    assert [entry for _, entry in mine.log] == ["closed: connection refused"]
    assert world.near._streams == {}


def test_peers_connect_through_the_shaper(world):
    """Dialling takes two ways of 10 ms. Hello, hello back, finish with request, and reply take four more."""
    bob = Recorder(world.simulated.boot(1), "bob", address=(world.addresses[1][0], 8000))
    ada = Recorder(world.near, "ada", address=(world.addresses[0][0], 8000))
    world.near.set(Shape(delays_ms={"{}:{}".format(*bob.address): 10.0}))
    outcome = ada.ask(bob.address, b"?")
    started = world.now
    world.simulated.time.run_while(lambda: not outcome, started + 5.0)

    assert outcome == [b"re: ?"]
    assert world.now - started == pytest.approx(0.06, abs=0.005)


def test_the_load_can_be_set(world):
    world.shape(load=0.75)
    assert world.near.processors() == (0.75, 0.75, 0.25 * world.near.workers)
    world.shape()
    assert world.near.processors().load == 0.0


@pytest.mark.parametrize(
    "fields",
    [
        {"delays_ms": {"10.0.0.1:7946": -1.0}},
        {"delays_ms": {"10.0.0.1": 5.0}},
        {"delays_ms": {"10.0.0.1:7946": "soon"}},
        {"loss": 1.5},
        {"jitter_ms": float("nan")},
        {"load": 2.0},
        {"bandwidth": 1},
        {"blocked": ["nobody"]},
    ],
)
def test_a_bad_table_is_refused_and_the_old_one_stays(world, fields):
    world.shape(delay_ms=40.0)
    with pytest.raises(ConfigError):
        world.near.update(fields)
    assert world.near.path(world.addresses[1]).delay_ms == 40.0


def test_a_table_is_read_from_its_file(world, tmp_path):
    file = tmp_path / "shaper.json"
    file.write_bytes(msgspec.json.encode({"delays_ms": {"10.0.0.9:7946": 12.5}, "blocked": ["10.0.0.8:7946"]}))
    shaped = shaped_by(world.simulated.boot(0), str(file))

    assert shaped.path(("10.0.0.9", 7946)).delay_ms == 12.5
    assert shaped.path(("10.0.0.8", 7946)).blocked
    file.write_text("{")
    with pytest.raises(ConfigError, match="shaper file"):
        shaped_by(world.simulated.boot(0), str(file))
    with pytest.raises(ConfigError, match="No such file"):
        shaped_by(world.simulated.boot(0), str(tmp_path / "none"))
