"""Invariants of peers under crashes, partitions and silent machines, for every seed."""

import numpy as np
import pytest

from sbon.errors import LinkError
from sbon.sealing import KeyRing
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.simulator.world import SimulatedWorld
from tests.examples import seeds
from tests.peer_worlds import Recorder

MACHINES = 4
STEPS = 150
PORT = 7946
RING = KeyRing([bytes(32)])


class Overlay:
    """Agents that all keep connections to each other and send at random, under faults."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        rtt_ms = self.rng.uniform(1, 150, (MACHINES, MACHINES))
        rtt_ms = (rtt_ms + rtt_ms.T) / 2
        np.fill_diagonal(rtt_ms, 0.0)
        self.world = SimulatedWorld(rtt_ms, seed=seed, network=NetworkConfig(split=0.3, stream_buffer_bytes=200_000))
        self.agents = {}
        self.retired = []
        self.asked = []
        self.sent = 0
        for number in range(MACHINES):
            self.boot(number)

    @property
    def now(self):
        return self.world.time.now_s

    def boot(self, number):
        agent = Recorder(self.world.boot(number), f"n{number}", RING, (self.world.machines[number].ip, PORT))
        agent.answer = lambda payload, respond: (
            respond(payload) if payload[0] % 4 else agent.host.call_at(agent.host.now() + 1.5, lambda: respond(payload))
        )
        self.agents[number] = agent
        for other in range(MACHINES):
            if other != number:
                agent.peers.want((self.world.machines[other].ip, PORT))

    def kill(self, number):
        agent = self.agents.pop(number)
        agent.host.kill()
        self.retired.append(agent)

    def talk(self):
        for _ in range(5):
            sender = self.agents.get(int(self.rng.integers(MACHINES)))
            address = (self.world.machines[int(self.rng.integers(MACHINES))].ip, PORT)
            if sender is None or address == sender.address:
                continue
            self.sent += 1
            payload = self.sent.to_bytes(4, "big")[::-1] + bytes(int(self.rng.choice([0, 100, 60_000])))
            if self.rng.random() < 0.5:
                timeout_s = float(self.rng.uniform(0.05, 4))
                outcome = []
                sender.peers.request(address, payload, lambda result, outcome=outcome: outcome.append((self.now, result)), timeout_s)
                self.asked.append((sender, self.now + timeout_s, payload, outcome))
            else:
                sender.peers.send(address, payload)

    def suffer(self):
        network, number = self.world.network, int(self.rng.integers(MACHINES))
        choice = self.rng.random()
        if choice < 0.05 and number in self.agents:
            self.kill(number)
        elif choice < 0.12 and number not in self.agents:
            network.power(number, on=True)
            self.boot(number)
        elif choice < 0.16:
            cut = int(self.rng.integers(1, MACHINES))
            network.partition([range(cut), range(cut, MACHINES)])
        elif choice < 0.22:
            network.heal()
        elif choice < 0.24 and number in self.agents:
            network.power(number, on=False)
            self.kill(number)
        elif choice < 0.28 and number in self.agents:
            self.agents[number].peers.unwant((self.world.machines[(number + 1) % MACHINES].ip, PORT))
        elif choice < 0.32 and number in self.agents:
            self.agents[number].peers.want((self.world.machines[(number + 1) % MACHINES].ip, PORT))

    def recover(self):
        self.world.network.heal()
        for number in range(MACHINES):
            self.world.network.power(number, on=True)
            if number not in self.agents:
                self.boot(number)
            for other in range(MACHINES):
                if other != number:
                    self.agents[number].peers.want((self.world.machines[other].ip, PORT))
        self.run(40.0)

    def run(self, seconds):
        self.world.time.run_until(self.now + seconds)

    def play(self):
        for _ in range(STEPS):
            self.talk()
            self.suffer()
            self.run(float(self.rng.exponential(0.4)))
        self.recover()

    def outcomes(self):
        return [repr(outcome) for _, _, _, outcome in self.asked]


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 12)))
def test_after_any_faults_everyone_who_wants_is_connected_and_nothing_was_told_twice(seed):
    overlay = Overlay(seed)
    overlay.play()

    for number, agent in overlay.agents.items():
        for other in overlay.agents.values():
            assert other is agent or agent.peers.is_connected(other.address), f"{number} to {other.name}"
        assert len(agent.peers._connections) == 2 * (MACHINES - 1)
    for agent in [*overlay.agents.values(), *overlay.retired]:
        told = {}
        for entry in agent.log:
            if entry[0] in ("connected", "lost"):
                assert not (entry[0] == "lost" and told.get(entry[1]) != "connected"), "a peer was reported lost that was not connected"
                told[entry[1]] = entry[0]


@pytest.mark.parametrize("seed", seeds(range(4), range(4, 12)))
def test_every_request_of_a_living_agent_ends_once_and_in_time(seed):
    overlay = Overlay(seed)
    overlay.play()
    replied = 0
    for agent, deadline, payload, outcome in overlay.asked:
        assert len(outcome) <= 1
        assert outcome or agent not in overlay.agents.values()
        for ended_at, result in outcome:
            assert ended_at <= deadline + 1e-6
            assert result == payload or isinstance(result, LinkError)
            replied += result == payload
    assert replied > 50
    assert all(agent.peers.counters["frames_bad"] == 0 for agent in [*overlay.agents.values(), *overlay.retired])


def test_messages_of_one_connection_arrive_in_order_and_once():
    overlay = Overlay(99)
    seen = {}

    def keep(agent):
        def message(connection, payload):
            seen.setdefault(connection, []).append(int.from_bytes(payload[:4], "little"))

        agent.message = message

    boot = overlay.boot
    overlay.boot = lambda number: (boot(number), keep(overlay.agents[number]))
    for agent in overlay.agents.values():
        keep(agent)
    overlay.play()

    assert sum(map(len, seen.values())) > 100
    assert all(numbers == sorted(set(numbers)) for numbers in seen.values())


def test_the_same_seed_gives_the_same_run():
    runs = [Overlay(5), Overlay(5)]
    for overlay in runs:
        overlay.play()

    assert runs[0].outcomes() == runs[1].outcomes()
    assert [agent.log for agent in runs[0].agents.values()] == [agent.log for agent in runs[1].agents.values()]
