"""One agent of an overlay tells nonsense of itself; the others must not be hurt."""

import itertools
import math
from statistics import median

import pytest

from sbon.cost_space.coordinate import ORIGIN, Coordinate, check
from testbed.virtual.harness import World

NODES = 8
LIAR = 3
NONSENSE = (
    Coordinate((math.nan, math.nan, math.nan), math.nan, math.nan, math.nan),
    Coordinate((math.inf, 0.0, -math.inf), 1.0, 0.1),
    Coordinate((0.0, 0.0, 0.0), -5.0, 0.1),
    Coordinate((1e30, 0.0, 0.0), 1.0, 0.1),
    Coordinate((0.0, 0.0, 0.0), 1.0, -1.0),
    Coordinate((0.0, 0.0, 0.0), 1.0, 0.1, math.nan),
    Coordinate((0.0, 0.0, 0.0), 1e9, 0.0),
)


def overlay(*, hostile: bool) -> World:
    world = World(NODES, seed=5)
    world.start_all()
    if hostile:
        told = itertools.cycle(NONSENSE)
        world.agents[LIAR].gossip.machine._writer._coordinate = lambda: next(told)
    world.run(90.0)
    return world


def honest_error(world: World) -> float:
    """Median relative error over the honest pairs, by the coordinates that the agents have of themselves."""
    errors = []
    for a, b in itertools.permutations([number for number in range(NODES) if number != LIAR], 2):
        estimated_ms = world.agents[a].gossip.estimated_rtt_ms(world.nodes[a], world.nodes[b])
        errors.append(abs(estimated_ms - world.topology.rtt_ms[a, b]) / world.topology.rtt_ms[a, b])
    return median(errors)


def test_an_agent_that_tells_nonsense_is_refused_counted_and_hurts_nobody():
    quiet, hostile = overlay(hostile=False), overlay(hostile=True)

    for number in range(NODES):
        if number == LIAR:
            continue
        agent = hostile.agents[number]
        check(agent.gossip.localiser.coordinate)
        assert all(check(member.coordinate) for member in agent.gossip.members.values() if member.coordinate is not None)
        assert agent.gossip.members[hostile.nodes[LIAR]].coordinate in (None, ORIGIN), "as it was before its first lie"
        assert agent.gossip.machine.counters["coordinates_rejected"] > 10
        assert all(row["status"] == "alive" for row in hostile.ask(number, "members"))
    assert honest_error(hostile) == pytest.approx(honest_error(quiet), abs=0.05)
