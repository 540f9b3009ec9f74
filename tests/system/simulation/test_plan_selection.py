"""A query with `max_latency` runs with the order of operators that has the lowest predicted latency."""

from sbon.query.params.rowwise import MapParams
from sbon_testbed.mace.bounds import known_costs
from tests.system.simulation.test_delay_bounds import C, make_world, query_row

JOIN = """CREATE SINK {name} AS SELECT l.ts, l.key, l.value + r.value AS total
FROM strong AS l JOIN weak AS r ON l.key = r.key AND r.ts BETWEEN l.ts - INTERVAL '5 ms' AND l.ts + INTERVAL '5 ms'
WHERE l.value * l.value > 0.01 WITH (connector = 'discard'{bound})"""
DEAR_NS = 2e7
"""Cost of a row at a filter in reference ns: 400 rows/s overload a virtual machine."""


def test_a_dear_filter_is_exchanged_with_a_join_that_leaves_few_rows_and_the_query_runs_so() -> None:
    world = make_world()
    query = world.submit(JOIN.format(name="plain", bound=""), at=C)
    world.run(20)
    agent = world.agents[C]
    plan = agent.queries.owned.records[query].plan
    world.ask(C, "drop", query=query)
    row_ns = {spec.id: DEAR_NS if isinstance(spec.params, MapParams) else 1e3 for spec in plan.operators}
    agent.execution.cost_store.statistics.restore([known_costs(spec, 1e5, row_ns[spec.id]) for spec in plan.operators], world.now)

    plain = world.ask(C, "explain", sql=JOIN.format(name="again", bound=""))
    told = world.ask(C, "explain", sql=JOIN.format(name="bounded", bound=", max_latency = '5 s'"))
    bounded = world.submit(JOIN.format(name="bounded", bound=", max_latency = '5 s'"), at=C)
    world.run(30)

    assert plain["prediction"]["latency"]["worst_ms"] is None
    assert not any("exchanged" in note for note in plain["notes"])
    assert any("operators exchanged, as predicted" in note for note in told["notes"]), told["notes"]
    assert told["prediction"]["latency"]["worst_high_ms"] <= 5000.0
    chosen = agent.queries.owned.records[bounded].plan
    assert {link.id for link in chosen.links} != {link.id.replace(query, bounded) for link in plan.links}
    row = query_row(world, bounded)
    assert row["state"] == "running"
    assert row["prediction"]["measured"]["rows"] > 0, "answers must come in the other order, too"
