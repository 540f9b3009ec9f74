"""Columns of JSON in sources, in sinks, and in expressions."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sbon.errors import ConnectorError, RemoteProtocolError
from sbon.formats.formatting import LineFormat
from sbon.operators.compile import compile_expression
from sbon.operators.frames import frame_of_values
from sbon.operators.values import FEW_ROWS, Values
from sbon.query.expression import Cast, Column
from sbon.schema import ColumnType
from tests.connector_world import columns, context, drain, source
from tests.query_worlds import make_catalog, plan_of, run

SCHEMA = columns(k="text", doc="json")
NOT_JSON = "is not JSON, or nested more than 100 deep (JSON)"


def read(path: Path, **options: Any) -> tuple[list[Any], dict[str, int]]:
    stream: Any = source("file", SCHEMA, context(path.parent), path=path.name, **options)
    rows, _ = drain(stream)
    return rows.rows(), {kind.cause: kind.rows for kind in stream.misfits.told()}


@pytest.mark.parametrize("copies", [1, FEW_ROWS + 1, 5000])
def test_members_of_any_kind_are_taken_as_they_are_written(tmp_path: Path, copies: int) -> None:
    lines = [
        '{"k": "a", "doc": {"z": [1, 2.50], "a": "x y"}}',
        '{"k": "b", "doc": "text"}',
        '{"k": "c", "doc": 1e400}',
        '{"k": "d", "doc": null}',
        '{"k": "e"}',
        '{"k": "f", "doc": ' + "[" * 101 + "]" * 101 + "}",
        '{"k": "g", "doc": [true]}',
    ]
    (tmp_path / "r.ndjson").write_text("".join(line + "\n" for line in lines * copies))
    rows, causes = read(tmp_path / "r.ndjson")

    expected = [("a", '{"z":[1,2.50],"a":"x y"}'), ("b", '"text"'), ("c", "1e400"), ("d", None), ("e", None), ("g", "[true]")]
    assert rows == expected * copies
    assert causes == {NOT_JSON: copies}


def test_fields_of_csv_are_read_as_json_and_misfits_are_counted(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text('k,doc\na,"{""x"": 1}"\nb,{x}\nc,\nd,12\n"e","[1,\n2]"\n')
    rows, causes = read(tmp_path / "r.csv")

    assert rows == [("a", '{"x":1}'), ("c", None), ("d", "12"), ("e", "[1,2]")]
    assert causes == {NOT_JSON: 1}


def test_lists_structs_and_texts_of_parquet_are_json(tmp_path: Path) -> None:
    pl.DataFrame({"k": ["a", "b"], "doc": [{"x": [1, 2]}, None]}).write_parquet(tmp_path / "s.parquet")
    pl.DataFrame({"k": ["a", "b"], "doc": ['{"x": 1}', "x"]}).write_parquet(tmp_path / "t.parquet")

    assert read(tmp_path / "s.parquet") == ([("a", '{"x":[1,2]}'), ("b", None)], {})
    assert read(tmp_path / "t.parquet") == ([("a", '{"x":1}')], {NOT_JSON: 1})


def test_ndjson_has_json_as_it_is_and_csv_as_text() -> None:
    schema = columns(n="int", doc="json", s="text", x="float", other="json")
    values = Values(2, ((1, None), ('{"a":[1.50,"é"]}', None), ('say "x"', None), (1e300, None), ("null", "[]")))
    frame = frame_of_values(values, schema)
    ndjson = (
        '{"n":1,"doc":{"a":[1.50,"é"]},"s":"say \\"x\\"","x":1e+300,"other":null}\n{"n":null,"doc":null,"s":null,"x":null,"other":[]}\n'
    )
    csv = '1,"{""a"":[1.50,""é""]}","say ""x""",1e+300,null\n,,,,[]\n'

    for kind, expected in (("ndjson", ndjson), ("csv", csv)):
        assert LineFormat(kind, schema).lines(frame).decode() == expected
        assert LineFormat(kind, schema).lines_of_values(values).decode() == expected


def test_a_generator_makes_no_json() -> None:
    with pytest.raises(ConnectorError, match="column doc is JSON, which the generator does not make"):
        source("datagen", SCHEMA, context(), rows_per_second="1", seed="1")


def test_a_plan_from_elsewhere_cannot_call_a_text_json() -> None:
    with pytest.raises(RemoteProtocolError, match="cast from text to json"):
        compile_expression(Cast(Column("k"), ColumnType.JSON), {"k": ColumnType.TEXT})


def test_what_is_taken_out_of_a_text_has_no_line_breaks() -> None:
    texts = pl.DataFrame({"k": ['{"a": {"b":\n 1}}', '{"a": 1', None], "v": [0.0, 0.0, 0.0]})
    plan = plan_of("SELECT k -> 'a' AS a, k::JSON ->> 'a' AS t FROM plain")

    assert run(plan, {"plain": texts}).rows() == [('{"b":1}', '{"b":1}'), (None, None), (None, None)]


def test_the_type_lasts_through_views_joins_windows_and_unions(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = make_catalog("""
        CREATE SOURCE s (ts TIMESTAMP, k TEXT, doc JSONB, WATERMARK FOR ts AS ts) WITH (connector = 'file', path = 's.ndjson');
        CREATE VIEW v AS SELECT ts, k, doc -> 'a' AS a FROM s UNION ALL SELECT ts, k, NULL FROM s;
    """)
    monkeypatch.setattr("tests.query_worlds.CATALOG", catalog)
    plan = plan_of("""
        SELECT window_end, FIRST(a) AS first, COUNT(a) AS n, SUM(CAST(a ->> 'b' AS BIGINT)) AS total
        FROM TUMBLE((SELECT x.ts, x.a FROM v AS x JOIN s AS y ON x.k = y.k AND x.ts = y.ts), ts, INTERVAL '1 minute') GROUP BY window_end
    """)
    rows = pl.DataFrame({"ts": [0, 1], "k": ["a", "b"], "doc": ['{"a":{"b":3}}', '{"a":{"b":"4"}}']}).with_columns(
        pl.col("ts").cast(pl.Datetime("us"))
    )
    found = run(plan, {"s": rows})

    assert [field.type for field in plan.operators[-1].schema] == [ColumnType.TIME, ColumnType.JSON, ColumnType.INT, ColumnType.INT]
    assert found.select("n", "total").rows() == [(2, 7)]
    assert json.loads(found["first"][0]) == {"b": 3}
