"""CREATE SOURCE refuses what its connector would not take, at once and with the place; nothing waits for the query that uses it."""

import pytest

from sbon.control import ControlReply, ControlRequest
from sbon.errors import SbonError
from testbed.virtual.harness import World

CREATE = "CREATE SOURCE t (ts TIMESTAMP, n BIGINT, WATERMARK FOR ts AS ts) WITH (connector = {})"
REFUSED = [
    # options with ^ before the place, the message
    ("'datagen', ^pool_row = 5", "source t: option pool_row is unknown to connector 'datagen'; did you mean pool_rows?"),
    ("'datagen', ^rows_per_second = 'many'", "source t: option rows_per_second = 'many', expected a number from"),
    ("'datagen', rows = 5, ^fields.m.kind = 'zipf'", "source t: option fields.m.kind is unknown to connector 'datagen'"),
    ("'datagen', ^fields.n.min = 'x'", "source t: option fields.n.min = 'x', expected a whole number"),
    ("'datagen', nodes = 'elsewhere', ^pool_row = 5", "did you mean pool_rows?"),
    ("'file', ^replay = 'slow', path = 'x.csv'", "source t: option replay = 'slow', expected one of fast, event_time"),
    ("'datagen', ^idle_timeout = '10 s'", "option idle_timeout is unknown"),
]


@pytest.fixture(scope="module")
def world() -> World:
    made = World(2)
    made.start_all()
    made.settle()
    return made


@pytest.mark.parametrize(("marked", "message"), REFUSED)
def test_an_option_that_no_query_could_use_is_refused_when_it_is_given(world: World, marked: str, message: str) -> None:
    sql = CREATE.format(marked)
    replies: list[ControlReply] = []
    world.agents[0].control(ControlRequest(1, "submit", {"sql": sql.replace("^", "")}), replies.append)
    world.run_until(lambda: replies, 5, "an answer")
    assert message in str(replies[0].error)
    assert replies[0].place == (1, sql.index("^") + 1)
    with pytest.raises(SbonError, match="there is no source or view t"):
        world.submit("SELECT n FROM t")


def test_what_is_missing_is_said_too(world: World) -> None:
    with pytest.raises(SbonError, match=r"source t: connector 'file' needs option path: write path = 'readings.csv'"):
        world.submit(CREATE.format("'file'"))


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


def test_sinks_are_refused_when_they_are_made(world: World) -> None:
    sink = "CREATE SINK k FROM (SELECT ts FROM sys.load) WITH (connector = 'discard', {})"
    with pytest.raises(SbonError, match="sink k: option latency_colum is unknown to connector 'discard'; did you mean latency_column"):
        world.submit(sink.format("latency_colum = 'ts'"))
