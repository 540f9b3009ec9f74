"""Columns of structs: values that sources take and sinks write, and expressions on structs."""

import json
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from sbon.arrays import ELEMENTS_MAX
from sbon.connectors.mqtt_rows import MessageRows
from sbon.errors import ConnectorError, QueryError, RemoteProtocolError
from sbon.formats.formatting import LineFormat
from sbon.misfits import CAUSE_CHARACTERS_MAX, Misfits, cut
from sbon.operators.compile import compile_expression
from sbon.operators.frames import frame_of_values
from sbon.operators.values import FEW_ROWS, Values
from sbon.options import Options
from sbon.query.expression import Call, Cast, Column, Literal
from sbon.query.params.source import SourceParams
from sbon.query.plan import Plan
from sbon.schema import (
    STRUCTS_MAX,
    ColumnType,
    Field,
    array_type,
    element_type,
    family,
    held_type,
    members_of,
    struct_type,
    type_name,
)
from tests.connector_world import context, drain, opened, sink, source
from tests.query_worlds import make_catalog, plan_of, run

PLACE = struct_type([Field("lat", ColumnType.FLOAT), Field("name", ColumnType.TEXT), Field("n", ColumnType.INT)])
DEEP = struct_type(
    [
        Field("at", ColumnType.TIME),
        Field("place", PLACE),
        Field("places", array_type(PLACE) or ColumnType.JSON),
        Field("tags", ColumnType.TEXTS),
        Field("doc", ColumnType.JSON),
        Field("ok", ColumnType.BOOL),
    ]
)
NOT_PLACE = "is not STRUCT<lat DOUBLE, name TEXT, n BIGINT>"
SCHEMA = (Field("k", ColumnType.TEXT), Field("place", PLACE))


def read(path: Path, schema: tuple[Field, ...] = SCHEMA) -> tuple[list[Any], dict[tuple[str, str], int]]:
    stream: Any = source("file", schema, context(path.parent), path=path.name)
    rows, _ = drain(stream)
    return rows.rows(), {(found.column, found.cause): found.rows for found in stream.misfits.told()}


@pytest.mark.parametrize("copies", [1, FEW_ROWS + 1, 2000])
def test_objects_of_ndjson_are_kept_with_the_declared_fields_and_others_are_counted(tmp_path: Path, copies: int) -> None:
    lines = [
        '{"k": "a", "place": {"name": "x", "lat": 1, "more": [1], "n": 5.0}}',
        '{"k": "b", "place": {}}',
        '{"k": "c", "place": null}',
        '{"k": "d"}',
        '{"k": "e", "place": {"lat": "north"}}',
        '{"k": "f", "place": [1.5]}',
        '{"k": "g", "place": {"n": 9223372036854775808}}',
        '{"k": "h", "place": {"n": 1.5}}',
        '{"k": "i", "place": {"lat": 1, "lat": 2, "name": {"b": 1}, "n": -9223372036854775808}}',
    ]
    (tmp_path / "r.ndjson").write_text("".join(line + "\n" for line in lines * copies))
    rows, causes = read(tmp_path / "r.ndjson")

    assert rows == copies * [
        ("a", '{"lat":1.0,"name":"x","n":5}'),
        ("b", '{"lat":null,"name":null,"n":null}'),
        ("c", None),
        ("d", None),
        ("i", '{"lat":2.0,"name":"{\\"b\\":1}","n":-9223372036854775808}'),
    ]
    assert causes == {("place", NOT_PLACE): 4 * copies}


def test_the_first_value_that_does_not_fit_is_shown(tmp_path: Path) -> None:
    (tmp_path / "r.ndjson").write_text('{"k": "a", "place": {"lat": "north"}}\n')
    stream: Any = source("file", SCHEMA, context(tmp_path), path="r.ndjson")
    drain(stream)

    (found,) = stream.misfits.told()
    assert found.text == f'column place: {{"lat": "north"}} {NOT_PLACE}'


