"""A restarted agent has its sources, views, sinks and queries again, unless someone dropped or replaced them meanwhile."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sbon.errors import SbonError
from sbon.query.ids import boot_of
from sbon.supervision.record import QueryRecord
from sbon.supervision.register import Register
from sbon.wire.replication import CatalogUpdate
from sbon_agent.node import Agent
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

HOME, SOURCE, OTHER, ELSEWHERE = 0, 1, 2, 3
DATAGEN = """CREATE SOURCE s (ts TIMESTAMP, number BIGINT) WITH (connector = 'datagen', nodes = '{0}', rows_per_second = 20,
    fields.number.kind = 'sequence')"""
SINK = "CREATE SINK k AS SELECT number FROM s WITH (connector = '{connector}', node = '{node}'{more})"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


def make_world(directory: Path, seed: int = 3, agents: int = 4, *, heal: bool = False) -> World:
    # Where queries heal, other agents take them over: test_owners.py.
    settings = {"engine": {"batch_interval_s": 0.2, "heal": heal}, "optimiser": {"enabled": False}, "telemetry": {"enabled": False}}
    return settled_world(agents, seed=seed, settings=settings, data_dir=directory / "agents", log_file=directory / "log")


def sink(world: World, node: int = ELSEWHERE, connector: str = "discard", more: str = "") -> str:
    return SINK.format(node=world.nodes[node], connector=connector, more=more)


def queries(world: World, at: int = OTHER) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in world.ask(at, "queries")}


def states(world: World, at: int = OTHER) -> dict[str, str]:
    return {row["name"]: row["state"] for row in world.ask(at, "queries")}


def rows_out(world: World) -> int:
    return sum(row["rows_out"] for row in queries(world, HOME).values())


def names(world: World, at: int) -> set[str]:
    return {row["name"] for row in world.ask(at, "names") if row["kind"] != "system stream"}


def served(world: World) -> set[str]:
    agents = [agent for agent in world.agents if isinstance(agent, Agent)]
    return {query for agent in agents for instance in agent.execution.engine.instances.values() for query in instance.users}


def leave(world: World, node: int) -> None:
    world.leave(node)
    world.run_until(lambda: not world.alive(node), 60.0)


def until(world: World, condition: Any, timeout_s: float = 30.0) -> None:
    """Does what `World.run_until` does, for conditions that ask agents."""
    end = world.now + timeout_s
    while not condition():
        assert world.now < end, f"did not hold within {timeout_s} s, seed {world.seed}"
        world.run(0.1)


def until_failed(world: World) -> None:
    """Waits until every living agent has declared the home failed."""
    others = (SOURCE, OTHER, ELSEWHERE)
    until(
        world,
        lambda: {m["status"] for at in others for m in world.ask(at, "members") if m["name"] == world.nodes[HOME]} == {"failed"},
    )


def fill(world: World) -> tuple[str, str]:
    """Creates a source at SOURCE; and a view, a sink and a plain query at HOME."""
    world.submit(DATAGEN.format(world.nodes[SOURCE]), at=SOURCE)
    until(world, lambda: "s" in names(world, HOME))
    world.submit("CREATE VIEW v AS SELECT number FROM s WHERE number % 2 = 0", at=HOME)
    return world.submit(sink(world), at=HOME), world.submit("SELECT number FROM v", at=HOME)


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_a_home_that_returns_runs_its_queries_again_under_new_ids(world: World, end: str) -> None:
    fed, plain = fill(world)
    world.run(3.0)
    if end == "kill":
        world.kill(HOME)
    else:
        leave(world, HOME)
    world.run(40.0)
    world.start(HOME)
    until(world, lambda: [row["state"] for row in queries(world).values()] == ["running", "running"], 10.0)

    rows = queries(world)
    assert {row["former"] for row in rows.values()} == {fed, plain}
    home = world.agents[HOME]
    assert home is not None
    assert {kept.first for kept in home.queries.owned.kept_queries()} == {fed, plain}
    assert all(boot_of(query) != boot_of(fed) for query in rows)
    assert names(world, HOME) == names(world, OTHER) == {"s", "v", "k"}
    until(world, lambda: served(world) == set(rows), 20.0)
    tail = world.tail(plain, HOME)  # the former id leads to the successor
    world.run(5.0)
    assert len(tail.rows) > 20
    world.submit("DROP SINK k", at=OTHER)
    world.ask(OTHER, "drop", query=plain)
    world.run(1.0)
    assert queries(world) == {}
    assert served(world) == set()
    world.restart(HOME)
    world.run(20.0)
    assert queries(world) == {}


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_queries_that_shared_operators_with_one_another_begin_anew_and_leave_nothing(tmp_path: Path, end: str) -> None:
    world = make_world(tmp_path, agents=2, heal=True)
    world.submit(DATAGEN.format(world.nodes[SOURCE]), at=SOURCE)
    until(world, lambda: "s" in names(world, HOME))
    world.submit(sink(world, SOURCE), at=HOME)
    plain = world.submit("SELECT number FROM s WHERE number % 2 = 0", at=HOME)
    world.run(3.0)
    assert len(served(world)) == 2
    assert all(boot_of(query) == boot_of(plain) for query in served(world))
    world.kill(HOME) if end == "kill" else leave(world, HOME)
    world.run(10.0)
    world.start(HOME)
    until(world, lambda: set(states(world, HOME).values()) == {"running"} and boot_of(plain) not in map(boot_of, queries(world, HOME)))
    until(world, lambda: served(world) == set(queries(world, HOME)))
    assert len(served(world)) == 2
    world.run(30.0)
    assert set(states(world, HOME).values()) == {"running"}


def test_the_sources_of_an_agent_are_there_again(world: World) -> None:
    fill(world)
    world.restart(SOURCE)
    until(world, lambda: names(world, SOURCE) == {"s", "v", "k"}, 10.0)
    assert {row["owner"] for row in world.ask(OTHER, "names") if row["name"] == "s"} == {world.nodes[SOURCE]}


def test_names_outlast_a_restart_of_all_agents(world: World) -> None:
    fill(world)
    world.run(2.0)
    for number in range(4):
        world.kill(number)
    world.start_all(spread_s=3.0)
    world.settle()
    until(world, lambda: list(states(world).values()) == ["running", "running"])
    assert [names(world, number) for number in range(4)] == [{"s", "v", "k"}] * 4


@pytest.mark.parametrize("form", ["DROP SINK k", "CREATE SINK k"])
def test_what_others_did_while_the_home_was_away_holds(world: World, form: str) -> None:
    fill(world)
    world.run(2.0)
    world.kill(HOME)
    until_failed(world)
    made = world.submit("DROP SINK k" if form == "DROP SINK k" else sink(world), at=OTHER)
    plain = next(query for query, row in queries(world).items() if row["name"] == query)
    world.ask(OTHER, "drop", query=plain)
    assert served(world) == ({made} if made else set())
    world.start(HOME)
    world.run(30.0)
    assert served(world) == ({made} if made else set())
    for at in (HOME, OTHER):
        assert {query: row["owner"] for query, row in queries(world, at).items()} == ({made: world.nodes[OTHER]} if made else {})
        assert names(world, at) == ({"s", "v", "k"} if made else {"s", "v"})


def test_what_others_dropped_holds_though_the_home_hears_of_it_late(world: World) -> None:
    fill(world)
    world.run(2.0)
    world.kill(HOME)
    until_failed(world)
    for query in list(queries(world)):
        world.ask(OTHER, "drop", query=query)
    world.partition([[HOME, SOURCE, ELSEWHERE]])
    # The other agents on its side have heard of the drop; they forget it, as an agent does that was away for long.
    for number in (SOURCE, ELSEWHERE):
        world.restart(number, lose_data=True)
    world.start(HOME)
    world.submit(DATAGEN.format(world.nodes[SOURCE]), at=SOURCE)
    until(world, lambda: sorted(states(world, HOME).values()) == ["running", "running"], 150.0)
    world.heal()
    until(world, lambda: queries(world, HOME) == {}, 60.0)
    until(world, lambda: "k" not in names(world, HOME) | names(world, OTHER) and not served(world), 60.0)
    world.run(10.0)
    assert queries(world, HOME) == queries(world, OTHER) == {}


def test_a_query_waits_for_its_source_and_can_be_dropped_meanwhile(world: World) -> None:
    fill(world)
    world.run(2.0)
    world.kill(HOME)
    world.kill(SOURCE)
    world.start(HOME)
    world.run(15.0)
    for at in (HOME, OTHER):
        assert {row["state"] for row in queries(world, at).values()} == {"waiting"}
        assert all(f"waits for {world.nodes[SOURCE]}" in row["reason"] for row in queries(world, at).values())
    with pytest.raises(SbonError, match="there is a sink k already"):
        world.submit("CREATE SINK k AS SELECT cpu FROM sys.load WITH (connector = 'discard')", at=OTHER)
    world.run(120.0)
    assert all("could not be placed again yet" in row["reason"] for row in queries(world).values())
    plain = next(query for query, row in queries(world).items() if row["name"] == query)
    with pytest.raises(SbonError, match="does not run"):
        world.ask(HOME, "tail", query=plain)
    world.ask(OTHER, "drop", query=plain)
    assert states(world) == {"k": "waiting"}
    world.start(SOURCE)
    until(world, lambda: states(world) == {"k": "running"}, 10.0)


def test_a_name_that_is_dropped_at_the_moment_at_which_its_query_runs_again_ends_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home heard of the drop when it had placed the query, and before it looked again at the queries that wait."""
    fill(world)
    world.run(1.0)
    enter, dropped = Register.enter, list[str]()

    def hears_of_the_drop(self: Register, record: QueryRecord) -> None:
        home = world.agents[HOME]
        if record.name == "k" and isinstance(home, Agent):
            replication = home.queries.replication
            (entry,) = (entry for entry in replication.catalog.entries() if entry.name == "k")
            grave = msgspec.structs.replace(entry, dropped=True, sql="", query=None, owner=world.nodes[OTHER], version=entry.version + 1)
            replication.updated(CatalogUpdate(entries=(grave,)))
            dropped.append(record.id)
        enter(self, record)

    with monkeypatch.context() as patched:
        patched.setattr(Register, "enter", hears_of_the_drop)
        world.restart(HOME)
        until(world, lambda: bool(dropped), 10.0)
    until(world, lambda: list(states(world).values()) == ["running"] and len(served(world)) == 1)
    assert dropped[0] not in served(world)


