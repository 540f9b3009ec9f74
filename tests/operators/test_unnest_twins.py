"""Unnesting and gathering arrays equals a plain Python reader and DuckDB, for few rows, many rows and rows in pieces."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from math import isfinite
from random import Random
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.arrays import array_text, values_of
from sbon.operators.frames import frame_of_values
from sbon.operators.registry import build
from sbon.operators.values import Values
from sbon.query.params.rowwise import UnnestParams
from sbon.query.plan import Plan
from sbon.query.planner import plan
from sbon.query.sql import SelectQuery, parse
from sbon.schema import ARRAY_TYPES, ELEMENT_TYPES, ColumnType, Field
from tests.examples import examples
from tests.query_worlds import NODES, make_catalog, run

TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
ELEMENTS: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.BOOL: st.booleans(),
    ColumnType.INT: st.integers(-(2**63), 2**63 - 1),
    ColumnType.FLOAT: st.floats(allow_nan=False, allow_infinity=False),
    ColumnType.TEXT: st.text(max_size=3),
    ColumnType.TIME: TIMES.map(lambda time: time.isoformat()),
    ColumnType.JSON: st.recursive(st.none() | st.booleans() | st.text(max_size=2), lambda inner: st.lists(inner, max_size=2)),
}
OTHERS = st.sampled_from([None, "{}", "[", "5", "x", "[[]]"])


def plainly(array: str | None, kind: ColumnType) -> list[Any]:
    """Returns an array's elements as columns hold them, read with Python's `json`."""
    try:
        found = json.loads(array or "null")
    except ValueError:
        return []
    if not isinstance(found, list) or (kind is not ColumnType.JSON and any(isinstance(one, list) for one in found)):
        return []
    if kind is ColumnType.JSON:
        return [json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in found]
    if kind is ColumnType.TIME:
        times = [None if one is None else datetime.fromisoformat(one).replace(tzinfo=UTC) for one in found]
        return [None if one is None else (one - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) for one in times]
    return found


@st.composite
def columns_of_arrays(draw: st.DrawFn) -> tuple[ColumnType, list[str | None]]:
    kind = draw(st.sampled_from(list(ARRAY_TYPES)))
    lists = st.lists(ELEMENTS[kind] | st.none(), max_size=4)
    kept = lists.map(lambda values: array_text(json.dumps(values, ensure_ascii=False), kind))
    return kind, draw(st.lists(kept | OTHERS, min_size=1, max_size=6))


@given(columns_of_arrays(), st.integers(0, 6))
@example((ColumnType.TIME, ['["1969-12-31T23:59:59.999999Z",null]']), 1)
@example((ColumnType.INT, ["[]", None]), 1)
def test_few_rows_many_rows_and_pieces_give_what_a_plain_reading_has(given_: tuple[ColumnType, list[str | None]], cut: int) -> None:
    kind, arrays = given_
    schema = (Field("n", ColumnType.INT), Field("a", ARRAY_TYPES[kind]), Field("k", ColumnType.TEXT))
    values = Values(len(arrays), (range(len(arrays)), arrays, [None if row % 3 else f"é{row}" for row in range(len(arrays))]))
    numbered = [
        (values.columns[2][row], row, one, number) for row, array in enumerate(arrays) for number, one in enumerate(plainly(array, kind), 1)
    ]
    for ordinal, expected in ((None, [row[:3] for row in numbered]), ("o", numbered)):
        operator = build(UnnestParams("a", kind, "e", ("k", "n"), ordinal))
        take = operator.of_values(schema)
        assert take is not None
        few = take(values)
        assert list(zip(*few.columns, strict=True)) == expected
        assert few.rows == len(expected)
        whole = frame_of_values(values, schema)
        for frame in (whole, pl.concat([whole[:cut], whole[cut:]], rechunk=False)):
            made = [one for one in operator.process(0, frame) if one.height]
            assert [row for one in made for row in one.with_columns(pl.col("e").to_physical()).rows()] == expected
            assert all(one.columns == ["k", "n", "e", "o"][: 3 if ordinal is None else 4] for one in made)


SOURCES = """
CREATE SOURCE s (ts TIMESTAMP, k TEXT, a BIGINT[], p JSON, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'a');
"""
CATALOG = make_catalog(SOURCES)


def planned(sql: str) -> Plan:
    (statement,) = parse(sql)
    assert isinstance(statement, SelectQuery)
    return plan(statement, CATALOG, NODES, "a", "q")


QUERIES = {
    "filtered": ("SELECT k, x FROM s CROSS JOIN UNNEST(s.a) AS t(x) WHERE x > 0 AND k = 'b'", ""),
    "all": ("SELECT ts, k, x FROM s, UNNEST(a) AS t(x)", ""),
    "twice": ("SELECT t.x, u.y FROM s CROSS JOIN UNNEST(a) AS t(x) CROSS JOIN UNNEST(s.a) AS u(y) WHERE t.x <> u.y OR x IS NULL", ""),
    "in windows": (
        "SELECT x, COUNT(*) AS n, SUM(x % 5) AS m FROM TUMBLE(s, ts, INTERVAL '10 s') CROSS JOIN UNNEST(s.a) AS t(x) "
        "WHERE x IS NOT NULL GROUP BY window_start, x HAVING COUNT(*) > 1",
        "SELECT x, COUNT(*), SUM(x % 5) FROM s CROSS JOIN UNNEST(s.a) AS t(x) WHERE x IS NOT NULL "
        "GROUP BY epoch_us(ts) // 10000000, x HAVING COUNT(*) > 1",
    ),
    "numbered": ("SELECT k, x, n FROM s CROSS JOIN UNNEST(s.a) WITH ORDINALITY AS t(x, n) WHERE n <> 2 AND k = 'b'", ""),
    "numbered twice": (
        "SELECT x, u.ordinality AS m FROM s, UNNEST(a) WITH ORDINALITY AS t(x, n), UNNEST(a) WITH ORDINALITY AS u(y) WHERE n < ordinality",
        "SELECT t.x, u.m FROM s, UNNEST(a) WITH ORDINALITY AS t(x, n), UNNEST(s.a) WITH ORDINALITY AS u(y, m) WHERE n < m",
    ),
    "of json": (
        "SELECT k, item ->> 0 AS x FROM s CROSS JOIN UNNEST(p -> 'items') AS t(item) WHERE JSON_TYPEOF(item) = 'array'",
        "SELECT k, item ->> 0 FROM s, UNNEST(CASE WHEN json_type(p -> 'items') = 'ARRAY' THEN from_json(p -> 'items', '[\"JSON\"]') END) "
        "AS t(item) WHERE json_type(item) = 'ARRAY'",
    ),
    "of json as numbers": (
        "SELECT k, x FROM s CROSS JOIN UNNEST(CAST(p -> 'ns' AS BIGINT[])) AS t(x)",
        "SELECT k, x FROM s, UNNEST((p -> 'ns')::BIGINT[]) AS t(x)",
    ),
}
QUERIES |= {
    "of structs": (
        "SELECT k, x.a, (x).b, n, x IS NULL AS gone FROM s CROSS JOIN UNNEST(CAST(p -> 'qs' AS STRUCT<a BIGINT, b TEXT>[])) "
        "WITH ORDINALITY AS t(x, n) WHERE x.a IS NULL OR x.a > 0",
        """SELECT k, x.a, x.b, n, x IS NULL FROM s, UNNEST(from_json(p -> 'qs', '[{"a":"BIGINT","b":"VARCHAR"}]')) """
        "WITH ORDINALITY AS t(x, n) "
        "WHERE x.a IS NULL OR x.a > 0",
    ),
    "struct in windows": (
        "SELECT q.a, COUNT(*) AS n, MAX(q.b) AS b FROM (SELECT window_end, CAST(p -> 'q' AS STRUCT(a BIGINT, b TEXT)) AS q "
        "FROM TUMBLE(s, ts, INTERVAL '10 s')) AS w WHERE q IS NOT NULL GROUP BY window_end, q.a",
        """SELECT q.a, COUNT(*), MAX(q.b) FROM (SELECT ts, from_json(p -> 'q', '{"a":"BIGINT","b":"VARCHAR"}') AS q FROM s) """
        "WHERE q IS NOT NULL GROUP BY epoch_us(ts) // 10000000, q.a",
    ),
}
STRUCTS = st.none() | st.fixed_dictionaries(
    {}, optional={"a": st.none() | st.integers(-2, 2), "b": st.none() | st.text(max_size=2), "c": st.booleans()}
)
NUMBERS = st.none() | st.lists(st.none() | st.integers(-3, 3) | st.just(2**63 - 1), max_size=4)
DOCUMENTS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "ns": NUMBERS,
        "q": STRUCTS,
        "qs": st.lists(STRUCTS, max_size=3),
        "items": st.integers() | st.lists(st.none() | st.lists(st.integers(-3, 3), max_size=2) | st.integers(), max_size=3),
    },
)
ROWS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["a", "b", None]), NUMBERS, DOCUMENTS), min_size=1, max_size=8)
CONNECTION = duckdb.connect(config={"threads": 1})


def told(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("name", QUERIES)
@examples(25)
@given(rows=ROWS)
def test_queries_have_the_answers_of_duckdb(name: str, rows: list[tuple[Any, ...]]) -> None:
    ours, theirs = QUERIES[name]
    start = datetime(2026, 1, 31)
    texts = [
        (start + timedelta(seconds=second), k, None if a is None else told(a), None if p is None else told(p)) for second, k, a, p in rows
    ]
    frame = pl.DataFrame(
        sorted(texts, key=lambda row: row[0]),
        schema={"ts": pl.Datetime("us"), "k": pl.String, "a": pl.String, "p": pl.String},
        orient="row",
    )
    CONNECTION.execute("CREATE OR REPLACE TABLE s (ts TIMESTAMP, k TEXT, a BIGINT[], p JSON)")
    CONNECTION.executemany("INSERT INTO s VALUES (?, ?, ?::JSON::BIGINT[], ?::JSON)", texts)

    assert Counter(run(planned(ours), {"s": frame}).rows()) == Counter(CONNECTION.execute(theirs or ours).fetchall())


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.text(max_size=3),
    "v": st.floats(),
    "ok": st.booleans(),
    "at": TIMES,
    "doc": st.recursive(st.none() | st.text(max_size=2), lambda inner: st.lists(inner, max_size=2)),
}
GATHERED = make_catalog("""
CREATE SOURCE g (ts TIMESTAMP, k TEXT, v DOUBLE, ok BOOLEAN, at TIMESTAMP, doc JSON, WATERMARK FOR ts AS ts)
    WITH (connector = 'datagen', nodes = 'a');
