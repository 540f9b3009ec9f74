"""A lost consumer stops only its own query, however many operators are between it and the shared operator."""

from typing import Any

import pytest

from sbon.execution.instance import Instance
from sbon.links.dead_ends import Obstruction
from sbon.wire.links import DeadEnd
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.examples import seeds
from tests.worlds import settled_world

HOME, SOURCE, DEAD, BETWEEN = 0, 1, 2, 3
STREAM = """
CREATE SOURCE s (ts TIMESTAMP, number BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{}', rows_per_second = 10,
    fields.number.kind = 'sequence')
"""
LIVING = "SELECT number FROM s"
DYING = {
    "map": "CREATE SINK k AS SELECT number FROM s WHERE number % 2 = 0 WITH (connector = 'discard', node = '{}')",
    "chain": """CREATE SINK k AS SELECT window_end, n FROM (SELECT window_end, COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '200 milliseconds')
        GROUP BY window_end) WHERE n >= 0 WITH (connector = 'discard', node = '{}')""",
}


def make_world(seed: int = 4, **settings: Any) -> World:
    common = {"engine": {"batch_interval_s": 0.5}, "optimiser": {"enabled": False}, "links": {"window_batches": 16}}
    world = settled_world(4, seed=seed, settings=common | settings)
    world.submit(STREAM.format(world.nodes[SOURCE]), at=HOME)
    return world


def hopeless() -> World:
    """Returns a world in which lost operators are not recreated."""
    return make_world(engine={"batch_interval_s": 0.5, "heal": False})


def agent(world: World, number: int) -> Agent:
    found = world.agents[number]
    assert isinstance(found, Agent)
    return found


def instances(world: World, query: str) -> list[tuple[int, Instance]]:
    living = [(number, one) for number, one in enumerate(world.agents) if isinstance(one, Agent)]
    return [(number, i) for number, one in living for i in one.execution.engine.instances.values() if query in i.users]


def row(world: World, query: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in world.ask(HOME, "queries") if row["id"] == query)
    return found


def move_between(world: World, query: str) -> None:
    """Moves the movable operators of a query to a separate host, as an optimiser might."""
    for number, instance in instances(world, query):
        if instance.movable and number != BETWEEN:
            world.run(1.0)
            result = world.ask(number, "migrate", operator=instance.id, node=world.nodes[BETWEEN])
            assert result["committed"], result


@pytest.mark.parametrize(("shape", "where"), seeds([("chain", "between")], [("map", "beside the source"), ("chain", "beside the source")]))
def test_a_chain_that_leads_to_a_dead_host_only_stops_nobody_else(shape: str, where: str) -> None:
    world = hopeless()
    living = world.submit(LIVING, at=HOME)
    tail = world.tail(living, HOME)
    dying = world.submit(DYING[shape].format(world.nodes[DEAD]), at=HOME)
    if where == "between":
        move_between(world, dying)
    world.run(5.0)
    own = {number for number, instance in instances(world, dying) if len(instance.users) == 1}
    assert own == {SOURCE, DEAD, *([BETWEEN] if where == "between" else [])}

    world.kill(DEAD)
    world.run(60.0)
    assert (row(world, living)["state"], row(world, dying)["state"]) == ("degraded", "degraded")
    assert f"on {world.nodes[DEAD]}, which failed" in row(world, living)["reason"], "a query that is held up names the cause"
    stopped = len(tail.rows)
    world.run_until(lambda: len(tail.rows) > stopped, 70.0, "it is given up two minutes after its host has been declared failed, in 5 s")
    world.run(30.0)
    assert len(tail.rows) > stopped + 250
    assert row(world, living)["state"] == "running"
    assert row(world, living)["reason"] == ""
    told = row(world, dying)
    assert (
        f"was on {world.nodes[DEAD]}, which failed; if {world.nodes[DEAD]} stays away: DROP SINK k, then submit it again" in told["reason"]
    )

    for again in (False, True):
        before = len(tail.rows)
        if again:
            world.restart(DEAD)
        world.run(50.0)
        assert len(tail.rows) >= before + 45 * 10, "the other query goes on: the link to the dead host is not recreated"
    numbers = [number for (number,) in tail.rows]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    told = row(world, dying)
    assert told["state"] == "degraded"
    assert "is not on tokyo any more; what is gone does not come back: DROP SINK k, then submit it again" in told["reason"]


