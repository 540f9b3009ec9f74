"""A small virtual world of machines whose agents are only connections."""

import numpy as np

from sbon.sealing import KeyRing
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.simulator.world import SimulatedWorld
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


def connect(world, ada, bob):
    ada.peers.want(bob.address)
    world.until(lambda: ada.peers.is_connected(bob.address))
