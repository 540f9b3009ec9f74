"""Rows that a source or UNNEST leaves out are counted at the query's home, on the operator's host, and in the log."""

import json
from pathlib import Path

from sbon.arrays import ELEMENTS_MAX
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

SQL = """CREATE SOURCE people (age BIGINT NOT NULL, name TEXT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'file', path = '{path}', nodes = '{node}', format = 'ndjson', replay = 'event_time');
SELECT age, name FROM people"""
LINES = ['{"age": 1, "ts": 0}', '{"age": "abc"}', '{"name": "b"}', '{"age": "x"}', "{", '{"age": 2}'] * 100 + ['{"age": 3, "ts": 3600}']
SAID = 'column age: "abc" is not an integer (BIGINT) (200 rows)'


def test_rows_left_out_on_one_agent_are_told_by_another(tmp_path: Path) -> None:
    (tmp_path / "people").write_text("\n".join(LINES))
    settings = {"connectors": {"file": {"allow": [str(tmp_path)]}}, "optimiser": {"enabled": False}}
    world = settled_world(2, seed=7, settings=settings, log_file=tmp_path / "log")
    tail = world.tail(world.submit(SQL.format(path=tmp_path / "people", node=world.nodes[1]), at=0), 0)
    world.run(20)

    assert len(tail.rows) == 200
    (query,) = world.ask(0, "queries")
    assert query["dropped_rows"] == 400
    assert {(kind["node"], kind["column"], kind["cause"]): kind["rows"] for kind in query["misfits"]} == {
        (world.nodes[1], "age", "is not an integer (BIGINT)"): 200,
        (world.nodes[1], "", "is not JSON"): 100,
        (world.nodes[1], "age", "is NULL, declared NOT NULL"): 100,
    }
    assert f"source people (file) on {world.nodes[1]}: 400 rows left out: {SAID}" in query["reason"]
    (source,) = [operator for operator in world.ask(1, "operators") if operator["kind"] == "source"]
    assert source["reason"].startswith(f"400 rows left out: {SAID}")
    assert source["misfits"][0]["line"] == '{"age": "abc"}'
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted(line["rows"] for line in log if line["event"] == "source.row_left_out") == [100, 100, 200]


def test_arrays_too_long_to_be_taken_apart_are_told(tmp_path: Path) -> None:
    longest = "[" + "1," * ELEMENTS_MAX + "1]"
    (tmp_path / "orders").write_text(f'{{"ts": 0, "items": [1, 2]}}\n{{"ts": 1, "items": {longest}}}\n')
    world = World(1, seed=7, settings={"connectors": {"file": {"allow": [str(tmp_path)]}}}, log_file=tmp_path / "log")
    world.start_all()
    world.settle()
    sql = f"""CREATE SOURCE orders (ts TIMESTAMP, items JSON, WATERMARK FOR ts AS ts)
        WITH (connector = 'file', path = '{tmp_path / "orders"}', format = 'ndjson');
    SELECT item FROM orders CROSS JOIN UNNEST(items) AS t(item)"""
    tail = world.tail(world.submit(sql, at=0), 0)
    world.run(20)

    assert tail.rows == [("1",), ("2",)]
    (query,) = world.ask(0, "queries")
    assert query["dropped_rows"] == 1
    assert "has more than 65,536 elements (1 row)" in query["reason"]
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["rows"] for line in log if line["event"] == "operator.row_left_out"] == [1]


def test_structs_travel_between_agents_and_those_that_do_not_fit_are_told(tmp_path: Path) -> None:
    lines = ['{"ts": 0, "stops": [{"lat": 1, "name": "x"}, null, {"name": "y"}]}', '{"ts": 1, "stops": [{"lat": "north"}]}', '{"ts": 2}']
    (tmp_path / "trips").write_text("".join(line + "\n" for line in lines))
    settings = {"connectors": {"file": {"allow": [str(tmp_path)]}}, "optimiser": {"enabled": False}}
    world = settled_world(2, seed=7, settings=settings)
    sql = f"""CREATE SOURCE trips (ts TIMESTAMP, stops STRUCT<lat DOUBLE, name TEXT>[], WATERMARK FOR ts AS ts)
        WITH (connector = 'file', path = '{tmp_path / "trips"}', nodes = '{world.nodes[1]}', format = 'ndjson');
    SELECT stop.lat, n, stop FROM trips CROSS JOIN UNNEST(stops) WITH ORDINALITY AS t(stop, n)"""
    tail = world.tail(world.submit(sql, at=0), 0)
    world.run(20)

    assert tail.rows == [(1.0, 1, '{"lat":1.0,"name":"x"}'), (None, 2, None), (None, 3, '{"lat":null,"name":"y"}')]
    (query,) = world.ask(0, "queries")
    assert [(kind["column"], kind["rows"]) for kind in query["misfits"]] == [("stops", 1)]
