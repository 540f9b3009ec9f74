"""Virtual worlds whose round trips follow the slices of a measured matrix."""

import numpy as np
import pytest

from sbon.errors import ShapeError
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import Latencies, Topology, pairs_between


def flat(rtt_ms, nodes=3):
    matrix = np.full((nodes, nodes), float(rtt_ms))
    np.fill_diagonal(matrix, 0.0)
    return matrix


def network(rtt_ms, nodes=3):
    return Topology("matrix", tuple(f"n{i}" for i in range(nodes)), tuple({} for _ in range(nodes)), flat(rtt_ms, nodes), np.zeros(nodes))


def measured_ms(world):
    return next(member["measured_rtt_ms"] for member in world.ask(0, "members") if member["name"] == "n1")


def test_each_slice_is_in_force_for_its_time_and_the_last_one_stays():
    world = World(network(10.0), network=NetworkConfig(jitter_ms=0.0))
    world.paths.follow(np.stack([flat(10.0), flat(40.0), flat(20.0)]), every_s=5.0)
    seen = []
    for _ in range(4):
        world.run(2.5)
        seen.append(world.world.network.delay_ns(0, 1) / 1e6)
        world.run(2.5)

    assert seen == [5.0, 20.0, 10.0, 10.0]
    assert world.latencies.rtt_ms()[0, 1] == 20.0


def test_what_an_event_has_scaled_stays_scaled_in_the_next_slice():
    topology = network(10.0)
    latencies = Latencies(topology)
    latencies.scale(pairs_between(topology, (0,), (1,)), 3.0)
    latencies.replace(flat(20.0))

    assert latencies.rtt_ms()[0, 1] == 60.0
    assert latencies.rtt_ms()[0, 2] == 20.0


def test_a_slice_of_another_size_is_refused():
    with pytest.raises(ShapeError, match=r"shape \(4, 4\), expected \(3, 3\)"):
        Latencies(network(10.0)).replace(flat(20.0, 4))


def test_agents_measure_the_new_round_trips():
    world = World(network(10.0), seed=2)
    world.start_all()
    world.settle()
    world.run(20.0)
    before = measured_ms(world)
    world.paths.follow(np.stack([flat(10.0), flat(50.0)]), every_s=1.0)
    world.run(60.0)

    assert before == pytest.approx(10.0, abs=1.0)
    assert measured_ms(world) == pytest.approx(50.0, abs=1.0)
    world.close()
