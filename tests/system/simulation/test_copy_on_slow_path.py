"""A state that is copied over a slow path does not delay the data that share the path."""

from typing import Any

from sbon.execution.instance import Instance
from sbon.execution.reporting import operator_report
from sbon.migration.coordinator import Phase
from sbon.query.params.joined import JoinParams
from sbon.query.params.source import SinkParams
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from tests.worlds import settled_world

SOURCES, HERE, SINK = range(3)
BYTES_PER_S = 1_000_000
STATE_ROWS = 60_000
ROWS_PER_S = 500
GAP_S_MAX = 0.35
"""Longest time without a row at the sink; 0.05 s without a copy, 1.05 s if all `migration.window_bytes` are always in transit."""
STEP_S = 0.01
SQL = """
CREATE SOURCE later (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{sources}',
    rows = {rows}, rows_per_second = 'max', start = '2100-01-01T00:00:00', fields.key.kind = 'sequence', fields.key.start = -1,
    fields.key.step = -1);
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{sources}',
    rows_per_second = {rate}, start = '2026-01-01T00:00:00', fields.key.kind = 'sequence');
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{sources}',
    rows_per_second = {rate}, start = '2026-01-01T00:00:00', fields.key.kind = 'sequence');
CREATE VIEW waiting AS SELECT ts, key, value FROM later UNION ALL SELECT ts, key, value FROM l;
CREATE SINK pairs FROM (
  SELECT r.key AS k, waiting.value AS v FROM waiting JOIN r ON waiting.key = r.key
    AND r.ts BETWEEN waiting.ts - INTERVAL '10 milliseconds' AND waiting.ts + INTERVAL '10 milliseconds'
) WITH (connector = 'discard', node = '{sink}');
"""


def instance_of(world: World, kind: type) -> tuple[Agent, Instance]:
    """Returns the operator of that kind, and the agent that runs it."""
    agents = [agent for agent in world.agents if isinstance(agent, Agent)]
    found = [(agent, one) for agent in agents for one in agent.execution.engine.instances.values() if isinstance(one.spec.params, kind)]
    return found[0]


def move(world: World, there: int) -> tuple[Any, float]:
    """Moves the join to another node; returns the record, and the longest time without a row at the sink while the state was copied."""
    agent, join = instance_of(world, JoinParams)
    if agent.name == world.nodes[there]:
        return None, 0.0
    records: list[Any] = []
    sink = instance_of(world, SinkParams)[1]
    agent.execution.migrations.migrate(join.id, world.nodes[there], "tried by the test", records.append)
    longest_s, last_rows, last_at = 0.0, sink.figures.rows_in, world.now
    while not records:
        world.run(STEP_S)
        leaving = agent.execution.migrations._leaving.get(join.id)
        if sink.figures.rows_in > last_rows or leaving is None or leaving.steps.phase is not Phase.COPYING:
            last_rows, last_at = sink.figures.rows_in, world.now
        longest_s = max(longest_s, world.now - last_at)
        assert world.now - last_at < 60.0
    return records[0], longest_s


def test_rows_pass_a_large_state_on_its_way() -> None:
    network = NetworkConfig(bandwidth_bytes_per_s=BYTES_PER_S, stream_buffer_bytes=1 << 20)
    world = settled_world(3, seed=3, settings={"optimiser": {"enabled": False}}, network=network)
    names = world.nodes
    world.submit(SQL.format(sources=names[SOURCES], sink=names[SINK], rate=ROWS_PER_S, rows=STATE_ROWS))
    world.run_until(
        lambda: operator_report(instance_of(world, JoinParams)[1], "").state_rows >= STATE_ROWS, 60.0, "the join holds its state"
    )
    move(world, HERE)
    world.run(2.0)
    record, longest_s = move(world, SINK)
    assert record.committed, record.outcome
    assert record.state_bytes > STATE_ROWS * 24
    assert record.copy_s < 5 * record.state_bytes / BYTES_PER_S, "the copy, and the input repeated since then, must use the path"
    assert longest_s < GAP_S_MAX
