"""Compares predictions of queries before they run with measurements of running queries."""

import msgspec
import pytest

from sbon.cost.figure import Source
from sbon.cost.store import CostStore
from sbon.errors import SbonError
from sbon_agent.costs_file import CostsFile
from sbon_testbed.simulator.harness import World
from tests.system.simulation.test_delay_bounds import C, make_world, query_row, sink


@pytest.fixture(scope="module")
def fresh() -> World:
    """Returns agents that nobody has asked for a query; nothing may run there."""
    return make_world()


@pytest.fixture(scope="module")
def running() -> tuple[World, str]:
    """Returns agents on which a query has run for a while, and the query; nothing else may run there."""
    world = make_world()
    query = world.submit(sink(""), at=C)
    world.run(90)  # the first answers waited for the start
    return world, query


def test_explain_predicts_the_latency_of_a_query_and_says_what_a_sample_told(fresh: World) -> None:
    world = fresh

    found = world.ask(C, "explain", sql=sink(""))["prediction"]

    assert found["rests_on_rules"]
    operators = len(world.ask(C, "explain", sql=sink(""))["operators"])
    assert found["operators"] == {"measured": 0, "sampled": 2, "declared": 0, "rule": operators - 2}, "sources on two hosts feed the join"
    latency = found["latency"]
    assert 0 < latency["worst_low_ms"] <= latency["worst_ms"]
    assert latency["mean_ms"] <= latency["p99_ms"] <= latency["worst_ms"] * (1 + 1e-9)
    assert [line["name"] for line in found["lines"]][:2] == ["network usage", "latency"]
    assert 180 < latency["parts_ms"]["network"] < 220  # rows of the weak source go to the strong one, 100 ms away, and back to the sink


def test_a_plan_of_capacity_predicts_at_other_rates(fresh: World) -> None:
    found = fresh.ask(C, "plan", sql=sink(""), question="capacity", options={"rates": 100_000.0})

    assert found["now"]["latency"]["worst_ms"] is not None
    assert found["then"]["latency"]["worst_ms"] is None
    assert found["then"]["latency"]["overloaded"]


def test_a_query_that_runs_is_predicted_from_what_its_operators_cost(running: tuple[World, str]) -> None:
    world, _ = running

    found = world.ask(C, "explain", sql=sink("", "again"))["prediction"]

    assert found["operators"]["measured"] >= len(world.ask(C, "explain", sql=sink("", "again"))["operators"]) - 1, (
        found
    )  # all but the sink are measured
    cost_store = world.agents[C].execution.cost_store
    assert {cost_store.nodes.of(node, world.now).speed.source for node in ("a", "c")} == {Source.MEASURED}
    assert cost_store.nodes.of("a", world.now).others is not None
    assert cost_store.refused == 0, (cost_store.statistics.refused, cost_store.nodes.refused, cost_store.bandwidths.refused)


def test_an_operator_that_moves_takes_along_what_it_costs() -> None:
    world = make_world()
    world.submit(sink(""), at=C)
    world.run(60)
    operator = next(row for row in world.ask(0, "operators") if row["kind"] == "window")
    before = world.agents[0].execution.cost_store.statistics.own(operator["signature"], world.now)
    assert before is not None
    assert before.samples > 30

    assert world.ask(0, "migrate", operator=operator["id"], node="b")["committed"]

    known = world.agents[1].execution.cost_store.statistics.of(operator["signature"], world.now)
    assert known is not None
    assert known.samples >= before.samples
    assert known.ports[0].law.cost_ns(100).value == pytest.approx(before.ports[0].law.cost_ns(100).value, rel=0.05)


def test_what_operators_cost_is_known_after_a_restart(tmp_path) -> None:
    world = make_world(data_dir=tmp_path)
    world.submit(sink(""), at=C)
    world.run(90)
    signature = next(row for row in world.ask(C, "operators") if row["kind"] == "sink")["signature"]
    before = world.agents[C].execution.cost_store.statistics.own(signature, world.now)

    world.agents[C].stop()
    cost_store = CostStore("c")
    cost_store.restore(CostsFile(tmp_path / "c").load(), 0.0, world.agents[C].host.wall())

    kept = cost_store.statistics.of(signature, 0.0)
    assert before is not None
    assert kept is not None
    assert kept.samples == pytest.approx(before.samples, rel=0.5)
    assert kept.ports[0].law.age_s <= 60


def bounded(bound: str, name: str = "out") -> str:
    return sink("", name).replace("connector = 'discard'", f"connector = 'discard', max_latency = '{bound}'")


