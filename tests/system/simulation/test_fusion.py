"""A chain of operators on one node runs in one task; answers, figures and links are the same as without that."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from sbon.batching import Cost
from sbon.connectors.discard import DiscardSink
from sbon.connectors.interface import Congested
from sbon.execution.instance import Instance
from sbon_agent.node import Agent
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

ROWS = 400
SOURCE = f"""
CREATE SOURCE s (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{node}}',
    rows_per_second = 100, rows = {ROWS}, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 9);
"""
QUERY = """
SELECT window_end, key, count(*) AS n, sum(value) AS total
FROM TUMBLE((SELECT ts, key, value FROM s WHERE value > 0.25), ts, INTERVAL '1 second') GROUP BY window_end, key;
"""


def make_world(nodes: int = 1, **settings: Any) -> World:
    return settled_world(nodes, seed=3, settings={"optimiser": {"enabled": False}, "engine": {"batch_interval_s": 0.1, **settings}})


def agent_of(world: World, number: int = 0) -> Agent:
    agent = world.agents[number]
    assert isinstance(agent, Agent)
    return agent


def tasks_of(world: World, monkeypatch) -> list[list[str]]:
    """Returns a list that gets the operators of each task from now on, when the task is created."""
    execution = agent_of(world).execution.engine._execution
    tasks: list[list[str]] = []
    execute = execution._execute

    def watched(task: Any) -> None:
        tasks.append([stage.instance.id for stage in task.stages])
        execute(task)

    monkeypatch.setattr(execution, "_execute", watched)
    return tasks


def finished(world: World, sql: str) -> list[tuple[Any, ...]]:
    tail = world.tail(world.submit(sql))
    world.run_until(lambda: tail.finished)
    return sorted(tail.rows)


def mid_task(instances: Callable[[], list[Instance]]) -> Callable[[], bool]:
    return lambda: any(instance.task is not None and instance.task.stages[0].instance is instance for instance in instances())


def test_a_batch_goes_from_source_to_sink_in_one_task_and_every_link_counts_it(monkeypatch):
    world = make_world()
    tasks = tasks_of(world, monkeypatch)
    world.submit(SOURCE.format(node=world.nodes[0]))
    rows = finished(world, QUERY)
    instances = agent_of(world).execution.engine.instances

    assert sum(row[2] for row in rows) > ROWS / 2
    longest = max(tasks, key=len)
    assert len(longest) == len(instances) >= 4
    assert sum(task == longest for task in tasks) > 0.9 * len(tasks)
    for instance in instances.values():
        for incoming in instance.inputs.values():
            source = instances[incoming.link.source]
            sender = source.outputs[incoming.link.id].sender
            assert sender.rows_offered == sender.rows_acknowledged == incoming.receiver.rows_processed == source.figures.rows_out > 0
            assert source.outputs[incoming.link.id].bytes_out == incoming.bytes_in > 0
            assert incoming.receiver.processed == sender.offered


def test_the_answers_are_those_of_operators_that_run_each_for_itself(monkeypatch):
    apart, together = make_world(), make_world()
    monkeypatch.setattr("sbon.execution.chains._behind", lambda *_: None)
    apart.submit(SOURCE.format(node=apart.nodes[0]))
    expected = finished(apart, QUERY)
    monkeypatch.undo()
    together.submit(SOURCE.format(node=together.nodes[0]))

    assert finished(together, QUERY) == expected


def test_a_sink_that_began_with_a_backlog_joins_the_task_of_the_source(monkeypatch):
    # With two threads the sink would always process a batch while the source makes the next one.
    world = settled_world(1, seed=3, settings={"optimiser": {"enabled": False}}, cpu=CpuConfig(batch_us=100))
    tasks = tasks_of(world, monkeypatch)
    world.submit(
        "CREATE SOURCE fast (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = "
        f"'{world.nodes[0]}', rows_per_second = 'max', event_rows_per_second = 1000, batch_rows_max = 1000)"
    )
    world.submit("CREATE SINK k FROM (SELECT ts, key FROM fast WHERE key % 2 = 0) WITH (connector = 'discard')")
    engine = agent_of(world).execution.engine
    sink = next(instance for instance in engine.instances.values() if instance.sink is not None)
    engine._lives.rest(sink, lambda rests: None)
    world.run_until(lambda: sum(len(incoming.queue) for incoming in sink.inputs.values()) > 2)
    engine.go_on(sink)
    world.run(0.1)
    tasks.clear()
    world.run(0.1)

    assert len(tasks) > 20
    assert sum(task[-1] == sink.id and len(task) == 3 for task in tasks) > 0.9 * len(tasks)


def test_a_multicast_made_in_the_midst_of_a_task_lets_no_row_come_twice_or_be_lost():
    # Slow enough that a task takes most of the time between two batches.
    settings = {"optimiser": {"enabled": False}, "engine": {"batch_interval_s": 0.1}}
    world = settled_world(1, seed=3, settings=settings, cpu=CpuConfig(batch_us=20_000))
    world.submit(SOURCE.format(node=world.nodes[0]))
    tail = world.tail(world.submit(QUERY))
    engine = agent_of(world).execution.engine
    sources = lambda: [instance for instance in engine.instances.values() if instance.source is not None]  # noqa: E731
    made = []
    for number in range(3):
        world.run(0.3)
        world.run_until(mid_task(sources))
        (source,) = sources()
        assert source.task is not None
        assert len(source.task.stages) > 1
        made.append(agent_of(world).execution.operators.split(source.id, list(source.outputs), f"{source.id}.multicast{number}"))
        assert made[-1].busy
    world.run_until(lambda: tail.finished)
    reference = make_world()
    reference.submit(SOURCE.format(node=reference.nodes[0]))

    assert sorted(tail.rows) == finished(reference, QUERY)
    assert [relay.figures.rows_in for relay in made] == sorted((relay.figures.rows_in for relay in made), reverse=True)
    assert all(0 < relay.figures.rows_in == relay.figures.rows_out <= ROWS for relay in made)
    assert not any(instance.busy for instance in engine.instances.values())


def test_a_backlog_is_worked_on_as_one_batch():
    world = make_world()
    world.submit(SOURCE.format(node=world.nodes[0]))
    tail = world.tail(world.submit(QUERY))
    engine = agent_of(world).execution.engine
    world.run(1.0)
    window = next(instance for instance in engine.instances.values() if instance.operator is not None and instance.operator.state_rows)
    engine._lives.rest(window, lambda rests: None)
    world.run(1.5)
    waiting, before, batches = (
        sum(len(incoming.queue) for incoming in window.inputs.values()),
        window.figures.rows_in,
        window.figures.batches_in,
    )
    engine.go_on(window)
    world.run_until(lambda: window.figures.rows_in > before)

    assert waiting > 10
    assert window.figures.batches_in == batches + waiting, "the batches needed more than one task"
    world.run_until(lambda: tail.finished)
    reference = make_world()
    reference.submit(SOURCE.format(node=reference.nodes[0]))
    assert sorted(tail.rows) == finished(reference, QUERY)


@pytest.mark.parametrize("quanta", [1, 4])
def test_a_sink_takes_as_many_quanta_of_a_backlog_as_it_asks_for(quanta: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DiscardSink, "quanta", quanta, raising=False)
    monkeypatch.setattr(Cost, "rows_within", lambda self, seconds, most: min(500, most))
    world = make_world()
    world.submit(
        "CREATE SOURCE fast (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = "
        f"'{world.nodes[0]}', rows_per_second = 'max', event_rows_per_second = 1000, batch_rows_max = 100, rows = 10000)"
    )
    world.submit("CREATE SINK k FROM (SELECT ts, key FROM fast) WITH (connector = 'discard')")
    engine = agent_of(world).execution.engine
    sink = next(instance for instance in engine.instances.values() if instance.sink is not None)
    engine._lives.rest(sink, lambda rests: None)
    world.run_until(lambda: sum(len(incoming.queue) for incoming in sink.inputs.values()) > 25)
    writes: list[int] = []
    write = DiscardSink.write
    monkeypatch.setattr(DiscardSink, "write", lambda self, frame: (writes.append(frame.height), write(self, frame)))
    engine.go_on(sink)
    world.run_until(lambda: sink.figures.rows_in == 10_000)

    assert max(writes) == 500 * quanta


def test_a_sink_that_stalls_holds_its_batch_and_the_source_goes_on_afterwards(monkeypatch):
    calls, rows = [0], [0]

    def write(self: DiscardSink, frame: pl.DataFrame) -> None:
        calls[0] += 1
        if calls[0] % 5 == 0:
            raise Congested("full", retry_after_s=0.3)
        rows[0] += frame.height

    monkeypatch.setattr(DiscardSink, "write", write)
    world = make_world()
    world.submit(SOURCE.format(node=world.nodes[0]))
    world.submit("CREATE SINK d FROM (SELECT ts, key FROM s) WITH (connector = 'discard');")
    world.run_until(lambda: rows[0] >= ROWS, timeout_s=60)
    world.run(2.0)

    assert rows[0] == ROWS
    assert calls[0] > 10
