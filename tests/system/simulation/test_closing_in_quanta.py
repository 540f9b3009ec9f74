"""A window of many keys closes over several quanta of real agents: more urgent work runs in between, the consumer's credit is respected,
and a migration that is requested while the window closes begins when it has closed."""

from itertools import pairwise
from typing import Any

import pytest

from sbon.engine.execution import Execution
from sbon.engine.lives import Lives
from sbon.execution.instance import Instance
from sbon.execution.life import State
from sbon.execution.work import Task
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from tests.operators.operators import small_steps
from tests.system.simulation.test_stalled_sink import Gate
from tests.system.simulation.test_stateful_operators_move import SESSIONS, run
from tests.worlds import settled_world

KEYS = 300
WINDOWS = 4
SOURCE = """
CREATE SOURCE {name} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
    rows_per_second = {rate}, rows = {rows}, fields.key.kind = 'sequence');
"""
WINDOW = "SELECT window_end, key, sum(value) AS total FROM TUMBLE(many, ts, INTERVAL '1 second') GROUP BY window_end, key"


def make_world(nodes: int, **settings: Any) -> World:
    engine = {"batch_interval_s": 0.02, "quantum_rows": 30}
    cpu = CpuConfig(cores=1, batch_us=1000.0)
    world = settled_world(
        nodes, seed=4, cpu=cpu, network=NetworkConfig(), settings={"optimiser": {"enabled": False}, "engine": engine, **settings}
    )
    world.submit(SOURCE.format(name="many", node=world.nodes[0], rate=KEYS, rows=WINDOWS * KEYS))
    return world


def instances(world: World) -> list[Instance]:
    agents: list[Any] = world.agents
    return [instance for agent in agents for instance in agent.execution.engine.instances.values()]


def window_of(world: World) -> Instance:
    (window,) = (instance for instance in instances(world) if instance.operator is not None and instance.operator.state_rows)
    return window


def shut_sink(world: World) -> Any:
    """Stops the query's sink from taking rows; returns a function that opens it again."""
    sink: Any = next(instance for instance in instances(world) if instance.sink is not None)
    held, sink.sink = sink.sink, Gate(sink.sink)

    def reopen() -> None:
        sink.sink = held

    return reopen


def test_what_is_more_urgent_runs_between_the_parts_of_a_large_window(monkeypatch: pytest.MonkeyPatch):
    tasks: list[tuple[str, float, bool, float]] = []
    execute = Execution._execute

    def watched(self: Execution, task: Task) -> None:
        head = task.stages[0].instance
        if self._me == world.nodes[0] and head.source is None:
            others = [i for i in self._instances.values() if i not in [stage.instance for stage in task.stages] and i.task is None]
            waiting = [i.closing.stimulus_s if i.closing is not None else i.waiting.earliest_s for i in others if i.state is State.RUNNING]
            tasks.append((head.id, task.stimulus_s, task.closing is not None, min(waiting, default=float("inf"))))
        execute(self, task)

    monkeypatch.setattr(Execution, "_execute", watched)
    with small_steps(10):
        world = make_world(2)
        query = world.submit(WINDOW)
        tail = world.tail(query)
        # Its rows arrive as old as the path is long, which is older than the watermark that closes a window of the other query.
        world.submit(SOURCE.format(name="far", node=world.nodes[1], rate=400, rows=400 * WINDOWS))
        world.submit("CREATE SINK d FROM (SELECT ts, key FROM far) WITH (connector = 'discard')")
        world.run_until(lambda: tail.finished, 60)

    assert len(tail.rows) == WINDOWS * KEYS
    assert [(stimulus_s, best) for _, stimulus_s, _, best in tasks if stimulus_s > best] == []
    parts = [number for number, task in enumerate(tasks) if task[2]]
    assert len(parts) > WINDOWS * KEYS / 60
    same = [(one, other) for one, other in pairwise(parts) if tasks[one][:2] == tasks[other][:2]]
    between = [(tasks[one][1], tasks[number][1]) for one, other in same for number in range(one + 1, other)]
    assert len(between) > 3, "no other row came in between"
    assert all(urgent < closing for closing, urgent in between)


def test_answers_beyond_the_credit_are_not_computed_before_there_is_some():
    with small_steps(10):
        world = make_world(1, links={"window_batches": 4})
        query = world.submit(WINDOW)
        tail = world.tail(query)
        reopen = shut_sink(world)
        world.run(10)
        window = window_of(world)

        assert window.closing is not None
        assert window.busy
        assert window.watermark_us < window.closing.watermark_us
        assert 0 < window.figures.rows_out < KEYS
        assert max(output.sender.held for output in window.outputs.values()) <= 5
        told = {row["id"]: row["state"] for row in world.ask(0, "operators")}
        assert told[window.id] == "blocked"
        reopen()
        world.run_until(lambda: tail.finished, 60)
    assert len(tail.rows) == WINDOWS * KEYS
    assert window.closing is None


def test_an_operator_asked_to_move_in_the_midst_of_a_window_moves_when_it_is_done(monkeypatch: pytest.MonkeyPatch):
    asked: list[bool] = []
    rested: list[bool] = []
    rest = Lives.rest

    def watched(self: Lives, instance: Instance, done: Any) -> None:
        def idle(rests: bool) -> None:
            rested.append(rests and instance.closing is None and not instance.busy)
            done(rests)

        asked.append(instance.closing is not None)
        rest(self, instance, idle)

    monkeypatch.setattr(Lives, "rest", watched)
    with small_steps(10):
        world = make_world(2, links={"window_batches": 4})
        tail = world.tail(world.submit(WINDOW))
        reopen = shut_sink(world)
        world.run_until(lambda: any(i.closing is not None and i.waiting.blocked for i in instances(world)), 10)
        window = window_of(world)
        agent: Any = world.agents[0]
        agent.execution.migrations.migrate(window.id, world.nodes[1], "asked by the test")
        world.run_until(lambda: len(rested) < len(asked), 10)
        world.run(2)
        assert asked[-1], "the migration must be requested while a window closes"
        assert window.closing is not None
        assert window.state is State.RESTING
        reopen()
        world.run_until(lambda: tail.finished, 60)

    assert all(rested)
    assert [(record["operator"], record["committed"]) for record in agent.monitoring.measuring.migrations] == [(window.id, True)]
    assert sorted(row[:2] for row in tail.rows) == sorted({tuple(row[:2]) for row in tail.rows}), "a row came twice"
    assert len(tail.rows) == WINDOWS * KEYS


@pytest.mark.soak
def test_answers_in_parts_are_those_of_a_run_on_one_node_whatever_moves_meanwhile():
    expected, _ = run(SESSIONS, nodes=1, seed=1)
    with small_steps(4):
        rows, moves = run(SESSIONS, nodes=4, seed=1)

    assert rows == expected
    assert moves > 0
