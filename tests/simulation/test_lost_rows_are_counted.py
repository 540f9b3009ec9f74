"""Rows that a query counts as lost are exactly those that are missing: hosts crash while links have written rows to their disks.

Rows on a disk count as safe, so that nobody else keeps them. Later the ends of the query crash, too, and work through the file once more:
what has been lost stays lost, and nothing else is missing, or comes twice.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from sbon.supervision.account import Account
from sbon.supervision.record import QueryRecord, QueryState
from sbon_agent.node import Agent
from sbon_testbed.leftovers import run_directory
from sbon_testbed.simulator.checkers.crashes import unaccounted
from sbon_testbed.simulator.harness import World
from tests.examples import seeds

HOME, SOURCE, SINK = 0, 1, 2
NODES, ROWS, PER_SECOND = 6, 300, 20
SQL = "SELECT s.v, t.item FROM s, UNNEST(s.items) AS t(item)"


def begun(folder: Path, seed: int, window_batches: int) -> tuple[World, QueryRecord]:
    """Begins a query that takes arrays apart, between a file and a file."""
    settings = {
        "telemetry": {"enabled": False},
        "optimiser": {"enabled": False},
        "engine": {"batch_interval_s": 0.1},
        "links": {"spill_bytes": 2**20, "spill_after_s": 0.1, "window_batches": window_batches},
    }
    world = World(NODES, seed=seed, data_dir=folder, settings=settings)
    world.start_all()
    world.settle()
    path = world.data_dir_of(SOURCE) / "files" / "s.ndjson"
    path.parent.mkdir(parents=True)
    times = (f"2026-01-01T00:00:{i // PER_SECOND:02d}.{i % PER_SECOND * 50:03d}" for i in range(ROWS))
    path.write_text("".join(json.dumps({"ts": ts, "v": i, "items": [i, i + ROWS]}) + "\n" for i, ts in enumerate(times)))
    world.submit(
        "CREATE SOURCE s (ts TIMESTAMP, v BIGINT, items BIGINT[], WATERMARK FOR ts AS ts) WITH "
        f"(connector = 'file', path = '{path}', nodes = '{world.nodes[SOURCE]}', replay = 'event_time')"
    )
    world.run(3.0)
    query = world.submit(f"CREATE SINK k AS {SQL} WITH (connector = 'file', path = 'k.csv', node = '{world.nodes[SINK]}')")
    home = world.agents[HOME]
    assert isinstance(home, Agent)
    record = home.queries.find(query)
    assert record is not None
    return world, record


def trouble(world: World, record: QueryRecord, operator: str, rng: np.random.Generator) -> None:
    """Moves the operator to a host that is cut off from the sink for a while, and crashes."""
    account, before = record.health.healing.account, record.health.healing.account.recoveries
    here = world.nodes.index(record.nodes[operator])
    there = next(int(n) for n in rng.permutation(NODES) if n not in (HOME, SOURCE, SINK, here) and world.agents[n] is not None)
    if not world.ask(here, "migrate", operator=operator, node=world.nodes[there])["committed"]:
        return
    world.run(float(rng.uniform(0.0, 1.0)))
    world.world.network.cut(there, SINK)
    world.world.network.cut(SINK, there)
    world.run(float(rng.uniform(0.5, 4.0)))
    if rng.random() < 0.5:
        world.heal()
        world.run(float(rng.uniform(0.0, 0.3)))
    world.kill(there, silent=bool(rng.integers(2)))
    world.heal()
    if rng.random() < 0.5:
        world.run(float(rng.uniform(0.2, 3.0)))
        world.start(there)
    world.run_until(lambda: account.recoveries > before or record.state is QueryState.FINISHED, 60.0, "it runs again")


def ended(folder: Path, seed: int) -> tuple[Account, list[tuple[int, ...]]]:
    """Has hosts crash, and returns what the query counts as lost, and the rows in its file."""
    rng = np.random.default_rng(seed)
    world, record = begun(folder, seed, int(rng.choice([4, 8, 16])))
    [operator] = [one for one, spec in record.specs.items() if spec.pinned is None]
    for _ in range(int(rng.integers(1, 4))):
        world.run(float(rng.uniform(0.2, 2.0)))
        host = world.agents[world.nodes.index(record.nodes[operator])]
        if isinstance(host, Agent) and host.migrations.may_migrate(operator):
            trouble(world, record, operator, rng)
        if rng.random() < 0.3:
            end = int(rng.choice([SOURCE, SINK]))
            world.kill(end, silent=bool(rng.integers(2)))
            world.run(float(rng.uniform(0.2, 3.0)))
            world.start(end)
    world.run_until(lambda: record.state is QueryState.FINISHED, 120.0, "the query ends")
    file = next(world.data_dir_of(SINK).rglob("k.csv"))
    found = [tuple(map(int, line.split(","))) for line in file.read_text().splitlines()[1:]]
    world.close()
    return record.health.healing.account, found


@pytest.mark.parametrize("numbers", seeds([[0, 6, 41]], [[*range(first, first + 20)] for first in range(1, 101, 20)]))
def test_rows_that_are_counted_as_lost_are_exactly_those_that_are_missing(numbers: list[int]) -> None:
    """Where an operator crashes with the sink that it feeds, the query does not count exactly, and says so: not in all of them."""
    expected = [(i, item) for i in range(ROWS) for item in (i, i + ROWS)]
    counted = []
    for seed in numbers:
        with run_directory() as folder:  # other paths would lead to other schedules
            account, found = ended(folder, seed)
        assert unaccounted(found, expected, account) == "", seed
        if account.is_exact:
            assert found == [row for row in expected if row in set(found)], f"{seed}: they are in order"
            counted.append(account.rows)
    assert any(counted)
