"""The virtual world's own rules: delays, faults, partitions, death, and runs that depend on the seed alone."""

import hashlib

import numpy as np
import pytest

from sbon.errors import ConfigError, ShapeError
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.simulator.world import SimulatedWorld
from tests.system.integration.host_worlds import Listener, Recorder

CALM = NetworkConfig(jitter_ms=0.0, split=0.0)


def world(nodes=3, rtt=40.0, seed=1, network=CALM, cpu=None):
    rtt_ms = np.full((nodes, nodes), rtt)
    np.fill_diagonal(rtt_ms, 0.0)
    return SimulatedWorld(rtt_ms, seed, network, cpu)


def listening(virtual, number):
    host = virtual.boot(number)
    return host, Listener(host, (virtual.machines[number].ip, 0))


def opened(virtual, source, target):
    """Opens a stream between two fresh processes; returns the hosts and recorders of both ends."""
    (near_host, _), (far_host, far) = listening(virtual, source), listening(virtual, target)
    near = Recorder()
    near_host.connect(far.address, near)
    virtual.time.run_until(virtual.time.now_s + 1)
    return near_host, near, far_host, far.streams[0]


def test_a_datagram_takes_half_the_rtt():
    virtual = world(rtt=40.0)
    sender, _ = listening(virtual, 0)
    receiver, listener = listening(virtual, 1)
    began = receiver.now()
    sender.send_datagram(b"x", listener.address)
    virtual.time.run_until(1)
    assert listener.datagrams[0][2] - began == pytest.approx(0.020, abs=1e-9)


def test_an_rtt_set_while_running_holds_for_the_next_packet():
    virtual = world(rtt=40.0)
    sender, _ = listening(virtual, 0)
    receiver, listener = listening(virtual, 1)
    virtual.network.set_rtt(np.array([[0, 100.0, 1], [100.0, 0, 1], [1, 1, 0]]))
    began = receiver.now()
    sender.send_datagram(b"x", listener.address)
    virtual.time.run_until(1)
    assert listener.datagrams[0][2] - began == pytest.approx(0.050, abs=1e-9)


@pytest.mark.parametrize(
    ("matrix", "error"), [(np.ones((2, 2)), ShapeError), (np.full((3, 3), -1.0), ConfigError), (np.full((3, 3), np.nan), ConfigError)]
)
def test_a_wrong_matrix_is_refused(matrix, error):
    with pytest.raises(error):
        world().network.set_rtt(matrix)


def test_loss_doubling_and_holding_back_happen_as_often_as_asked():
    virtual = world(network=NetworkConfig(loss=0.1, duplicate=0.05, reorder=0.2, jitter_ms=0.0, reorder_ms=50))
    sender, _ = listening(virtual, 0)
    _, listener = listening(virtual, 1)
    for number in range(5000):
        sender.send_datagram(number.to_bytes(2, "big"), listener.address)
    virtual.time.run_until(1)
    numbers = [data for data, _, _ in listener.datagrams]
    assert len(set(numbers)) / 5000 == pytest.approx(0.90, abs=0.02)
    assert (len(numbers) - len(set(numbers))) / 5000 == pytest.approx(0.05, abs=0.01)
    assert numbers != sorted(numbers)


def test_monotonic_clocks_of_two_machines_cannot_be_compared_but_wall_clocks_can():
    virtual = world()
    one, two = virtual.boot(0), virtual.boot(1)
    assert abs(one.now() - two.now()) > 1
    assert one.wall() == two.wall() == 1_767_225_600


def test_timers_of_a_killed_process_do_not_come():
    virtual, log = world(), []
    host = virtual.boot(0)
    host.call_at(host.now() + 1, lambda: log.append("late"))
    host.call_soon(lambda: log.append("soon"))
    host.execute(lambda: None, lambda _: log.append("done"), rows=1)
    host.kill()
    virtual.time.run_until(5)
    assert log == []


def test_a_killed_process_resets_its_streams_and_frees_its_port():
    virtual = world()
    _, near, far_host, far = opened(virtual, 0, 1)
    far_host.kill()
    virtual.time.run_until(virtual.time.now_s + 1)
    assert near.closed_because == "reset by the peer"
    assert far.closed_because is None
    again, _ = listening(virtual, 1)
    assert again.alive


def test_a_machine_that_goes_off_says_nothing_until_the_writer_times_out():
    virtual = world(network=NetworkConfig(stream_timeout_s=20, jitter_ms=0))
    _, near, far_host, _ = opened(virtual, 0, 1)
    virtual.network.power(1, on=False)
    far_host.kill(silent=True)
    virtual.time.run_until(60)
    assert near.closed_because is None
    near.stream.write(b"anybody there?")
    virtual.time.run_until(79)
    assert near.closed_because is None
    virtual.time.run_until(81)
    assert near.closed_because == "timed out"


