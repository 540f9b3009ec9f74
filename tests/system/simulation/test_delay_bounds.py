"""Queries with a delay bound: placed within it, kept within it while operators move, or refused."""

from pathlib import Path

import numpy as np
import pytest

from sbon.errors import SbonError
from sbon.wire.reports import UpstreamDelay
from sbon_testbed.simulator.harness import World
from sbon_testbed.topology import Topology
from tests.examples import seeds
from tests.worlds import settled_world

# One-way latencies in ms. A strong source is at a, a weak source beside the consumer at c, and b a little off the path between them.
RTT_MS = 2 * np.array(
    [
        [0.0, 40.0, 100.0, 90.0],
        [40.0, 0.0, 70.0, 90.0],
        [100.0, 70.0, 0.0, 90.0],
        [90.0, 90.0, 90.0, 0.0],
    ]
)
SOURCES = """
CREATE SOURCE strong (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = 'a', rows_per_second = 400, seed = 5, fields.key.min = 0, fields.key.max = 4);
CREATE SOURCE weak (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = 'c', rows_per_second = 20, seed = 6, fields.key.min = 0, fields.key.max = 4)
"""
WINDOWED = """
SELECT window_end, key, count(*) AS n, sum(value) AS total
FROM TUMBLE((SELECT ts, key, value FROM strong UNION ALL SELECT ts, key, value FROM weak), ts, INTERVAL '1 second') GROUP BY window_end, key
"""
C = 2


def make_world(seed: int = 5, data_dir: Path | None = None, **settings: dict[str, object]) -> World:
    topology = Topology("line", ("a", "b", "c", "d"), ({}, {}, {}, {}), RTT_MS, np.zeros(4))
    steady = {"optimiser": {"enabled": False}, "engine": {"batch_interval_s": 0.2}, "membership": {"interval_s": 0.5}}
    world = settled_world(topology, seed=seed, settings={**steady, **settings}, data_dir=data_dir, predictions="fine")
    world.run(60)
    world.submit(SOURCES, at=C)
    return world


def sink(bound: str, name: str = "out") -> str:
    options = f", delay_bound = '{bound}'" if bound else ""
    return f"CREATE SINK {name} AS {WINDOWED} WITH (connector = 'discard'{options})"


def window_node(plan: dict[str, object]) -> object:
    return next(row["node"] for row in plan["operators"] if row["kind"] == "window")


def query_row(world: World, query: str, at: int = C) -> dict[str, object]:
    return next(row for row in world.ask(at, "queries") if row["id"] == query)


def test_placement_keeps_within_the_bound_and_explains_it():
    world = make_world()

    free = world.ask(C, "explain", sql=sink(""))
    assert window_node(free) == "a"
    assert free["delay_ms"] == pytest.approx(200, rel=0.05)
    assert free["delay_bound_ms"] is None

    bounded = world.ask(C, "explain", sql=sink("160 ms"))
    assert window_node(bounded) == "b", "the weak source's rows travel to b and back"
    assert bounded["delay_ms"] == pytest.approx(140, rel=0.05)
    assert bounded["delay_bound_ms"] == 160.0
    assert bounded["network_usage"]["here"] > free["network_usage"]["here"]


def test_a_bound_that_cannot_be_met_is_refused_in_one_line_that_says_what_can():
    world = make_world()

    with pytest.raises(SbonError) as refusal:
        world.submit(sink("50 ms"), at=C)

    line = str(refusal.value)
    assert "\n" not in line
    assert "delay bound of 50 ms" in line
    reachable = float(line.partition("best reachable delay is ")[2].partition(" ms")[0])
    assert reachable == pytest.approx(100, rel=0.05)
    assert world.ask(C, "queries") == []
    assert world.submit(sink(f"{reachable} ms"), at=C), "the bound that the error suggests must be possible"


