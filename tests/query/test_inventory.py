"""DESCRIBE and SHOW: their statements, and their answers from the catalogue."""

import pytest

from sbon.errors import QueryError
from sbon.extensions import NOTHING
from sbon.query.catalog import Catalog
from sbon.query.inventory import listing
from sbon.query.listing import Listing, listing_of_queries
from sbon.query.show import ShowStatement
from sbon.query.sql import parse
from tests.query_worlds import NODES, make_catalog


def made() -> Catalog:
    catalog = make_catalog()
    columns = "id BIGINT NOT NULL PRIMARY KEY, ts TIMESTAMP NOT NULL, took INTERVAL, WATERMARK FOR ts AS ts"
    (source,) = parse(f"CREATE TABLE orders ({columns}) WITH (connector = 'file', path = 'x.csv', nodes = 'a, gone')")
    catalog.put("source", "orders", sql=source.sql, owner="a", stamp=1, source=source.definition)  # type: ignore[union-attr]
    sql = "CREATE SINK out AS SELECT k, total AS t FROM per_key WITH (connector = 'discard')"
    catalog.put("sink", "out", sql=sql, owner="c", stamp=2, query="c.1.01")
    return catalog


def asked(sql: str) -> Listing:
    (statement,) = parse(sql)
    assert isinstance(statement, ShowStatement)
    return listing(statement, made(), NODES, NOTHING)


@pytest.mark.parametrize("form", ["DESCRIBE {}", "desc {};", "SHOW COLUMNS FROM {}", "Show Fields In {}"])
def test_columns_are_described_with_their_event_time(form: str) -> None:
    assert asked(form.format("Orders")) == Listing(
        ("column", "type", "remarks"),
        (("id", "BIGINT", "NOT NULL"), ("ts", "TIMESTAMP", "event time, in order; NOT NULL"), ("took", "INTERVAL", None)),
    )
    assert asked(form.format("s")).rows[:2] == (("ts", "TIMESTAMP", "event time, up to 2 s out of order"), ("k", "TEXT", None))
    assert asked(form.format("per_key")).rows == (
        ("window_end", "TIMESTAMP", "event time"),
        ("k", "TEXT", None),
        ("total", "DOUBLE", None),
        ("rows", "BIGINT", None),
    )
    assert asked(form.format("out")).rows == (("k", "TEXT", None), ("t", "DOUBLE", None))
    assert ("cpu", "DOUBLE", None) in asked(form.format("sys.load")).rows


@pytest.mark.parametrize(
    ("sql", "columns", "rows"),
    [
        ("SHOW SOURCES", ("name", "connector", "nodes"), [("orders", "file", "a"), ("s", "datagen", "a, c"), ("u", "datagen", "b")]),
        ("SHOW VIEWS", ("name", "created at"), [("fast", "b"), ("per_key", "b")]),
        ("SHOW MATERIALIZED VIEWS", ("name", "created at"), [("fast", "b"), ("per_key", "b")]),
        ("SHOW SINKS", ("name", "connector", "query"), [("out", "discard", "c.1.01")]),
        ("show tables", ("name", "kind"), [("fast", "view"), ("orders", "source"), ("sys.load", "system stream")]),
        ("SHOW FUNCTIONS", ("name", "kind", "call"), [("ABS", "scalar", None), ("SUM", "aggregate", None)]),
    ],
)
def test_names_are_listed(sql: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    found = asked(sql)
    assert found.columns == columns
    assert [row for row in found.rows if row in rows] == rows
    assert len(set(found.rows)) == len(found.rows)


@pytest.mark.parametrize(
    "sql", ["SHOW CREATE SINK out", "SHOW CREATE VIEW fast", "SHOW CREATE MATERIALIZED VIEW fast", "SHOW CREATE TABLE u"]
)
def test_a_statement_is_shown_as_it_was_written(sql: str) -> None:
    name = sql.rpartition(" ")[2]
    ((found, statement),) = asked(sql).rows
    assert found == name
    assert statement is not None
    assert statement.startswith("CREATE")
    assert parse(statement)[0].name == name  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sql", "message", "hint"),
    [
        ("DESCRIBE ordres", "no source, view or sink ordres", "did you mean orders?"),
        ("SHOW CREATE VIEW sys.load", "sys.load is a system stream", "DESCRIBE sys.load"),
        ("SHOW CREATE VIEW u", "u is a source, not a view", "SHOW CREATE SOURCE u"),
    ],
)
def test_names_that_there_are_not_are_refused(sql: str, message: str, hint: str) -> None:
    with pytest.raises(QueryError) as refused:
        asked(sql)
    assert message in refused.value.message
    assert hint in refused.value.hint


def test_queries_are_listed_from_what_agents_say_of_them() -> None:
    rows = [
        {"id": "a.1.01", "name": "out", "state": "running", "sink_node": "a", "reason": "", "sql": "SELECT"},
        {"id": "b.1.02", "state": "orphaned", "reason": "its home is gone"},
    ]
    found = listing_of_queries(rows)
    assert found.rows == (("a.1.01", "out", "running", "a", None), ("b.1.02", None, "orphaned", None, "its home is gone"))
    assert found.as_objects()[0] == {"query": "a.1.01", "name": "out", "state": "running", "sink at": "a", "reason": None}


def test_aggregates_are_listed_by_the_names_that_queries_take() -> None:
    names = {row[0] for row in asked("SHOW FUNCTIONS").rows if row[1] == "aggregate"}
    assert names >= {"COUNT_IF", "MEDIAN", "ARG_MAX"}
    assert names.isdisjoint({"COUNT_DISTINCT", "STRING_AGG_DISTINCT"})