def test_structs_hold_structs_arrays_times_and_json(tmp_path: Path) -> None:
    schema = (Field("k", ColumnType.TEXT), Field("d", DEEP))
    given = {
        "at": "2026-01-31T10:00:00+01:00",
        "place": {"lat": 2},
        "places": [{"name": "y"}, None],
        "tags": ["t", 1, None],
        "doc": {"z": [1]},
        "ok": True,
    }
    told = (
        '{"at":"2026-01-31T09:00:00.000000Z","place":{"lat":2.0,"name":null,"n":null},"places":[{"lat":null,"name":"y","n":null},null],'
        '"tags":["t","1",null],"doc":{"z":[1]},"ok":true}'
    )
    wrong = [
        {"place": {"lat": "x"}},
        {"places": [5]},
        {"places": {}},
        {"at": "noon"},
        {"tags": 1},
        {"ok": 1},
        {"places": [{}] * (ELEMENTS_MAX + 1)},
    ]
    lines = [json.dumps({"k": "a", "d": value}) for value in (given, *wrong)]
    (tmp_path / "r.ndjson").write_text("".join(line + "\n" for line in lines))

    assert read(tmp_path / "r.ndjson", schema) == (
        [("a", told)],
        {("d", cut(f"is not {type_name(DEEP)}", CAUSE_CHARACTERS_MAX)): len(wrong)},
    )


