"""Migrations under load lose and repeat nothing: the sink's rows equal those of the same query run on one node, row by row.

Every seed is another overlay: another network with loss, repetition and reordering, other partitions, other credit, other migrations at
other instants, some of them abandoned. The first row of every failure message is the seed.
"""

from functools import cache

import numpy as np
import pytest

from testbed.virtual.harness import World
from testbed.virtual.network import NetworkConfig

SEEDS = 200
SEEDS_PER_TEST = 10
ROWS = 3_000

STATEMENTS = f"""
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{left}}',
    rows_per_second = 500, rows = {ROWS}, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{right}}',
    rows_per_second = 500, rows = {ROWS}, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE VIEW w AS SELECT window_end, key, count(*) AS n, sum(value) AS total, max(value) AS top
    FROM TUMBLE(l, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key;
SELECT w.window_end, w.key, w.n, w.top, r.value, r.ts FROM w JOIN r
    ON w.key = r.key AND r.ts BETWEEN w.window_end - INTERVAL '100 milliseconds' AND w.window_end;
"""


def make_world(nodes: int, seed: int, network: NetworkConfig | None = None, window_batches: int = 64) -> World:
    settings = {"engine": {"batch_interval_s": 0.1}, "optimiser": {"enabled": False}, "links": {"window_batches": window_batches}}
    world = World(nodes, seed=seed, network=network, settings=settings)
    world.start_all()
    world.settle()
    return world


@cache
def rows_on_one_node() -> list[str]:
    world = make_world(1, seed=1)
    query = world.submit(STATEMENTS.format(left=world.nodes[0], right=world.nodes[0]))
    tail = world.tail(query)
    world.run_until(lambda: tail.finished)
    assert len(tail.rows) > 300
    return sorted(map(str, tail.rows))


class Mover:
    """Moves operators to and fro, and cuts nodes off, by a seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = np.random.default_rng(seed)
        self.heals_at: float | None = None

    def step(self) -> None:
        self.move_one()
        now = self.world.now
        if self.heals_at is not None and now >= self.heals_at:
            self.world.heal()
            self.heals_at = None
        elif self.heals_at is None and self.rng.random() < 0.1:
            nodes = len(self.world.nodes)
            self.world.partition([[int(n) for n in self.rng.permutation(nodes)[: int(self.rng.integers(1, 3))]]])
            self.heals_at = now + float(self.rng.uniform(0.5, 9.0))

    def move_one(self) -> None:
        for number in self.rng.permutation(len(self.world.nodes)):
            agent = self.world.agents[number]
            movable = [operator for operator in agent.engine.instances if agent.migrations.may_migrate(operator)]
            if movable:
                there = self.world.nodes[int(self.rng.integers(len(self.world.nodes)))]
                if there != agent.name:
                    agent.migrations.migrate(movable[int(self.rng.integers(len(movable)))], there, "moved by the test")
                return


def run_with_migrations(seed: int) -> tuple[list[str], int, int]:
    network = NetworkConfig(loss=0.02, duplicate=0.02, reorder=0.05, jitter_ms=2.0, split=0.5)
    world = make_world(5, seed, network, window_batches=2 + seed % 6)
    query = world.submit(STATEMENTS.format(left=world.nodes[1], right=world.nodes[2]))
    tail = world.tail(query)
    mover = Mover(world, seed)
    while not tail.finished and world.now < 300:
        world.run(0.3)
        mover.step()
    assert tail.finished, f"seed {seed}: the query has not ended after {world.now:.0f} virtual seconds"
    ended = [record for agent in world.agents for record in agent.measuring.migrations]
    committed = sum(record["committed"] for record in ended)
    return sorted(map(str, tail.rows)), committed, len(ended) - committed


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_the_sink_has_the_rows_of_a_run_on_one_node(first: int):
    committed = abandoned = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        rows, moved, given_up = run_with_migrations(seed)
        assert rows == rows_on_one_node(), f"seed {seed}"
        committed += moved
        abandoned += given_up
    assert committed >= SEEDS_PER_TEST, f"seeds {first} to {first + SEEDS_PER_TEST - 1} hardly moved anything"