@pytest.mark.parametrize("at", [HOME, OTHER])
def test_a_sink_that_waits_is_dropped_and_made_from_anywhere(world: World, at: int) -> None:
    fill(world)
    world.run(1.0)
    world.kill(SOURCE)
    world.restart(HOME)
    until(world, lambda: states(world).get("k") == "waiting")
    world.submit("DROP SINK k", at=at)
    world.run(1.0)
    assert "k" not in states(world)
    assert "k" not in names(world, HOME) | names(world, OTHER)
    world.start(SOURCE)
    until(world, lambda: world.nodes[SOURCE] in {m["name"] for m in world.ask(at, "members") if m["status"] == "alive"})
    made = world.submit(sink(world), at=at)
    until(world, lambda: queries(world).get(made, {}).get("state") == "running")


def test_a_finished_sink_is_not_run_again(world: World) -> None:
    file = world.data_dir_of(HOME) / "in.csv"
    file.write_text("a\n1\n2\n")
    world.submit("CREATE SOURCE f (a BIGINT) WITH (connector = 'file', path = 'in.csv')", at=HOME)
    world.submit("CREATE SINK k AS SELECT a FROM f WITH (connector = 'file', path = 'out.csv')", at=HOME)
    until(world, lambda: states(world) == {"k": "finished"})
    for _ in range(2):
        world.restart(HOME)
        until(world, lambda: states(world) == {"k": "finished"})
        world.run(20.0)
        assert (world.data_dir_of(HOME) / "out.csv").read_text() == "a\n1\n2\n"
    with pytest.raises(SbonError, match="there is a sink k already"):
        world.submit("CREATE SINK k AS SELECT cpu FROM sys.load WITH (connector = 'discard')", at=OTHER)
    world.submit("DROP SINK k", at=OTHER)
    world.run(1.0)
    assert states(world) == {}


