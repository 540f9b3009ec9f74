"""Invariants of peers under crashes, partitions and silent machines, for every seed."""

import numpy as np
import pytest

from sbon.errors import LinkError
from sbon.sealing import KeyRing
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.faults.schedule import Faults
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from tests.examples import seeds
from tests.peer_worlds import Recorder

MACHINES = 4
STEPS = 150
PORT = 7946
RING = KeyRing([bytes(32)])
PAUSE_S = {"partitions": 6.0, "one-way": 6.0, "slow": 8.0, "stopped": 6.0, "clocks": 8.0, "kills": 5.0, "wishes": 5.0}
"""Mean virtual seconds between two faults of each kind."""


class Peer(Recorder):
    """An agent that answers three requests of four at once, and the others late."""

    def __init__(self, case, host, name):
        self.case = case
        super().__init__(host, name, RING, case.address(name))
        self.answer = lambda payload, respond: (
            respond(payload) if payload[0] % 4 else self.host.call_at(self.host.now() + 1.5, lambda: respond(payload))
        )

    def message(self, connection, payload):
        self.case.numbers.setdefault(connection, []).append(int.from_bytes(payload[:4], "little"))

    def start(self):
        self.case.started.append(self)
        self.want_all()

    def want_all(self):
        for name in self.case.world.nodes:
            if name != self.name:
                self.peers.want(self.case.address(name))

    def stop(self):
        pass


class Overlay(Case):
    """Agents that all keep connections to each other and send at random, under faults."""

    def __init__(self, seed):
        network = NetworkConfig(split=0.3, stream_buffer_bytes=200_000)
        world = World(MACHINES, seed=seed, network=network, make_agent=lambda config, host, ring: Peer(self, host, config.name))
        super().__init__(world, seed)
        self.rng = np.random.default_rng(seed)
        self.started = []
        """All agents, including those that were killed."""
        self.asked = []
        self.sent = 0
        self.numbers = {}
        """Numbers of the one-way messages that each connection has brought."""
        self.faults = Faults(self, PAUSE_S, PAUSE_S, {"wishes": self.wish})
        for number in range(MACHINES):
            world.start(number)

    def address(self, name):
        return self.world.world.machines[self.world.nodes.index(name)].ip, PORT

    def wish(self, rng):
        """Lets an agent give up its connection to the next one, or ask for it again."""
        number = int(rng.integers(MACHINES))
        agent, other = self.world.agents[number], self.address(self.world.nodes[(number + 1) % MACHINES])
        if agent is not None:
            (agent.peers.want if rng.integers(2) else agent.peers.unwant)(other)

    def talk(self):
        for _ in range(5):
            sender = self.world.agents[int(self.rng.integers(MACHINES))]
            address = self.address(self.world.nodes[int(self.rng.integers(MACHINES))])
            if sender is None or address == sender.address:
                continue
            self.sent += 1
            payload = self.sent.to_bytes(4, "big")[::-1] + bytes(int(self.rng.choice([0, 100, 60_000])))
            if self.rng.random() < 0.5:
                timeout_s = float(self.rng.uniform(0.05, 4))
                outcome = []
                self.asked.append((sender, payload, outcome))
                sender.peers.request(address, payload, self.taking(outcome, sender, self.world.now + timeout_s), timeout_s)
            else:
                sender.peers.send(address, payload)

    def taking(self, outcome, sender, deadline):
        """Returns what takes the outcome of a request, with the seconds by which it is late; a machine that stands still is never late."""
        number = self.world.nodes.index(sender.name)

        def take(result):
            due = max(deadline, self.world.world.network.stopped_until_ns(number) / 1e9)
            outcome.append((self.world.now, self.world.now - due, result))

        return take

    def play(self):
        self.faults.begin()
        for _ in range(STEPS):
            self.talk()
            self.faults.run(float(self.rng.exponential(0.4)))
        self.faults.calm()
        for agent in self.world.agents:
            agent.want_all()
        self.world.run(40.0)

    def outcomes(self):
        return [repr(outcome) for _, _, outcome in self.asked]


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 12)))
def test_after_any_faults_everyone_who_wants_is_connected_and_nothing_was_told_twice(seed):
    overlay = Overlay(seed)
    overlay.play()

    for agent in overlay.world.agents:
        for other in overlay.world.agents:
            assert other is agent or agent.peers.is_connected(other.address), f"{agent.name} to {other.name}"
        assert len(agent.peers._connections) == 2 * (MACHINES - 1)
    for agent in overlay.started:
        known = {}
        for entry in agent.log:
            if entry[0] in ("connected", "lost"):
                assert not (entry[0] == "lost" and known.get(entry[1]) != "connected"), "a peer was reported lost that was not connected"
                known[entry[1]] = entry[0]
    assert len(overlay.started) > MACHINES


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 12)))
def test_every_request_of_a_living_agent_ends_once_and_in_time(seed):
    overlay = Overlay(seed)
    overlay.play()
    replied = 0
    for agent, payload, outcome in overlay.asked:
        assert len(outcome) <= 1
        assert outcome or agent not in overlay.world.agents
        for _, late_s, result in outcome:
            assert late_s <= 1e-6
            assert result == payload or isinstance(result, LinkError)
            replied += result == payload
    assert replied > 50
    assert all(agent.peers.counters["frames_bad"] == 0 for agent in overlay.started)


def test_messages_of_one_connection_arrive_in_order_and_once():
    overlay = Overlay(99)
    overlay.play()

    assert sum(map(len, overlay.numbers.values())) > 100
    assert all(numbers == sorted(set(numbers)) for numbers in overlay.numbers.values())


def test_the_same_seed_gives_the_same_run():
    runs = [Overlay(5), Overlay(5)]
    for overlay in runs:
        overlay.play()

    assert runs[0].outcomes() == runs[1].outcomes()
    assert [agent.log for agent in runs[0].started] == [agent.log for agent in runs[1].started]