def test_bytes_stalled_by_a_partition_arrive_in_order_when_it_heals_in_time():
    virtual = world(network=NetworkConfig(split=0.5))
    _, near, _, far = opened(virtual, 0, 1)
    virtual.network.partition([[0], [1]])
    near.stream.write(b"one ")
    virtual.time.run_until(virtual.time.now_s + 5)
    near.stream.write(b"two")
    virtual.time.run_until(virtual.time.now_s + 5)
    assert bytes(far.data) == b""
    virtual.network.heal()
    virtual.time.run_until(virtual.time.now_s + 5)
    assert bytes(far.data) == b"one two"
    assert near.closed_because is None


def test_a_long_partition_breaks_the_writer_and_leaves_the_other_end_half_open_until_it_writes():
    virtual = world()
    _, near, _, far = opened(virtual, 0, 1)
    virtual.network.partition([[0]])
    near.stream.write(b"lost")
    virtual.time.run_until(virtual.time.now_s + 30)
    assert near.closed_because == "timed out"
    assert far.closed_because is None
    virtual.network.heal()
    virtual.time.run_until(virtual.time.now_s + 5)
    assert far.closed_because is None
    far.stream.write(b"hello?")
    virtual.time.run_until(virtual.time.now_s + 5)
    assert far.closed_because == "reset by the peer"
    assert bytes(far.data) == b""


def test_connecting_across_a_partition_times_out_or_succeeds_when_it_heals():
    virtual = world()
    host, _ = listening(virtual, 0)
    _, target = listening(virtual, 1)
    virtual.network.partition([[0]])
    first, second = Recorder(), Recorder()
    host.connect(target.address, first)
    virtual.time.run_until(11)
    assert first.closed_because == "timed out"
    host.connect(target.address, second)
    virtual.time.run_until(13)
    virtual.network.heal()
    virtual.time.run_until(16)
    assert second.stream is not None


def test_a_cut_blocks_one_direction_only():
    virtual = world()
    one_host, one = listening(virtual, 0)
    two_host, two = listening(virtual, 1)
    virtual.network.cut(0, 1)
    one_host.send_datagram(b"x", two.address)
    two_host.send_datagram(b"y", one.address)
    virtual.time.run_until(1)
    assert (len(two.datagrams), len(one.datagrams)) == (0, 1)


def test_a_limited_bandwidth_spreads_bytes_over_time():
    virtual = world(network=NetworkConfig(bandwidth_bytes_per_s=100_000, jitter_ms=0, split=0))
    _, near, _, far = opened(virtual, 0, 1)
    began = virtual.time.now_s
    for _ in range(10):
        near.stream.write(b"z" * 10_000)
    virtual.time.run_until(began + 0.525)
    assert len(far.data) == 50_000
    virtual.time.run_until(began + 1.1)
    assert len(far.data) == 100_000


def test_work_takes_its_stated_time_and_queues_when_all_cores_are_busy():
    virtual, log = world(cpu=CpuConfig(cores=2, batch_us=1000, row_ns=1000)), []
    host = virtual.boot(0)
    for name in "abc":
        host.execute(lambda name=name: name, lambda name: log.append((name, virtual.time.now_ns)), rows=1000)
    assert log == []
    virtual.time.run_until(1)
    assert log == [("a", 2_000_000), ("b", 2_000_000), ("c", 4_000_000)]


def test_background_load_slows_work_and_shows_as_load():
    virtual, log = world(cpu=CpuConfig(cores=1, batch_us=1000, row_ns=0)), []
    host = virtual.boot(0)
    virtual.machines[0].cpu.set_background(0.75)
    host.execute(lambda: 1, lambda _: log.append(virtual.time.now_ns), rows=0)
    virtual.time.run_until(1)
    assert log == [4_000_000]
    use = host.processors()
    assert 0.75 <= use.load == use.use < 0.8
    assert use.free_cores == 0.25


def chatter(seed):
    """Returns a fingerprint of a busy run: every callback with its instant and bytes."""
    digest = hashlib.sha256()
    virtual = world(5, seed=seed, network=NetworkConfig(loss=0.05, duplicate=0.05, reorder=0.1, split=0.5))
    parts = [listening(virtual, number) for number in range(5)]
    streams = [Recorder() for _ in range(5)]
    for number, (host, _) in enumerate(parts):
        host.connect(parts[(number + 1) % 5][1].address, streams[number])

        def speak(host=host, number=number):
            host.send_datagram(host.random_bytes(8), parts[int(host.rng.integers(5))][1].address)
            if streams[number].stream is not None:
                streams[number].stream.write(host.random_bytes(50))
            host.call_at(host.now() + 0.01 + host.rng.random() * 0.01, speak)

        speak()
    virtual.time.run_until(10)
    for _, listener in parts:
        for data, sender, at in listener.datagrams:
            digest.update(repr((data, sender, at)).encode())
        for recorder in listener.streams:
            digest.update(repr((bytes(recorder.data), recorder.log)).encode())
    return digest.hexdigest(), virtual.time.events


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    assert chatter(3) == chatter(3)
    assert chatter(3)[0] != chatter(4)[0]