def test_texts_of_csv_and_structs_of_parquet_are_structs(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text('k,place\na,"{""lat"": 1, ""z"": 2}"\nb,x\nc,\nd,null\n')
    frame = pl.DataFrame({"k": ["a", "b", "c"], "place": [{"n": 1, "lat": 2.5, "z": [1]}, None, {"n": 2, "lat": None, "z": []}]})
    frame.write_parquet(tmp_path / "s.parquet")
    nested = pl.DataFrame({"k": ["a"], "place": [[{"n": 1}, None]]})
    nested.write_parquet(tmp_path / "l.parquet")
    places = array_type(PLACE)
    assert places is not None

    assert read(tmp_path / "r.csv") == ([("a", '{"lat":1.0,"name":null,"n":null}'), ("c", None)], {("place", NOT_PLACE): 2})
    assert read(tmp_path / "s.parquet") == (
        [("a", '{"lat":2.5,"name":null,"n":1}'), ("b", None), ("c", '{"lat":null,"name":null,"n":2}')],
        {},
    )
    assert read(tmp_path / "l.parquet", (SCHEMA[0], Field("place", places)))[0] == [("a", '[{"lat":null,"name":null,"n":1},null]')]


@pytest.mark.parametrize("kind", ["json", "msgpack"])
def test_payloads_of_mqtt_have_structs(kind: str) -> None:
    rows = [{"k": "a", "place": {"lat": 1.5, "n": 2, "z": 3}}, {"k": "b", "place": {"n": "x"}}]
    misfits = Misfits()
    params = SourceParams("s", "mqtt", (), SCHEMA, None)
    reader = MessageRows("source s", params, Options("source s", "mqtt", {"topics": "t", "format": kind}.items()), misfits)
    for row in rows:
        reader.take(b"t", msgspec.json.encode(row) if kind == "json" else msgspec.msgpack.encode(row))
    found = reader.given(0.0)
    frame = frame_of_values(found, SCHEMA) if isinstance(found, Values) else found

    assert frame.rows() == [("a", '{"lat":1.5,"name":null,"n":2}')]
    assert [(misfit.column, misfit.cause) for misfit in misfits.told()] == [("place", NOT_PLACE)]


def test_ndjson_has_objects_and_csv_their_text() -> None:
    places = array_type(PLACE)
    assert places is not None
    schema = (Field("n", ColumnType.INT), Field("p", PLACE), Field("ps", places))
    values = Values(2, ((1, None), ('{"lat":1.0,"name":"é"}', None), ("[null]", "[]")))
    frame = frame_of_values(values, schema)
    ndjson = '{"n":1,"p":{"lat":1.0,"name":"é"},"ps":[null]}\n{"n":null,"p":null,"ps":[]}\n'

    for kind, expected in (("ndjson", ndjson), ("csv", '1,"{""lat"":1.0,""name"":""é""}",[null]\n,,[]\n')):
        assert LineFormat(kind, schema).lines(frame).decode() == expected
        assert LineFormat(kind, schema).lines_of_values(values).decode() == expected


def test_parquet_has_structs_that_are_read_again(tmp_path: Path) -> None:
    schema = (Field("k", ColumnType.TEXT), Field("d", DEEP))
    text = (
        '{"at":"2026-01-31T09:00:00.000000Z","place":{"lat":2.0,"name":null,"n":null},"places":[{"lat":null,"name":"y","n":1},null],'
        '"tags":["t",null],"doc":{"z":[1.50]},"ok":null}'
    )
    rows = pl.DataFrame({"k": ["a", "b"], "d": [text, None]})
    out = opened(sink("file", schema, context(tmp_path), path=str(tmp_path / "out.parquet")))
    out.write(rows)
    out.write(rows)
    out.close()
    written = pl.read_parquet(tmp_path / "out.parquet" / "part-000000.parquet")

    assert written["d"].struct.field("place").struct.field("lat").to_list() == [2.0, None] * 2
    assert written["d"].struct.field("places").list.len().to_list() == [2, None] * 2
    assert str(written["d"].struct.field("at").dtype).startswith("Datetime")
    (tmp_path / "out.parquet" / "part-000000.parquet").rename(tmp_path / "again.parquet")
    as_text = text.replace('{"z":[1.50]}', '"{\\"z\\":[1.50]}"')
    assert read(tmp_path / "again.parquet", schema)[0] == [("a", as_text), ("b", None)] * 2


def test_a_generator_makes_no_structs() -> None:
    with pytest.raises(ConnectorError, match="column place is STRUCT<lat DOUBLE, name TEXT, n BIGINT>, which the generator does not make"):
        source("datagen", SCHEMA, context(), rows_per_second="1", seed="1")


# ---------------------------------------------------------------------------------------------------- types and expressions


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = make_catalog("""
        CREATE SOURCE s (ts TIMESTAMP, k TEXT, place STRUCT<lat DOUBLE, "Lon" DOUBLE, spot STRUCT(name TEXT, tags TEXT[])>,
            stops STRUCT(lat DOUBLE, at TIMESTAMP)[], more ROW<a BIGINT>, doc JSON, WATERMARK FOR ts AS ts)
            WITH (connector = 'file', path = 's.ndjson');
        CREATE VIEW v AS SELECT ts, k, place, place.spot AS spot FROM s;
        CREATE VIEW place AS SELECT ts, k, k AS lat FROM s;
    """)
    monkeypatch.setattr("tests.query_worlds.CATALOG", catalog)


ROWS = pl.DataFrame(
    {
        "k": ["a", "b", "c"],
        "place": ['{"lat":1.5,"Lon":2.0,"spot":{"name":"x","tags":["t","u"]}}', None, '{"lat":null,"Lon":3.0,"spot":null}'],
        "stops": ['[{"lat":1.0,"at":"2026-01-31T09:00:00.000000Z"},null,{"lat":4.0,"at":null}]', "[]", None],
        "more": ['{"a":7}', '{"a":null}', None],
        "doc": ['{"a":1,"b":[{"lat":2}]}', '{"a":"x"}', "5"],
    }
)


def answers(plan: Plan) -> list[tuple[Any, ...]]:
    return run(plan, {"s": ROWS}).rows()


@pytest.mark.usefixtures("trips")
def test_fields_are_named_behind_a_point_with_the_input_or_without() -> None:
    plan = plan_of("""
        SELECT place.lat, s.place."Lon", (place).spot.name, place.spot.tags[2] AS tag, (s.place).spot, (more).a + 1 AS b,
            stops[3].lat AS last, place.spot IS NULL AS gone, CARDINALITY(stops) AS n FROM s
    """)

    assert [(field.name, type_name(field.type)) for field in plan.operators[-1].schema] == [
        ("lat", "DOUBLE"),
        ("Lon", "DOUBLE"),
        ("name", "TEXT"),
        ("tag", "TEXT"),
        ("spot", "STRUCT<name TEXT, tags TEXT[]>"),
        ("b", "BIGINT"),
        ("last", "DOUBLE"),
        ("gone", "BOOLEAN"),
        ("n", "BIGINT"),
    ]
    assert answers(plan) == [
        (1.5, 2.0, "x", "u", '{"name":"x","tags":["t","u"]}', 8, 4.0, False, 3),
        (None, None, None, None, None, None, None, True, 0),
        (None, 3.0, None, None, None, None, None, True, None),
    ]


@pytest.mark.usefixtures("trips")
def test_an_input_of_the_name_comes_before_a_column_and_the_column_where_the_input_has_no_such_one() -> None:
    plan = plan_of("SELECT place.lat FROM place")
    assert plan.operators[-1].schema == (Field("lat", ColumnType.TEXT),)
    plan = plan_of("SELECT place.lat AS x, place.place.lat AS y, place.k FROM s AS place")
    assert answers(plan) == [(1.5, 1.5, "a"), (None, None, "b"), (None, None, "c")]


@pytest.mark.usefixtures("trips")
def test_arrays_of_structs_are_taken_apart() -> None:
    plan = plan_of(
        "SELECT k, stop.lat, n, stop.at, stop FROM s CROSS JOIN UNNEST(stops) WITH ORDINALITY AS t(stop, n) WHERE stop IS NOT NULL"
    )

    assert [field.type for field in plan.operators[-1].schema][1:4] == [ColumnType.FLOAT, ColumnType.INT, ColumnType.TIME]
    assert [row[:3] for row in answers(plan)] == [("a", 1.0, 1), ("a", 4.0, 3)]
    assert str(answers(plan)[0][3]) == "2026-01-31 09:00:00"
    assert answers(plan)[1][4] == '{"lat":4.0,"at":null}'
    twice = plan_of("SELECT t.x, u.y FROM v CROSS JOIN UNNEST(spot.tags) AS t(x) CROSS JOIN UNNEST(place.spot.tags) AS u(y) WHERE x <> y")
    assert answers(twice) == [("t", "u"), ("u", "t")]


@pytest.mark.usefixtures("trips")
def test_json_is_cast_to_structs_and_structs_to_json() -> None:
    plan = plan_of("""
        SELECT CAST(doc AS STRUCT<a BIGINT>) AS d, (doc::STRUCT(a TEXT)).a AS t, CAST(doc -> 'b' AS STRUCT<lat DOUBLE>[])[1].lat AS l,
            place::JSON -> 'spot' ->> 'name' AS name, TO_JSON(more) AS j, more::TEXT AS m, '{"a": 1}'::STRUCT<a INT> AS lit FROM s
    """)

    assert [type_name(field.type) for field in plan.operators[-1].schema] == [
        *("STRUCT<a BIGINT>", "TEXT", "DOUBLE", "TEXT", "JSON", "TEXT", "STRUCT<a BIGINT>")
    ]
    assert answers(plan) == [
        ('{"a":1}', "1", 2.0, "x", '{"a":7}', '{"a":7}', '{"a":1}'),
        (None, "x", None, None, '{"a":null}', '{"a":null}', '{"a":1}'),
        (None, None, None, None, None, None, '{"a":1}'),
    ]


@pytest.mark.usefixtures("trips")
def test_the_type_lasts_through_views_windows_joins_and_unions() -> None:
    plan = plan_of("""
        SELECT window_end, FIRST(p) AS first, ARRAY_AGG(p) AS all_of, (LAST(p)).lat AS lat, p.spot.name AS name, COUNT(*) AS n
        FROM TUMBLE((SELECT x.ts, x.place AS p FROM v AS x JOIN s AS y ON x.k = y.k AND x.ts = y.ts UNION ALL SELECT ts, place FROM s),
            ts, INTERVAL '1 minute') GROUP BY window_end, p.spot.name
    """)

    place = 'STRUCT<lat DOUBLE, "Lon" DOUBLE, spot STRUCT<name TEXT, tags TEXT[]>>'
    assert [type_name(field.type) for field in plan.operators[-1].schema][1:5] == [place, f"{place}[]", "DOUBLE", "TEXT"]


@pytest.mark.usefixtures("trips")
@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT place.lon FROM s", ["STRUCT<", "has no field lon"]),
        ("SELECT place.spott FROM s", ["has no field spott", "did you mean spot?"]),
        ("SELECT s.place.lat.x FROM s", [".x of DOUBLE, expected a STRUCT"]),
        ("SELECT (doc).a FROM s", [".a of JSON, expected a STRUCT", "x -> 'name'"]),
        ("SELECT place -> 'lat' FROM s", ["expected JSON", "(x).name"]),
        ("SELECT k FROM s WHERE place = more", ["compares", "take a value out"]),
        ("SELECT k FROM s WHERE place = place", ["no order and no equality", "(x).name"]),
        ("SELECT COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 s') GROUP BY window_end, place", ["no order and no equality", "(x).name"]),
        ("SELECT CAST(place AS STRUCT<lat DOUBLE>) FROM s", ["does not convert to STRUCT<lat DOUBLE>", "(x).name"]),
        ("SELECT CAST(place AS BIGINT) FROM s", ["does not convert to BIGINT"]),
        ("SELECT CAST(doc AS STRUCT<a INTERVAL>) FROM s", ["field a is an INTERVAL", "in seconds"]),
        ("SELECT CAST(doc AS STRUCT<a INT, a INT>) FROM s", ["field a is declared twice"]),
        ("SELECT CAST(doc AS STRUCT<a DUBLE>) FROM s", ["'DUBLE' in a STRUCT", "types of fields are BOOLEAN"]),
        ("SELECT CAST(doc AS STRUCT<a INT b INT>) FROM s", ["'b' in a STRUCT", "a comma"]),
        ("SELECT CAST(doc AS STRUCT<a INT NOT NULL>) FROM s", ["a field of a STRUCT has a name and a type, and no more"]),
        (
            "SELECT a.place.lat FROM s AS a JOIN s AS b ON a.k = b.k AND b.ts = a.ts WHERE place.lat = 1",
            ["column place is ambiguous", "a.place.lat or b.place.lat"],
        ),
        ("SELECT (place).* FROM s", ["is not a value"]),
        ("SELECT doc.a FROM s", ["there is no input doc"]),
        ("SELECT FIRST(place).lat.x AS y FROM TUMBLE(s, ts, INTERVAL '1 s') GROUP BY window_end", [".x of DOUBLE"]),
    ],
)
def test_what_is_refused_says_what_to_write(sql: str, words: list[str]) -> None:
    with pytest.raises(QueryError) as refused:
        plan_of(sql)

    assert all(word in f"{refused.value.message} {refused.value.hint}" for word in words), f"{refused.value.message} {refused.value.hint}"


