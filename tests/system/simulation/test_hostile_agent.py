"""One agent of an overlay sends nonsense; the others must not be harmed."""

import itertools
import math
from statistics import median

import pytest

from sbon.cost_space.coordinate import ORIGIN, Coordinate, check
from sbon.query.catalog import ENTRIES_MAX, OWNER_ENTRIES_MAX, Entry
from sbon.wire.replication import CatalogUpdate
from sbon_testbed.simulator.harness import World

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
        world.agents[LIAR].network.gossip.machine._writer._coordinate = lambda: next(told)
    world.run(90.0)
    return world


def honest_error(world: World) -> float:
    """Returns the median relative error over the honest pairs, by the agents' own coordinates."""
    errors = []
    for a, b in itertools.permutations([number for number in range(NODES) if number != LIAR], 2):
        estimated_ms = world.agents[a].network.gossip.estimated_rtt_ms(world.nodes[a], world.nodes[b])
        errors.append(abs(estimated_ms - world.topology.rtt_ms[a, b]) / world.topology.rtt_ms[a, b])
    return median(errors)


def test_an_agent_that_tells_nonsense_is_refused_counted_and_hurts_nobody():
    quiet, hostile = overlay(hostile=False), overlay(hostile=True)

    for number in range(NODES):
        if number == LIAR:
            continue
        agent = hostile.agents[number]
        check(agent.network.gossip.localiser.coordinate)
        assert all(check(member.coordinate) for member in agent.network.gossip.members.values() if member.coordinate is not None)
        assert agent.network.gossip.members[hostile.nodes[LIAR]].coordinate in (None, ORIGIN), "as before its first lie"
        assert agent.network.gossip.machine.counters["coordinates_rejected"] > 10
        assert all(row["status"] == "alive" for row in hostile.ask(number, "members"))
    assert honest_error(hostile) == pytest.approx(honest_error(quiet), abs=0.05)


def test_two_thousand_junk_names_of_one_member_leave_room_for_true_ones():
    world = World(4, seed=6)
    world.start_all()
    world.settle()
    liar, now_us = world.agents[LIAR], int(world.agents[LIAR].host.wall() * 1e6)
    junk = tuple(Entry("view", f"junk{i}", now_us, liar.name, False, "CREATE VIEW") for i in range(ENTRIES_MAX))
    ghosts = tuple(Entry("view", f"ghost{i}", now_us, f"ghost{i}", False, "CREATE VIEW") for i in range(ENTRIES_MAX))
    for node in world.nodes[:LIAR]:
        liar.network.directory.tell(node, CatalogUpdate(entries=junk))
    liar.queries.replication.catalog.merge(junk + ghosts)  # it sends these entries with its table
    world.run(90)

    world.submit("CREATE VIEW honest AS SELECT ts FROM sys.probes", at=1)
    world.run(2)
    for number in range(LIAR):
        names = [row["name"] for row in world.ask(number, "names") if row["kind"] != "system stream"]
        assert "honest" in names
        assert len(names) <= 2 * OWNER_ENTRIES_MAX + 1
        assert world.ask(number, "status")["counters"]["catalog_refused"] >= ENTRIES_MAX - OWNER_ENTRIES_MAX
