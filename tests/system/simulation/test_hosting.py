"""Hosts reserve room for queries that are placed simultaneously, and share running operators only if no query suffers."""

import functools

import pytest

from sbon_testbed.simulator.harness import World
from tests.examples import seeds
from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE s{number} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{node}', rows_per_second = {rate}, seed = 5, fields.key.min = 0, fields.key.max = 4)
"""
WINDOWED = """
SELECT window_end, key, count(*) AS n FROM TUMBLE(s{number}, ts, INTERVAL '{seconds} seconds') GROUP BY window_end, key
"""
QUIET = {"optimiser": {"enabled": False}}
SLOTS = 9


def make_world(nodes: int, seed: int, **settings: dict[str, object]) -> World:
    return settled_world(nodes, seed=seed, settings={**QUIET, "engine": {"batch_interval_s": 0.5}, **settings})


def submit_at_once(world: World, queries: int) -> tuple[list[str], int]:
    """Submits queries that share only sources, two at each agent, all at the same time; returns the errors, and the fullest host's load."""
    nodes = len(world.nodes)
    for number, node in enumerate(world.nodes):
        world.submit(SOURCE.format(number=number, node=node, rate=20))
    world.run(3.0)
    replies: list[object] = []
    for index in range(queries):
        agent = world.agents[(index * 5 + index // nodes) % nodes]
        sql = WINDOWED.format(number=index % nodes, seconds=index + 1)
        agent.control(world.requests.make("submit", {"sql": sql}), replies.append)
    fullest = 0

    def answered() -> bool:
        nonlocal fullest
        fullest = max(fullest, *(len(agent.execution.engine.instances) for agent in world.agents))
        return len(replies) == queries

    world.run_until(answered, 100, "all queries run or have failed")
    return [reply.error for reply in replies if reply.error], fullest


@pytest.mark.parametrize("seed", seeds([2], [1, 3]))
def test_queries_placed_at_the_same_time_find_the_room_there_is(seed):
    """About 50 operators on 54 slots. Without reservations 3 of the 12 queries fail (mean of 12 seeds), with them none."""
    world = make_world(6, seed, engine={"batch_interval_s": 0.5, "operators_max": SLOTS})

    failed, fullest = submit_at_once(world, 12)

    assert failed == []
    assert fullest <= SLOTS
    world.run(11.0)
    assert [agent.execution.operators.room.reservations.held(world.now + 1e9) for agent in world.agents] == [0] * 6, (
        "no reservation may remain"
    )


def test_without_reservations_queries_placed_at_the_same_time_refuse_each_other():
    """Shows that the test above can fail."""
    world = make_world(6, 2, engine={"batch_interval_s": 0.5, "operators_max": SLOTS}, hosting={"reservation_s": 0.0})

    failed, fullest = submit_at_once(world, 12)

    assert len(failed) >= 2
    assert fullest <= SLOTS


def test_room_asked_for_by_a_taker_that_has_crashed_is_free_again_in_time():
    world = make_world(3, 4)
    room = world.agents[1].execution.operators.room
    slots = room.free_slots(world.now)
    world.submit(SOURCE.format(number=0, node=world.nodes[1], rate=20))
    world.agents[0].control(world.requests.make("submit", {"sql": WINDOWED.format(number=0, seconds=1)}), lambda reply: None)
    world.run_until(lambda: room.reservations.held(world.now) > 0, 10, "the candidate keeps room")

    world.kill(0)

    world.run_until(lambda: room.reservations.held(world.now) == 0, 13, "the room is free again")
    assert room.free_slots(world.now) == slots, "the query of the crashed home must not run"


def explained(world: World, at: int) -> list[str]:
    """Returns the kinds of the unpinned operators that could be shared with running ones."""
    plan = world.ask(at, "explain", sql=WINDOWED.format(number=0, seconds=1))
    return sorted(row["kind"] for row in plan["operators"] if row["reuse"] is not None and not row["pinned"])


def hosting(world: World, query: str) -> set[str]:
    """Returns the nodes of all operators of a query except its sink."""
    row = next(row for row in world.ask(0, "queries") if row["id"] == query)
    return {operator["node"] for operator in row["operators"] if operator["kind"] != "sink"}


def test_a_busy_host_does_not_share_and_the_new_query_gets_its_own_operators():
    world = make_world(4, 6, hosting={"share_load_max": 0.5})
    world.submit(SOURCE.format(number=0, node=world.nodes[1], rate=100))
    first = world.submit(WINDOWED.format(number=0, seconds=1))
    world.rows(first, count=5)
    assert explained(world, at=3)

    for node in hosting(world, first):
        world.load(node, 0.9)
    world.run(10.0)

    assert explained(world, at=3) == []
    second = world.submit(WINDOWED.format(number=0, seconds=1), at=3)
    row = next(row for row in world.ask(3, "queries") if row["id"] == second)
    assert {operator["kind"] for operator in row["operators"] if not operator["pinned"] and not operator["reused"]} == {"window", "map"}
    assert world.rows(second, at=3, count=5), "the second query must get its answers nevertheless"
    windows = [row for number in range(4) for row in world.ask(number, "operators") if row["kind"] == "window"]
    assert sorted(window["queries"] for window in windows) == sorted([[first], [second]])


def test_an_operator_serves_no_more_consumers_than_its_host_allows():
    world = make_world(4, 7, hosting={"share_outputs_max": 2})
    world.submit(SOURCE.format(number=0, node=world.nodes[1], rate=100))
    queries = [world.submit(WINDOWED.format(number=0, seconds=1), at=number) for number in range(4)]

    for number, query in enumerate(queries):
        assert world.rows(query, at=number, count=5)
    rows = [row for number in range(4) for row in world.ask(number, "operators")]
    assert max(len(row["links"]) for row in rows) == 2
    assert len([row for row in rows if row["kind"] == "map" and row["text"].startswith("select window_end")]) == 2


def test_two_queries_that_see_the_last_free_output_at_once_do_not_both_take_it():
    world = make_world(4, 8, hosting={"share_outputs_max": 2})
    world.submit(SOURCE.format(number=0, node=world.nodes[1], rate=100))
    world.rows(world.submit(WINDOWED.format(number=0, seconds=1)), count=5)
    replies: list[object] = []
    for number in (2, 3):
        agent = world.agents[number]
        agent.control(world.requests.make("submit", {"sql": WINDOWED.format(number=0, seconds=1)}), replies.append)

    world.run_until(lambda: len(replies) == 2, 60, "both run")

    assert [reply.error for reply in replies] == [None, None]
    rows = [row for number in range(4) for row in world.ask(number, "operators")]
    assert max(len(row["links"]) for row in rows) == 2


def test_an_operator_that_waits_for_a_consumer_is_not_given_another():
    world = make_world(5, 10, links={"window_batches": 4})
    world.submit(SOURCE.format(number=0, node=world.nodes[1], rate=100))
    first = world.submit(WINDOWED.format(number=0, seconds=1))
    world.rows(first, count=10)
    assert explained(world, at=3)

    world.partition([[0]])
    world.run(15.0)
    assert "window" not in explained(world, at=3), "the operator that feeds the lost consumer has no credit"

    second = world.submit(WINDOWED.format(number=0, seconds=1), at=3)
    assert world.rows(second, at=3, count=20), "the new query must not wait for the lost consumer"
    world.heal()
    tail = world.tail(first)
    seen = len(tail.rows)
    world.run_until(lambda: len(tail.rows) >= seen + 50, 60, "the first goes on where it was")
    windows = [row[:2] for row in tail.rows]
    assert len(set(windows)) == len(windows)


UPLINK_QUERY = """SELECT a.ts, a.key, a.value AS one, b.value AS two FROM s0 AS a JOIN s0 AS b
    ON a.key = b.key AND b.ts BETWEEN a.ts - INTERVAL '1 second' AND a.ts"""


def begin_to_join(limit: float) -> tuple[World, float]:
    """Returns a world whose join sends more than it receives, and what leaves the join's host, in bytes/s."""
    world = make_world(4, 9, hosting={"share_bytes_per_s_max": limit}, placement={"strategy": "producer"})
    world.submit(SOURCE.format(number=0, node=world.nodes[1], rate=20))
    world.rows(world.submit(UPLINK_QUERY), count=1000)
    engine = world.agents[1].execution.engine
    return world, sum(o.byte_rate.per_s for i in engine.instances.values() for o in i.outputs.values() if o.node != world.nodes[1])


@functools.cache
def rate_of_the_join() -> float:
    return begin_to_join(0.0)[1]


@pytest.mark.parametrize(("times", "shared"), [(1.5, False), (2.5, True)])
def test_a_thin_uplink_does_not_carry_one_copy_more(times, shared):
    """The join's answers leave the host once; the uplink's limit allows a second copy, or not."""
    world = begin_to_join(times * rate_of_the_join())[0]
    second = world.submit(UPLINK_QUERY, at=3)

    row = next(row for row in world.ask(3, "queries") if row["id"] == second)
    joins = [row for number in range(4) for row in world.ask(number, "operators") if row["kind"] == "join"]
    assert len(joins) == (1 if shared else 2), row["operators"]
    assert world.rows(second, at=3, count=50)
