"""Whole overlays in virtual time: queries begin, share operators, move, lose operators and end."""

import shutil
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from sbon.errors import SbonError
from sbon_testbed.simulator.harness import World
from sbon_testbed.topology import pairs_between
from tests.examples import seeds
from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE readings (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{nodes}', rows_per_second = 100, seed = 5, fields.key.min = 0, fields.key.max = 4)
"""
WINDOWED = """
SELECT window_end, key, count(*) AS n FROM TUMBLE(readings, ts, INTERVAL '1 second') GROUP BY window_end, key
"""
QUIET = {"optimiser": {"enabled": False}, "engine": {"batch_interval_s": 0.2}}


def make_world(nodes: int = 5, seed: int = 11, **settings: dict[str, object]) -> World:
    return settled_world(nodes, seed=seed, settings={**QUIET, **settings})


def copies(world: World) -> dict[str, list[str]]:
    """Returns the hosts of each operator."""
    found: dict[str, list[str]] = {}
    for agent in world.agents:
        for instance in agent.execution.engine.instances.values():
            found.setdefault(instance.id, []).append(agent.name)
    return found


def query_row(world: World, query: str, at: int = 0) -> dict[str, object]:
    return next(row for row in world.ask(at, "queries") if row["id"] == query)


def all_operators(world: World) -> list[dict[str, object]]:
    return [row for number in range(len(world.nodes)) if world.agents[number] is not None for row in world.ask(number, "operators")]


def test_a_name_made_at_one_agent_serves_queries_at_another():
    world = make_world()
    world.submit(SOURCE.format(nodes=world.nodes[1]), at=0)
    world.run(1.0)
    query = world.submit(WINDOWED, at=3)

    rows = world.rows(query, at=3, count=10)

    assert sum(row[2] for row in rows[5:10]) == pytest.approx(100, abs=10)


def test_a_dropped_query_leaves_nothing_behind_anywhere():
    world = make_world()
    world.submit(SOURCE.format(nodes=f"{world.nodes[1]},{world.nodes[2]}"))
    query = world.submit(WINDOWED)
    world.rows(query, count=5)
    assert len(all_operators(world)) >= 4

    world.ask(0, "drop", query=query)

    world.run_until(lambda: all(not agent.execution.engine.instances for agent in world.agents), 10, "every operator is gone")
    assert world.ask(0, "queries") == []


def test_a_query_can_be_dropped_at_any_agent():
    world = make_world()
    world.submit(SOURCE.format(nodes=world.nodes[1]))
    query = world.submit(WINDOWED)
    world.rows(query, count=5)

    world.ask(3, "drop", query=query)

    world.run_until(lambda: all(not agent.execution.engine.instances for agent in world.agents), 10, "every operator is gone")
    assert [world.ask(number, "queries") for number in range(len(world.nodes))] == [[]] * len(world.nodes)


def test_a_second_query_uses_the_operators_of_the_first_and_outlives_it():
    world = make_world()
    world.submit(SOURCE.format(nodes=f"{world.nodes[1]},{world.nodes[2]}"), at=0)
    first = world.submit(WINDOWED, at=0)
    world.rows(first, count=5)
    before = len(all_operators(world))

    second = world.submit(WINDOWED, at=3)
    rows = world.rows(second, at=3, count=10)
    after = all_operators(world)

    windows = [row for row in after if row["kind"] == "window"]
    assert [row["queries"] for row in windows] == [sorted([first, second])], "one window must serve both queries"
    assert len(after) < 2 * before
    assert len(set(rows)) == len(rows)

    world.ask(0, "drop", query=first)
    seen = len(world.tail(second, 3).rows)
    tail = world.tail(second, 3)
    world.run(5.0)
    assert len(tail.rows) > seen, "the second query must continue without the first"
    assert query_row(world, second, at=3)["state"] == "running"

    world.ask(3, "drop", query=second)
    world.run_until(lambda: all(not agent.execution.engine.instances for agent in world.agents), 10, "every operator is gone")


def test_a_query_that_lost_an_operator_is_degraded_and_says_why():
    world = make_world()
    world.submit(SOURCE.format(nodes=f"{world.nodes[1]},{world.nodes[2]}"))
    query = world.submit(WINDOWED)
    world.rows(query, count=5)
    assert query_row(world, query)["state"] == "running"
    victim = world.nodes[1]

    world.kill(victim)

    world.run_until(lambda: query_row(world, query)["state"] == "degraded", 10, "the query is shown as degraded")
    reason = str(query_row(world, query)["reason"])
    assert victim in reason
    assert "failed" in reason
    lost = [operator for operator in query_row(world, query)["operators"] if operator["lost"]]
    assert {operator["node"] for operator in lost} == {victim}


def test_what_a_host_has_forgotten_in_a_restart_runs_there_again():
    world = make_world()
    world.submit(SOURCE.format(nodes=world.nodes[1]))
    query = world.submit(WINDOWED)
    world.rows(query, count=5)

    world.restart(1)
    world.run(20)

    row = query_row(world, query)
    assert row["state"] == "running"
    assert row["lost"][0]["attempts"] >= 1
    tail = world.tail(query)
    before = len(tail.rows)
    world.run_until(lambda: len(tail.rows) > before + 5)


def test_without_healing_a_host_that_comes_back_empty_does_not_make_the_query_whole():
    world = make_world(engine={"heal": False})
    world.submit(SOURCE.format(nodes=world.nodes[1]))
    query = world.submit(WINDOWED)
    world.rows(query, count=5)

    world.restart(1)
    world.run(20)

    row = query_row(world, query)
    assert row["state"] == "degraded"
    assert "not on" in str(row["reason"])


def test_a_partition_that_heals_makes_the_query_whole_again():
    world = make_world()
    world.submit(SOURCE.format(nodes=world.nodes[1]))
    query = world.submit(WINDOWED)
    tail = world.tail(query)
    world.run_until(lambda: len(tail.rows) >= 5)

    world.partition([[1]])
    world.run_until(lambda: query_row(world, query)["state"] == "degraded", 20, "the query is shown as degraded")
    world.heal()
    world.run_until(lambda: query_row(world, query)["state"] == "running", 60, "the query is whole again")

    world.run(10)
    ends = sorted({datetime.fromisoformat(row[0]) for row in tail.rows})
    assert len({(row[0], row[1]) for row in tail.rows}) == len(tail.rows), "no row may come twice"
    assert {(b - a).total_seconds() for a, b in pairwise(ends)} == {1.0}, "the rows held back in the partition must come"


def world_whose_home_has_restarted(*, take_over: bool) -> tuple[World, str]:
    """Returns a world in which a query has given rows and its home has forgotten it."""
    world = make_world(engine={"batch_interval_s": 0.2, "take_over": take_over})
    world.submit(SOURCE.format(nodes=world.nodes[1]), at=3)
    query = world.submit(WINDOWED, at=3)
    world.rows(query, at=3, count=5)
    world.restart(3)
    return world, query


def test_a_query_that_its_home_has_forgotten_runs_on_where_others_have_kept_it():
    world, query = world_whose_home_has_restarted(take_over=True)

    def has_another_owner() -> bool:
        owners = [number for number, agent in enumerate(world.agents) if query in agent.queries.owned.records]
        return len(owners) == 1 and owners != [3] and query_row(world, query, owners[0])["state"] == "running"

    world.run_until(has_another_owner, 30, "a keeper has taken it over")
    world.run_until(lambda: bool(world.agents[3].queries.owned.register.tails), 20, "its sink is made again")
    assert {len(hosts) for hosts in copies(world).values()} == {1}
    tail = world.tail(query, 3)
    world.run_until(lambda: len(tail.rows) >= 10, 20, "its rows come to where they were asked for")


def test_operators_of_a_query_that_nobody_has_kept_are_released_when_its_home_has_forgotten_it():
    world, _ = world_whose_home_has_restarted(take_over=False)

    world.run_until(lambda: all(not agent.execution.engine.instances for agent in world.agents), 60, "every operator is gone")
    assert world.ask(3, "queries") == [], "the query must be forgotten, not resumed"


def test_an_operator_moves_by_its_own_decision_when_the_network_changes():
    world = settled_world(
        8, seed=3, settings={"engine": {"batch_interval_s": 0.2}, "membership": {"interval_s": 0.5}, "optimiser": {"interval_s": 4.0}}
    )
    world.run(60)
    sources = f"{world.nodes[1]},{world.nodes[2]}"
    world.submit(SOURCE.format(nodes=sources).replace("rows_per_second = 100", "rows_per_second = 400"))
    query = world.submit(WINDOWED)
    tail = world.tail(query)
    world.run_until(lambda: len(tail.rows) >= 20)
    window = next(row for row in all_operators(world) if row["kind"] == "window")
    host = world.nodes.index(str(window["node"]))

    others = [number for number in range(len(world.nodes)) if number != host]
    mask = pairs_between(world.topology, [host], others)
    world.scale(mask, 6.0)

    world.run_until(
        lambda: any(record["committed"] for agent in world.agents for record in agent.monitoring.measuring.migrations),
        240,
        "an operator has moved",
    )
    world.run(5)
    moved = [record for agent in world.agents for record in agent.monitoring.measuring.migrations if record["committed"]][-1]
    now_at = {str(row["id"]): row["node"] for row in all_operators(world)}
    assert now_at[moved["operator"]] == moved["there"]
    assert len({(row[0], row[1]) for row in tail.rows}) == len(tail.rows)
    assert query_row(world, query)["state"] == "running"


def test_nonsense_is_answered_with_one_line_and_changes_nothing():
    world = make_world(2)
    for sql, said in (
        ("SELEC 1", "SELEC"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("CREATE SOURCE s (a BIGINT) WITH (connector = 'carrier-pigeon')", "carrier-pigeon"),
        ("SELECT node FROM sys.load ORDER BY node", "ORDER BY"),
    ):
        with pytest.raises(SbonError, match=said) as caught:
            world.submit(sql)
        assert "\n" not in str(caught.value)
    assert world.ask(0, "queries") == []
    with pytest.raises(SbonError, match="no query"):
        world.ask(0, "drop", query="never")
    with pytest.raises(SbonError, match="request"):
        world.ask(0, "statuss")


def test_a_source_that_cannot_be_read_refuses_the_query_and_leaves_nothing():
    world = make_world(3)
    world.submit(
        f"CREATE SOURCE f (a BIGINT) WITH (connector = 'file', path = 'nonexistent.csv', nodes = '{world.nodes[1]}')",
    )
    with pytest.raises(SbonError, match=r"files/nonexistent\.csv cannot be read: No such file"):
        world.submit("SELECT a FROM f")
    world.run_until(lambda: all(not agent.execution.engine.instances for agent in world.agents), 10, "every operator is gone")


def test_a_sink_that_fails_stops_its_own_query_only(tmp_path: Path):
    world = make_world()
    world.submit(SOURCE.format(nodes=world.nodes[1]), at=0)
    healthy = world.submit(WINDOWED, at=0)
    world.rows(healthy, count=5)
    folder = tmp_path / "broken"
    world.submit(f"CREATE SINK broken AS {WINDOWED.strip()} WITH (connector = 'file', path = '{folder}', format = 'parquet')", at=3)
    shutil.rmtree(folder)
    broken = next(str(row["id"]) for row in world.ask(3, "queries") if row["name"] == "broken")

    world.run_until(lambda: query_row(world, broken, at=3)["state"] == "degraded", 20, "the broken query is shown as degraded")
    reason = str(query_row(world, broken, at=3)["reason"])
    assert f"{folder} cannot be written: No such file or directory" in reason
    world.run(60)
    tail = world.tail(healthy)
    before = len(tail.rows)
    world.run(10)

    assert len(tail.rows) >= before + 8 * 5, "the healthy query must continue"
    assert query_row(world, healthy)["state"] == "running"


def test_a_consumer_out_of_reach_stops_the_sources_and_memory_stays_bounded():
    world = make_world(links={"window_batches": 8})
    world.submit(SOURCE.format(nodes=world.nodes[1]), at=0)
    query = world.submit("SELECT ts, key, value FROM readings", at=0)
    tail = world.tail(query)
    world.run_until(lambda: len(tail.rows) >= 100)

    world.partition([[0]])
    world.run(30)

    operators = world.ask(1, "operators")
    assert {row["state"] for row in operators if row["kind"] == "source"} == {"blocked"}
    outputs = [output for instance in world.agents[1].execution.engine.instances.values() for output in instance.outputs.values()]
    assert max(output.sender.held for output in outputs) <= 9, "at most the link's window and one batch in progress may be held"

    world.heal()
    world.run_until(lambda: len(tail.rows) >= 100 * 40, 120, "everything that was held back has come")
    times = [row[0] for row in tail.rows]
    assert times == sorted(set(times)), "rows are 10 ms apart: they must be in order, complete and unique"
    gaps = {round((b - a).total_seconds(), 3) for a, b in pairwise(map(datetime.fromisoformat, times))}
    assert gaps == {0.01}


def test_a_crashed_source_does_not_hold_up_the_answers_of_the_others():
    world = make_world(engine={"batch_interval_s": 0.2, "lost_input_s": 5.0})
    world.submit(SOURCE.format(nodes=f"{world.nodes[1]},{world.nodes[2]}"))
    query = world.submit(WINDOWED)
    tail = world.tail(query)
    world.run_until(lambda: len(tail.rows) >= 20)
    window = next(row for row in all_operators(world) if row["kind"] == "window")

    world.kill(next(node for node in (1, 2) if world.nodes[node] != window["node"]))
    world.run(30)

    before = len(tail.rows)
    world.run(10)
    assert len(tail.rows) >= before + 8 * 5
    assert query_row(world, query)["state"] == "degraded"


def test_a_source_that_its_host_has_forgotten_does_not_hold_up_the_others():
    world = make_world()
    world.submit(SOURCE.format(nodes=f"{world.nodes[1]},{world.nodes[2]}"))
    query = world.submit(WINDOWED)
    tail = world.tail(query)
    world.run_until(lambda: len(tail.rows) >= 20)
    window = next(row for row in all_operators(world) if row["kind"] == "window")
    victim = next(node for node in (1, 2) if world.nodes[node] != window["node"])

    world.restart(victim)
    world.run(20)

    before = len(tail.rows)
    world.run(10)
    assert len(tail.rows) >= before + 8 * 5


def test_a_query_that_is_placed_before_coordinates_have_settled_says_so():
    world = World(3, seed=11, settings=QUIET)
    world.start_all(spread_s=0.0)
    world.run_until(world.members_agree, 10, "all know each other")
    world.submit(SOURCE.format(nodes=world.nodes[1]))

    young = world.ask(0, "explain", sql=WINDOWED)["notes"]
    (told,) = world.ask(0, "submit", sql=WINDOWED)
    world.run(30)
    (later,) = world.ask(0, "submit", sql=WINDOWED)

    assert "have not settled" in young[0]
    assert "have not settled" in told["message"]
    assert "settled" not in later["message"]
    assert world.ask(0, "explain", sql=WINDOWED)["notes"] == []
    assert world.ask(0, "explain", sql="SELECT node FROM sys.load")["notes"] == []


@pytest.mark.parametrize("strategy", seeds(["relaxation", "random"], ["least-usage", "producer", "consumer"]))
def test_every_strategy_places_queries_of_a_running_overlay(strategy: str):
    world = make_world(8, placement={"strategy": strategy})
    world.run(30)
    world.submit(SOURCE.format(nodes=f"{world.nodes[1]},{world.nodes[2]},{world.nodes[5]}"))

    plan = world.ask(0, "explain", sql=WINDOWED)
    query = world.submit(WINDOWED)
    rows = world.rows(query, count=10)

    assert sum(row[2] for row in rows[5:10]) == pytest.approx(300, abs=30)
    window = next(operator for operator in plan["operators"] if operator["kind"] == "window")
    if strategy == "producer":
        assert window["node"] in (world.nodes[1], world.nodes[2], world.nodes[5])
    if strategy == "consumer":
        assert window["node"] == world.nodes[0]
    assert plan["network_usage"]["here"] > 0
