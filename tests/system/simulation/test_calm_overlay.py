"""Real agents for hours of virtual time: noise moves no operator between equally good nodes; a lasting change moves each once."""

from collections import Counter

import numpy as np
import pytest

from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.network import NetworkConfig
from sbon_testbed.topology import Topology, pairs_between
from tests.worlds import settled_world

HOUR_S = 3600.0
NODES = ("p", "q", "c", "x", "y")
STATEMENTS = """
CREATE SOURCE s (ts TIMESTAMP, k BIGINT, v DOUBLE, WATERMARK FOR ts AS ts)
    WITH (connector = 'datagen', nodes = 'p,q', rows_per_second = 4, seed = 1, fields.k.min = 0, fields.k.max = 200);
SELECT window_end, k, avg(v) AS v FROM TUMBLE(s, ts, INTERVAL '60 seconds') GROUP BY window_end, k;
"""
"""The window's output has about the rate of each source, so its best place is in the middle, at x or y."""
SLOW = {
    "membership": {"interval_s": 10.0, "gossip_interval_s": 20.0},
    "peers": {"keepalive_s": 20.0, "silence_timeout_s": 60.0},
    "engine": {"batch_interval_s": 30.0, "sample_interval_s": 10.0, "report_interval_s": 30.0, "wanted_interval_s": 60.0},
}
"""Settings that slow down work without influence on migrations; the optimiser has its defaults."""


def triangle() -> Topology:
    """Returns two producers and a consumer 175 ms from each other; x and y, 90 ms from each, are equally good best places."""
    at = np.array([(100, 0, 0), (-50, 87, 0), (-50, -87, 0), (0, 0, 8), (0, 0, -8)], dtype=float)
    rtt_ms = np.linalg.norm(at[:, None] - at[None], axis=2) + 2.0
    np.fill_diagonal(rtt_ms, 0.0)
    rtt_ms[3:, :3] = rtt_ms[:3, 3:] = 90.0
    return Topology("triangle", NODES, tuple({} for _ in NODES), rtt_ms, np.zeros(len(NODES)))


def migrations(world: World, since_wall_s: float) -> list[tuple[float, str]]:
    """Returns time and operator of each migration."""
    return sorted(
        (float(record["at_wall_s"]), str(record["operator"]))
        for agent in world.agents
        for record in agent.monitoring.measuring.migrations
        if record["committed"] and record["at_wall_s"] >= since_wall_s
    )


def hosts(world: World) -> dict[str, str]:
    """Returns the hosts of the operators that may move."""
    return {i.id: agent.name for agent in world.agents for i in agent.execution.engine.instances.values() if i.movable}


@pytest.mark.soak
@pytest.mark.parametrize("hours", [1.2, 8.0])
def test_equal_places_and_jitter_move_an_operator_at_most_once_an_hour_and_a_lasting_change_once(hours: float):
    world = settled_world(triangle(), seed=4, network=NetworkConfig(jitter_ms=5.0), settings=SLOW)
    world.run(600.0)
    world.submit(STATEMENTS, at="c")
    world.run(300.0)
    began = world.agents[0].host.wall()

    world.run(hours * HOUR_S)
    moved = migrations(world, began)
    for at, operator in moved:
        within = [other for other in moved if other[1] == operator and at <= other[0] < at + HOUR_S]
        assert len(within) == 1, f"{operator} moved {len(within)} times within an hour"
    assert set(hosts(world).values()) <= {"x", "y"}

    before, changed = hosts(world), world.agents[0].host.wall()
    far = next(iter(before.values()))
    near = {"x": "y", "y": "x"}[far]
    number = NODES.index(far)
    world.scale(pairs_between(world.topology, [number], [other for other in range(len(NODES)) if other != number]), 2.0)
    world.run(0.5 * hours * HOUR_S)

    assert set(hosts(world).values()) == {near}
    counts = Counter(operator for _, operator in migrations(world, changed))
    assert counts == Counter({operator: 1 for operator, host in before.items() if host == far})
