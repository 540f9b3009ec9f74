"""Multicasts that are inserted, migrate and end while rows flow neither lose nor repeat rows, under loss, repetition, reordering and
partitions.

Three queries share a window and its sources. By a seed, multicasts are inserted at random nodes for operators with several outputs,
operators move, and a fourth query comes and goes. The first query has exactly the rows of the same query run on one node, in order; a query
that joined while rows flowed has all rows from its first one on. Failure messages begin with the seed.
"""

from functools import cache

import numpy as np
import pytest

from sbon.errors import SbonError
from sbon.optimiser.views import Insert
from sbon_testbed.backend import Tail
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.faults.kinds import network_of
from sbon_testbed.simulator.faults.schedule import Faults
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from tests.examples import seeds
from tests.worlds import settled_world

SEEDS = range(0, 3, 3)
SOAK_SEEDS = range(3, 60, 3)
SEEDS_PER_TEST = 3
ROWS = 3_000

SOURCE = f"""
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{}}',
    rows_per_second = 250, rows = {ROWS}, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
"""
QUERIES = (
    "SELECT window_end, key, count(*) AS n, sum(value) AS total FROM TUMBLE(l, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key",
    "SELECT window_end, key, n, total FROM (SELECT window_end, key, count(*) AS n, sum(value) AS total "
    "FROM TUMBLE(l, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key) AS w WHERE n > 5",
    "SELECT ts, key, value FROM l WHERE key < 4",
)
"""Queries by the agents that submit them: the first two share a window, all share the source."""


def make_world(nodes: int, seed: int, network: NetworkConfig | None = None, window_batches: int = 64) -> World:
    settings = {
        "engine": {"batch_interval_s": 0.1, "heal_after_s": 300.0},  # longer than any partition, so that nodes continue unchanged after it
        "optimiser": {"enabled": False, "interval_s": 1.0},
        "links": {"window_batches": window_batches},
        "membership": {"interval_s": 0.5},
    }
    return settled_world(nodes, seed=seed, network=network, settings=settings)


@cache
def rows_on_one_node() -> tuple[list[str], ...]:
    world = make_world(1, seed=1)
    world.submit(SOURCE.format(world.nodes[0]))
    tails = [world.tail(world.submit(sql)) for sql in QUERIES]
    world.run_until(lambda: all(tail.finished for tail in tails))
    rows = tuple(list(map(str, tail.rows)) for tail in tails)
    assert min(len(of_one) for of_one in rows) > 100
    return rows


KINDS = ("loss", "duplicates", "reordering", "partitions", "moves")
PAUSE_S = {"partitions": 6.0, "moves": 0.6, "multicasts": 0.3, "guests": 2.5}


class Gardener(Case):
    """Inserts and removes multicasts, and starts and ends a guest query, while operators move and nodes are cut off."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.guest = ""
        self.guests: list[Tail] = []
        self.faults = Faults(self, KINDS, PAUSE_S, {"multicasts": self.change_multicasts, "guests": self.change_guest})
        self.faults.begin()

    def change_guest(self, rng: np.random.Generator) -> None:
        """Starts or ends a query at the last node; in a partition it may be refused."""
        node = len(self.world.nodes) - 1
        self.tell("guest", self.guest)
        try:
            if self.guest:
                self.world.ask(node, "drop", query=self.guest)
                self.guest = ""
            else:
                self.guest = self.world.submit(QUERIES[2], at=node)
                self.guests.append(self.world.tail(self.guest, node))
        except SbonError:
            self.guest = ""

    def change_multicasts(self, rng: np.random.Generator) -> None:
        """Moves a random part of some operator's outputs to a new multicast on a random node, or lets a multicast end."""
        (self.insert if rng.random() < 0.7 else self.fold)(rng)

    def insert(self, rng: np.random.Generator) -> None:
        for number in rng.permutation(len(self.world.nodes)):
            agent = self.world.agents[number]
            for instance in list(agent.execution.engine.instances.values()):
                links = [str(link) for link in rng.permutation(sorted(instance.outputs))[: int(rng.integers(1, 4))]]
                there = self.world.nodes[int(rng.integers(len(self.world.nodes)))]
                if links and there != agent.name:
                    decision = Insert(instance.id, tuple(links), there, 0.0, 0.0, 0.0, "made by the test", ())
                    if agent.optimisers.multicasting.insert(decision) is not None:
                        self.tell("multicast", f"of {instance.id} on {there}")
                        return

    def fold(self, rng: np.random.Generator) -> None:
        """Moves a multicast to its operator's node, where it ends."""
        found = [
            (agent, instance)
            for agent, instance in self.instances()
            if instance.is_multicast and agent.execution.migrations.may_migrate(instance.id)
        ]
        if found:
            agent, instance = found[int(rng.integers(len(found)))]
            home = next(iter(instance.inputs.values())).node
            if home != agent.name:
                self.tell("fold", f"{instance.id} {agent.name} -> {home}")
                agent.execution.migrations.migrate(instance.id, home, "moved by the test")


def count(world: World, counter: str) -> int:
    return sum(agent.optimisers.multicasting.counters[counter] for agent in world.agents)


def run_with_multicasts(seed: int) -> tuple[list[list[str]], list[list[str]], World]:
    world = make_world(6, seed, network_of(seed, KINDS), window_batches=4 + seed % 6)
    world.submit(SOURCE.format(world.nodes[1]), at=2)
    world.run(3.0)
    tails = []
    for at, sql in enumerate(QUERIES):
        query = world.submit(sql, at=2 + at)
        tails.append(world.tail(query, 2 + at))
    gardener = Gardener(world, seed)
    while not all(tail.finished for tail in tails) and world.now < 400:
        gardener.faults.run(0.25)
    gardener.faults.calm()
    open_ = [index for index, tail in enumerate(tails) if not tail.finished]
    assert not open_, f"seed {seed}: queries {open_} have not ended after {world.now:.0f} virtual seconds"
    if world.alive(5) and gardener.guest:
        world.ask(5, "drop", query=gardener.guest)
    world.run_until(
        lambda: not any(agent.execution.engine.instances for agent in world.agents), 120, f"seed {seed}: every operator is gone"
    )
    return [list(map(str, tail.rows)) for tail in tails], [list(map(str, tail.rows)) for tail in gardener.guests], world


@pytest.mark.parametrize("first", seeds(SEEDS, SOAK_SEEDS))
def test_every_sink_has_the_rows_of_a_run_on_one_node(first: int):
    made = folded = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        rows, guests, world = run_with_multicasts(seed)
        for query, (some, everything) in enumerate(zip(rows, rows_on_one_node(), strict=True)):
            assert some == everything[len(everything) - len(some) :], f"seed {seed}: query {query}"
            assert len(some) > (0.5 * len(everything) if query else len(everything) - 1), f"seed {seed}: query {query}"
        for of_guest in guests:
            first_row = everything.index(of_guest[0]) if of_guest else 0
            assert of_guest == everything[first_row : first_row + len(of_guest)], f"seed {seed}: the guest query"
        made += count(world, "multicasts_made")
        folded += count(world, "multicasts_folded")
    assert made >= SEEDS_PER_TEST, f"seeds {first} to {first + SEEDS_PER_TEST - 1}: {made} multicasts"
    assert folded >= SEEDS_PER_TEST // 3, f"seeds {first} to {first + SEEDS_PER_TEST - 1}: {folded} folded"