def test_a_chain_whose_end_has_forgotten_it_stops_nobody_else() -> None:
    world = hopeless()
    living = world.submit(LIVING, at=HOME)
    tail = world.tail(living, HOME)
    dying = world.submit(DYING["chain"].format(world.nodes[DEAD]), at=HOME)
    move_between(world, dying)
    world.run(5.0)
    world.restart(DEAD)
    world.run(60.0)
    before = len(tail.rows)
    world.run(60.0)
    assert len(tail.rows) >= before + 50 * 10
    assert row(world, living)["state"] == "running"
    told = row(world, dying)
    assert told["state"] == "degraded"
    assert f"is not on {world.nodes[DEAD]} any more" in told["reason"]
    assert "what is gone does not come back: DROP SINK k, then submit it again" in told["reason"]


def test_a_chain_that_was_only_cut_off_is_fed_again() -> None:
    world = make_world()
    living = world.submit(LIVING, at=HOME)
    tail = world.tail(living, HOME)
    dying = world.submit(DYING["chain"].format(world.nodes[DEAD]), at=HOME)
    move_between(world, dying)
    world.run(5.0)
    world.partition([[DEAD]])
    world.run(200.0)
    taken = row(world, dying)["rows_out"]
    assert row(world, dying)["state"] == "degraded"
    world.heal()
    world.run(90.0)
    told = row(world, dying)
    assert told["state"] == "running"
    assert told["rows_out"] > taken + 100
    assert told["lost_rows"] > 0
    assert "are lost" in told["reason"]
    numbers = [number for (number,) in tail.rows]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_what_waits_for_a_dead_host_says_so() -> None:
    world = make_world()
    dying = world.submit(DYING["chain"].format(world.nodes[DEAD]), at=HOME)
    move_between(world, dying)
    world.run(5.0)
    world.kill(DEAD)
    world.run(60.0)
    reasons = {operator["id"]: operator["reason"] for number in (SOURCE, BETWEEN) for operator in world.ask(number, "operators")}
    dead = f"{dying}.4 on {world.nodes[DEAD]}, which failed"
    assert f"batches wait for {dead}" in reasons[f"{dying}.3"]
    chain = f"which leads only to {dying}.3 on {world.nodes[BETWEEN]}, which leads only to {dead}"
    assert f"batches wait for {dying}.2 on {world.nodes[BETWEEN]}, {chain}" in reasons[f"{dying}.1"]
    assert "takes no more" not in "".join(reasons.values())


def test_a_window_whose_only_input_is_gone_for_good_is_not_running() -> None:
    world = make_world()
    query = world.submit("SELECT window_end, COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 second') GROUP BY window_end", at=HOME)
    move_between(world, query)
    world.run(5.0)
    world.kill(SOURCE)
    world.run(150.0)
    (told,) = (operator for operator in world.ask(BETWEEN, "operators") if operator["id"] == f"{query}.2")
    assert told["state"] == "degraded"
    assert told["reason"] == f"nothing feeds it any more: {query}.1 on {world.nodes[SOURCE]} is gone for good"
    assert row(world, query)["state"] == "degraded"
    assert f"was on {world.nodes[SOURCE]}, which failed" in row(world, query)["reason"]


def test_a_link_that_leads_nowhere_is_not_made_anew() -> None:
    world = make_world()
    world.submit(STREAM.format(world.nodes[SOURCE]).replace("SOURCE s", "SOURCE slow").replace("= 10", "= 0.1"), at=HOME)
    world.submit("SELECT number FROM slow", at=HOME)
    dying = world.submit(DYING["map"].replace("FROM s", "FROM slow").format(world.nodes[DEAD]), at=HOME)
    world.run(5.0)
    world.kill(DEAD)
    world.run(140.0)
    (source,) = (instance for _, instance in instances(world, dying) if not instance.inputs)
    for _ in range(20):
        world.run(1.0)
        assert not any(dying in output.users for output in source.outputs.values()), (
            "although its consumer has processed all batches that it got"
        )


def test_nobody_but_the_host_of_a_consumer_may_call_it_a_dead_end() -> None:
    world = make_world()
    world.submit(LIVING, at=HOME)
    query = world.submit(DYING["map"].format(world.nodes[DEAD]), at=HOME)
    world.run(2.0)
    (gives,) = (instance for number, instance in instances(world, query) if number == SOURCE and len(instance.users) == 1)
    (link,) = gives.outputs
    for speaker in (BETWEEN, DEAD):
        told = agent(world, speaker).network.directory
        told.send(world.nodes[SOURCE], DeadEnd(link=link, obstruction=Obstruction("gone", True)))
        world.run(0.5)
        told.send(world.nodes[SOURCE], DeadEnd(link=link, obstruction=Obstruction("gone", True)))  # the first only opens the connection
        world.run(2.0)
        assert (gives.outputs[link].obstructed != "") is (speaker == DEAD)
    world.run(10.0)
    assert gives.outputs[link].obstructed == "", "a report of an obstruction expires after ten seconds"
