"""Faults in a story's world: lost messages, cuts, slow machines, broken disks, and operators that move. They kill no agent."""

import numpy as np

from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig


class Trouble:
    """Faults of one world, drawn from a seed.

    Parameters
    ----------
    hosts : operators move among the first `hosts` agents; None: among all
    """

    def __init__(self, world: World, seed: int, hosts: int | None = None) -> None:
        self._world = world
        self._hosts = len(world.nodes) if hosts is None else hosts
        self._rng = np.random.default_rng(seed)
        self._disk_rng = np.random.default_rng([seed, 2])
        self._heals_at: float | None = None
        self._eases_at: float | None = None
        self._slow = 0

    def step(self) -> None:
        """Starts up to three migrations at once, and now and then a cut or a slow machine."""
        for _ in range(int(self._rng.integers(1, 4))):
            self.move_one()
        self._cut_or_heal()
        self._slow_or_ease()
        self._break_or_mend_disks()

    def agents(self) -> list[Agent]:
        """Returns the agents among which operators move."""
        return [agent for agent in self._world.agents[: self._hosts] if isinstance(agent, Agent)]

    def move_one(self) -> None:
        """Asks some agent to move some operator somewhere."""
        agents = self.agents()
        for number in self._rng.permutation(len(agents)):
            agent = agents[int(number)]
            movable = [operator for operator in agent.execution.operators.instances if agent.execution.migrations.may_migrate(operator)]
            if movable:
                there = self._world.nodes[int(self._rng.integers(len(agents)))]
                if there != agent.name:
                    agent.execution.migrations.migrate(movable[int(self._rng.integers(len(movable)))], there, "moved by the story")
                return

    def calm(self) -> None:
        """Ends every cut and every load."""
        self._world.heal()
        self._world.load(self._slow, 0.0)
        self._heals_at = self._eases_at = None

    def _cut_or_heal(self) -> None:
        now = self._world.now
        if self._heals_at is not None and now >= self._heals_at:
            self._world.heal()
            self._heals_at = None
        elif self._heals_at is None and self._rng.random() < 0.1:
            nodes = len(self._world.nodes)
            cut = [int(n) for n in self._rng.permutation(nodes)[: int(self._rng.integers(1, 3))]]
            self._world.partition([cut])
            self._heals_at = now + float(self._rng.uniform(0.5, 9.0))

    def _slow_or_ease(self) -> None:
        now = self._world.now
        if self._eases_at is not None and now >= self._eases_at:
            self._world.load(self._slow, 0.0)
            self._eases_at = None
        elif self._eases_at is None and self._rng.random() < 0.15:
            self._slow = int(self._rng.integers(len(self._world.nodes)))
            self._world.load(self._slow, 0.99)
            self._eases_at = now + float(self._rng.uniform(0.5, 3.0))

    def _break_or_mend_disks(self) -> None:
        """Breaks or repairs disks, with draws from a generator of its own."""
        for machine in self._world.world.machines:
            disk, fault = machine.disk, int(self._disk_rng.integers(12))
            disk.delay_s = 0.5 if fault == 0 else 0.0
            disk.failing = fault == 1
            disk.capacity_bytes = disk.used_bytes + 2_000 if fault == 2 else float("inf")


def network_of(rng: np.random.Generator) -> NetworkConfig:
    """Draws settings of loss, duplication, reordering, delay, splitting, and the time after which a stalled stream breaks."""
    return NetworkConfig(
        loss=float(rng.uniform(0.0, 0.05)),
        duplicate=float(rng.uniform(0.0, 0.05)),
        reorder=float(rng.uniform(0.0, 0.1)),
        jitter_ms=float(rng.uniform(0.2, 10.0)),
        split=float(rng.uniform(0.0, 0.6)),
        stream_timeout_s=float(rng.choice([1.0, 3.0, 20.0])),
    )