def test_equal_types_are_one_and_travel_by_their_value() -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(Field("p", DEEP)), type=Field)

    assert again.type is DEEP
    assert ColumnType(DEEP.value) is DEEP
    assert element_type(array_type(DEEP)) is DEEP
    assert [member.name for member in members_of(DEEP)] == ["at", "place", "places", "tags", "doc", "ok"]
    assert (held_type(DEEP), family(DEEP), members_of(ColumnType.JSON)) == (ColumnType.TEXT, ColumnType.JSON, ())


@pytest.mark.parametrize(
    "value",
    [
        *(
            "struct",
            "struct[]",
            "struct[[]]",
            'struct[["a"]]',
            'struct[["a","interval"]]',
            'struct[["a","int"],["a","int"]]',
            'struct[["","int"]]',
        ),
        *(
            'struct[["a","int"]] ',
            'struct[["a", "int"]]',
            'struct[["a",5]]',
            'struct[["a",{"x":[["a","int"]]}]]',
            'struct[["a",{"struct":[]}]]',
        ),
        'struct[["a","struct[[\\"b\\",\\"int\\"]]"]]',
        'struct[["a",' + '{"struct":[["a",' * 8 + '"int"' + "]]}" * 8 + "]]",
        'struct[["' + "a" * 4_000 + '","int"]]',
    ],
)
def test_other_values_are_no_types(value: str) -> None:
    with pytest.raises(ValueError, match="is not a valid ColumnType"):
        ColumnType(value)


def test_a_process_knows_a_bounded_number_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    known = struct_type([Field("known", ColumnType.INT)])
    monkeypatch.setattr("sbon.schema._STRUCTS", {known.value: known} | dict.fromkeys(map(str, range(STRUCTS_MAX)), known))

    assert struct_type([Field("known", ColumnType.INT)]) is known
    with pytest.raises(ValueError, match="is not a valid ColumnType"):
        struct_type([Field("unknown_till_now", ColumnType.INT)])


def test_a_plan_from_elsewhere_cannot_call_a_text_a_struct() -> None:
    with pytest.raises(RemoteProtocolError, match="cast from text to struct"):
        compile_expression(Cast(Column("k"), PLACE), {"k": ColumnType.TEXT})
    for kind in ("text", "json[]", "struct[["):
        with pytest.raises(RemoteProtocolError, match="the type is that of a struct"):
            compile_expression(Call("struct_of", (Column("k"), Literal(kind, ColumnType.TEXT))), {"k": ColumnType.TEXT})
    with pytest.raises(RemoteProtocolError, match="the type is that of a struct"):
        compile_expression(Call("struct_of", (Column("k"), Column("k"))), {"k": ColumnType.TEXT})
