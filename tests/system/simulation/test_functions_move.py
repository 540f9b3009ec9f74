"""Functions of the example package in a virtual overlay: they run only on hosts that have them, and move with their state."""

import sys
from pathlib import Path
from typing import Any

import pytest

from sbon.errors import SbonError
from sbon.extensions import NOTHING, Extensions
from sbon.sealing import KeyRing
from sbon_agent.config import AgentConfig
from sbon_agent.host import Host
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.examples import seeds
from tests.worlds import moves_in, settled_world

SOURCE = """
CREATE SOURCE readings (ts TIMESTAMP, sensor TEXT, fahrenheit DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
    rows_per_second = 200, rows = 1000, seed = 1, 'start' = '2026-01-01T00:00:00', fields.sensor.count = 7, fields.fahrenheit.max = 100);
"""
QUERY = "SELECT ts, sensor, round(level, 6) AS level FROM smooth(readings, factor => 0.25) WHERE sensor <> 'sensor-3';"
KEYED = "SELECT ts, word, n FROM frequent_words((SELECT ts, sensor AS word FROM readings), PARTITION BY word, threshold => 10);"
"""Gives each of the seven sensors when its tenth row has come."""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Extensions:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "example_package"))
    for name in [name for name in sys.modules if name.split(".")[0] == "example_functions"]:
        monkeypatch.delitem(sys.modules, name)
    from example_functions.frequent_words import FrequentWords
    from example_functions.smooth import Smooth
    from example_functions.to_celsius import to_celsius

    functions = {"to_celsius": to_celsius, "smooth": Smooth, "frequent_words": FrequentWords}
    return Extensions(functions={name: lambda one=one: one for name, one in functions.items()})


def world_of(nodes: int, seed: int, able: dict[int, Extensions]) -> World:
    """Returns an overlay whose agents have these extensions, by number; others have none."""

    def make(config: AgentConfig, host: Host, ring: KeyRing | None) -> Any:
        return Agent(config, host, ring, lambda: able.get(names.index(config.name), NOTHING))

    settings = {"engine": {"batch_interval_s": 0.1}, "optimiser": {"enabled": False}, "membership": {"interval_s": 0.5}}
    world = settled_world(nodes, seed=seed, settings=settings, make_agent=make)
    names = list(world.nodes)
    return world


def run(world: World, seed: int, *, moves: bool, query: str = QUERY) -> tuple[list[str], int]:
    """Returns the rows of the sink, sorted, and the number of migrations."""
    tail = world.tail(world.submit(SOURCE.format(node=world.nodes[-1]) + query))
    faults = moves_in(world, seed)
    while not tail.finished and world.now < 200:
        (faults if moves else world).run(0.3)
    assert tail.finished, f"the query has not ended after {world.now:.0f} virtual seconds"
    moved = sum(record["committed"] for agent in world.agents for record in agent.monitoring.measuring.migrations)
    return sorted(map(str, tail.rows)), moved


@pytest.mark.parametrize(("query", "least"), [(QUERY, 500), (KEYED, 5)])
@pytest.mark.parametrize("numbers", seeds([[2]], [[0, 1, 2]]))
def test_answers_are_those_of_a_run_on_one_node(example: Extensions, query: str, least: int, numbers: list[int]):
    alone, _ = run(world_of(1, 1, {0: example}), 1, moves=False, query=query)
    moved = 0
    for seed in numbers:
        rows, moves = run(world_of(4, seed, dict.fromkeys(range(4), example)), seed, moves=True, query=query)
        assert rows == alone, f"seed {seed}"
        moved += moves

    assert len(alone) >= least
    assert moved > len(numbers)


def test_hosts_without_the_function_are_not_chosen_and_refuse_it(example: Extensions):
    for able in (0, 2):
        world = world_of(4, 5, {0: example, able: example})
        world.submit(SOURCE.format(node=world.nodes[1]) + QUERY)
        hosts = {node for node in range(4) for operator in world.ask(node, "operators") if operator["kind"] == "function"}
        assert len(hosts) == 1
        assert hosts <= {0, able}

    (host,) = hosts
    operator = next(o["id"] for o in world.ask(host, "operators") if o["kind"] == "function")
    world.run(0.5)
    world.agents[host].execution.migrations.migrate(operator, world.nodes[3], "asked for")
    world.run_until(lambda: world.agents[host].monitoring.measuring.migrations)
    record = world.agents[host].monitoring.measuring.migrations[-1]
    assert not record["committed"]
    assert "function smooth is not installed here" in record["outcome"] + record["reason"]
    assert operator in world.agents[host].execution.engine.instances


def test_a_query_that_nobody_can_host_says_what_is_missing(example: Extensions):
    world = world_of(3, 6, {})
    with pytest.raises(SbonError, match="there is no table function smooth"):
        world.submit(SOURCE.format(node=world.nodes[1]) + QUERY)
