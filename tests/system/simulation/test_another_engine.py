"""Overlays with engines of another kind give the same rows: the overlay uses only the interface of engines."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from sbon.execution.engine import Engine
from sbon_agent.config import AgentConfig
from sbon_agent.engine.engine import BuiltInEngine
from sbon_agent.host import Host
from sbon_agent.hosting import EngineParts
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.system.simulation.tiny_engine import TinyEngine
from tests.worlds import moves_in, settled_world

SOURCE = (
    "CREATE SOURCE s{number} (ts TIMESTAMP, key BIGINT, v BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}', "
    "rows_per_second = 200, rows = {rows}, seed = {number}, start = '2026-01-01', fields.key.max = 5);"
)
QUERIES = {
    "union": "SELECT ts, key, v * 2 AS w FROM s1 WHERE key < 3 UNION ALL SELECT ts, key, v FROM s2",
    "window": "SELECT window_end, key, count(*) AS n, sum(v) AS s FROM TUMBLE(s1, ts, INTERVAL '1 second') GROUP BY window_end, key",
    "join": "SELECT s1.ts, s1.key, s2.v FROM s1 JOIN s2 ON s1.key = s2.key AND s2.ts BETWEEN s1.ts - INTERVAL '20 milliseconds' AND s1.ts",
}


def world_of(tiny: Callable[[int], bool], rows: int = 400) -> World:
    """Returns four agents, some of them with the other engine, and two sources of `rows` rows."""

    made = itertools.count()

    def make(config: AgentConfig, host: Host, ring: Any) -> Any:
        number = next(made)

        def engine(parts: EngineParts) -> Engine:
            return TinyEngine(parts) if tiny(number) else BuiltInEngine(parts)

        return Agent(config, host, ring, make_engine=engine)

    world = settled_world(4, seed=5, settings={"optimiser": {"enabled": False}}, make_agent=make)
    for number in (1, 2):
        world.submit(SOURCE.format(number=number, node=world.nodes[number], rows=rows))
    return world


def rows_of(world: World, query: str, *, moves: bool = False) -> tuple[list[str], int]:
    """Returns all rows of a query, sorted, and the number of migrations."""
    tail = world.tail(world.submit(query))
    faults = moves_in(world, 5)
    while moves and not tail.finished and world.now < 200:
        faults.run(0.3)
    world.run_until(lambda: tail.finished, 200, "all rows have come")
    moved = sum(record["committed"] for agent in world.agents for record in agent.monitoring.measuring.migrations)  # type: ignore[union-attr]
    return sorted(map(str, tail.rows)), moved


@pytest.mark.parametrize("name", QUERIES)
def test_a_tiny_engine_on_all_hosts_gives_the_rows_of_the_built_in_one(name: str):
    assert rows_of(world_of(lambda number: True), QUERIES[name]) == rows_of(world_of(lambda number: False), QUERIES[name])


def test_operators_move_between_engines_of_two_kinds_and_no_row_is_lost_or_doubled():
    expected, _ = rows_of(world_of(lambda number: False, 2_000), QUERIES["window"])
    given, moved = rows_of(world_of(lambda number: number % 2 == 0, 2_000), QUERIES["window"], moves=True)

    assert moved >= 3
    assert given == expected
