"""Parsing of CREATE and DROP, and the readers of spans and times."""

import subprocess
import sys

import pytest

from sbon.errors import QueryError
from sbon.query.expression import Call, Case, Cast, Column, Literal
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.joined import JoinParams
from sbon.query.params.ordered import DeduplicateParams, OrderColumn, TopParams
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.spans import parse_interval, parse_time
from sbon.query.sql import CreateSink, CreateSource, CreateView, DropStatement, SelectQuery, parse
from sbon.query.system import SourceDefinition
from sbon.query.text import describe, duration_text, expression_text
from sbon.schema import ColumnType, Field


def test_a_source_is_what_its_statement_says() -> None:
    sql = """CREATE SOURCE IF NOT EXISTS Clicks (
        Ts TIMESTAMP, "User" VARCHAR, n BIGINT, amount DECIMAL, ok BOOLEAN, took INTERVAL,
        WATERMARK FOR ts AS ts - INTERVAL '1 minute 30 seconds'
    ) WITH (connector = 'datagen', labels = 'region=eu, site=x', estimated_rows_per_second = 2.5,
            fields.n.kind = 'random', fields.n.min = -5, rows_per_second = 100, strict = TRUE)"""
    (statement,) = parse(sql + ";")
    assert statement == CreateSource(
        "clicks",
        SourceDefinition(
            "clicks",
            "datagen",
            (("fields.n.kind", "random"), ("fields.n.min", "-5"), ("rows_per_second", "100"), ("strict", "true")),
            (
                Field("ts", ColumnType.TIME),
                Field("User", ColumnType.TEXT),
                Field("n", ColumnType.INT),
                Field("amount", ColumnType.FLOAT),
                Field("ok", ColumnType.BOOL),
                Field("took", ColumnType.INTERVAL),
            ),
            "ts",
            90_000_000,
            labels=(("region", "eu"), ("site", "x")),
            rows_per_s=2.5,
        ),
        True,
        sql,
    )
    assert statement.places[""] == (1, 29)
    assert statement.places["fields.n.min"] == (5, sql.splitlines()[4].index("fields.n.min") + 1)


def test_a_source_without_watermark_has_no_event_time() -> None:
    (statement,) = parse("CREATE SOURCE s (ts TIMESTAMP) WITH (connector = 'file', nodes = 'b, a,b')")
    assert isinstance(statement, CreateSource)
    assert (statement.definition.time_column, statement.definition.nodes) == (None, ("a", "b"))


@pytest.mark.parametrize(
    ("columns", "not_null"),
    [
        ("a INT NOT NULL, b TEXT NULL, c TEXT COMMENT 'free text' NOT NULL", ("a", "c")),
        ("a INT PRIMARY KEY, b TEXT, c TEXT", ()),
        ("a INT NOT NULL PRIMARY KEY NOT ENFORCED, b TEXT, c TEXT", ("a",)),
        ("a INT, b TEXT NOT NULL, c TEXT, PRIMARY KEY (a, c) NOT ENFORCED", ("b",)),
        ("CONSTRAINT pk PRIMARY KEY (C), a INT, b TEXT, c TEXT", ()),
    ],
)
def test_columns_may_be_not_null_and_a_key(columns: str, not_null: tuple[str, ...]) -> None:
    (statement,) = parse(f"CREATE SOURCE s ({columns}) WITH (connector = 'datagen')")
    assert isinstance(statement, CreateSource)
    assert [column.name for column in statement.definition.columns] == ["a", "b", "c"]
    assert statement.definition.not_null == statement.definition.params.not_null == not_null


def test_a_table_is_a_source() -> None:
    sql = "CREATE TABLE IF NOT EXISTS t (a INT, ts TIMESTAMP_LTZ(3), WATERMARK FOR ts AS ts) WITH ('connector' = 'datagen')"
    (statement,) = parse(sql)
    (same,) = parse(sql.replace("TABLE", "SOURCE"))
    assert isinstance(statement, CreateSource)
    assert isinstance(same, CreateSource)
    assert (statement.definition, statement.sql, statement.if_not_exists) == (same.definition, sql, True)
    assert parse("DROP TABLE t") == [DropStatement("source", "t", False, "DROP TABLE t")]


def test_sinks_and_views_keep_their_query() -> None:
    text = (
        "CREATE SINK out AS SELECT k FROM s WITH (connector = 'tcp', node = 'c', port = 9);\nCREATE MATERIALIZED VIEW v AS SELECT k FROM s"
    )
    sink, view = parse(text)
    assert isinstance(sink, CreateSink)
    assert (sink.name, sink.connector, sink.options, sink.node) == ("out", "tcp", (("port", "9"),), "c")
    assert sink.sql == text.partition(";")[0]
    assert isinstance(view, CreateView)
    assert view.sql == text.partition("\n")[2]


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE MATERIALIZED VIEW v WITH (delay_bound = '250 ms') AS SELECT k FROM s",
        "CREATE VIEW v AS SELECT k FROM s WITH (delay_bound = '0.25 seconds')",
        "CREATE VIEW v WITH (delay_bound = '250 ms') AS WITH x AS (SELECT k FROM s) SELECT k FROM x",
        "CREATE SINK v AS SELECT k FROM s WITH (connector = 'discard', delay_bound = '250ms')",
        "CREATE SINK v WITH (connector = 'discard', delay_bound = '250ms') FROM s",
        "CREATE SINK v WITH (delay_bound = '250ms', connector = 'discard',) AS SELECT k FROM s WHERE k IN ('a')",
    ],
)
def test_a_delay_bound_may_stand_before_or_after_the_query(sql: str) -> None:
    (statement,) = parse(sql)
    assert isinstance(statement, CreateView | CreateSink)
    assert (statement.name, statement.wishes.delay_ms, statement.sql) == ("v", 250.0, sql)
    assert not isinstance(statement, CreateSink) or statement.options == ()