@pytest.mark.parametrize("mode", ["append", "replace"])
@pytest.mark.parametrize("end", ["kill", "leave"])
def test_a_file_sink_loses_nothing_that_was_written(world: World, mode: str, end: str) -> None:
    world.submit(DATAGEN.format(world.nodes[SOURCE]), at=SOURCE)
    until(world, lambda: "s" in names(world, HOME))
    file = world.data_dir_of(HOME) / "out.csv"
    file.write_text("number\n-1\n")
    world.submit(sink(world, HOME, "file", f", path = 'out.csv', mode = '{mode}'"), at=HOME)
    until(world, lambda: rows_out(world) > 20)
    for _ in range(2):
        if end == "kill":
            world.kill(HOME)
        else:
            leave(world, HOME)
        world.start(HOME)
        until(world, lambda: states(world, HOME) == {"k": "running"})
        until(world, lambda: rows_out(world) > 20)
    lines = file.read_text().splitlines()
    assert lines[:2] == (["number", "-1"] if mode == "append" else ["number", "0"])
    numbers = [int(line) for line in lines[1:] if line != "-1"]
    begins = [index for index, number in enumerate(numbers) if number == 0]  # each source counts from 0
    pieces = [numbers[begin:end] for begin, end in zip(begins, [*begins[1:], None], strict=True)]
    assert pieces == [list(range(len(piece))) for piece in pieces]
    assert [len(piece) > 20 for piece in pieces] == [True] * 3


