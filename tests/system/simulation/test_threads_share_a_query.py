"""One query on several threads: batches that are made ahead of their turn, and split chains, change neither rows nor their order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import polars as pl
import pytest

from sbon.connectors.datagen import DatagenSource
from sbon.connectors.discard import DiscardSink
from sbon.connectors.interface import Congested
from sbon.engine import prefetching
from sbon.errors import ConnectorError, RemoteProtocolError
from sbon.execution.instance import Instance
from sbon.operators.map import Map
from sbon.ports import ProcessorUse
from sbon.query.params.rowwise import MapParams
from sbon.query.params.windowed import WindowParams
from sbon_agent.node import Agent
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.world import SimulatedHost
from tests.worlds import settled_world

ROWS = 40_000
BATCH_ROWS = 1000
CORES = 3
SOURCE = f"""
CREATE SOURCE s (ts TIMESTAMP, i BIGINT, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{node}}',
    rows_per_second = 'max', rows = {ROWS}, event_rows_per_second = 1000, batch_rows_max = {BATCH_ROWS}, 'start' = '2026-01-01T00:00:00',
    fields.i.kind = 'sequence', fields.key.max = 9);
"""
FILTER = "SELECT i, key FROM s WHERE key < 8"
WINDOWS = "SELECT window_end, key, count(*) AS n, sum(i) AS total FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_end, key"


def make_world(nodes: int = 1, *, cores: int = CORES, batch_us: float = 100.0) -> World:
    return settled_world(nodes, seed=3, settings={"optimiser": {"enabled": False}}, cpu=CpuConfig(cores=cores, batch_us=batch_us))


def instances(world: World, number: int = 0) -> list[Instance]:
    agent = world.agents[number]
    assert isinstance(agent, Agent)
    return list(agent.execution.engine.instances.values())


def source_of(world: World, number: int = 0) -> Instance:
    return next(instance for instance in instances(world, number) if instance.source is not None)


def tasks_of(world: World, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Returns a list that gets the kinds of operators of each task from now on."""
    agent = world.agents[0]
    assert isinstance(agent, Agent)
    execution, tasks = agent.execution.engine._execution, []
    execute = execution._execute

    def watched(task: Any) -> None:
        tasks.append([type(stage.instance.spec.params).__name__ for stage in task.stages])
        execute(task)

    monkeypatch.setattr(execution, "_execute", watched)
    return tasks


def may_move(here: Agent, moving: Instance, source: Instance) -> bool:
    """Tells whether nothing prevents the move, and batches have been made ahead."""
    return bool(source.polls.fetches) and here.execution.migrations.may_migrate(moving.id)


def has_moved(here: Agent, moving: Instance, moves: list[Any], number: int) -> bool:
    """Tells whether the move is decided and the operator has left."""
    return len(moves) > number and moving.id not in here.execution.engine.instances


def answers(world: World, select: str, source: str = SOURCE) -> list[tuple[Any, ...]]:
    """Returns all rows in the order of their arrival."""
    world.submit(source.format(node=world.nodes[0]))
    tail = world.tail(world.submit(select))
    world.run_until(lambda: tail.finished)
    return list(tail.rows)


