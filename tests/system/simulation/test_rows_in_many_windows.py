"""Rows that are in many windows are processed a few at a time: a quantum stays small, whatever the size of the batch."""

from typing import Any

import pytest

from sbon.engine.execution import Execution
from sbon.execution.work import Task
from sbon.query.params.windowed import AssignParams
from sbon_testbed.simulator.network import NetworkConfig
from tests.worlds import settled_world

ROWS = 2_000
WINDOWS = 100
QUANTUM_ROWS = 1_000
SOURCE = f"""
CREATE SOURCE many (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{node}}',
    rows_per_second = 1000, rows = {ROWS}, fields.key.kind = 'sequence');
"""


def test_no_quantum_gives_more_rows_than_it_may(monkeypatch: pytest.MonkeyPatch):
    given: list[int] = []
    settle = Execution._settle

    def settled(self: Execution, task: Task) -> None:
        for stage, step in zip(task.stages, task.steps, strict=False):
            if isinstance(stage.instance.spec.params, AssignParams) and step.made.payload is not None:
                given.append(step.made.payload.rows)
        settle(self, task)

    monkeypatch.setattr(Execution, "_settle", settled)
    engine: dict[str, Any] = {"batch_interval_s": 0.5, "batch_interval_min_s": 0.5, "quantum_rows": QUANTUM_ROWS}
    world = settled_world(1, seed=3, network=NetworkConfig(), settings={"optimiser": {"enabled": False}, "engine": engine})
    world.submit(SOURCE.format(node=world.nodes[0]))
    query = "SELECT window_start, key FROM HOP(many, ts, INTERVAL '10 milliseconds', INTERVAL '1 second')"
    world.submit(f"CREATE SINK k AS {query} WITH (connector = 'discard')")
    world.run_until(lambda: sum(given) >= ROWS * WINDOWS)

    assert sum(given) == ROWS * WINDOWS
    assert max(given) <= QUANTUM_ROWS
