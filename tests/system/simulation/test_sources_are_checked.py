"""CREATE SOURCE and CREATE SINK refuse invalid options at once, with their place; so does DROP for a name of another kind."""

import re
from pathlib import Path
from typing import Any

import pytest

from sbon.control import ControlReply, ControlRequest
from sbon.errors import SbonError
from sbon_testbed.simulator.harness import World
from tests.worlds import settled_world

CREATE = "CREATE SOURCE t (ts TIMESTAMP, n BIGINT, WATERMARK FOR ts AS ts) WITH (connector = {})"
REFUSED = [
    # options with ^ before the place, the message
    ("'datagen', ^pool_row = 5", "source t: option pool_row is unknown to connector 'datagen'; did you mean pool_rows?"),
    ("'datagen', ^rows_per_second = 'many'", "source t: option rows_per_second = 'many', expected a number from"),
    ("'datagen', ^profil = '1/s'", "source t: option profil is unknown to connector 'datagen'; did you mean profile?"),
    ("'datagen', ^node = 'b'", "source t: option node is unknown to connector 'datagen'; did you mean nodes?"),
    ("'datagen', rows = 5, ^fields.m.kind = 'zipf'", "source t: option fields.m.kind is unknown to connector 'datagen'"),
    ("'datagen', ^fields.n.min = 'x'", "source t: option fields.n.min = 'x', expected a whole number"),
    ("'datagen', nodes = 'elsewhere', ^pool_row = 5", "did you mean pool_rows?"),
    ("'file', ^replay = 'slow', path = 'x.csv'", "source t: option replay = 'slow', expected one of fast, event_time"),
    ("'datagen', ^idle_timeout = '10 s'", "option idle_timeout is unknown"),
]


@pytest.fixture(scope="module")
def world() -> World:
    return settled_world(2)


@pytest.mark.parametrize(("marked", "message"), REFUSED)
def test_an_option_that_no_query_could_use_is_refused_when_it_is_given(world: World, marked: str, message: str) -> None:
    sql = CREATE.format(marked)
    for command in ("submit", "explain"):
        reply = refusal_of(world, sql.replace("^", ""), command)
        assert message in str(reply.error)
        assert reply.place == (1, sql.index("^") + 1)
    with pytest.raises(SbonError, match="there is no source or view t"):
        world.submit("SELECT n FROM t")


def test_what_is_missing_is_said_too(world: World) -> None:
    with pytest.raises(SbonError, match=r"source t: connector 'file' needs option path: write path = 'readings.csv'"):
        world.submit(CREATE.format("'file'"))


def test_a_node_that_is_not_there_is_said_though_it_may_come(world: World) -> None:
    here, _ = world.nodes
    (told,) = world.ask(0, "submit", sql=CREATE.format(f"'datagen', nodes = '{here}, {here}x'"))
    assert told["message"] == f"source t on {here}; {here}x is not alive; did you mean {here}?"
    (told,) = world.ask(0, "submit", sql="SELECT n FROM t")
    assert told["message"].startswith(f"source t: node {here}x is not alive; planned without it; follow it with: sbon tail")
    world.submit(f"DROP QUERY {told['query']}")
    world.submit("DROP SOURCE t")


def test_a_connector_that_others_may_have_is_taken_and_named(world: World) -> None:
    here, there = world.nodes
    (told,) = world.ask(0, "submit", sql=CREATE.format(f"'kafka', nodes = '{there}', topic = 'x'"))
    assert told["message"] == (
        f"source t on {there}; connector 'kafka' is not installed here, so its options are checked there, when a query uses it"
    )
    with pytest.raises(SbonError, match=r"connector 'kafka' is unknown, expected one of .*datagen, file, .*tcp; or install the package"):
        world.submit("SELECT n FROM t")
    world.submit("DROP SOURCE t")
    with pytest.raises(SbonError, match="connector 'kafka' is unknown"):
        world.submit(CREATE.format(f"'kafka', nodes = '{here}'"))


SINK = "CREATE SINK ^k FROM (SELECT ts FROM sys.load) WITH ({})"
REFUSED_SINKS = [
    (
        "connector = 'discard', ^latency_colum = 'ts'",
        "sink k: option latency_colum is unknown to connector 'discard'; did you mean latency_column",
    ),
    ("connector = 'discard', ^latency_column = 'cpu'", "sink k: option latency_column = 'cpu', expected a column that holds a time: ts"),
    ("connector = 'file', ^path = 'x'", "sink k: the format of x is not clear from its name: write format = 'csv'"),
    ("connector = 'file', path = 'x.csv', ^mode = 'both'", "sink k: option mode = 'both', expected one of append, replace"),
    ("connector = 'discard', ^node = 'nowhere'", "the sink's node nowhere is not alive; there is"),
    ("connector = 'file'", "sink k: connector 'file' needs option path: write path = 'answers.csv'"),
    (
        "connector = 'discard', node = '{there}', ^latency = 1",
        "cannot run on {there}: sink k: option latency is unknown to connector 'discard'",
    ),
    (
        "^connector = 'kafka', node = '{there}'",
        "cannot run on {there}: sink k: connector 'kafka' is unknown, expected one of discard, file",
    ),
]


