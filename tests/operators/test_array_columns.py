"""Columns of arrays in sources, in sinks, and in expressions."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sbon.arrays import ELEMENTS_MAX
from sbon.errors import ConnectorError
from sbon.formats.formatting import LineFormat
from sbon.operators.frames import frame_of_values
from sbon.operators.values import FEW_ROWS, Values
from sbon.schema import ColumnType
from tests.connector_world import columns, context, drain, source
from tests.query_worlds import plan_of, run

NOT_WHOLE = f"is not an array of BIGINT, or has more than {ELEMENTS_MAX:,} elements"


def read(path: Path, kind: str) -> tuple[list[Any], dict[str, int]]:
    stream: Any = source("file", columns(k="text", a=kind), context(path.parent), path=path.name)
    rows, _ = drain(stream)
    return rows.rows(), {found.cause: found.rows for found in stream.misfits.told()}


@pytest.mark.parametrize("copies", [1, FEW_ROWS + 1, 2000])
def test_arrays_of_ndjson_are_kept_and_others_are_left_out_and_counted(tmp_path: Path, copies: int) -> None:
    lines = [
        '{"k": "a", "a": [1, 2.0, null]}',
        '{"k": "b", "a": []}',
        '{"k": "c", "a": null}',
        '{"k": "d"}',
        '{"k": "e", "a": 5}',
        '{"k": "f", "a": [1.5]}',
        '{"k": "g", "a": ["1"]}',
        '{"k": "h", "a": [9223372036854775808]}',
        '{"k": "i", "a": [-9223372036854775808]}',
    ]
    (tmp_path / "r.ndjson").write_text("".join(line + "\n" for line in lines * copies))
    rows, causes = read(tmp_path / "r.ndjson", "int[]")

    assert rows == [("a", "[1,2,null]"), ("b", "[]"), ("c", None), ("d", None), ("i", "[-9223372036854775808]")] * copies
    assert causes == {NOT_WHOLE: 4 * copies}


def test_an_array_has_a_longest_length(tmp_path: Path) -> None:
    longest = "[" + ",".join(["7"] * ELEMENTS_MAX) + "]"
    (tmp_path / "r.ndjson").write_text(f'{{"k": "a", "a": {longest}}}\n{{"k": "b", "a": [7,{longest[1:]}}}\n')
    rows, causes = read(tmp_path / "r.ndjson", "int[]")

    assert rows == [("a", longest)]
    assert causes == {NOT_WHOLE: 1}


def test_elements_are_kept_as_their_type_has_them(tmp_path: Path) -> None:
    line = '{"k": "a", "a": %s}\n'
    cases = {
        "text[]": ('["x", 1, {"y": [true]}, null]', '["x","1","{\\"y\\":[true]}",null]'),
        "float[]": ("[1, 2.5, null]", "[1.0,2.5,null]"),
        "bool[]": ("[true, null]", "[true,null]"),
        "time[]": (
            '["2026-01-31T10:00:00+01:00", "2026-01-31 10:00:00.5", null]',
            '["2026-01-31T09:00:00.000000Z","2026-01-31T10:00:00.500000Z",null]',
        ),
        "json[]": ('[1.50, {"b": 1, "a": [ ]}, null]', '[1.50,{"b":1,"a":[]},null]'),
    }
    for kind, (given, kept) in cases.items():
        (tmp_path / "r.ndjson").write_text(line % given + line % '["\\ud800"]' + line % "[[[")
        assert read(tmp_path / "r.ndjson", kind)[0] == [("a", kept)], kind


def test_texts_of_csv_and_lists_of_parquet_are_arrays(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text('k,a\na,"[1, 2]"\nb,x\nc,\nd,[]\n')
    pl.DataFrame({"k": ["a", "b", "c"], "a": [[1, None], None, []]}).write_parquet(tmp_path / "l.parquet")
    pl.DataFrame({"k": ["a", "b"], "a": [[1.5], [2.0]]}).write_parquet(tmp_path / "f.parquet")

    assert read(tmp_path / "r.csv", "int[]") == ([("a", "[1,2]"), ("c", None), ("d", "[]")], {NOT_WHOLE: 1})
    assert read(tmp_path / "l.parquet", "int[]") == ([("a", "[1,null]"), ("b", None), ("c", "[]")], {})
    assert read(tmp_path / "f.parquet", "float[]") == ([("a", "[1.5]"), ("b", "[2.0]")], {})


def test_ndjson_has_arrays_as_they_are_and_csv_as_text() -> None:
    schema = columns(n="int", a="text[]", b="int[]")
    values = Values(2, ((1, None), ('["x","y"]', None), ("[1,null]", "[]")))
    frame = frame_of_values(values, schema)
    ndjson = '{"n":1,"a":["x","y"],"b":[1,null]}\n{"n":null,"a":null,"b":[]}\n'

    for kind, expected in (("ndjson", ndjson), ("csv", '1,"[""x"",""y""]","[1,null]"\n,,[]\n')):
        assert LineFormat(kind, schema).lines(frame).decode() == expected
        assert LineFormat(kind, schema).lines_of_values(values).decode() == expected


def test_a_generator_makes_no_arrays() -> None:
    with pytest.raises(ConnectorError, match="column a is BIGINT\\[\\], which the generator does not make"):
        source("datagen", columns(k="text", a="int[]"), context(), rows_per_second="1", seed="1")


def test_types_of_elements_and_places_from_1() -> None:
    given = pl.DataFrame({"k": ["[10,20,null]", "[]", "[1.5]", "no array", None], "v": [0.0] * 5})
    plan = plan_of("""
        SELECT CAST(k AS BIGINT[])[1] AS first, (k::BIGINT[])[3] AS third, (k::BIGINT[])[0] AS none, (k::INT[])[-1] AS last,
            CARDINALITY(k::BIGINT[]) AS n, CARDINALITY(k::JSON) AS m, (k::ARRAY<DOUBLE>)[1] AS f, k::TEXT[] AS texts, (k::JSON[])[2] AS doc
        FROM plain
    """)
    types = [field.type for field in plan.operators[-1].schema]

    assert run(plan, {"plain": given}).rows() == [
        (10, None, None, None, 3, 3, 10.0, '["10","20",null]', "20"),
        (None, None, None, None, 0, 0, None, "[]", None),
        (None, None, None, None, None, 1, 1.5, '["1.5"]', None),
        (None,) * 9,
        (None,) * 9,
    ]
    assert types == [ColumnType.INT] * 6 + [ColumnType.FLOAT, ColumnType.TEXTS, ColumnType.JSON]
