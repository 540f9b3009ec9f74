"""Lookup joins from SQL give the rows of DuckDB's joins, whatever pieces rows and tables arrive in."""

import re
from collections.abc import Sequence
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators.frames import arranged, empty
from sbon.operators.registry import build
from sbon.query.params.joined import LookupParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import Plan
from sbon.query.planner import plan
from sbon.query.sql import SelectQuery, parse
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.query_worlds import NODES, make_catalog

CATALOG = make_catalog("""
CREATE SOURCE s (ts TIMESTAMP, k BIGINT, t TEXT, v DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'a');
CREATE TABLE sites (id BIGINT, name TEXT, x DOUBLE) WITH (connector = 'file', path = 'sites.csv', nodes = 'b');
CREATE TABLE codes (t TEXT, v DOUBLE, version BIGINT) WITH (connector = 'file', path = 'codes.csv', nodes = 'c');
""")
COLUMNS = {
    "s": {"ts": "TIMESTAMP", "k": "BIGINT", "t": "TEXT", "v": "DOUBLE"},
    "sites": {"id": "BIGINT", "name": "TEXT", "x": "DOUBLE"},
    "codes": {"t": "TEXT", "v": "DOUBLE", "version": "BIGINT"},
}
TYPES: dict[str, pl.DataType] = {"TIMESTAMP": pl.Datetime("us"), "BIGINT": pl.Int64(), "TEXT": pl.String(), "DOUBLE": pl.Float64()}
AT = "FOR SYSTEM_TIME AS OF s.ts"
QUERIES = [
    f"SELECT s.ts, s.k, s.v, d.name FROM s JOIN sites {AT} AS d ON s.k = d.id",
    f"SELECT s.ts, s.k, s.v, d.name FROM s LEFT JOIN sites {AT} AS d ON s.k = d.id",
    f"SELECT d.x FROM s JOIN sites {AT} AS d ON s.k = d.id",
    f"SELECT s.v FROM s LEFT JOIN sites {AT} AS d ON d.id = s.k",
    f"SELECT s.t, sites.* FROM s LEFT JOIN sites {AT} ON s.k = sites.id AND s.v > sites.x",
    f"SELECT s.t, d.name FROM s LEFT JOIN sites {AT} AS d ON s.k = d.id AND s.v > 1 AND d.x < 3",
    f"SELECT s.t, d.name FROM s JOIN sites {AT} AS d ON s.k = d.id AND s.v > 1 WHERE d.x < 3 OR d.name = s.t",
    f"SELECT s.t, d.name, d.x FROM s LEFT JOIN sites {AT} AS d ON s.k = d.id WHERE (d.name IS NULL OR d.x > 0) AND s.t <> 'b'",
    f"SELECT s.k, d.x FROM s JOIN sites {AT} AS d ON s.k = d.id AND s.t = d.name",
    f"SELECT s.k, d.x FROM s, sites {AT} AS d WHERE s.k = d.id AND s.t = d.name",
    f"SELECT s.t, d.name FROM s JOIN sites {AT} AS d ON s.v = d.id",
    f"SELECT s.t, d.name FROM s JOIN sites {AT} AS d ON s.k = d.x",
    f"SELECT s.t, d.name FROM s JOIN sites {AT} AS d ON s.v = d.x",
    f"SELECT d.name, s.k + 1 AS n FROM s LEFT JOIN sites {AT} AS d ON s.k + 1 = d.id - 1",
    f"SELECT upper(d.name) AS u, coalesce(d.x, s.v, 0) AS z FROM s LEFT JOIN sites {AT} AS d ON s.k = d.id",
    f"SELECT s.k, t, c.version, c.v AS w FROM s JOIN codes {AT} AS c USING (t)",
    f"SELECT s.k, d.name, c.v FROM s JOIN sites {AT} AS d ON s.k = d.id LEFT JOIN codes {AT} AS c ON d.name = c.t AND c.version > s.k",
    f"SELECT d.name, e.x FROM s JOIN sites {AT} AS d ON s.k = d.id LEFT JOIN sites {AT} AS e ON d.name = e.name AND e.x > s.v",
    f"SELECT j.name, c.v AS w FROM (SELECT s.ts, d.name FROM s JOIN sites {AT} AS d ON s.k = d.id) AS j "
    "LEFT JOIN codes FOR SYSTEM_TIME AS OF j.ts AS c ON j.name = c.t",
    f"SELECT d.name, s.v FROM s JOIN sites {AT} AS d ON s.k = d.id WHERE d.id = 2 UNION ALL SELECT t AS name, v FROM s WHERE k = 2",
]
TEXTS, FLOATS, INTS = (
    st.sampled_from(["a", "b", "c", None]),
    st.sampled_from([0.0, -0.0, 1.0, 2.0, 2.5, None]),
    st.sampled_from([1, 2, 3, None]),
)
STREAM = st.lists(st.tuples(st.integers(0, 9), INTS, TEXTS, FLOATS), max_size=12)
SITES = st.lists(st.tuples(INTS, TEXTS, FLOATS), max_size=6)
CODES = st.lists(st.tuples(TEXTS, FLOATS, INTS), max_size=6)