@pytest.mark.parametrize(
    ("sql", "kind", "name", "if_exists"),
    [
        ("DROP SOURCE S", "source", "s", False),
        ('drop view if exists "V"', "view", "V", True),
        ("DROP MATERIALIZED VIEW v", "view", "v", False),
        ("DROP SINK out;", "sink", "out", False),
        ("DROP QUERY b-12.Q1", "query", "b-12.Q1", False),
        ("DROP QUERY 'b-12.Q1'", "query", "b-12.Q1", False),
    ],
)
def test_drop_names_what_goes(sql: str, kind: str, name: str, if_exists: bool) -> None:
    assert parse(sql) == [DropStatement(kind, name, if_exists, sql.rstrip(";"))]


def test_statements_are_taken_apart() -> None:
    text = "SELECT 1 FROM a; ; -- nothing\nSELECT ';' FROM b"
    statements = parse(text)
    assert [statement.sql for statement in statements] == ["SELECT 1 FROM a", "SELECT ';' FROM b"]
    assert all(isinstance(statement, SelectQuery) for statement in statements)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("10 seconds", 10_000_000),
        ("1 minute 30 s", 90_000_000),
        ("0.5 h", 1_800_000_000),
        ("-2 days", -172_800_000_000),
        ("3ms", 3_000),
        ("7 us", 7),
        ("1 w", 604_800_000_000),
    ],
)
def test_intervals_are_read(text: str, microseconds: int) -> None:
    assert parse_interval(text) == microseconds


@pytest.mark.parametrize("text", ["", "10", "1 month", "1 fortnight", "00:00:10", "s", "1 s 2", "999999999999999999 weeks"])
def test_intervals_without_a_length_are_refused(text: str) -> None:
    with pytest.raises(QueryError, match="interval"):
        parse_interval(text)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("1970-01-01", 0), ("1970-01-01T00:00:01.25", 1_250_000), ("1970-01-01 01:00+01:00", 0), ("1969-12-31 23:59:59Z", -1_000_000)],
)
def test_times_are_read_as_utc(text: str, microseconds: int) -> None:
    assert parse_time(text) == microseconds


K, V = Column("k"), Column("v")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (Call("sub", (V, Call("sub", (V, V)))), "v - (v - v)"),
        (Call("mul", (Call("add", (V, V)), V)), "(v + v) * v"),
        (Call("not", (Call("and", (K, V)),)), "not (k and v)"),
        (Call("in", (K, Literal("it's", ColumnType.TEXT))), "k in ('it''s')"),
        (Call("is_null", (K,)), "k is null"),
        (Case(((K, V),), Literal(None, ColumnType.TEXT)), "case when k then v else null end"),
        (Cast(K, ColumnType.INT), "cast(k as int)"),
        (Call("lt", (V, Literal(1_500_000, ColumnType.INTERVAL))), "v < interval '1500 ms'"),
        (Call("ge", (V, Literal(0, ColumnType.TIME))), "v >= timestamp '1970-01-01 00:00:00'"),
        (Literal(2**61, ColumnType.TIME), f"timestamp '{2**61}'"),
    ],
)
def test_expressions_are_written_as_sql(expression: Call, text: str) -> None:
    assert expression_text(expression) == text


def test_operators_are_described_in_one_line() -> None:
    window = WindowParams("ts", 10_000_000, 5_000_000, (("k", K),), (Aggregate("c", "count", None), Aggregate("d", "count_distinct", V)))
    join = JoinParams("a", "b", (K,), (V,), 5_000_000, 0, (), Call("gt", (K, V)))
    assert describe(window) == "window 10 s every 5 s by k: count(*), count(distinct v)"
    assert describe(join) == "join on k = v within -5 s to 0 s where k > v"
    left = JoinParams("a", "b", (K,), (V,), 0, 0, (), outer=())
    assert describe(left) == "left join on k = v within 0 s to 0 s"
    top = TopParams("window_end", (OrderColumn("c", True, True), OrderColumn("k", False, True)), ("v",), 3)
    assert describe(top) == "first 3 per window_end by c desc, k nulls first"
    assert describe(TopParams("window_end", (), ("v",), 1, ("k", "n"))) == "first 1 per window_end, k, n by v"
    assert describe(AssignParams("ts", 10_000_000, 5_000_000)) == "rows of windows 10 s every 5 s"
    first = DeduplicateParams("ts", ("k", "n"), (OrderColumn("v", True, True),), (), 2_000_000)
    assert describe(first) == "first row of each k, n in windows 2 s by v desc"
    behind = DeduplicateParams("ts", ("k",), (), ("v",), 2_000_000, session=True)
    assert describe(behind) == "first row of each k after 2 s without one"
    assert describe(SessionParams("ts", 5_000_000, (("k", K),), (Aggregate("c", "count", None),))) == "sessions 5 s apart by k: count(*)"
    assert describe(MapParams(None, None)) == "pass on"
    assert describe(UnionParams()) == "union all"
    assert describe(SourceParams("s", "file", (), (), None)) == "source s (file)"
    assert describe(SinkParams("q1", "tail", ())) == "sink q1 (tail)"
    assert duration_text(90_061_000_000) == "90061 s"


def test_what_agents_need_for_running_plans_loads_no_parser() -> None:
    modules = (
        "catalog",
        "estimate",
        "expression",
        "fold",
        "functions",
        "plan",
        "rewrite",
        "signature",
        "spans",
        "system",
        "text",
    )
    imports = "; ".join(f"import sbon.query.{name}" for name in modules)
    code = f"import sys; {imports}; print([m for m in ('sqlglot', 'polars', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
