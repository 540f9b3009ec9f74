"""A source whose host has crashed holds up no operator, whether the other sources go on or have ended."""

import pytest

from sbon.query.params.windowed import WindowParams
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

SOURCES = """
CREATE SOURCE a (ts TIMESTAMP, number BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{0}', rows_per_second = 20, {2}
    fields.number.kind = 'sequence');
CREATE SOURCE b (ts TIMESTAMP, number BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{1}', rows_per_second = 20,
    fields.number.kind = 'sequence');
CREATE VIEW u AS SELECT ts, number FROM a UNION ALL SELECT ts, number FROM b;
"""
QUERY = "SELECT window_end, count(*) AS n FROM TUMBLE(u, ts, INTERVAL '5 second') GROUP BY window_end"


def make_world(extra: str = "", **membership: float) -> World:
    settings = {
        "engine": {"batch_interval_s": 0.2, "lost_input_s": 5.0},
        "optimiser": {"enabled": False},
        "membership": membership,
    }
    world = settled_world(4, seed=3, settings=settings)
    world.submit(SOURCES.format(world.nodes[1], world.nodes[2], extra))
    return world


def window_host(world: World) -> int:
    (host,) = (
        number
        for number, agent in enumerate(world.agents)
        if isinstance(agent, Agent) and any(isinstance(i.spec.params, WindowParams) for i in agent.execution.engine.instances.values())
    )
    return host


def test_a_crash_behind_the_end_of_all_others_ends_the_query() -> None:
    world = make_world("rows = 160,")
    tail = world.tail(world.submit(QUERY))
    world.run(9.0)
    assert window_host(world) != 2
    before = len(tail.rows)
    world.kill(2)
    world.run(40.0)
    assert not tail.finished, "the source might come back from a partition"
    world.run_until(lambda: tail.finished, 150)
    assert len(tail.rows) == before + 1, "only the window with rows of both sources may close"


def test_a_cut_source_brings_the_rest_though_all_others_have_ended() -> None:
    world = make_world("rows = 160,")
    tail = world.tail(world.submit(QUERY))
    world.run(9.0)
    before = len(tail.rows)
    world.partition([[2]])
    world.run(60.0)
    assert len(tail.rows) == before
    world.heal()
    world.run_until(lambda: len(tail.rows) >= before + 10, 60)
    counts = [row[1] for row in tail.rows[before + 1 :]]
    assert counts == [100] * len(counts)


@pytest.mark.parametrize("moves", [False, True])
def test_a_dead_host_that_is_forgotten_holds_up_nobody_again(moves: bool) -> None:
    world = make_world(failed_keep_s=40.0)
    tail = world.tail(world.submit(QUERY))
    world.run(9.0)
    host = window_host(world)
    assert host != 2
    world.kill(2)
    world.run(75.0)
    agent = world.agents[host]
    assert isinstance(agent, Agent)
    assert world.nodes[2] not in agent.network.gossip.members
    if moves:
        window = next(i.id for i in agent.execution.engine.instances.values() if isinstance(i.spec.params, WindowParams))
        agent.execution.migrations.migrate(window, world.nodes[3], "tried by the test")
        world.run_until(
            lambda: window not in agent.execution.engine.instances, 30, "it moves, though one of its neighbours will never answer"
        )
        assert window_host(world) == 3
    before = len(tail.rows)
    world.run_until(lambda: len(tail.rows) >= before + 3, 30, "the answers of the other go on")