@pytest.fixture
def promises(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes every flooding source use another thread; returns a list that gets the first row of each batch made ahead."""
    found: list[int] = []
    prefetch = DatagenSource.prefetch

    def watched(self: DatagenSource, now: float, wall: float) -> Callable[[], Any] | None:
        first, work = self._sent, prefetch(self, now, wall)
        if work is not None:
            found.append(first)
        return work

    monkeypatch.setattr(DatagenSource, "prefetch", watched)
    monkeypatch.setattr(prefetching, "MAKING_S_MIN", 0.0)  # sources cost nothing in virtual time
    return found


@pytest.mark.parametrize("select", [FILTER, WINDOWS], ids=["filter", "windows"])
def test_rows_and_their_order_are_those_of_one_thread(promises: list[int], select: str):
    expected = answers(make_world(cores=1), select)
    assert not promises, "no batch may be made ahead without another thread"
    found = answers(make_world(), select)

    assert len(promises) > ROWS / BATCH_ROWS / 2
    assert found == expected
    assert len(expected) > 300


def test_a_sink_that_takes_nothing_holds_up_what_is_made_for_it(promises: list[int], monkeypatch: pytest.MonkeyPatch):
    full, rows = [False], [0]

    def write(self: DiscardSink, frame: pl.DataFrame) -> None:
        if full[0]:
            raise Congested("full", retry_after_s=0.1)
        rows[0] += frame.height

    monkeypatch.setattr(DiscardSink, "write", write)
    world = make_world()
    world.submit(SOURCE.format(node=world.nodes[0]))
    world.submit("CREATE SINK d FROM (SELECT i FROM s) WITH (connector = 'discard')")
    world.run_until(lambda: rows[0] > 2 * BATCH_ROWS)
    full[0] = True
    world.run(1.0)
    source, made = source_of(world), len(promises)
    world.run(5.0)

    assert len(promises) == made, "no further batch may be made while nothing leaves"
    assert len(source.polls.fetches) <= CORES + 1
    full[0] = False
    world.run_until(lambda: rows[0] == ROWS)


def test_a_batch_that_cannot_be_made_ends_the_query_with_its_reason_behind_all_rows_before(
    promises: list[int], monkeypatch: pytest.MonkeyPatch
):
    made = DatagenSource._promised

    def promised(self: DatagenSource, first: int, count: int, promised_at: float) -> Any:
        if first >= ROWS / 2:
            raise ConnectorError(f"row {first} cannot be made")
        return made(self, first, count, promised_at)

    monkeypatch.setattr(DatagenSource, "_promised", promised)
    world = make_world()
    world.submit(SOURCE.format(node=world.nodes[0]))
    tail = world.tail(world.submit("SELECT i FROM s"))
    world.run_until(lambda: source_of(world).reason != "")
    world.run(1.0)

    first_bad = next(first for first in promises if first >= ROWS / 2)
    assert source_of(world).reason == f"row {first_bad} cannot be made"
    assert not source_of(world).polls.fetches
    assert [row[0] for row in tail.rows] == list(range(first_bad))


def ahead_of_their_turn(world: World) -> int:
    """Returns the number of batches that have passed through an operator before their turn."""
    return sum(bool(fetch.ahead) for fetch in source_of(world).polls.fetches)


def test_an_operator_that_fails_ahead_ends_the_query_when_the_turn_of_its_batch_comes(promises: list[int], monkeypatch: pytest.MonkeyPatch):
    process = Map.process

    def failing(self: Map, port: int, frame: pl.DataFrame) -> Any:
        if frame.height and frame["i"].max() >= ROWS // 2:  # type: ignore[operator]
            raise RemoteProtocolError("this batch is too much")
        return process(self, port, frame)

    monkeypatch.setattr(Map, "process", failing)
    world = make_world()
    world.submit(SOURCE.format(node=world.nodes[0]))
    tail = world.tail(world.submit(FILTER))
    world.run_until(lambda: any(instance.reason for instance in instances(world)))
    world.run(1.0)

    failed = [instance for instance in instances(world) if instance.reason]
    assert [type(instance.spec.params) for instance in failed] == [MapParams]
    assert "too much" in failed[0].reason
    first_bad = next(first for first in promises if first + BATCH_ROWS > ROWS / 2)
    assert first_bad - BATCH_ROWS <= tail.rows[-1][0] < first_bad


def test_what_another_operator_has_computed_ahead_is_not_taken(promises: list[int]):
    world = make_world()
    world.submit(SOURCE.format(node=world.nodes[0]))
    tail = world.tail(world.submit(FILTER))

    def is_between_tasks() -> bool:
        return bool(tail.rows) and ahead_of_their_turn(world) > 1 and not any(one.task for one in instances(world))

    world.run_until(is_between_tasks)
    instance = next(one for one in instances(world) if isinstance(one.operator, Map))
    assert isinstance(instance.spec.params, MapParams)
    instance.operator = Map(msgspec.structs.replace(instance.spec.params, predicate=None))
    given = source_of(world).figures.rows_out
    world.run_until(lambda: tail.finished)

    rows = list(tail.rows)
    assert [i for i, _ in rows if i >= given] == list(range(given, ROWS))
    assert all(key < 8 for i, key in rows if i < given)


def test_a_query_that_is_dropped_leaves_nothing_behind(promises: list[int]):
    world = make_world()
    world.submit(SOURCE.format(node=world.nodes[0]))
    world.submit("CREATE SINK d FROM (SELECT i FROM s) WITH (connector = 'discard')")
    world.run_until(lambda: bool(promises) and bool(source_of(world).polls.fetches))
    source = source_of(world)
    world.submit("DROP SINK d")
    world.run(1.0)

    assert not source.polls.fetches
    assert instances(world) == []
    assert world.counters().get("callbacks_failed", 0) == 0


def test_an_operator_that_moves_in_the_midst_takes_every_row_once(promises: list[int]):
    long = SOURCE.replace(f"rows = {ROWS}", f"rows = {5 * ROWS}")
    expected = answers(make_world(cores=1), WINDOWS, long)
    world = make_world(3, batch_us=100_000.0)
    world.submit(long.format(node=world.nodes[1]))
    tail = world.tail(world.submit(WINDOWS))
    agents = [agent for agent in world.agents if isinstance(agent, Agent)]
    moves: list[Any] = []
    source = source_of(world, 1)
    for number, there in enumerate((2, 0, 1)):
        here, moving = next(
            (a, i) for a in agents for i in a.execution.engine.instances.values() if isinstance(i.spec.params, WindowParams)
        )
        assert here.name != world.nodes[there]
        world.run_until(partial(may_move, here, moving, source), 10)
        here.execution.migrations.migrate(moving.id, world.nodes[there], "moved by the test", moves.append)
        world.run_until(partial(has_moved, here, moving, moves, number), 20)
    assert not tail.finished
    world.run_until(lambda: tail.finished)

    assert all(move.committed for move in moves)
    assert list(tail.rows) == expected


def test_a_chain_that_takes_long_is_worked_on_in_two_parts_while_more_is_waiting(monkeypatch: pytest.MonkeyPatch):
    expected = answers(make_world(cores=1, batch_us=20_000.0), WINDOWS)
    world = make_world(batch_us=20_000.0)
    tasks = tasks_of(world, monkeypatch)
    found = answers(world, WINDOWS)

    assert found == expected
    parts = [task for task in tasks if task[-1] != "SinkParams"]
    assert len(parts) > len(tasks) / 3
    assert all(task[0] == "SourceParams" and len(task) > 1 for task in parts), "a source that makes batches ahead stays in its chain"


def test_a_chain_stays_whole_where_nothing_would_be_gained(monkeypatch: pytest.MonkeyPatch):
    lone = SOURCE.replace(f"'max', rows = {ROWS}, event_rows_per_second = 1000", "20, rows = 60")
    one_core, short, slow = (SOURCE, 1, 20_000.0, 0.0), (SOURCE, CORES, 100.0, 0.0), (lone, CORES, 20_000.0, 0.0)
    for source, cores, batch_us, others in (one_core, short, slow, (SOURCE, CORES, 20_000.0, CORES - 1.0)):
        world = make_world(cores=cores, batch_us=batch_us)
        monkeypatch.setattr(SimulatedHost, "processors", lambda self, others=others: ProcessorUse(1.0, 1.0, self.workers - others))
        tasks = tasks_of(world, monkeypatch)
        answers(world, WINDOWS, source)
        whole = [task for task in tasks if task[0] == "SourceParams"]
        assert sum(task[-1] == "SinkParams" for task in whole) > 0.9 * len(whole), (source == lone, cores, batch_us, others)


JOINED = """
SELECT x.ts AS at, x.i AS one, y.i AS other FROM a x JOIN b y ON x.i = y.i AND x.key >= 0
AND y.ts BETWEEN x.ts - INTERVAL '1 second' AND x.ts + INTERVAL '1 second'"""
PACED = """
CREATE SOURCE {name} (ts TIMESTAMP, i BIGINT, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
    rows_per_second = {rate}, fields.i.kind = 'sequence', fields.key.max = 9);
"""


def test_a_projection_a_join_and_its_sink_use_two_cores_in_full():
    """A row of each source needs a projection, a join twice and a sink: work for 1.9 cores, as the other projection is elsewhere. If chains
    were cut only when a thread is idle at their start, the join's task would include the sink whenever the projection runs, and a core
    would be idle after the projection: 0.97 of the rows."""
    row_us, cores = 40.0, 2
    rate = round(0.95 * cores / (4 * row_us / 1e6))
    cpu = CpuConfig(cores=cores, batch_us=0.0, row_ns=row_us * 1000, timed=True)
    world = settled_world(2, seed=3, settings={"optimiser": {"enabled": False}}, cpu=cpu)
    for name, node in zip("ab", world.nodes, strict=True):
        world.submit(PACED.format(name=name, node=node, rate=rate))
    world.submit(f"CREATE SINK d FROM ({JOINED}) WITH (connector = 'discard', node = '{world.nodes[0]}')")
    world.run(3.0)
    sink = next(one for one in instances(world) if one.sink is not None)
    before = sink.figures.rows_in
    world.run(6.0)

    assert (sink.figures.rows_in - before) / (6 * rate) > 0.99