def frame(name: str, rows: Sequence[tuple[Any, ...]]) -> pl.DataFrame:
    types = {column: TYPES[kind] for column, kind in COLUMNS[name].items()}
    if name != "s":
        return pl.DataFrame(rows, schema=types, orient="row")
    return pl.DataFrame(rows, schema={**types, "ts": pl.Int64()}, orient="row").with_columns(
        (pl.col("ts") * 1_000_000).cast(pl.Datetime("us"))
    )


def run(made: Plan, rows: dict[str, pl.DataFrame], pieces: int, table_first: bool) -> pl.DataFrame:
    """Returns the rows that reach the sink. Every link carries a few rows at a time."""
    results: dict[str, pl.DataFrame] = {}
    for operator in made.operators:
        frames = [(link.port, results[link.source]) for link in made.links if link.target == operator.id]
        params = operator.params
        if isinstance(params, SourceParams):
            found = rows[params.name]
            if params.is_table:
                count = pl.lit(found.height, pl.Int64)
                found = found if found.height else found.clear(1)
                names = [field.name for field in operator.schema[-2:]]
                found = found.with_columns(pl.lit(1, pl.Int64).alias(names[0]), count.alias(names[1]))
                assert [field.name for field in operator.schema] == found.columns
            results[operator.id] = found
        elif isinstance(params, SinkParams):
            return arranged(pl.concat([one for _, one in frames]), params.columns)
        else:
            machine = build(params)
            if isinstance(params, LookupParams) and table_first:
                frames.sort(key=lambda one: -one[0])
            parts = [(port, part) for port, one in frames for part in one.iter_slices(pieces)]
            given = [out for port, part in parts for out in machine.process(port, part)]
            results[operator.id] = pl.concat([empty(operator.schema), *given, *machine.advance(WATERMARK_END)])
    raise AssertionError("no sink")


def expected(sql: str, rows: dict[str, pl.DataFrame]) -> list[tuple[Any, ...]]:
    with duckdb.connect(config={"threads": 1}) as connection:
        for name, columns in COLUMNS.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(f'{column} {kind}' for column, kind in columns.items())})")
            if rows[name].height:
                connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows[name].rows())
        return connection.execute(re.sub(r"FOR SYSTEM_TIME AS OF \w+\.ts", "", sql)).fetchall()


def planned(sql: str) -> Plan:
    (statement,) = parse(sql)
    assert isinstance(statement, SelectQuery)
    return plan(statement, CATALOG, NODES, "a", "q")


@pytest.mark.parametrize("sql", QUERIES)
@examples(12)
@given(stream=STREAM, sites=SITES, codes=CODES, pieces=st.sampled_from([1, 2, 100]), table_first=st.booleans())
def test_duckdb_gives_the_same_rows(sql: str, stream: Any, sites: Any, codes: Any, pieces: int, table_first: bool) -> None:
    rows = {"s": frame("s", stream), "sites": frame("sites", sites), "codes": frame("codes", codes)}
    found = run(planned(sql), rows, pieces, table_first)
    assert sorted(found.rows(), key=repr) == sorted(expected(sql, rows), key=repr)


def test_a_table_is_sent_whole_from_the_node_of_its_file_once_for_a_query() -> None:
    made = planned(QUERIES[17])
    tables = [operator for operator in made.operators if isinstance(operator.params, SourceParams) and operator.params.is_table]
    assert [(operator.pinned, [field.name for field in operator.schema]) for operator in tables] == [
        ("b", ["id", "name", "x", "version", "rows"])
    ]
    lookups = [operator for operator in made.operators if isinstance(operator.params, LookupParams)]
    assert len(lookups) == 2
    assert all(operator.pinned is None and operator.ports == 2 for operator in lookups)
    assert {link.target for link in made.links if link.source == tables[0].id} == {operator.id for operator in lookups}


def test_the_event_time_of_the_stream_is_that_of_the_answers() -> None:
    made = planned(f"SELECT s.ts AS at, d.name FROM s LEFT JOIN sites {AT} AS d ON s.k = d.id")
    (lookup,) = (operator for operator in made.operators if isinstance(operator.params, LookupParams))
    assert lookup.time_column == "ts"
