"""A decided migration ends, even if some hosts cannot be told of it any more."""

from typing import Any

import pytest

from sbon.errors import LinkError, SbonError
from sbon.execution.life import State
from sbon.membership.members import MemberStatus
from sbon.migration.coordinator import Phase
from sbon.query.params.joined import JoinParams
from sbon.wire.migration import Activate
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

OWNER, SOURCES, SINK, HOST, OTHER = range(5)
SQL = """
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{sources}',
    rows_per_second = 20, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.max = 20);
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{sources}',
    rows_per_second = 20, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.max = 20);
CREATE SINK pairs FROM (SELECT l.ts, l.key FROM l JOIN r ON l.key = r.key AND r.ts BETWEEN l.ts - INTERVAL '2 seconds' AND l.ts)
    WITH (connector = 'discard', node = '{sink}');
"""


def agent_of(world: World, number: int) -> Agent:
    agent = world.agents[number]
    assert isinstance(agent, Agent)
    return agent


def join_of(agent: Agent) -> str:
    """Returns the id of the join that an agent runs; empty if it runs none."""
    running = (
        one.id
        for one in agent.execution.engine.instances.values()
        if isinstance(one.spec.params, JoinParams) and one.state is State.RUNNING
    )
    return next(running, "")


@pytest.fixture
def world() -> World:
    """Returns a world with a join on `HOST`; the query's home is `OWNER`, and its other operators are elsewhere."""
    world = settled_world(5, seed=7, settings={"optimiser": {"enabled": False}, "engine": {"wanted_interval_s": 600.0}})
    world.submit(SQL.format(sources=world.nodes[SOURCES], sink=world.nodes[SINK]))
    world.run_until(lambda: any(join_of(agent_of(world, number)) for number in range(5)), 30.0, "the join runs")
    (at,) = (number for number in range(5) if join_of(agent_of(world, number)))
    if at != HOST:
        agent = agent_of(world, at)
        records: list[Any] = []
        agent.execution.migrations.migrate(join_of(agent), world.nodes[HOST], "to begin with", records.append)
        world.run_until(lambda: bool(records), 30.0, "the join is where the test wants it")
        assert records[0].committed
    world.run(3.0)
    return world


def test_the_taker_of_its_query_is_gone(world: World) -> None:
    world.kill(OWNER, silent=True)
    host = agent_of(world, HOST)
    world.run_until(lambda: host.network.gossip.members[world.nodes[OWNER]].status is MemberStatus.FAILED, 120.0, "the taker is given up")
    records: list[Any] = []
    host.execution.migrations.migrate(join_of(host), world.nodes[OTHER], "tried by the test", records.append)
    world.run_until(lambda: bool(records), 25.0, "an end")
    assert records[0].committed, records[0].outcome
    assert join_of(agent_of(world, OTHER))


def test_the_new_host_has_it_no_more_when_the_word_to_run_comes_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply to the first command is lost. When the second comes, the operator is gone, because its queries have ended."""
    host, other = agent_of(world, HOST), agent_of(world, OTHER)
    join, records, told = join_of(host), list[Any](), list[Activate]()
    activate = other.execution.migrations._arrivals.told_to_activate

    def lost(message: Activate) -> None:
        told.append(message)
        activate(message)
        if len(told) == 1:
            other.execution.operators.destroy(join)
            raise LinkError("the answer is lost")

    monkeypatch.setattr(other.execution.migrations._arrivals, "told_to_activate", lost)
    host.execution.migrations.migrate(join, world.nodes[OTHER], "tried by the test", records.append)
    world.run_until(lambda: bool(records), 25.0, "an end")
    assert records[0].committed
    assert "no longer" in records[0].outcome
    assert Phase.COMMITTING.value in records[0].phases


def test_half_a_state_goes_with_the_host_that_sent_it(world: World) -> None:
    """A move with an incomplete state was not decided: its room is free as soon as the sending host has failed, not minutes later."""
    host, other = agent_of(world, HOST), agent_of(world, OTHER)
    join = join_of(host)
    host.execution.migrations.migrate(join, world.nodes[OTHER], "tried by the test")
    world.run_until(lambda: join in other.execution.migrations._arrivals, 10.0, "the new host keeps room")
    world.kill(HOST, silent=True)
    assert join not in other.execution.engine.instances
    world.run_until(
        lambda: other.network.gossip.members[world.nodes[HOST]].status is MemberStatus.FAILED, 120.0, "the old host is given up"
    )
    assert join not in other.execution.migrations._arrivals
    assert other.execution.operators.room.reservations.held(world.now) == 0


def test_an_attempt_that_is_called_off_while_its_operator_is_made_is_in_nobodys_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator made for the first attempt is ready only while the second attempt's state is being copied."""
    host, other = agent_of(world, HOST), agent_of(world, OTHER)
    join, records, late = join_of(host), list[Any](), list[Any]()
    restore = other.execution.operators.restore
    monkeypatch.setattr(other.execution.operators, "restore", lambda *given: late.append(lambda: restore(*given)))
    host.execution.migrations.migrate(join, world.nodes[OTHER], "called off by the test", records.append)
    world.run_until(lambda: bool(late), 10.0, "the first operator is to be made")
    other.execution.migrations._arrivals.call_off()
    world.run_until(lambda: bool(records), 30.0, "the first attempt has ended")
    assert not records[0].committed
    (first,) = late
    monkeypatch.undo()
    host.execution.migrations.migrate(join, world.nodes[OTHER], "tried again", records.append)
    world.run_until(lambda: join in other.execution.migrations._arrivals, 30.0, "the second attempt is on its way")
    first()
    world.run_until(lambda: len(records) == 2, 30.0, "the second attempt has ended")
    assert records[1].committed, records[1].outcome
    world.run(3.0)
    assert join_of(other) == join
    assert not join_of(host)
    assert other.execution.operators.room.reservations.held(world.now) == 0


def test_who_is_asked_for_an_operator_of_another_agent_says_where_it_is(world: World) -> None:
    join = join_of(agent_of(world, HOST))
    for asked in (OWNER, SOURCES, SINK):
        with pytest.raises(SbonError, match=f"{join} is on {world.nodes[HOST]}, not on {world.nodes[asked]}; ask the agent there"):
            world.ask(asked, "migrate", operator=join, node=world.nodes[OTHER])


@pytest.mark.parametrize(("leaves", "words"), [(True, "which has left"), (False, "which failed")])
def test_a_query_says_whether_its_host_has_left_or_failed(world: World, leaves: bool, words: str) -> None:
    gone = SINK if leaves else HOST  # a leaving agent hands over its movable operators
    (world.leave if leaves else world.kill)(gone)

    def reason() -> str:
        return str(world.ask(OWNER, "queries")[0]["reason"])

    world.run_until(lambda: world.nodes[gone] in reason(), 60.0, "the query has lost an operator")
    assert words in reason()
