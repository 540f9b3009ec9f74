"""One agent is the home of many queries: their names differ, all of them are watched, and each ends once."""

import sys
from threading import Thread

import pytest

from sbon.errors import SbonError
from sbon.supervision import register, watching
from sbon.supervision.record import QueryState
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

SOURCE = """
CREATE SOURCE s (ts TIMESTAMP, key BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{}', rows_per_second = 5{})
"""


def make_world(rows: str = "", **peers: int) -> World:
    settings = {"engine": {"batch_interval_s": 0.5}, "optimiser": {"enabled": False}, "peers": peers}
    world = settled_world(3, seed=2, settings=settings)
    world.submit(SOURCE.format(world.nodes[1], rows))
    return world


def taker(world: World) -> Agent:
    agent = world.agents[0]
    assert isinstance(agent, Agent)
    return agent


def test_queries_that_are_prepared_on_many_threads_at_once_have_names_of_their_own() -> None:
    owned = taker(make_world()).queries.owned
    names: list[str] = []

    def prepare() -> None:
        names.extend(owned.new_id() for _ in range(500))

    threads = [Thread(target=prepare) for _ in range(8)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert len(names) == len(set(names)) == 4000


def test_more_queries_than_a_host_takes_requests_at_a_time_are_all_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "ASKED_AT_ONCE", 4)
    world = make_world(requests_max=8)
    names = [world.submit("SELECT ts, key FROM s") for _ in range(12)]
    world.run(5.0)
    records = taker(world).queries.owned.records
    assert list(records) == names
    for record in records.values():
        assert set(record.reports) == set(record.nodes), record.id


def test_a_query_that_is_dropped_as_it_ends_is_over_once() -> None:
    world = make_world(rows=", rows = 20")
    query = world.submit("SELECT ts, key FROM s")
    owned = taker(world).queries.owned
    world.run_until(lambda: query in owned.records and owned.records[query].state is QueryState.FINISHED, 30)
    owned.dropping.drop(query, lambda problem: None)
    world.run(10.0)
    assert not owned.records
    assert [row["id"] for row in owned.rows()] == []


def test_a_source_that_breaks_in_any_way_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world()
    query = world.submit("SELECT * FROM sys.load")
    host = world.agents[1]
    assert isinstance(host, Agent)
    source = next(instance for instance in host.execution.engine.instances.values() if instance.source is not None)

    def broken(now: float, wall: float) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(source.source, "poll", broken)
    world.run_until(lambda: taker(world).queries.owned.records[query].state is QueryState.DEGRADED, 30, "its taker knows")
    assert "ZeroDivisionError: division by zero" in taker(world).queries.owned.records[query].reason


def test_ended_queries_keep_their_last_rows_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(rows=", rows = 20")
    owned = taker(world).queries.owned
    names = []
    for _ in range(4):
        names.append(world.submit("SELECT ts, key FROM s"))
        world.run_until(lambda: names[-1] in owned.register.ended, 60)
        monkeypatch.setattr(register, "ENDED_ROWS_BYTES_MAX", int(2.5 * owned.register.tails[names[-1]].kept_bytes))
    assert list(owned.register.tails) == names[-2:]
    assert [row["id"] for row in world.ask(0, "queries")] == names, "their outcome must still be listed"
    with pytest.raises(SbonError, match="its rows are no longer kept; submit it again"):
        world.ask(0, "tail", query=names[0])


def test_the_name_of_a_sink_goes_with_the_last_that_is_known_of_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "ENDED_MAX", 1)
    world = make_world(rows=", rows = 20")
    owned = taker(world).queries.owned
    for name in ("first", "second"):
        query = world.submit(f"CREATE SINK {name} AS SELECT ts, key FROM s WITH (connector = 'discard')")
        world.run_until(lambda query=query: query in owned.register.ended, 60)
    assert [row["name"] for row in world.ask(0, "names") if row["kind"] == "sink"] == ["second"]