def test_a_query_within_its_latency_bound_is_admitted_and_one_below_propagation_refused_with_the_least() -> None:
    world = make_world()
    world.submit(sink(""), at=C)
    world.run(60)

    query = world.submit(bounded("400 ms", "within"), at=C)
    with pytest.raises(SbonError, match=r"max_latency = 60 ms: the network alone takes 100.[0-3] ms"):
        world.submit(bounded("60 ms", "below"), at=C)

    row = query_row(world, query)
    assert row["max_latency_ms"] == 400.0
    assert row["delay_bound_ms"] < 400.0


def test_a_placement_is_chosen_that_keeps_the_latency_bound() -> None:
    """At the strong source, the window is 200 ms from the weak source and back to the sink; at the sink, all paths take 100 ms."""
    world = make_world()
    query = world.submit(sink(""), at=C)
    world.run(60)
    world.ask(C, "drop", query=query)
    free = world.ask(C, "explain", sql=sink("", "free"))

    kept = world.ask(C, "explain", sql=bounded("190 ms", "kept"))

    assert kept["prediction"]["latency"]["worst_high_ms"] <= 190.0
    assert kept["prediction"]["latency"]["worst_ms"] < free["prediction"]["latency"]["worst_ms"]
    assert kept["network_usage"]["here"] >= free["network_usage"]["here"]


def test_a_running_query_shows_what_was_predicted_beside_what_is_measured(running: tuple[World, str]) -> None:
    told = query_row(*running)["prediction"]

    assert not told["rests_on_rules"]
    assert told["measured"]["rows"] > 0
    assert told["worst_low_ms"] <= told["measured"]["max_ms"] <= told["worst_high_ms"]
    assert told["mean_ms"] == pytest.approx(told["measured"]["mean_ms"], rel=0.02)


def test_hosts_of_a_bounded_query_say_how_much_longer_work_there_may_take() -> None:
    world = make_world()
    world.submit(sink(""), at=C)
    world.run(60)
    query = world.submit(bounded("400 ms", "within"), at=C)
    world.run(60)

    cost_store = world.agents[C].execution.cost_store
    upper_s = query_row(world, query)["prediction"]["worst_high_ms"] / 1e3
    assert cost_store.nodes.has_bounded(world.now)
    assert cost_store.nodes.of("c", world.now).spare_s == pytest.approx(0.4 - upper_s, abs=1e-3)
    assert world.ask(C, "explain", sql=sink("", "again"))["prediction"] is not None

    world.ask(C, "drop", query=query)
    world.run(30)
    assert cost_store.nodes.of("c", world.now).spare_s is None


def test_what_a_member_told_of_costs_is_forgotten_with_it() -> None:
    world = make_world(membership={"interval_s": 0.5, "failed_keep_s": 20.0})
    world.submit(sink(""), at=C)
    world.run(60)
    cost_store = world.agents[C].execution.cost_store
    assert cost_store.nodes.of("a", world.now).speed.source is Source.MEASURED

    world.kill(0)
    world.run_until(lambda: "a" not in world.agents[C].network.gossip.members, 120)

    assert cost_store.nodes.of("a", world.now).speed.source is not Source.MEASURED


def test_a_source_whose_rows_come_in_bursts_says_so(tmp_path) -> None:
    world = World(2, seed=1, data_dir=tmp_path, settings={"optimiser": {"predictions": "fine"}})
    world.start_all()
    world.settle()
    path = world.data_dir_of(0) / "files" / "r.csv"
    path.parent.mkdir(parents=True)
    seconds = [second for second in range(40) for _ in range(200 if second % 10 == 5 else 10)]
    path.write_text("\n".join(["ts,v", *(f"2026-01-01T00:00:{second:02d}.5,{n}" for n, second in enumerate(seconds)), ""]))
    world.submit(
        f"CREATE SOURCE r (ts TIMESTAMP, v BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'file', path = '{path}', "
        f"nodes = '{world.nodes[0]}', replay = 'event_time')"
    )
    query = world.submit("SELECT v FROM r WHERE v >= 0")
    world.run(30)

    record = world.agents[0].queries.owned.find(query)
    [bursts] = [report.bursts for operator, report in record.reports.items() if record.kind_of(operator) == "source"]
    assert max(bursts) >= 200
    assert sorted(bursts)[len(bursts) // 2] <= 10
    assert [report.bursts for report in record.reports.values()].count(msgspec.UNSET) == len(record.reports) - 1
    world.close()
