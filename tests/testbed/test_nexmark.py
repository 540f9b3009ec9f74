"""The auction house: its events, its connector, and its queries run through the real operators against plain polars."""

from importlib import resources

import msgspec
import polars as pl
import pytest

from sbon.errors import ConnectorError
from sbon.extensions import Extensions
from sbon.operators.frames import polars_schema
from sbon.query.catalog import Catalog
from sbon.query.params.source import SourceParams
from sbon.query.planner import plan
from sbon.query.sql import CreateSource, SelectQuery, parse
from sbon.watermarks import WATERMARK_END
from sbon_agent.connectors import Connector
from sbon_testbed.answers import equal
from sbon_testbed.nexmark.bench import show
from sbon_testbed.nexmark.catalogue import OFFERED, QUERIES
from sbon_testbed.nexmark.events import KINDS, SCHEMAS, Events
from sbon_testbed.nexmark.reference import answer
from sbon_testbed.nexmark.source import CONNECTOR, NexmarkSource
from sbon_testbed.nexmark.stream import Stream
from tests.connector_world import context
from tests.query_worlds import run

EVENTS = 210_000
SEQUENCE = Events(seed=3, events_per_s=6_000)
"""Thirty-five seconds of events: a few windows of ten seconds."""
SLOW = Events(seed=3, events_per_s=1)
SLOW_EVENTS = 120_000
"""Events of a day and nine hours, for queries that look at the calendar."""
BY_THE_CALENDAR = ("q10", "q14", "q15", "q16", "q17")


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    return {kind: Stream(kind, SEQUENCE, 80_000).all_rows(EVENTS) for kind in KINDS}


def text(name: str) -> str:
    return (resources.files("sbon_testbed.nexmark") / "queries" / f"{name}.sql").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def slow_tables() -> dict[str, pl.DataFrame]:
    return {kind: Stream(kind, SLOW, 80_000).all_rows(SLOW_EVENTS) for kind in KINDS}


@pytest.mark.parametrize("query", OFFERED)
def test_queries_give_what_a_batch_run_gives(query: str, tables: dict[str, pl.DataFrame]):
    compare(query, tables)


@pytest.mark.parametrize("query", BY_THE_CALENDAR)
def test_queries_give_what_a_batch_run_gives_over_more_than_a_day(query: str, slow_tables: dict[str, pl.DataFrame]):
    compare(query, slow_tables)


def test_all_queries_of_the_benchmark_are_there_or_have_a_reason():
    assert list(QUERIES) == [f"q{number}" for number in range(23)]
    assert [name for name in QUERIES if name not in OFFERED] == ["q12", "q13"]
    files = {path.name for path in (resources.files("sbon_testbed.nexmark") / "queries").iterdir()}
    assert files == {"sources.sql", *(f"{name}.sql" for name in OFFERED)}


def test_the_bench_lists_all_queries(capsys: pytest.CaptureFixture[str]):
    measured = {"events": 9, "events_per_s": 8, "events_per_s_per_core": 7, "cores_used": 0.5, "answers_equal": True}
    missing = {name: query.missing for name, query in QUERIES.items() if query.missing}
    show({"events": 9, "runs": 1, "queries": dict.fromkeys(OFFERED, measured), "missing": missing})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:25]] == list(QUERIES)
    assert [line.split()[-1] for line in lines[2:25]] == ["none" if name in missing else "right" for name in QUERIES]
    assert [line.split(":")[0] for line in lines[25:]] == [f"{name} ({QUERIES[name].what}) has no equal here" for name in missing]


def compare(query: str, tables: dict[str, pl.DataFrame]) -> None:
    """Runs the query through the operators, and compares all rows with the reference's."""
    catalog = Catalog()
    for statement in parse(text("sources").replace("{options}", "seed = 3"), Extensions(connectors=("nexmark",))):
        assert isinstance(statement, CreateSource)
        source = msgspec.structs.replace(statement.definition, home="a")
        catalog.put("source", statement.name, sql=statement.sql, owner="a", stamp=1, source=source)
    (select,) = parse(text(query))
    assert isinstance(select, SelectQuery)

    found = run(plan(select, catalog, {"a": {}}, "a", "q"), tables)

    expected = answer(query, {kind: table.lazy() for kind, table in tables.items()})
    assert expected.height > 0
    assert equal(found, expected)
    assert not equal(found.slice(1), expected)
    assert not equal(pl.concat([found.slice(1), found.slice(1, 1)]), expected)


def test_proportions_and_references(tables: dict[str, pl.DataFrame]):
    assert [tables[kind].height / EVENTS for kind in KINDS] == [0.02, 0.06, 0.92]
    assert [dict(tables[kind].schema) for kind in KINDS] == [polars_schema(SCHEMAS[kind]) for kind in KINDS]
    for kind in ("person", "auction"):
        assert tables[kind]["id"].to_list() == list(range(1_000, 1_000 + tables[kind].height))
    bids = tables["bid"].join(tables["auction"].select("id", opened="ts"), left_on="auction", right_on="id")
    assert bids.height > 0.99 * tables["bid"].height  # the others are on auctions that are about to open
    assert tables["bid"]["ts"].is_sorted()


def test_an_event_depends_on_its_number_alone():
    whole = SEQUENCE.table("bid", 0, 10_000)

    assert SEQUENCE.table("bid", 5_000, 10_000).equals(whole.tail(4_600))
    assert not Events(seed=4, events_per_s=6_000).table("bid", 0, 10_000).equals(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_the_source_gives_the_rows_of_the_stream(kind: str, tables: dict[str, pl.DataFrame]):
    source = nexmark(kind, SCHEMAS[kind])
    frames, watermarks, finished = [], [], False
    while not finished:
        frame, watermark_us, _, finished = source.poll(0.0, 0.0)[:4]
        assert frame is not None
        newest_us = frame["ts"].to_physical().max()
        assert finished or watermark_us == newest_us
        frames.append(frame)
        watermarks.append(watermark_us)

    assert pl.concat(frames).equals(tables[kind])
    assert watermarks == sorted(watermarks)
    assert watermarks[-1] == WATERMARK_END


def test_columns_that_are_not_declared_are_not_given(tables: dict[str, pl.DataFrame]):
    columns = tuple(column for column in SCHEMAS["bid"] if column.name in ("price", "ts"))

    frame = nexmark("bid", columns).poll(0.0, 0.0).frame

    assert frame is not None
    assert frame.columns == ["price", "ts"]
    assert frame.equals(tables["bid"].select("price", "ts").head(frame.height))


def test_a_column_of_another_type_is_refused():
    wrong = (msgspec.structs.replace(SCHEMAS["bid"][0], name="bidding"),)

    with pytest.raises(ConnectorError, match="no bid has this column bidding, expected some of auction int, bidder int"):
        nexmark("bid", wrong)


def nexmark(kind: str, columns: tuple) -> NexmarkSource:
    options = {"kind": kind, "events": EVENTS, "seed": 3, "events_per_second": 6_000, "pool_events": 80_000, "batch_rows_max": 7_001}
    given = tuple(sorted((key, str(value)) for key, value in options.items()))
    assert isinstance(CONNECTOR, Connector)
    assert CONNECTOR.source is not None
    made = CONNECTOR.source(SourceParams("s", "nexmark", given, columns, "ts"), context())
    assert isinstance(made, NexmarkSource)
    return made
