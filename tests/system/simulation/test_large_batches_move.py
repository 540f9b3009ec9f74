"""A batch may be larger than a frame while its consumer is on the same host; when the consumer moves, the batch must follow."""

from typing import Any

import pytest

from sbon.engine import task_accounting
from sbon.execution import rows
from sbon.query.params.windowed import WindowParams
from sbon_agent.node import Agent
from tests.worlds import settled_world

ROWS = 3_000
SOURCE = f"""
CREATE SOURCE wide (ts TIMESTAMP, number BIGINT, pad TEXT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{{}}',
    rows_per_second = 1000, rows = {ROWS}, fields.number.kind = 'sequence',
    fields.pad.kind = 'sequence', fields.pad.prefix = '{"x" * 200}');
"""
QUERY = """
SELECT window_end, number, p || 'y' AS py
FROM (SELECT window_end, number, max(pad) AS p FROM TUMBLE(wide, ts, INTERVAL '1 second') GROUP BY window_end, number) AS windows
"""


def test_what_waited_for_a_consumer_here_reaches_it_elsewhere_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PART_BYTES_MAX", 32 * 1024)
    monkeypatch.setattr(task_accounting, "LOCAL_BYTES_MAX", 32 * 1024)
    settings = {
        "engine": {"batch_interval_s": 0.2},
        "optimiser": {"enabled": False},
        "links": {"compression": "none"},
        "peers": {"frame_bytes_max": 64 * 1024},
    }
    world = settled_world(3, seed=3, settings=settings)
    world.submit(SOURCE.format(world.nodes[1]))
    tail = world.tail(world.submit(QUERY))
    agents = [agent for agent in world.agents if isinstance(agent, Agent)]
    here, window = next((a, i) for a in agents for i in a.execution.engine.instances.values() if isinstance(i.spec.params, WindowParams))
    output = next(iter(window.outputs.values()))
    assert output.node == here.name, "the projection must be on the window's host"
    away = next(number for number, agent in enumerate(agents) if agent is not here and number)
    records: list[Any] = []
    here.execution.migrations.migrate(output.link.target, world.nodes[away], "tried by the test", records.append)
    leaving = here.execution.migrations._leaving[output.link.target]
    world.run_until(lambda: leaving.steps.phase.value == "transferring", 30)
    world.partition([[away]])  # long enough that a window closes
    world.run_until(lambda: output.sender.backlog.memory_bytes > 100_000, 10)
    world.heal()
    world.run_until(lambda: bool(records), 60)
    assert records[0].committed

    world.run_until(lambda: tail.finished, 60)
    assert sorted(row[1] for row in tail.rows) == list(range(ROWS))
