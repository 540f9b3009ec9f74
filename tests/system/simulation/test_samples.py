"""Queries that never ran are predicted from a sample, in virtual time."""

from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.harness import World
from sbon_testbed.topology import CitiesConfig, build

HERE, THERE = 0, 1
TRADES = """CREATE SOURCE trades (ts TIMESTAMP, k BIGINT, price DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{node}', rows_per_second = 1000, fields.k.min = 0, fields.k.max = 99)"""
QUERY = """SELECT window_end, k, count(*) AS n FROM TUMBLE((SELECT * FROM trades WHERE price > 0.5), ts, INTERVAL '1 second')
GROUP BY window_end, k"""


def world_of() -> World:
    topology = build(CitiesConfig(), 3, 1)
    world = World(topology, seed=1, settings={"optimiser": {"enabled": False}}, cpu=CpuConfig(batch_us=50.0, row_ns=700.0))
    world.start_all()
    world.settle()
    world.submit(TRADES.format(node=topology.nodes[THERE]), at=HERE)
    return world


def test_explain_predicts_from_rows_that_went_through_the_operators_at_the_host_of_their_source():
    world = world_of()

    shown = world.ask(HERE, "explain", sql=f"CREATE SINK out AS {QUERY} WITH (connector = 'discard')")

    told = shown["prediction"]["operators"]
    assert told["sampled"] == len(shown["operators"]) - 1, "all operators but the sink must be sampled"
    assert told["rule"] == 1
    assert not world.ask(THERE, "operators"), "no operator may run"


def test_a_running_query_is_measured_and_no_longer_sampled():
    world = world_of()
    world.ask(HERE, "explain", sql=f"CREATE SINK out AS {QUERY} WITH (connector = 'discard')")
    world.submit(f"CREATE SINK out AS {QUERY} WITH (connector = 'discard')", at=HERE)
    world.run(60.0)

    shown = world.ask(HERE, "explain", sql=QUERY)

    assert shown["prediction"]["operators"]["sampled"] == 0


def test_streams_have_the_rates_that_the_sample_tells_so_that_a_join_runs_at_the_stronger_one():
    """One in a hundred rows of the first source passes the filter; by rule a third would, and the join would run at the sink."""
    world = world_of()
    one, other = world.nodes[THERE], world.nodes[2]
    world.submit(TRADES.format(node=other).replace("trades", "quotes").replace("1000", "200"), at=HERE)
    text = (
        "SELECT f.ts AS at, f.k, f.price FROM (SELECT * FROM trades WHERE price > 0.99) f "
        "JOIN quotes q ON f.k = q.k AND f.price = q.price AND q.ts BETWEEN f.ts - INTERVAL '1 s' AND f.ts"
    )

    shown = world.ask(HERE, "explain", sql=text)

    node_of = {operator["kind"]: operator["node"] for operator in shown["operators"]}
    passing = next(link for link in shown["links"] if link["target_node"] == other and link["source_node"] == one)
    assert 2 < passing["rate_rows_per_s"] < 30
    assert node_of["join"] == other
    world.submit(text, at=HERE)
    assert {row["node"] for row in world.ask(2, "operators") if row["kind"] == "join"} == {other}
