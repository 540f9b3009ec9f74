"""The faults of one seed: of the network, of machines, disks and clocks, agents that end, and operators that move by hand.

Each kind draws its times and targets from a generator of its own, so that leaving a kind out does not change the others' draws.

| kind | what happens |
| --- | --- |
| loss, duplicates, reordering | datagrams are lost, arrive twice, or are held back |
| partitions, one-way | nodes are cut off for a while; one direction of one pair is blocked |
| slow, stopped | other programs take a machine's processors; its processes stop, as in a debugger |
| disks | disks are slow, full or broken for a while; links spill to them |
| clocks | wall clocks jump |
| restarts | an agent that serves no query is killed and started again |
| leaving | an agent leaves in good order and comes back |
| kills | in some seeds, agents are killed with all that they serve, and come back without it, among them owners of queries |
| moves | operators are moved, several at once, at any moment |
| optimisers | the optimisers of all agents are on |
"""

import heapq
from collections.abc import Callable, Collection

import numpy as np

from sbon.config import Layer
from sbon.errors import UsageError
from sbon_agent.node import Agent
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.simulator.run_state import Run

KINDS = (
    *("loss", "duplicates", "reordering", "partitions", "one-way", "slow", "stopped", "disks", "clocks"),
    *("restarts", "leaving", "kills", "moves", "optimisers"),
)
PAUSE_S = {
    "partitions": 5.0,
    "one-way": 6.0,
    "slow": 4.0,
    "stopped": 5.0,
    "disks": 1.0,
    "clocks": 4.0,
    "restarts": 6.0,
    "leaving": 8.0,
    "kills": 5.0,
    "moves": 0.1,
}
"""Mean virtual seconds between two faults of a kind."""
TICK_S = 1e-6
"""Virtual time has whole nanoseconds; a fault closer than this is due."""
KILLS = 0.25
"""Share of the seeds in which agents are killed with all that they serve."""
HOMES = 0.3
"""Share of the kills that hit an owner of queries, which other agents then take over."""
SPILLS = 0.4
"""Share of the seeds in which links have disks."""


def kinds_of(text: str) -> tuple[str, ...]:
    """Returns the kinds in a comma-separated list; an empty text means all.

    Raises
    ------
    UsageError
        A kind is unknown.
    """
    kinds = tuple(filter(None, (part.strip() for part in text.split(","))))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"--faults {', '.join(unknown)}: expected some of {','.join(KINDS)}")
    return kinds or KINDS


def network_of(seed: int, kinds: Collection[str]) -> NetworkConfig:
    """Returns the network of a seed during the faults."""
    rng = np.random.default_rng([seed, 20])
    loss, duplicate, reorder, jitter_ms, split = rng.uniform([0, 0, 0, 0.2, 0], [0.06, 0.06, 0.12, 10.0, 0.6])
    return NetworkConfig(
        loss=float(loss) if "loss" in kinds else 0.0,
        duplicate=float(duplicate) if "duplicates" in kinds else 0.0,
        reorder=float(reorder) if "reordering" in kinds else 0.0,
        jitter_ms=float(jitter_ms),
        split=float(split),
        stream_timeout_s=float(rng.choice([1.0, 3.0, 20.0])),
    )


def settings_of(seed: int, kinds: Collection[str]) -> Layer:
    """Returns the settings of all agents of a seed: small windows and pieces, fast optimisers, keepers that take over, and disks in some
    seeds."""
    rng = np.random.default_rng([seed, 21])
    links: Layer = {"window_batches": int(rng.integers(1, 9))}
    if rng.random() < SPILLS and "disks" in kinds:
        links = {**links, "spill_bytes": 2**20, "spill_after_s": 0.1}
    return {
        "engine": {
            "batch_interval_s": 0.1,
            # By default, successive cuts may keep a node away for longer than inputs and outputs wait, after which losing rows is correct.
            "lost_input_s": 600.0,
            "lost_consumer_s": 600.0,
            "wanted_interval_s": 5.0,
            "take_over": True,
            **({"quantum_rows": 4} if seed % 2 else {}),
        },
        "optimiser": {
            "enabled": "optimisers" in kinds,
            "interval_s": 1.0,
            "cooldown_s": 2.0,
            "lookup_interval_s": 3.0,
            "confirmations": 1,
            "certainty": 0.5,
        },
        "placement": {"reuse": False},
        "telemetry": {"enabled": False},
        "links": links,
        "membership": {"interval_s": 0.5, "reconnect_interval_s": 3.0},
        "migration": {
            "piece_bytes": 1024,
            "window_bytes": (1, 4096, 2**20)[seed % 3],
            "rest_bytes": (1, 65_536)[seed % 2],
            "timeout_s": 4.0,
            "lease_s": 8.0,
            "prepared_s": 2.0,
        },
    }


