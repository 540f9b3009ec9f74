"""Operators with more states than memory in a virtual overlay: they move, wait where a disk is full, and fail where it is damaged."""

import sys
from pathlib import Path
from typing import Any

import pytest

from sbon.errors import SbonError
from sbon.extensions import Extensions
from sbon.sealing import KeyRing
from sbon_agent.config import AgentConfig
from sbon_agent.host import Host
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.examples import seeds
from tests.worlds import moves_in, settled_world

ROWS = 6_000
SOURCE = f"""
CREATE SOURCE readings (ts TIMESTAMP, sensor BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{}}',
    rows_per_second = 600, rows = {ROWS}, seed = 1, batch_rows_max = 100, 'start' = '2026-01-01T00:00:00',
    fields.sensor.kind = 'zipf', fields.sensor.count = 2000, fields.sensor.exponent = 1.0);
"""
STATEMENT = SOURCE + (
    "SELECT ts, word, n FROM frequent_words((SELECT ts, CAST(sensor AS TEXT) AS word FROM readings), PARTITION BY word, threshold => 3);"
)
FIRST_ROWS = SOURCE + "SELECT DISTINCT ON (window_start, sensor) ts, sensor FROM TUMBLE(readings, ts, INTERVAL '1 hour');"
PAUSED = SOURCE + "SELECT DISTINCT ON (window_start, sensor) ts, sensor FROM SESSION(readings, ts, INTERVAL '3 s');"
COUNTED = SOURCE + (
    "SELECT window_start, sensor, COUNT(*) AS n, AVG(sensor) AS mean FROM HOP(readings, ts, INTERVAL '2 s', INTERVAL '4 s') "
    "GROUP BY window_start, window_end, sensor;"
)
SESSIONS = SOURCE + (
    "SELECT window_start, window_end, sensor, COUNT(*) AS n, AVG(sensor) AS mean FROM SESSION(readings, ts, INTERVAL '2 s') "
    "GROUP BY window_start, window_end, sensor;"
)
STATEMENTS = {"first of windows": FIRST_ROWS, "first after pauses": PAUSED, "aggregates": COUNTED, "sessions": SESSIONS}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Extensions:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "example_package"))
    for name in [name for name in sys.modules if name.split(".")[0] == "example_functions"]:
        monkeypatch.delitem(sys.modules, name)
    from example_functions.frequent_words import FrequentWords

    return Extensions(functions={"frequent_words": lambda: FrequentWords})


def world_of(nodes: int, seed: int, example: Extensions, **engine: Any) -> World:
    def make(config: AgentConfig, host: Host, ring: KeyRing | None) -> Any:
        return Agent(config, host, ring, lambda: example)

    settings = {
        "engine": {"batch_interval_s": 0.1, "quantum_rows": 120, **engine},
        "optimiser": {"enabled": False},
        "membership": {"interval_s": 0.5},
        "migration": {"piece_bytes": 4_096},
    }
    return settled_world(nodes, seed=seed, settings=settings, make_agent=make)


LITTLE = {"state_memory_max": 20_000, "state_disk_max": 2**30}


def files(world: World, node: int) -> list[str]:
    return [name for name in world.world.machines[node].disk.files if name.endswith(".state")]


def function_of(world: World, kind: str = "function") -> dict[str, Any]:
    (found,) = [row for node in range(len(world.nodes)) for row in world.ask(node, "operators") if row["kind"] == kind]
    return found


def run(world: World, seed: int, statement: str = STATEMENT, *, moves: bool) -> tuple[list[str], int, int]:
    """Returns the rows of the sink, sorted, the number of migrations, and the largest number of state files at a time."""
    tail = world.tail(world.submit(statement.format(world.nodes[-1])))
    faults, most = moves_in(world, seed), 0
    while not tail.finished and world.now < 300:
        (faults if moves else world).run(0.5)
        most = max(most, *(len(files(world, node)) for node in range(len(world.nodes))))
    assert tail.finished, f"the query has not ended after {world.now:.0f} virtual seconds"
    moved = sum(record["committed"] for agent in world.agents for record in agent.monitoring.measuring.migrations)
    return sorted(map(str, tail.rows)), moved, most