def test_a_view_hands_its_bound_on_and_the_delay_is_shown_as_it_is():
    world = make_world()
    query = world.submit(f"CREATE MATERIALIZED VIEW v WITH (delay_bound = '160 ms') AS {WINDOWED}; SELECT * FROM v", at=C)
    world.rows(query, at=C, count=20)

    row = query_row(world, query)
    assert row["delay_bound_ms"] == 160.0
    sink_delay = world.agents[C].execution.engine.instances[world.agents[C].queries.owned.records[query].sink].figures.upstream_delay_ms
    assert row["delay_ms"] == pytest.approx(sink_delay, rel=0.02)
    assert row["delay_ms"] == pytest.approx(140, rel=0.05)
    assert row["state"] == "running"


def test_a_running_operator_too_far_behind_is_not_shared_with_a_bounded_query():
    world = make_world()
    first = world.submit(sink("", "first"), at=C)
    world.run(10)
    assert window_node(query_row(world, first)) == "a"

    with_room = world.ask(C, "explain", sql=sink("300 ms", "second"))
    assert any(row["reuse"] is not None for row in with_room["operators"] if row["kind"] in ("window", "map"))
    second = world.submit(sink("160 ms", "second"), at=C)

    row = query_row(world, second)
    assert not next(operator["reused"] for operator in row["operators"] if operator["kind"] == "window")
    assert window_node(row) == "b"


@pytest.mark.parametrize(("bound", "allowed"), seeds([("", {"a"}), ("160 ms", {"b", "c"})], [("210 ms", {"a"}), ("105 ms", {"c"})]))
def test_operators_move_only_where_the_bound_holds(bound, allowed):
    """All operators begin at the consumer; without a bound the window would move to the strong source."""
    eager = {"interval_s": 2.0, "cooldown_s": 5.0, "lookup_interval_s": 5.0, "candidates": 4}
    world = make_world(placement={"strategy": "consumer"}, optimiser=eager)
    query = world.submit(sink(bound), at=C)
    row = query_row(world, query)
    assert window_node(row) == "c"
    longest = 0.0
    for _ in range(6):
        world.run(10)
        longest = max(longest, query_row(world, query)["delay_ms"])

    row = query_row(world, query)
    assert window_node(row) in allowed
    assert row["state"] == "running"
    if bound:
        assert longest <= float(bound.removesuffix(" ms")) * 1.02
    if allowed != {"c"}:
        assert window_node(row) != "c", "the window moves as far as the bound allows"


def test_a_query_whose_bound_the_network_breaks_says_so_until_it_holds_again():
    world = make_world()
    query = world.submit(sink("160 ms"), at=C)
    world.run(20)
    assert query_row(world, query)["state"] == "running"

    everything = ~np.eye(4, dtype=bool)
    world.scale(everything, 2.0)
    world.run_until(lambda: query_row(world, query)["state"] == "degraded", 120, "the bound is exceeded")
    assert "on the way for" in str(query_row(world, query)["reason"])

    world.scale(everything, 1.0)
    world.run_until(lambda: query_row(world, query)["state"] == "running", 120, "the bound holds")


def test_nonsense_about_delays_is_not_believed():
    world = make_world()
    query = world.submit(sink("160 ms"), at=C)
    world.run(10)
    agent = world.agents[C]
    incoming = next(iter(agent.execution.engine.instances[agent.queries.owned.records[query].sink].inputs.values()))
    before = incoming.delay_ms
    assert before is not None

    for nonsense in (float("nan"), float("inf"), -1.0, 1e30):
        agent.execution.delays.told(UpstreamDelay(link=incoming.link.id, delay_ms=nonsense))
        agent.execution.delays.told(UpstreamDelay(link="no such link", delay_ms=nonsense))
        assert incoming.delay_ms == before
    for instance in agent.execution.engine.instances.values():
        instance.users.slack_told(query, float("nan"))
        assert instance.users.delay_slack_ms == 0.0