def kills_of(seed: int, kinds: Collection[str]) -> bool:
    """Tells whether agents of a seed are killed with all that they serve."""
    return "kills" in kinds and float(np.random.default_rng([seed, 22]).random()) < KILLS


class Faults:
    """The schedule of one seed. `step` carries out due faults; `calm` ends all faults."""

    def __init__(self, run: Run, kinds: Collection[str]) -> None:
        self._run, self._world = run, run.world
        self._nodes = len(run.world.nodes)
        seed = run.workload.seed
        self._rngs = {kind: np.random.default_rng([seed, 30 + KINDS.index(kind)]) for kind in kinds}
        self._happen: dict[str, Callable[[np.random.Generator], None]] = {
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
        if not kills_of(seed, kinds):
            del self._happen["kills"]
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._leaving: dict[int, Agent] = {}
        self._left: dict[int, set[str]] = {}
        """For each leaving agent, the queries that it still served when last seen."""

    def begin(self) -> None:
        """Schedules the first fault of each kind."""
        for kind in self._happen:
            if kind in self._rngs:
                self._plan(kind)

    @property
    def next_s(self) -> float:
        """Returns when the next fault is due, in virtual seconds."""
        return self._due[0][0] if self._due else float("inf")

    def step(self) -> None:
        """Carries out the faults that are due."""
        while self._due and self._due[0][0] <= self._world.now + TICK_S:
            heapq.heappop(self._due)[2]()

    def calm(self) -> None:
        """Ends all faults, and starts the agents that have ended."""
        self._due.clear()
        world = self._world
        world.heal()
        config = world.world.network.config
        world.world.network.config = NetworkConfig(jitter_ms=config.jitter_ms, stream_timeout_s=config.stream_timeout_s)
        for number, machine in enumerate(world.world.machines):
            world.load(number, 0.0)
            machine.disk.delay_s, machine.disk.failing, machine.disk.capacity_bytes = 0.0, False, float("inf")
            self._start(number)

    def watch_leaving(self) -> None:
        """Records the queries that leaving agents still serve, because these lose something when the agents end."""
        for number, agent in list(self._leaving.items()):
            if self._world.agents[number] is agent:
                self._left[number] = self._run.served_by(agent)
                continue
            del self._leaving[number]
            for name in self._left.pop(number, set()):
                self._run.harmed.setdefault(name, f"{self._world.nodes[number]} has left")

    # ------------------------------------------------------------------------------------------------------- time

    def _plan(self, kind: str) -> None:
        rng = self._rngs[kind]

        def due() -> None:
            self._happen[kind](rng)
            self._plan(kind)

        self._at(self._world.now + float(rng.exponential(PAUSE_S[kind])), due)

    def _at(self, when_s: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._due, (when_s, self._order, action))

    def _later(self, after_s: float, what: str, details: str, action: Callable[[], None]) -> None:
        def due() -> None:
            self._run.tell(what, details)
            action()

        self._at(self._world.now + after_s, due)

    def _one(self, rng: np.random.Generator) -> tuple[int, str]:
        number = int(rng.integers(self._nodes))
        return number, self._world.nodes[number]

    # ----------------------------------------------------------------------------------------------------- network

    def _partition(self, rng: np.random.Generator) -> None:
        away = sorted(int(n) for n in rng.permutation(self._nodes)[: int(rng.integers(1, 3))])
        seconds = float(rng.uniform(0.3, 8.0))
        self._world.partition([away])
        names = ", ".join(self._world.nodes[n] for n in away)
        self._run.tell("partition", f"{names} for {seconds:.1f} s")
        self._later(seconds, "heal", "", self._world.heal)

    def _cut(self, rng: np.random.Generator) -> None:
        source, target = (int(n) for n in rng.permutation(self._nodes)[:2])
        seconds = float(rng.uniform(0.3, 5.0))
        self._world.world.network.cut(source, target)
        self._run.tell("one-way", f"nothing from {self._world.nodes[source]} to {self._world.nodes[target]} for {seconds:.1f} s")
        self._later(seconds, "heal", "", self._world.heal)

    # ---------------------------------------------------------------------------------------------------- machines

    def _slow(self, rng: np.random.Generator) -> None:
        number, name = self._one(rng)
        seconds = float(rng.uniform(0.3, 3.0))
        self._world.load(number, 0.99)
        self._run.tell("slow", f"{name} for {seconds:.1f} s")
        self._later(seconds, "not slow", name, lambda: self._world.load(number, 0.0))

    def _stop(self, rng: np.random.Generator) -> None:
        number, name = self._one(rng)
        seconds = float(rng.choice([0.2, 1.0, 3.0, 7.0]) * rng.uniform(0.5, 1.0))
        self._world.world.network.stop(number, seconds)
        self._run.tell("stopped", f"{name} for {seconds:.1f} s")

    def _disk(self, rng: np.random.Generator) -> None:
        number, name = self._one(rng)
        disk, fault = self._world.world.machines[number].disk, int(rng.integers(4))
        disk.delay_s = 0.5 if fault == 1 else 0.0
        disk.failing = fault == 2
        disk.capacity_bytes = disk.used_bytes + 2_000 if fault == 3 else float("inf")
        self._run.tell("disk", f"{name} is {('well', 'slow', 'broken', 'full')[fault]}")

    def _clock(self, rng: np.random.Generator) -> None:
        number, name = self._one(rng)
        seconds = float(rng.choice([-1, 1]) * rng.choice([0.1, 2.0, 30.0]))
        self._world.world.machines[number].wall_skew_s += seconds
        self._run.tell("clock", f"{name} jumps by {seconds:g} s")

    # ------------------------------------------------------------------------------------------------------ agents

    def _start(self, number: int) -> None:
        if self._world.agents[number] is None:
            self._run.tell("start", self._world.nodes[number])
            self._world.start(number)

    def _end(self, rng: np.random.Generator, number: int, what: str) -> None:
        agent = self._world.agents[number]
        assert isinstance(agent, Agent)
        silent = bool(rng.integers(2))
        seconds = float(rng.uniform(0.2, 6.0))
        self._run.harm(agent, f"{self._world.nodes[number]} was killed")
        self._run.tell(what, f"{self._world.nodes[number]}{' with its machine' if silent else ''} for {seconds:.1f} s")
        self._world.kill(number, silent=silent)
        self._at(self._world.now + seconds, lambda: self._start(number))

    def _restart(self, rng: np.random.Generator) -> None:
        idle = [n for n, agent in self._run.agents() if n in self._run.workload.spare and not self._run.served_by(agent)]
        if idle:
            self._end(rng, idle[int(rng.integers(len(idle)))], "restart")

    def _kill(self, rng: np.random.Generator) -> None:
        homes = {number for number, agent in self._run.agents() if agent.queries.owned.records}
        takes_home = rng.random() < HOMES
        running = [number for number, _ in self._run.agents() if (number in homes) == takes_home]
        if running:
            self._end(rng, running[int(rng.integers(len(running)))], "kill")

    def _leave(self, rng: np.random.Generator) -> None:
        spare = [n for n, agent in self._run.agents() if n in self._run.workload.spare and n not in self._leaving]
        if not spare:
            return
        number, seconds = spare[int(rng.integers(len(spare)))], float(rng.uniform(2.0, 8.0))
        agent = self._world.agents[number]
        assert isinstance(agent, Agent)
        self._leaving[number] = agent
        self._run.tell("leave", self._world.nodes[number])
        self._world.leave(number)
        self._at(self._world.now + seconds, lambda: self._come_back(number))

    def _come_back(self, number: int) -> None:
        """Starts an agent that has left; tries again after a second if it is still leaving."""
        if self._world.agents[number] is None:
            self._start(number)
        else:
            self._at(self._world.now + 1.0, lambda: self._come_back(number))

    # --------------------------------------------------------------------------------------------------- operators

    def _move(self, rng: np.random.Generator) -> None:
        agents = [agent for _, agent in self._run.agents()]
        movable = [
            (agent, operator)
            for agent in agents
            for operator in agent.execution.operators.instances
            if agent.execution.migrations.may_migrate(operator)
        ]
        draw, there = float(rng.random()), self._world.nodes[int(rng.integers(self._nodes))]
        if not movable:
            return
        agent, operator = movable[int(draw * len(movable))]
        if there != agent.name:
            self._run.tell("move", f"{operator} {agent.name} -> {there}")
            agent.execution.migrations.migrate(operator, there, "moved by the simulation")
