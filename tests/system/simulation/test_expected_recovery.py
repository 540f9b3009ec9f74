"""Compares the effects of crashes that `sbon explain` predicts with those in virtual time."""

from pathlib import Path
from typing import Any

import pytest

from sbon.cli.crashes import crash_rows
from sbon.planning.healing import expected
from tests.worlds import settled_world

SQL = """
CREATE SOURCE s (ts TIMESTAMP, k BIGINT, v DOUBLE, WATERMARK FOR ts AS ts)
    WITH (connector = 'datagen', nodes = '{}', rows_per_second = 50, seed = 1, 'start' = '2026-01-01T00:00:00', fields.k.max = 9);
SELECT window_end, k, avg(v) AS v FROM TUMBLE(s, ts, INTERVAL '2 seconds') GROUP BY window_end, k
"""


def host(told: dict[str, Any], node: str) -> dict[str, Any]:
    return next(one for one in told["hosts"] if one["node"] == node)


@pytest.mark.parametrize("seed", range(4))
def test_recovery_takes_as_long_as_explain_expects_and_costs_what_it_says(seed: int, tmp_path: Path) -> None:
    settings = {"optimiser": {"enabled": False}, "telemetry": {"enabled": False}, "placement": {"reuse": False}}
    world = settled_world(6, seed=seed, data_dir=tmp_path, settings=settings)
    sql = SQL.format(world.nodes[1])
    query = world.submit(sql)
    record = world.agents[0].queries.owned.find(query)
    assert record is not None
    window = next(one for one in record.specs if record.kind_of(one) == "window")
    if record.nodes[window] != world.nodes[3]:
        assert world.ask(record.nodes[window], "migrate", operator=window, node=world.nodes[3])["committed"]
    world.run(10.0)
    gossip, engine = world.agents[0].network.gossip, world.agents[0].queries.owned.engine
    told = expected(record.plan, record.nodes, gossip.name, gossip.machine.config, 6, engine, gossip.latency_ms)
    least_s, most_s = told["detection_s"]
    explained = world.ask(0, "explain", sql=sql.partition(";")[2])["recovery"]
    assert explained["detection_s"] == [least_s, most_s]

    began_s = world.now
    world.kill(3, silent=True)
    world.run_until(lambda: record.lost, 30.0, "the crash is noticed")
    noticed_s = world.now - began_s
    world.run_until(lambda: record.health.healing.account.recoveries > 0, 30.0, "the query is recovered")
    print(f"noticed after {noticed_s:.2f} s of {least_s:.2f} to {most_s:.2f}, made in {world.now - began_s - noticed_s:.3f} s")
    assert least_s <= noticed_s <= most_s
    [cost] = record.row(None)["lost"]
    crashed, source = host(told, world.nodes[3]), host(told, world.nodes[1])
    assert set(crashed["moves"]) == {one["id"] for one in cost["operators"]}
    assert crashed["states_lost"] == [one["id"] for one in cost["operators"] if one["state_lost_until"]] == [window]
    assert crashed["making_s"][0] / 2 <= cost["seconds"] <= crashed["making_s"][1] + 0.1
    assert record.specs[source["waits"][0]].pinned == world.nodes[1]
    assert not set(source["moves"]) & set(source["waits"])
    assert host(told, world.nodes[0])["is_home"]
    rows = {row[0]: row for row in crash_rows(told)}
    assert "after its return" in rows[world.nodes[1]][2]
    assert rows[world.nodes[0]][2] == "with its home"
    world.close()


def test_what_only_a_lost_source_feeds_waits_for_its_node_with_it(tmp_path: Path) -> None:
    world = settled_world(3, seed=1, data_dir=tmp_path, settings={"optimiser": {"enabled": False}, "telemetry": {"enabled": False}})
    world.submit(SQL.format(world.nodes[1]).partition(";")[0])
    told = world.ask(0, "explain", sql=SQL.partition(";")[2])
    beside = {one["id"] for one in told["operators"] if one["node"] == world.nodes[1]}
    assert len(beside) > 1, "the window is best placed beside its source"
    crashed = host(told["recovery"], world.nodes[1])
    assert (set(crashed["waits"]), crashed["moves"], crashed["elsewhere_s"]) == (beside, [], None)
    world.close()
