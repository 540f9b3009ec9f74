"""Queries whose plans change while rows flow neither lose nor repeat rows, with moves, lost messages, partitions and aborted changes.

By a seed, the number of instances of a query or the order of its operators changes repeatedly, operators of either plan move, nodes are cut
off for a while, and changes are called off. The rows equal those of the same query run on one node, in order. Failure messages begin with
the seed.
"""

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbon.errors import SbonError
from sbon.query.moves import moved, moves
from sbon.supervision.record import QueryRecord
from sbon_testbed.simulator.case import Case
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.faults.kinds import network_of
from sbon_testbed.simulator.faults.schedule import Faults
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from tests.examples import seeds
from tests.worlds import settled_world

SEEDS = [range(1)]
SOAK_SEEDS = [range(first, first + 10) for first in range(0, 500, 10)]
"""In so many, a plan changes for sure."""
NODES = 5
ROWS = 4_000

SOURCES = f"""
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value BIGINT, WATERMARK FOR ts AS ts - INTERVAL '300 milliseconds') WITH (connector = 'datagen',
    nodes = '{{left}}', rows_per_second = 250, rows = {ROWS}, seed = 1, 'start' = '2026-01-01T00:00:00',
    fields.key.min = 0, fields.key.max = 20, fields.value.min = 0, fields.value.max = 9);
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{right}}',
    rows_per_second = 125, rows = {ROWS // 2}, seed = 2, 'start' = '2026-01-01T00:00:00',
    fields.key.min = 0, fields.key.max = 20, fields.value.min = 0, fields.value.max = 9);
"""
AGGREGATES = "COUNT(*) AS n, SUM(value) AS total"
QUERIES = (
    f"SELECT window_end, key, {AGGREGATES} FROM TUMBLE(l, ts, INTERVAL '500 milliseconds') WHERE value > 1 GROUP BY window_end, key",
    f"SELECT window_end, key, {AGGREGATES} FROM HOP(l, ts, INTERVAL '200 milliseconds', INTERVAL '1 second') GROUP BY window_end, key",
    f"WITH b AS (SELECT ts, key, value FROM l UNION ALL SELECT ts, key, value FROM r) "
    f"SELECT window_end, key, {AGGREGATES} FROM TUMBLE(b, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key",
    "WITH j AS (SELECT l.ts AS ts, l.key AS key, r.value AS value FROM l LEFT JOIN r ON l.key = r.key "
    "AND r.ts BETWEEN l.ts - INTERVAL '200 milliseconds' AND l.ts) "
    f"SELECT window_end, key, {AGGREGATES} FROM TUMBLE(j, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key",
    "WITH j AS (SELECT l.ts AS ts, l.key AS key, a.value + b.value AS value FROM l JOIN r AS a ON l.key = a.key "
    "AND a.ts BETWEEN l.ts - INTERVAL '100 milliseconds' AND l.ts JOIN r AS b ON l.value = b.value "
    "AND b.ts BETWEEN l.ts - INTERVAL '100 milliseconds' AND l.ts) "
    f"SELECT window_end, key, {AGGREGATES} FROM TUMBLE(j, ts, INTERVAL '500 milliseconds') GROUP BY window_end, key",
)


def make_world(
    nodes: int,
    seed: int,
    network: NetworkConfig | None = None,
    window_batches: int = 64,
    data_dir: Path | None = None,
    cpu: CpuConfig | None = None,
    optimiser: dict[str, Any] | None = None,
    predictions: str = "coarse",
) -> World:
    takes_over = data_dir is None  # a home that keeps its disk restarts its queries
    settings = {
        # Healing starts later than the end of any partition, so that nodes continue unchanged after it.
        "engine": {"batch_interval_s": 0.1, "heal_after_s": 300.0, "take_over": takes_over},
        "optimiser": optimiser or {"enabled": False},
        "placement": {"reuse": False},
        "telemetry": {"enabled": False},
        "links": {"window_batches": window_batches},
        "membership": {"interval_s": 0.5},
        "migration": {"timeout_s": 4.0, "lease_s": 8.0},
    }
    return settled_world(nodes, seed=seed, network=network, settings=settings, data_dir=data_dir, cpu=cpu, predictions=predictions)