@pytest.mark.parametrize("numbers", seeds([[0]], [[1, 2]]))
def test_answers_are_those_of_unlimited_memory(numbers: list[int], example: Extensions):
    whole, _, none = run(world_of(1, 1, example), 1, moves=False)
    assert (len(whole) > 300, none) == (True, 0)
    moved = 0
    for seed in numbers:
        rows, moves, most = run(world_of(3, seed, example, **LITTLE), seed, moves=True)
        assert rows == whole, f"seed {seed}"
        assert most > 2
        moved += moves
    assert moved > len(numbers)


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
@pytest.mark.parametrize("numbers", seeds([[0]], [[1, 2]]))
def test_windows_answer_as_with_unlimited_memory(numbers: list[int], statement: str, example: Extensions):
    whole, _, none = run(world_of(1, 1, example), 1, statement, moves=False)
    assert (len(whole) > 1_000, none) == (True, 0)
    moved = 0
    for seed in numbers:
        rows, moves, most = run(world_of(3, seed, example, **LITTLE), seed, statement, moves=True)
        assert rows == whole, f"seed {seed}"
        assert most > 2
        moved += moves
    assert moved > len(numbers)


def test_sessions_dealt_by_key_answer_as_one_operator_with_unlimited_memory(example: Extensions, tmp_path: Path):
    found: list[list[str]] = []
    for number, (nodes, options, engine) in enumerate([(1, "", {}), (3, ", instances = 2", LITTLE)]):
        world, path = world_of(nodes, number, example, **engine), tmp_path / f"{number}.csv"
        sink = f" WITH (connector = 'file', path = '{path}', node = '{world.nodes[0]}'{options});"
        made, asked = SESSIONS.format(world.nodes[-1]).rsplit("SELECT", 1)
        world.submit(f"{made}CREATE SINK k AS SELECT{asked[:-1]}{sink}")
        most, instances = 0, 0
        while world.ask(0, "queries")[0]["state"] != "finished" and world.now < 300:
            world.run(0.5)
            most = max(most, *(len(files(world, node)) for node in range(nodes)))
            sessions = [row for node in range(nodes) for row in world.ask(node, "operators") if row["kind"] == "session"]
            instances = max(instances, len(sessions))
        assert (most > 2, instances) == (bool(engine), 1 + number)
        found.append(sorted(path.read_text().splitlines()))
    assert len(found[0]) > 1_000
    assert found[1] == found[0]


def test_full_disk_holds_first_rows_up_and_nothing_is_lost_or_doubled(example: Extensions):
    whole, _, _ = run(world_of(1, 1, example), 1, FIRST_ROWS, moves=False)
    world = world_of(1, 1, example, **LITTLE)
    tail = world.tail(world.submit(FIRST_ROWS.format(world.nodes[0])))
    world.run_until(lambda: files(world, 0), 60, "keys go to disk")
    disk = world.world.machines[0].disk
    disk.capacity_bytes = disk.used_bytes + 3_000
    world.run_until(lambda: function_of(world, "deduplicate")["state"] == "stalled", 60, "the disk is full")
    given = len(tail.rows)
    world.run(20)
    told = function_of(world, "deduplicate")
    assert (told["state"], told["reason"]) == ("stalled", "states cannot be written to disk: No space left on device")
    assert len(tail.rows) < given + 300
    assert not tail.finished
    disk.capacity_bytes = float("inf")
    world.run_until(lambda: tail.finished, 120, "the query goes on")
    assert sorted(map(str, tail.rows)) == whole
    world.ask(0, "drop", query=tail.query)
    world.run(5)
    assert files(world, 0) == []


def test_full_disk_holds_sessions_up_and_nothing_is_lost_or_doubled(example: Extensions):
    whole, _, _ = run(world_of(1, 1, example), 1, SESSIONS, moves=False)
    world = world_of(1, 1, example, **LITTLE)
    tail = world.tail(world.submit(SESSIONS.format(world.nodes[0])))
    world.run_until(lambda: files(world, 0), 60, "fragments go to disk")
    disk = world.world.machines[0].disk
    disk.capacity_bytes = disk.used_bytes + 3_000
    world.run_until(lambda: function_of(world, "session")["state"] == "stalled", 60, "the disk is full")
    world.run(20)
    told = function_of(world, "session")
    assert (told["state"], told["reason"]) == ("stalled", "states cannot be written to disk: No space left on device")
    assert not tail.finished
    disk.capacity_bytes = float("inf")
    world.run_until(lambda: tail.finished, 120, "the query goes on")
    assert sorted(map(str, tail.rows)) == whole
    world.ask(0, "drop", query=tail.query)
    world.run(5)
    assert files(world, 0) == []


