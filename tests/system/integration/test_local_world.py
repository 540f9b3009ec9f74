"""Real agent processes under the testbed: latencies, kills, restarts, partitions, and a complete clean-up."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from sbon.errors import SbonError
from sbon_testbed.processes.local import LocalWorld, free_ports
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import CitiesConfig, build, pairs_between
from tests.processes import runs, wait_until

FAST = {"membership": {"interval_s": 0.2, "gossip_interval_s": 0.1, "suspicion_s": 0.5, "reconnect_interval_s": 1.0}}


def statuses(world, node):
    return {member["name"]: member["status"] for member in world.ask(node, "members")}


@pytest.fixture
def world(tmp_path):
    made = LocalWorld(build(CitiesConfig(), 3, seed=2), tmp_path, NetworkConfig(jitter_ms=0.1), [FAST] * 3)
    try:
        for node in range(3):
            made.start(node)
        for node in range(3):
            made.wait_started(node)
        wait_until(lambda: all(list(statuses(made, node).values()) == ["alive"] * 3 for node in range(3)))
        yield made
    finally:
        made.close()


def test_agents_feel_the_topology_survive_a_kill_and_answer_queries(world):
    london, new_york, tokyo = world.topology.nodes
    true_ms = world.latencies.rtt_ms()

    def measured(a, b):
        return world.ask(a, "rtt", a=b)["measured_rtt_ms"] or 0.0

    wait_until(lambda: abs(measured(london, tokyo) - true_ms[0, 2]) < 0.15 * true_ms[0, 2])
    world.scale(pairs_between(world.topology, [0], [1]), 2.0)
    doubled_ms = world.latencies.rtt_ms()[0, 1]
    wait_until(lambda: abs(measured(london, new_york) - doubled_ms) < 0.15 * doubled_ms)

    query = world.ask(london, "submit", sql="SELECT ts, node, cpu FROM sys.load")[0]["query"]
    tail = world.tail(query, london)
    wait_until(lambda: {row[1] for row in tail.rows} == {london, new_york, tokyo})

    world.load(new_york, 0.7)
    wait_until(lambda: any(row[1] == new_york and row[2] == 0.7 for row in tail.rows))

    killed_at = time.monotonic()
    world.kill(tokyo)
    with pytest.raises(SbonError):
        world.ask(tokyo, "status")
    wait_until(lambda: statuses(world, london)[tokyo] == statuses(world, new_york)[tokyo] == "failed", 10)
    assert time.monotonic() - killed_at < 10
    wait_until(lambda: world.ask(london, "queries")[0]["state"] == "degraded")
    assert tokyo in world.ask(london, "queries")[0]["reason"]

    world.restart(tokyo)
    wait_until(lambda: statuses(world, london)[tokyo] == "alive")
    world.leave(new_york)
    wait_until(lambda: statuses(world, london)[new_york] == "left")
    wait_until(lambda: not world.alive(new_york))


def test_a_partition_divides_and_healing_joins_again(world):
    world.partition([[2]])
    wait_until(lambda: statuses(world, 0)["tokyo"] == "failed" and statuses(world, 2)["london"] == "failed")
    started = [world.ask(node, "status")["uptime_s"] for node in range(3)]
    world.heal()
    wait_until(lambda: all(list(statuses(world, node).values()) == ["alive"] * 3 for node in range(3)))

    assert all(world.ask(node, "status")["uptime_s"] > before for node, before in enumerate(started)), "no agent had to be restarted"


def test_nothing_outlives_a_testbed_that_is_killed(tmp_path):
    script = textwrap.dedent(
        f"""
        import pathlib, sys, time
        from sbon_testbed.processes.local import LocalWorld
        from sbon_testbed.simulator.network import NetworkConfig
        from sbon_testbed.topology import CitiesConfig, build
        world = LocalWorld(build(CitiesConfig(), 2, 1), pathlib.Path({str(tmp_path)!r}), NetworkConfig(), [{{}}, {{}}])
        world.start(0), world.start(1)
        world.wait_started(0), world.wait_started(1)
        print(world.process_id(0), world.process_id(1), flush=True)
        sys.stdin.read()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as testbed:
        agents = [int(number) for number in testbed.stdout.readline().split()]
        assert len(agents) == 2
        assert all(psutil.pid_exists(agent) for agent in agents)
        os.kill(testbed.pid, signal.SIGKILL)
        testbed.wait()
    wait_until(lambda: not any(runs(agent) for agent in agents))


def test_an_agent_that_cannot_start_is_reported_with_its_own_words(tmp_path):
    world = LocalWorld(build(CitiesConfig(), 1, 1), tmp_path, NetworkConfig(), [{"membership": {"interval_s": -1.0}}])
    try:
        world.start(0)
        with pytest.raises(SbonError, match="interval_s"):
            world.wait_started(0)
    finally:
        world.close()


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20
