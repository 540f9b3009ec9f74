"""Agents that leave hand their operators over first: the answers equal those of a run on one node, and no caller waits in vain."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from sbon.control import ControlReply, ControlRequest
from sbon.errors import PlacementError, SbonError
from sbon_testbed.backend import Tail
from sbon_testbed.simulator.harness import World
from tests.examples import seeds
from tests.worlds import settled_world

SOURCES = """
CREATE SOURCE l (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{left}',
    rows_per_second = 300, rows = 3300, seed = 1, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
CREATE SOURCE r (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{right}',
    rows_per_second = 300, rows = 3300, seed = 2, 'start' = '2026-01-01T00:00:00', fields.key.min = 0, fields.key.max = 20);
"""
QUERY = """
SELECT w.window_end, w.key, w.n, w.total, r.value
FROM (SELECT window_end, key, count(*) AS n, sum(value) AS total FROM TUMBLE(l, ts, INTERVAL '2 seconds') GROUP BY window_end, key) AS w
JOIN r ON w.key = r.key AND r.ts BETWEEN w.window_end - INTERVAL '200 milliseconds' AND w.window_end;
"""
TAKER, LEFT, RIGHT = 0, 1, 2
AT_ONCE_S = 1.5
"""Upper bound for the time of a departure without operators."""


def make_world(nodes: int, seed: int, **settings: Any) -> World:
    return settled_world(
        nodes,
        seed=seed,
        settings={"optimiser": {"enabled": False}, "membership": {"interval_s": 0.5}, **settings},
    )


@cache
def alone() -> list[str]:
    """Returns the answers of a run on one node."""
    world = make_world(1, seed=1)
    tail = begin(world)
    world.run_until(lambda: tail.finished, 60)
    return sorted(map(str, tail.rows))


def begin(world: World) -> Tail:
    names = world.nodes
    return world.tail(world.submit(SOURCES.format(left=names[LEFT % len(names)], right=names[RIGHT % len(names)]) + QUERY))


def movable(world: World, node: int) -> list[str]:
    agent = world.agents[node]
    return [] if agent is None else [i.id for i in agent.execution.engine.instances.values() if i.movable]


def move(world: World, operator: str, to: int) -> None:
    """Moves an operator to a node."""

    def host() -> Any:
        return next((agent for agent in world.agents if agent is not None and agent.execution.migrations.may_migrate(operator)), None)

    while operator not in movable(world, to):
        world.run_until(lambda: host() is not None)
        records: list[Any] = []
        host().execution.migrations.migrate(operator, world.nodes[to], "by the test", records.append)
        world.run_until(lambda records=records: bool(records))


def gather(world: World, *hosts: int) -> None:
    """Moves the movable operators to these nodes, in turn."""
    operators = sorted(operator for node in range(len(world.nodes)) for operator in movable(world, node))
    assert len(operators) >= 2, "windows and join"
    for number, operator in enumerate(operators):
        if operator not in movable(world, hosts[number % len(hosts)]):
            move(world, operator, hosts[number % len(hosts)])


def query_row(world: World) -> dict[str, Any]:
    return world.ask(TAKER, "queries")[0]


@pytest.mark.parametrize("seed", seeds(range(1), range(1, 3)))
def test_a_host_that_leaves_in_the_midst_of_a_stream_changes_no_answer(seed: int):
    world = make_world(5, seed)
    tail = begin(world)
    gather(world, 3)
    world.run(1.0 + 0.37 * seed)
    leaving = world.agents[3]
    assert sum(i.operator.state_rows for i in leaving.execution.engine.instances.values() if i.operator is not None) > 0, (
        "the leaving agent must have state"
    )

    world.leave(3)
    world.run_until(lambda: not world.alive(3), 10)

    assert not leaving.optimisers.leaving.stayed
    assert set(leaving.optimisers.leaving.moved.values()) <= set(world.nodes) - {world.nodes[3]}
    states = set()
    while not tail.finished:
        world.run(0.5)
        states.update((row["state"], row["reason"]) for row in world.ask(TAKER, "queries"))
    assert states <= {("running", ""), ("finished", "")}
    assert sorted(map(str, tail.rows)) == alone()
    assert len(alone()) > 250


@pytest.mark.parametrize("seed", seeds(range(1), range(1, 3)))
def test_two_hosts_of_one_query_leave_at_once(seed: int):
    world = make_world(6, seed)
    tail = begin(world)
    gather(world, 3, 4)
    world.run(1.0 + 0.37 * seed)

    world.leave(3)
    world.run(0.01 * seed)
    world.leave(4)
    world.run_until(lambda: not (world.alive(3) or world.alive(4)), 20)

    world.run_until(lambda: tail.finished, 60)
    assert sorted(map(str, tail.rows)) == alone()


def test_hosts_that_leave_one_after_another_hand_over_what_lost_a_source_with_the_first():
    world = make_world(6, 1, engine={"heal": False})
    tail = begin(world)
    gather(world, 3)
    world.run(1.0)

    world.leave(LEFT)
    world.run_until(lambda: not world.alive(LEFT), 10)
    world.start(LEFT)  # it comes back without the source
    world.run_until(lambda: f"is not on {world.nodes[LEFT]}" in query_row(world)["reason"], 60)
    rows = len(tail.rows)
    for host in (3, 4, 5):
        agent = world.agents[host]
        world.leave(host)
        world.run_until(lambda host=host: not world.alive(host), 25)  # rows came seconds ago, so the loss is not declared at once
        assert not agent.optimisers.leaving.stayed
        world.start(host)
        world.run(3.0)

    assert {o["lost"] for o in query_row(world)["operators"] if not o["pinned"]} == {False}
    assert len(tail.rows) >= rows


def test_a_candidate_that_refuses_is_not_the_last_one():
    world = make_world(5, 3)
    tail = begin(world)
    gather(world, 3)
    world.run(1.0)
    refused = []

    def refuse(node: int) -> Callable[..., None]:
        def prepare(message: Any, respond: Any, *, is_leaving: bool) -> None:
            refused.append(node)
            raise PlacementError("refused by the test")

        return prepare

    for node in (TAKER, LEFT, RIGHT):
        world.agents[node].execution.migrations._arrivals.prepare = refuse(node)
    leaving = world.agents[3]
    world.leave(3)
    world.run_until(lambda: not world.alive(3), 20)

    assert len(refused) >= 1
    assert set(leaving.optimisers.leaving.moved.values()) == {world.nodes[4]}
    world.run_until(lambda: tail.finished, 60)
    assert sorted(map(str, tail.rows)) == alone()


def test_where_nobody_takes_anything_a_host_goes_at_once():
    world = make_world(5, 1, engine={"operators_max": 4})
    begin(world)
    gather(world, 3)
    for agent in (world.agents[node] for node in range(5) if node != 3):
        agent.execution.operators.room.is_leaving = True
    leaving = world.agents[3].optimisers.leaving

    world.leave(3)
    world.run_until(lambda: not world.alive(3), 1.0 + AT_ONCE_S)

    assert {stayed.reason for stayed in leaving.stayed} == {"no other agent has room for it"}
    assert leaving.summary()["moved"] == 0


def test_all_that_leave_together_go_at_once_and_hand_nothing_about():
    world = make_world(5, 2)
    begin(world)
    gather(world, 3, 4)
    world.run(1.0)
    agents = list(world.agents)
    arrived = [agent.execution.migrations.counters["operators_arrived"] for agent in agents]

    for node in range(5):
        world.leave(node)
    world.run_until(lambda: not any(map(world.alive, range(5))), 1.0 + AT_ONCE_S)

    assert [agent.execution.migrations.counters["operators_arrived"] for agent in agents] == arrived
    assert len(agents[3].optimisers.leaving.stayed) == len(agents[4].optimisers.leaving.stayed) == 1


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_host_with_nothing_that_could_move_goes_at_once(nodes: int):
    world = make_world(nodes, 2)
    begin(world)
    host = 0 if nodes == 1 else LEFT
    for operator in movable(world, host) if nodes > 1 else []:
        move(world, operator, 3)
    world.run(1.0)
    began, leaving = world.now, world.agents[host].optimisers.leaving

    world.leave(host)
    world.run_until(lambda: not world.alive(host), 5)

    assert world.now - began < AT_ONCE_S
    assert leaving.moved == {}
    assert "it is pinned" in {stayed.reason for stayed in leaving.stayed}


def test_when_time_is_up_it_says_goodbye_with_what_is_left():
    world = make_world(5, 1, engine={"heal": False})
    tail = begin(world)
    gather(world, 3)
    world.run(1.0)
    for node in (0, 1, 2, 4):  # accepts the state and never confirms it
        world.agents[node].execution.migrations._arrivals.chunk = lambda message, respond: None
    began, leaving = world.now, world.agents[3].optimisers.leaving

    world.agents[3].leave(lambda: None, within_s=3.0)
    world.run(1.0)
    assert world.ask(3, "status")["status"] == "leaving"
    with pytest.raises(SbonError, match="is leaving and takes no more statements"):
        world.submit("SELECT 1 FROM l", at=3)
    world.run_until(lambda: world.agents[3].stopped, 10)

    assert 3.0 <= world.now - began < 3.0 + AT_ONCE_S
    assert {stayed.reason for stayed in leaving.stayed} == {"time was up"}
    world.kill(3)
    world.run_until(lambda: query_row(world)["state"] == "degraded", 30)
    assert f"was on {world.nodes[3]}, which has left" in query_row(world)["reason"]
    assert not tail.finished


@pytest.mark.parametrize(
    ("arguments", "within_s"),
    [({"within_s": 3}, 3.0), ({"within_s": None}, 6.0), ({}, 6.0)],
    ids=["as asked", "not said", "as on a signal"],
)
def test_request_to_leave_and_signals_hand_over_for_as_long_as_they_may(arguments: dict[str, object], within_s: float):
    world = make_world(5, 1, leaving_s=6.0)
    begin(world)
    gather(world, 3)
    world.run(1.0)
    for node in (0, 1, 2, 4):
        world.agents[node].execution.migrations._arrivals.chunk = lambda message, respond: None
    began, ended, said = world.now, [], []
    agent = world.agents[3]
    agent.shutdown.when_left(lambda: ended.append(world.now))

    agent.control(ControlRequest(1, "leave", arguments), said.append)
    world.run_until(lambda: ended, 10)

    assert within_s <= ended[0] - began < within_s + AT_ONCE_S
    assert [reply.result["left"] for reply in said] == [True]
    assert agent.stopped


def test_leaving_told_twice_ends_at_once_and_both_are_answered():
    world = make_world(5, 1)
    begin(world)
    gather(world, 3)
    world.run(1.0)
    agent, said = world.agents[3], []

    for number in (1, 2):
        assert not agent.stopped
        agent.control(ControlRequest(number, "leave"), said.append)

    assert agent.stopped
    assert [reply.id for reply in said] == [1, 2]


@pytest.mark.parametrize("within_s", ["soon", True, -1, 3600.5, float("nan")])
def test_leave_refuses_a_time_that_is_none(within_s: object):
    world = make_world(3, 1)
    said: list[ControlReply] = []

    world.agents[0].control(ControlRequest(1, "leave", {"within_s": within_s}), said.append)

    assert [reply.error for reply in said] == [f"within_s = {within_s!r}, expected 0 to 3600 seconds"]
    assert not world.agents[0].optimisers.leaving.begun


def test_goodbye_that_nobody_answers_ends_after_its_time():
    world = make_world(3, 1, leave_timeout_s=0.7)
    agent, ended = world.agents[0], []
    agent.network.gossip.leave = lambda: None
    began = world.now

    agent.leave(lambda: ended.append(world.now), within_s=0)
    world.run_until(lambda: ended, 10)

    assert ended[0] - began == pytest.approx(0.7, abs=1e-6)


def test_who_leaves_is_offered_nothing_and_what_was_on_its_way_there_stays():
    world = make_world(5, 4)
    tail = begin(world)
    gather(world, 3)
    world.run(1.0)
    agent, records = world.agents[4], []
    operator = movable(world, 3)[0]
    world.agents[3].execution.migrations.migrate(operator, world.nodes[4], "by the test", records.append)
    world.run_until(lambda: agent.execution.migrations.arriving == 1)

    world.leave(4)
    world.run_until(lambda: bool(records))

    assert not records[0].committed
    assert operator in movable(world, 3)
    assert agent.execution.operators.room.empty_slots == agent.execution.operators.room.free_slots(agent.host.now()) == 0
    world.run_until(lambda: tail.finished, 60)
    assert sorted(map(str, tail.rows)) == alone()


def test_each_query_has_a_line_that_says_what_was_lost_or_that_nothing_was(tmp_path: Path):
    log = tmp_path / "log"
    world = settled_world(5, seed=5, settings={"optimiser": {"enabled": False}}, log_file=log)
    begin(world)
    gather(world, 3)
    sink = world.submit(f"CREATE SINK k WITH (connector = 'discard', node = '{world.nodes[3]}') FROM l")
    world.run(1.0)

    world.leave(3)
    world.run_until(lambda: not world.alive(3), 10)

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    handed = [line for line in lines if line["event"] == "leaving.query_handed_over"]
    lost = [line for line in lines if line["event"] == "leaving.query_loses"]
    assert [len(line["moved"]) for line in handed] == [2]
    assert [(line["query"], list(line["lost"].values())) for line in lost] == [(sink, ["it is pinned"])]
