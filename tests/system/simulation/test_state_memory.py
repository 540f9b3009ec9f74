"""An operator whose state exceeds the host's memory for states fails with a reason; all others continue."""

import pytest

from sbon.errors import SbonError
from sbon.query.params.windowed import WindowParams
from tests.worlds import settled_world

LIMIT = 2_000_000
SOURCES = """
CREATE SOURCE many (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
    rows_per_second = 20000, 'start' = '2026-01-01T00:00:00', fields.key.kind = 'sequence');
CREATE SOURCE few (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
    rows_per_second = 1000, rows = 20000, seed = 3, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 4);
"""
GROWING = "SELECT window_end, key, count(*) AS n FROM TUMBLE(many, ts, INTERVAL '1 hour') GROUP BY window_end, key;"
STEADY = "SELECT window_end, key, count(*) AS n FROM TUMBLE(few, ts, INTERVAL '1 second') GROUP BY window_end, key;"


def make_world(nodes=1, **engine):
    world = settled_world(nodes, seed=3, settings={"optimiser": {"enabled": False}, "engine": {"memory_max": LIMIT, **engine}})
    world.submit(SOURCES.format(node=world.nodes[0]))
    return world


def states(world, query):
    return {
        r.id: r
        for agent in world.agents
        for r in agent.execution.reports.report(tuple(agent.execution.operators.instances)).reports
        if r.id.startswith(f"{query}.")
    }


def failed(world, query):
    return [report for report in states(world, query).values() if report.state == "failed"]


def test_the_operator_that_outgrows_the_limit_ends_with_the_reason_and_the_other_query_is_whole():
    world = make_world()
    steady = world.tail(world.submit(STEADY))
    growing = world.submit(GROWING)

    world.run_until(lambda: failed(world, growing), 60, "the growing window ends")

    (report,) = failed(world, growing)
    assert "engine.memory_max" in report.reason
    assert "largest of 2" in report.reason
    assert report.state_bytes == report.state_rows == 0
    operators = world.agents[0].execution.operators
    assert operators.instances[report.id].operator is None, "its state must be freed"
    assert operators.room.budget.used_bytes < LIMIT / 10
    world.run_until(lambda: steady.finished, 60, "the other query ends")
    assert sum(row[2] for row in steady.rows) == 20_000
    row = next(row for row in world.ask(0, "queries") if row["id"] == growing)
    assert row["state"] != "running"
    assert "engine.memory_max" in row["reason"]


def test_a_host_with_little_memory_left_takes_no_further_state_but_filters():
    world = make_world()
    growing = world.submit(GROWING)
    operators = world.agents[0].execution.operators
    world.run_until(lambda: operators.room.budget.is_nearly_full, 60, "the state has grown")

    with pytest.raises(SbonError, match=r"engine\.memory_max"):
        world.submit(STEADY)
    tail = world.tail(world.submit("SELECT ts, key FROM few WHERE key = 1"))
    world.run_until(lambda: len(tail.rows) > 10, 10, "a filter runs")

    world.ask(0, "drop", query=growing)
    world.run_until(lambda: operators.room.budget.used_bytes == 0, 5, "memory is free again")
    world.submit(STEADY)


def test_a_window_goes_to_a_host_with_memory_and_does_not_move_to_one_without():
    world = make_world(nodes=3)
    growing = world.submit(GROWING, at=0)
    world.run_until(lambda: any(agent.execution.operators.room.budget.is_nearly_full for agent in world.agents), 60, "the state has grown")
    host = next(agent for agent in world.agents if agent.execution.operators.room.budget.is_nearly_full)

    query = world.submit(STEADY, at=1)
    ((there, window),) = [
        (agent, i)
        for agent in world.agents
        for i in agent.execution.operators.instances.values()
        if i.id.startswith(f"{query}.") and isinstance(i.spec.params, WindowParams)
    ]
    assert there is not host
    there.execution.migrations.migrate(window.id, host.name, "tried by hand")
    world.run_until(lambda: there.monitoring.measuring.migrations, 20, "the migration has ended")
    assert not there.monitoring.measuring.migrations[-1]["committed"]
    assert "engine.memory_max" in there.monitoring.measuring.migrations[-1]["reason"] + there.monitoring.measuring.migrations[-1]["outcome"]
    assert host.execution.operators.room.budget.limit_bytes == LIMIT
    assert growing