def test_an_agent_without_a_data_directory_keeps_nothing() -> None:
    world = settled_world(2, seed=3, settings={"optimiser": {"enabled": False}})
    world.submit(DATAGEN.format(world.nodes[1]), at=0)
    world.restart(0)
    world.settle()
    assert queries(world, 0) == {}


def test_a_name_that_begins_the_id_of_another_query_is_not_taken_for_it(world: World) -> None:
    world.submit(DATAGEN.format(world.nodes[SOURCE]), at=SOURCE)
    until(world, lambda: "s" in names(world, OTHER))
    name = world.nodes[OTHER][:1]
    plain = world.submit("SELECT number FROM s", at=OTHER)
    world.submit(sink(world).replace("SINK k", f"SINK {name}"), at=HOME)
    until(world, lambda: name in names(world, OTHER))
    world.submit(f"DROP SINK {name}", at=OTHER)
    until(world, lambda: states(world) == {plain: "running"}, 5.0)
    world.ask(OTHER, "drop", query=name)  # no query has this name now
    assert states(world) == {}


def test_all_agents_learn_the_new_ids_soon(tmp_path: Path) -> None:
    """Without a direct message, they would learn them half a minute later by an exchange of tables."""
    world = make_world(tmp_path, agents=12)
    world.submit("CREATE SINK k AS SELECT cpu FROM sys.load WITH (connector = 'discard')", at=HOME)
    world.run(1.0)
    world.restart(HOME)
    ids = lambda at: [row["query"] for row in world.ask(at, "names") if row["name"] == "k"]  # noqa: E731
    until(world, lambda: boot_of(ids(HOME)[0]) == world.agents[HOME].network.gossip.machine.own.boot, 5.0)  # type: ignore[union-attr]
    until(world, lambda: all(ids(at) == ids(HOME) for at in range(12)), 5.0)
    assert len(ids(HOME)) == 1


def test_a_home_that_joins_nobody_asks_the_members_that_it_knew(tmp_path: Path) -> None:
    settings = {"optimiser": {"enabled": False}, "telemetry": {"enabled": False}, "membership": {"reconnect_interval_s": 300.0}}
    world = settled_world(2, seed=3, settings=settings, settings_of=lambda n: {"join": []} if n == 0 else {}, data_dir=tmp_path / "agents")
    world.submit("CREATE SINK k AS SELECT cpu FROM sys.load WITH (connector = 'discard')", at=0)
    world.run(1.0)
    leave(world, 0)
    world.submit("DROP SINK k", at=1)
    world.start(0)
    world.settle(5.0)
    until(world, lambda: queries(world, 0) == queries(world, 1) == {}, 2.0)
    world.run(30.0)
    assert served(world) == set()


def test_statements_that_cannot_be_kept_say_so(world: World) -> None:
    world.data_dir_of(HOME).rename(world.data_dir_of(HOME).with_name("gone"))
    (told,) = world.ask(HOME, "submit", sql="CREATE SOURCE x (n BIGINT) WITH (connector = 'datagen')")
    assert f"; a restart of {world.nodes[HOME]} would forget it, because saving it failed: [Errno 2]" in told["message"]


def test_a_damaged_file_stops_no_agent(world: World) -> None:
    fill(world)
    world.run(1.0)
    world.kill(HOME)
    file = world.data_dir_of(HOME) / "statements.json"
    file.write_bytes(file.read_bytes()[:-30])
    world.start(HOME)
    until(world, lambda: "v" in names(world, HOME))
    assert file.with_name("statements.json.damaged").exists()
    assert {row["state"] for row in queries(world).values()} == {"orphaned"}
    world.submit(sink(world), at=HOME)
    until(world, lambda: "running" in states(world).values())
    assert file.exists()