""")


@examples(25)
@given(st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), min_size=1, max_size=6), st.randoms())
def test_values_of_a_window_are_gathered_in_the_order_of_their_times(rows: list[dict[str, Any]], random: Random) -> None:
    start = datetime(2026, 1, 31)
    stream = [{"ts": start + timedelta(seconds=number), **row} for number, row in enumerate(rows)]
    for row in stream:
        row["doc"] = None if row["doc"] is None else json.dumps(row["doc"], separators=(",", ":"))
    shuffled = random.sample(stream, len(stream))
    types = {"ts": pl.Datetime("us"), "k": pl.String, "v": pl.Float64, "ok": pl.Boolean, "at": pl.Datetime("us"), "doc": pl.String}
    listed = ", ".join(f"ARRAY_AGG({name}) AS {name}" for name in VALUES)
    (statement,) = parse(f"SELECT {listed} FROM TUMBLE(g, ts, INTERVAL '1 hour') GROUP BY window_start")
    assert isinstance(statement, SelectQuery)
    made = plan(statement, GATHERED, NODES, "a", "q")
    (answer,) = run(made, {"g": pl.DataFrame(shuffled, schema=types)}).rows(named=True)

    expected: dict[str, list[Any]] = {name: [row[name] for row in stream] for name in VALUES}
    expected["v"] = [value if value is not None and isfinite(value) else None for value in expected["v"]]
    expected["doc"] = [
        "null" if value is None else json.dumps(json.loads(value), ensure_ascii=True, separators=(",", ":")) for value in expected["doc"]
    ]
    epoch = datetime(1970, 1, 1)
    expected["at"] = [None if value is None else (value - epoch) // timedelta(microseconds=1) for value in expected["at"]]
    kinds = {field.name: ELEMENT_TYPES[field.type] for field in made.operators[-1].schema}
    assert {name: values_of(answer[name], kinds[name]) for name in VALUES} == expected


def test_what_would_be_too_long_is_null() -> None:
    text = "x" * 40_000
    (statement,) = parse("SELECT k, ARRAY_AGG(p ->> 0) AS a FROM TUMBLE(s, ts, INTERVAL '1 hour') GROUP BY window_start, k")
    assert isinstance(statement, SelectQuery)
    start = datetime(2026, 1, 31)
    rows = [(start + timedelta(seconds=number), key, None, told([text])) for number, key in enumerate("aab")]
    frame = pl.DataFrame(rows, schema={"ts": pl.Datetime("us"), "k": pl.String, "a": pl.String, "p": pl.String}, orient="row")

    assert sorted(run(plan(statement, CATALOG, NODES, "a", "q"), {"s": frame}).rows()) == [("a", None), ("b", told([text]))]