@pytest.mark.parametrize(("marked", "message"), REFUSED_SINKS)
def test_an_option_of_a_sink_is_refused_with_its_place_wherever_the_sink_is(world: World, marked: str, message: str) -> None:
    there = world.nodes[1]
    text = SINK.replace("^", "" if "^" in marked else "^").format(marked.replace("{there}", there))
    reply = refusal_of(world, text.replace("^", ""))
    assert message.replace("{there}", there) in str(reply.error)
    assert reply.place == (1, text.index("^") + 1)
    assert world.ask(0, "queries") == []
    if "kafka" not in marked:  # only the host may know this connector
        explained = refusal_of(world, text.replace("^", ""), "explain")
        assert without_ids(str(explained.error)) == without_ids(str(reply.error))
        assert explained.place == reply.place


def test_names_of_another_kind_are_refused_with_their_place(world: World) -> None:
    world.submit("CREATE VIEW v AS SELECT ts FROM sys.load")
    for marked, message in (
        ("DROP SOURCE ^v", "v is a view, not a source; write DROP VIEW v"),
        ("DROP QUERY ^v", "v is a view, not a query; write DROP VIEW v"),
        ("DROP QUERY ^sys.load", "sys.load is a system stream, not a query; nothing ends it"),
        ("DROP QUERY ^n.v", "there is no query n.v"),
        ("DROP SOURCE ^sys.load", "sys.load is a system stream, which cannot be dropped"),
        ("DROP VIEW ^vv", "there is no view vv; did you mean v?"),
        ("CREATE SINK ^v AS SELECT ts FROM sys.load WITH (connector = 'discard')", "there is a view v already"),
        ("^v", "to read from it, write SELECT * FROM v"),
    ):
        reply = refusal_of(world, marked.replace("^", ""))
        assert message in str(reply.error)
        assert reply.place == (1, marked.index("^") + 1)
    (told,) = world.ask(0, "submit", sql="DROP QUERY IF EXISTS n.v")
    assert told["message"] == "there is no query n.v"
    assert {"name": "v", "kind": "view", "owner": world.nodes[0], "query": None} in world.ask(0, "names")


def test_dropping_a_source_names_the_views_that_need_it(world: World) -> None:
    world.submit(CREATE.format("'datagen'"))
    world.submit("CREATE VIEW v1 AS SELECT n FROM t; CREATE VIEW v2 AS SELECT n FROM v1; CREATE VIEW v3 AS SELECT cpu AS t FROM sys.load")
    told = world.ask(0, "submit", sql="DROP VIEW v3; DROP SOURCE t; DROP VIEW v1; DROP VIEW v2")
    assert [statement["message"] for statement in told] == [
        "view v3 dropped",
        "source t dropped; views v1, v2 cannot be used without it",
        "view v1 dropped",
        "view v2 dropped",
    ]


def test_a_file_that_does_not_open_in_time_is_refused_and_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a mount that does not answer; an agent on real threads waits for it no longer than this."""
    there = world.nodes[1]
    world.submit(CREATE.format(f"'file', path = 'x.csv', nodes = '{there}'"))
    host: Any = world.agents[1].host

    def late(work: Any, done: Any, limit_s: float) -> None:
        host.call_at(host.now() + limit_s, lambda: done(TimeoutError(f"it has not returned in {limit_s:g} s")))

    monkeypatch.setattr(host, "execute_apart", late, raising=False)
    reply = refusal_of(world, "SELECT n FROM t", timeout_s=20)
    assert f"source t (file) on {there} cannot be opened: it has not returned in 5 s; does its file system answer?" in str(reply.error)
    world.run_until(lambda: not any(agent.execution.engine.instances for agent in world.agents), 20)
    world.submit("DROP SOURCE t")


def test_a_plan_says_what_the_statement_would_and_nothing_is_made(world: World, tmp_path: Path) -> None:
    here, _ = world.nodes
    world.submit(CREATE.format(f"'datagen', nodes = '{here}, {here}x'"))
    plan = world.ask(0, "explain", sql=f"CREATE SINK k FROM t WITH (connector = 'file', path = '{tmp_path}/made/k.csv')")
    assert plan["notes"] == [f"source t: node {here}x is not alive; planned without it"]
    assert not list(tmp_path.iterdir())
    world.submit("DROP SOURCE t")


def refusal_of(world: World, sql: str, command: str = "submit", timeout_s: float = 5) -> ControlReply:
    replies: list[ControlReply] = []
    world.agents[0].control(ControlRequest(1, command, {"sql": sql}), replies.append)
    world.run_until(lambda: replies, timeout_s, "an answer")
    return replies[0]


def without_ids(text: str) -> str:
    """Removes the ids of queries, which always differ."""
    return re.sub(r"\.[0-9a-z]{7}\.[0-9a-z]{2,}\.", ".id.", text)
