"""The schedule of faults of one seed: draws them, carries them out, and tells each in the trace.

`sbon_testbed.simulator.faults.kinds` lists the kinds.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

import numpy as np
from msgspec import structs

from sbon_agent.node import Agent
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.faults.kinds import PAUSE_S, generator_of
from sbon_testbed.simulator.faults.timetable import Timetable
from sbon_testbed.simulator.network import NetworkConfig

HOMES = 0.3
"""Share of the kills that hit an owner of queries, which other agents then take over."""

Happen: TypeAlias = Callable[[np.random.Generator], None]
"""Carries out one fault, with draws from the generator of its kind."""


class Faults(Timetable):
    """The schedule of one seed. `begin` plans the first faults, `step` carries out due ones, and `calm` ends all.

    Parameters
    ----------
    kinds : kinds of faults; those of the network alone, and kinds that the case carries out at times of its own, need no entry here
    pause_s : mean virtual seconds between two faults of a kind, where they differ from `PAUSE_S`
    more : kinds of `STORY_KINDS`, and what carries them out
    """

    def __init__(
        self, case: Case, kinds: Collection[str], pause_s: Mapping[str, float] | None = None, more: Mapping[str, Happen] | None = None
    ) -> None:
        super().__init__(case.world)
        self._case = case
        self._nodes = len(case.world.nodes)
        self._pause_s = {**PAUSE_S, **(pause_s or {})}
        known: dict[str, Happen] = {
            "partitions": self._partition,
            "one-way": self._cut,
            "slow": self._slow,
            "stopped": self._stop,
            "disks": self._disk,
            "clocks": self._clock,
            "restarts": self._restart,
            "leaving": self._leave,
            "kills": self._kill,
            "moves": self._move,
        }
        self._happen = {**{kind: happen for kind, happen in known.items() if kind in kinds}, **(more or {})}
        self._rngs = {kind: generator_of(case.seed, kind) for kind in self._happen}
        self._leaving: dict[int, Agent] = {}
        self._left: dict[int, set[str]] = {}
        """For each leaving agent, the queries that it still served when last seen."""
        self._gone: set[int] = set()
        """Nodes whose agents do not come back."""

    def begin(self) -> None:
        """Plans the first fault of each kind."""
        for kind in self._happen:
            self._plan(kind)

    def once(self, kind: str, first_s: float, last_s: float, happen: Happen) -> None:
        """Plans one fault between two times from now, drawn by its kind."""
        rng = generator_of(self._case.seed, kind)
        self.after(float(rng.uniform(first_s, last_s)), lambda: happen(rng))

    def calm(self) -> None:
        """Ends all faults, and starts the agents that have ended, except those that are gone for good."""
        self.clear()
        self._case.calm_s = self.world.now
        self._case.tell("calm", "no more faults; everything must converge")
        world = self.world
        world.heal()
        network = world.world.network
        network.config = structs.replace(network.config, loss=0.0, duplicate=0.0, reorder=0.0, split=NetworkConfig().split)
        for number, machine in enumerate(world.world.machines):
            world.load(number, 0.0)
            machine.disk.delay_s, machine.disk.failing, machine.disk.capacity_bytes = 0.0, False, float("inf")
            if number not in self._gone:
                self._start(number)

    @property
    def leaving(self) -> list[int]:
        """Returns the numbers of the nodes whose agents are leaving."""
        return [number for number, agent in self._leaving.items() if self.world.agents[number] is agent]

    def watch_leaving(self) -> None:
        """Records the queries that leaving agents still serve, because these lose something when the agents end."""
        for number, agent in list(self._leaving.items()):
            if self.world.agents[number] is agent:
                self._left[number] = self._case.served_by(agent)
                continue
            del self._leaving[number]
            for name in self._left.pop(number, set()):
                self._case.harmed.setdefault(name, f"{self.world.nodes[number]} has left")

    # ------------------------------------------------------------------------------------------------------- time

    def _plan(self, kind: str) -> None:
        rng = self._rngs[kind]

        def due() -> None:
            self._happen[kind](rng)
            self._plan(kind)

        self.after(float(rng.exponential(self._pause_s[kind])), due)

    def _later(self, after_s: float, what: str, details: str, action: Callable[[], None]) -> None:
        def due() -> None:
            self._case.tell(what, details)
            action()

        self.after(after_s, due)

    # ----------------------------------------------------------------------------------------------------- network

    def cut_off(self, numbers: Iterable[int], seconds: float) -> None:
        """Cuts nodes off from all others for a while."""
        away = sorted(numbers)
        self.world.partition([away])
        names = ", ".join(self.world.nodes[n] for n in away)
        self._case.tell("partition", f"{names} for {seconds:.1f} s")
        self._later(seconds, "heal", "", self.world.heal)

    def _partition(self, rng: np.random.Generator) -> None:
        away = [int(n) for n in rng.permutation(self._nodes)[: int(rng.integers(1, 3))]]
        self.cut_off(away, float(rng.uniform(0.3, 8.0)))

    def _cut(self, rng: np.random.Generator) -> None:
        source, target = (int(n) for n in rng.permutation(self._nodes)[:2])
        seconds = float(rng.uniform(0.3, 5.0))
        self.world.world.network.cut(source, target)
        self._case.tell("one-way", f"nothing from {self.world.nodes[source]} to {self.world.nodes[target]} for {seconds:.1f} s")
        self._later(seconds, "heal", "", self.world.heal)

    # ---------------------------------------------------------------------------------------------------- machines

    def slow(self, number: int, seconds: float) -> None:
        """Lets other programs take nearly all of a machine's processors for a while."""
        name = self.world.nodes[number]
        self.world.load(number, 0.99)
        self._case.tell("slow", f"{name} for {seconds:.1f} s")
        self._later(seconds, "not slow", name, lambda: self.world.load(number, 0.0))

    def _slow(self, rng: np.random.Generator) -> None:
        self.slow(int(rng.integers(self._nodes)), float(rng.uniform(0.3, 3.0)))

    def _stop(self, rng: np.random.Generator) -> None:
        number = int(rng.integers(self._nodes))
        seconds = float(rng.choice([0.2, 1.0, 3.0, 7.0]) * rng.uniform(0.5, 1.0))
        self.world.world.network.stop(number, seconds)
        self._case.tell("stopped", f"{self.world.nodes[number]} for {seconds:.1f} s")

    def _disk(self, rng: np.random.Generator) -> None:
        number = int(rng.integers(self._nodes))
        disk, fault = self.world.world.machines[number].disk, int(rng.integers(4))
        disk.delay_s = 0.5 if fault == 1 else 0.0
        disk.failing = fault == 2
        disk.capacity_bytes = disk.used_bytes + 2_000 if fault == 3 else float("inf")
        self._case.tell("disk", f"{self.world.nodes[number]} is {('well', 'slow', 'broken', 'full')[fault]}")

    def _clock(self, rng: np.random.Generator) -> None:
        number = int(rng.integers(self._nodes))
        seconds = float(rng.choice([-1, 1]) * rng.choice([0.1, 2.0, 30.0]))
        self.world.world.machines[number].wall_skew_s += seconds
        self._case.tell("clock", f"{self.world.nodes[number]} jumps by {seconds:g} s")

    # ------------------------------------------------------------------------------------------------------ agents

    def end(self, rng: np.random.Generator, number: int, what: str, back: Callable[[], None] | None = None) -> None:
        """Kills an agent, or its machine.

        Parameters
        ----------
        back : called when the agent may start again, some seconds later; None: it does not
        """
        silent = bool(rng.integers(2))
        name = self.world.nodes[number]
        self._case.harm(number, f"{name} was killed")
        seconds = float(rng.uniform(0.2, 6.0))
        self._case.tell(what, f"{name}{' with its machine' if silent else ''} {f'for {seconds:.1f} s' if back else 'for good'}")
        self.world.kill(number, silent=silent)
        if back is None:
            self._gone.add(number)
        else:
            self.after(seconds, back)

    def _start(self, number: int) -> None:
        if self.world.agents[number] is None:
            self._case.tell("start", self.world.nodes[number])
            self.world.start(number)

    def _restart(self, rng: np.random.Generator) -> None:
        idle = self._case.idle()
        if idle:
            number = idle[int(rng.integers(len(idle)))]
            self.end(rng, number, "restart", lambda: self._start(number))

    def _kill(self, rng: np.random.Generator) -> None:
        homes = self._case.homes
        takes_home = rng.random() < HOMES
        running = [number for number in self._case.running if (number in homes) == takes_home]
        if running:
            number = running[int(rng.integers(len(running)))]
            self.end(rng, number, "kill", lambda: self._start(number))

    def _leave(self, rng: np.random.Generator) -> None:
        spare = [(n, agent) for n, agent in self._case.agents() if n in self._case.spare and n not in self._leaving]
        if not spare:
            return
        (number, agent), seconds = spare[int(rng.integers(len(spare)))], float(rng.uniform(2.0, 8.0))
        self._leaving[number] = agent
        self._case.tell("leave", self.world.nodes[number])
        self.world.leave(number)
        self.after(seconds, lambda: self._come_back(number))

    def _come_back(self, number: int) -> None:
        """Starts an agent that has left; tries again after a second if it is still leaving."""
        if self.world.agents[number] is None:
            self._start(number)
        else:
            self.after(1.0, lambda: self._come_back(number))

    # --------------------------------------------------------------------------------------------------- operators

    def _move(self, rng: np.random.Generator) -> None:
        hosts = self._case.hosts
        movable = [
            (agent, operator)
            for number, agent in self._case.agents()
            if number in hosts
            for operator in agent.execution.operators.instances
            if agent.execution.migrations.may_migrate(operator)
        ]
        draw, there = float(rng.random()), self.world.nodes[hosts[int(rng.integers(len(hosts)))]]
        if not movable:
            return
        agent, operator = movable[int(draw * len(movable))]
        if there != agent.name:
            self._case.tell("move", f"{operator} {agent.name} -> {there}")
            agent.execution.migrations.migrate(operator, there, "moved by the simulation")