def test_full_disk_holds_the_source_up_and_nothing_is_lost_or_doubled(example: Extensions):
    whole, _, _ = run(world_of(1, 1, example), 1, moves=False)
    world = world_of(1, 1, example, **LITTLE)
    tail = world.tail(world.submit(STATEMENT.format(world.nodes[0])))
    world.run_until(lambda: files(world, 0), 60, "states go to disk")
    disk = world.world.machines[0].disk
    disk.capacity_bytes = disk.used_bytes + 3_000
    world.run_until(lambda: function_of(world)["state"] == "stalled", 60, "the disk is full")
    world.run(20)
    told = function_of(world)
    assert (told["state"], told["reason"]) == ("stalled", "states cannot be written to disk: No space left on device")
    assert not tail.finished
    (row,) = world.ask(0, "queries")
    assert row["reason"].endswith("waits on " + world.nodes[0] + ": " + told["reason"])
    disk.capacity_bytes = float("inf")
    world.run_until(lambda: tail.finished, 120, "the query goes on")
    assert sorted(map(str, tail.rows)) == whole
    world.ask(0, "drop", query=tail.query)
    world.run(5)
    assert files(world, 0) == []


@pytest.mark.parametrize("numbers", seeds([range(3)], [range(3, 6)]), ids=str)
def test_disk_that_fills_during_a_move_doubles_nothing(numbers: range, example: Extensions):
    whole, _, _ = run(world_of(1, 1, example), 1, moves=False)
    met = 0
    for seed in numbers:
        world = world_of(2, seed, example, **LITTLE)
        tail = world.tail(world.submit(STATEMENT.format(world.nodes[0])))
        world.run_until(lambda world=world: any(files(world, node) for node in (0, 1)), 60, "states go to disk")
        host = next(node for node in (0, 1) if files(world, node))
        agent, disk = world.agents[host], world.world.machines[host].disk
        operator = function_of(world)["id"]
        world.run(3 + 0.37 * seed)
        agent.execution.migrations.migrate(operator, world.nodes[1 - host], "asked for")
        disk.capacity_bytes = disk.used_bytes + 3_000 * seed
        while not tail.finished and world.now < 300:
            world.run(0.05)
            states = [row["state"] for row in world.ask(host, "operators") if row["kind"] == "function"]
            if states == ["stalled"]:
                met += 1
                world.run(1.5)
                disk.capacity_bytes = float("inf")
        assert sorted(map(str, tail.rows)) == whole, f"seed {seed}"
    assert met


def test_damaged_states_end_the_query_and_say_so(example: Extensions):
    world = world_of(1, 1, example, **LITTLE)
    world.submit(STATEMENT.format(world.nodes[0]))
    world.run_until(lambda: len(files(world, 0)) >= 4, 60, "states go to disk")
    disk = world.world.machines[0].disk
    for name in files(world, 0):
        disk.files[name][60:] = bytes(len(disk.files[name]) - 60)
    world.run_until(lambda: world.ask(0, "queries")[0]["state"] == "degraded", 60)
    assert "are damaged" in world.ask(0, "queries")[0]["reason"]
    assert "they are lost, submit the query again" in world.ask(0, "queries")[0]["reason"]


def test_state_larger_than_the_memory_of_the_other_host_moves_there(example: Extensions):
    world = world_of(2, 4, example, **LITTLE | {"memory_max": 60_000, "state_memory_max": 12_000, "quantum_rows": 60})
    tail = world.tail(world.submit(STATEMENT.format(world.nodes[0])))
    world.run_until(lambda: any(row["state_rows"] > 700 for n in (0, 1) for row in world.ask(n, "operators")), 120, "many states")
    host = next(node for node in (0, 1) if files(world, node))
    agent = world.agents[host]
    world.agents[1 - host].execution.operators.room.budget.measured("another", 46_000)  # type: ignore[union-attr]
    agent.execution.migrations.migrate(function_of(world)["id"], world.nodes[1 - host], "asked for")
    world.run_until(lambda: agent.monitoring.measuring.migrations, 60, "it has moved")
    record = agent.monitoring.measuring.migrations[-1]
    assert record["committed"], record["reason"]
    assert (files(world, host), len(files(world, 1 - host)) > 1) == ([], True)
    world.run_until(lambda: tail.finished, 120)


def test_memory_below_a_batch_is_refused_where_the_query_is_submitted(example: Extensions):
    world = world_of(1, 1, example, **LITTLE | {"state_memory_max": 5_000})
    with pytest.raises(SbonError, match=r"cannot hold the states of one batch of 120 keys.* engine.state_memory_max"):
        world.submit(STATEMENT.format(world.nodes[0]))


def test_files_of_a_former_process_are_gone_after_a_restart(example: Extensions):
    world = world_of(1, 1, example, **LITTLE)
    world.submit(STATEMENT.format(world.nodes[0]))
    world.run_until(lambda: files(world, 0), 60)
    before = set(files(world, 0))
    world.restart(0)
    world.run(3)
    assert not before & set(files(world, 0))