def submitted(world: World, sql: str, right: int) -> tuple[Any, QueryRecord]:
    world.submit(SOURCES.format(left=world.nodes[1 % len(world.nodes)], right=world.nodes[right % len(world.nodes)]))
    query = world.submit(sql)
    home: Any = world.agents[0]
    return world.tail(query), home.queries.owned.records[query]


@cache
def rows_on_one_node(sql: str) -> list[str]:
    world = make_world(1, seed=1)
    tail, _ = submitted(world, sql, 0)
    world.run_until(lambda: tail.finished)
    world.close()
    assert len(tail.rows) > 100
    return list(map(str, tail.rows))


KINDS = ("loss", "duplicates", "reordering", "partitions", "moves")
PAUSE_S = {"partitions": 7.0, "moves": 0.4, "plans": 0.75, "call-offs": 10.0}


class Gardener(Case):
    """Changes the plan and calls changes off, while operators move and nodes are cut off."""

    def __init__(self, world: World, record: QueryRecord, seed: int) -> None:
        super().__init__(world, seed)
        self.record = record
        self.called_off = 0
        self.home: Any = world.agents[0]
        self.faults = Faults(self, KINDS, PAUSE_S, {"plans": self.replan, "call-offs": self.call_off})
        self.faults.begin()

    def call_off(self, rng: np.random.Generator) -> None:
        self.tell("call off", self.record.id)
        self.home.queries.owned.recovering.replans.call_off(self.record.id)

    def replan(self, rng: np.random.Generator) -> None:
        def done(result: object) -> None:
            self.called_off += isinstance(result, SbonError)

        self.tell("plan", self.record.id)
        found = moves(self.record.plan) if rng.random() < 0.5 else []
        with suppress(SbonError):  # the query is changing already, or not all of its operators run
            if found:
                plan = moved(self.record.plan, found[int(rng.integers(len(found)))])
                self.home.queries.owned.recovering.replans.begin(self.record, plan, done)
                return
            self.home.queries.owned.statements.replan(self.record.id, {"instances": int(rng.integers(2, 5))}, done)


def run_story(seed: int) -> int:
    """Runs one seed; returns the number of changes of the plan."""
    rng = np.random.default_rng(seed + 1_000)
    sql = QUERIES[seed % len(QUERIES)]
    world = make_world(NODES, seed, network_of(seed, KINDS), window_batches=int(rng.choice([2, 8, 64])))
    tail, record = submitted(world, sql, 1 + seed % 2)
    gardener = Gardener(world, record, seed)
    while not tail.finished and world.now < 90.0:
        gardener.faults.run(0.25)
    gardener.faults.calm()
    world.run_until(lambda: tail.finished, 300.0, f"seed {seed}: the query ends: {record.health.healing.plans.step}, {record.reason}")
    changes = sum(one.event == "replanned" for one in record.history.latest(100))
    found = list(map(str, tail.rows))
    expected = rows_on_one_node(sql)
    assert found == expected, f"seed {seed}: {changes} changes, {len(found)} of {len(expected)} rows, {_differ(found, expected)}"
    running: list[Any] = [agent for agent in world.agents if agent is not None]
    world.run_until(lambda: not any(agent.execution.operators.instances for agent in running), 120.0, f"seed {seed}: nothing is left")
    world.close()
    return changes


def _differ(found: list[str], expected: list[str]) -> str:
    place = next((i for i, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other), min(len(found), len(expected)))
    return f"from row {place}: {found[place : place + 3]}, expected {expected[place : place + 3]}"


@pytest.mark.parametrize("numbers", seeds(SEEDS, SOAK_SEEDS), ids=str)
def test_answers_are_those_of_one_plan_whatever_happens_while_plans_change(numbers: range) -> None:
    changes = [run_story(seed) for seed in numbers]
    assert sum(changes) > 0, f"{numbers}: no plan has changed"
