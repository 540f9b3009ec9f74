"""Operators that are linked on one host move together: when the first has moved, the others follow."""

from collections import deque

from tests.system.simulation.test_leaving import begin, gather, make_world, movable


def test_the_rest_of_a_body_follows_at_once():
    world = make_world(5, 1)
    begin(world)
    gather(world, 3)
    world.run(1.0)
    agent = world.agents[3]
    body = sorted(movable(world, 3))

    def moves() -> list[bool]:
        return [record["committed"] for record in agent.monitoring.measuring.migrations if record["reason"] == "decided by the test"]

    agent.optimisers.rebalancing._migrate(deque(body), world.nodes[4], "decided by the test")
    world.run_until(lambda: len(moves()) == 2, 10, "both have moved")

    assert moves() == [True, True]
    assert sorted(movable(world, 4)) == body
