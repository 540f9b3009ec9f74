"""Reasons, in words, why rows of files were left out; forms of times; columns of Parquet files."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sbon.errors import ConnectorError
from sbon.formats.time_format import TimeFormat
from sbon.options import Options
from tests.connector_world import columns, context, drain, source

PEOPLE = columns(name="text", age="int", size="float", ok="bool", ts="time", rest="interval")


def read(path: Path, schema: Any = PEOPLE, **options: Any) -> tuple[list[Any], list[tuple[str, int]], Any]:
    """Returns the rows, the sentences about misfits with their counts, and the source."""
    stream: Any = source("file", schema, context(path.parent), path=path.name, **options)
    rows, _ = drain(stream)
    assert stream.dropped_rows == sum(kind.rows for kind in stream.misfits.told())
    return rows.rows(), [(kind.text, kind.rows) for kind in stream.misfits.told()], stream


def test_json_lines_that_do_not_fit_are_told_in_words(tmp_path: Path):
    lines = [
        '{"name": "a", "age": 1}',
        '{"age": "abc"}',
        '{"age": 5.5}',
        '{"age": 99999999999999999999}',
        '{"age": [1]}',
        '{"size": "wide"}',
        '{"size": 1e999}',
        '{"ok": "perhaps"}',
        '{"ok": 2}',
        '{"ts": "yesterday"}',
        '{"rest": "a while"}',
        '{"age": "7", "ts": "soon"}',
        "{",
        "[]",
        '{"name": "b", "age": 2}',
    ]
    (tmp_path / "r.ndjson").write_text("\n".join(lines))
    rows, told, stream = read(tmp_path / "r.ndjson")

    assert [row[:2] for row in rows] == [("a", 1), ("b", 2)]
    assert dict(told) == {
        'column age: "abc" is not an integer (BIGINT)': 3,
        "column age: 99999999999999999999 is beyond 64 bits (BIGINT)": 1,
        'column size: "wide" is not a number (FLOAT)': 2,
        'column ok: "perhaps" is not true or false (BOOLEAN)': 2,
        'column ts: "yesterday" is not a time in the format iso': 2,
        "column rest: \"a while\" is not an interval such as '90 s'": 1,
        "the line is not JSON: Input data was truncated": 1,
        "the line is not a JSON object": 1,
    }
    assert stream.misfits.told()[0].line == '{"age": "abc"}'


def test_values_of_another_type_are_converted_where_that_has_a_meaning(tmp_path: Path):
    lines = [
        '{"name": 1.50, "age": "7", "size": "20.5", "ok": "true", "ts": "1577836800", "rest": "90"}',
        '{"name": true, "age": 5.0, "size": 3, "ok": 0, "ts": 1577836800.5, "rest": "1.5 minutes"}',
        '{"name": {"a": [1, null]}, "age": 1e3, "size": "-1e3", "ok": "no"}',
        '{"name": [1.50, "x"], "age": "-8.00", "ok": null, "age2": "abc"}',
        '{"name": "", "age": "", "size": " ", "ok": ""}',
        '{"name": 12345678901234567890123, "age": "-9223372036854775808"}',
    ]
    (tmp_path / "\u00fc.ndjson").write_text("\ufeff" + "\n".join(lines))
    rows, told, _ = read(tmp_path / "\u00fc.ndjson")

    second = timedelta(seconds=1)
    assert told == []
    assert rows == [
        ("1.50", 7, 20.5, True, datetime(2020, 1, 1), 90 * second),
        ("true", 5, 3.0, False, datetime(2020, 1, 1, 0, 0, 0, 500_000), 90 * second),
        ('{"a": [1, null]}', 1000, -1000.0, False, None, None),
        ('[1.50, "x"]', -8, None, None, None, None),
        ("", None, None, None, None, None),
        ("12345678901234567890123", -(2**63), None, None, None, None),
    ]


def test_csv_records_that_do_not_fit_are_told_in_words(tmp_path: Path):
    data = (
        "name,age,size,ok,ts,rest\n"
        'a,1,1.5,true,2020-01-01,60\n"b, c",abc,1,true,,\nd,5.5,1,true,,\ne,5.0,x,true,,\nf,5.0,1,true,,\n\n'
        "g,1,2\nh,1,2,true,,,,\ni,99999999999999999999,,,,\n"
    )
    (tmp_path / "r.csv").write_bytes(data.encode() + b"\xff,1,,,,\n")
    rows, told, stream = read(tmp_path / "r.csv")

    assert [row[:2] for row in rows] == [("a", 1), ("f", 5)]
    assert dict(told) == {
        'column age: "abc" is not an integer (BIGINT)': 2,
        'column size: "x" is not a number (FLOAT)': 1,
        "the line has 3 fields, expected 6": 2,
        'column age: "99999999999999999999" is beyond 64 bits (BIGINT)': 1,
        "the line is not UTF-8": 1,
    }
    lines = {kind.cause: kind.line for kind in stream.misfits.told()}
    assert lines["is not an integer (BIGINT)"] == '"b, c",abc,1,true,,'
    assert lines["is not UTF-8"] == r"\xff,1,,,,\n"


def test_a_record_whose_last_field_is_missing_is_told_from_one_where_it_is_empty(tmp_path: Path):
    schema = columns(a="text", b="text")
    for middle, told in (("b,\n", []), ("b\n", [("the line has 1 field, expected 2", 1)])):
        (tmp_path / "r.csv").write_text(f'a,b\na,"1,2"\n{middle}c,3\n')
        rows, found, _ = read(tmp_path / "r.csv", schema)
        assert found == told
        assert [row for row in rows if row[0] != "b"] == [("a", "1,2"), ("c", "3")]


def test_columns_of_a_parquet_file_are_converted_or_told(tmp_path: Path):
    frame = pl.DataFrame(
        {
            "name": [[1, 2], None, [3]],
            "age": [5.0, 5.5, None],
            "size": ["1.5", "2", None],
            "ok": [1, 0, None],
            "ts": [1_577_836_800, 1, None],
            "rest": ["90 s", None, None],
        }
    )
    frame.write_parquet(tmp_path / "r.parquet")
    rows, told, stream = read(tmp_path / "r.parquet")

    assert rows == [("[1,2]", 5, 1.5, True, datetime(2020, 1, 1), timedelta(seconds=90)), ("[3]", None, None, None, None, None)]
    assert told == [("column age: 5.5 is not an integer (BIGINT)", 1)]
    assert json.loads(stream.misfits.told()[0].line) == {"name": None, "age": 5.5, "size": "2", "ok": 0, "ts": 1, "rest": None}


def test_large_numbers_dates_zones_and_octets_of_a_parquet_file(tmp_path: Path):
    frame = pl.DataFrame(
        {
            "name": [b"x", b"\xff", b"y", b"z"],
            "age": pl.Series([1, 2, 2**63, 4], dtype=pl.UInt64),
            "ts": [date(2020, 1, 1)] * 4,
            "at": pl.Series([datetime(2020, 1, 1, 12, tzinfo=UTC)] * 4).dt.convert_time_zone("Europe/Berlin"),
        }
    )
    frame.write_parquet(tmp_path / "r.parquet")
    rows, told, _ = read(tmp_path / "r.parquet", columns(name="text", age="int", ts="time", at="time"))

    assert rows == [(name, age, datetime(2020, 1, 1), datetime(2020, 1, 1, 12)) for name, age in (("x", 1), ("z", 4))]
    assert told == [
        ("column name: \"b'\\\\xff'\" is not UTF-8 (TEXT)", 1),
        ("column age: 9223372036854775808 is beyond 64 bits (BIGINT)", 1),
    ]


def test_a_parquet_column_without_a_meaning_is_an_error(tmp_path: Path):
    pl.DataFrame({"age": [[1]]}).write_parquet(tmp_path / "r.parquet")
    with pytest.raises(ConnectorError, match=r"column age of the file is of type List\(Int64\), expected one that converts to BIGINT"):
        read(tmp_path / "r.parquet", columns(age="int"))


# ------------------------------------------------------------------------------------------------------------ times


def time_format(**options: str) -> TimeFormat:
    return TimeFormat.read(Options("source s", "file", options.items()))


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:30:00Z",
        "2026-01-31 12:30:00",
        "2026-01-31T12:30",
        "2026-01-31T12:30:00.000",
        "2026-01-31 14:30:00.0+02:00",
        "2026-01-31T14:30:00+0200",
        "2026-01-31t12:30:00z",
    ],
)
@pytest.mark.parametrize("beside", ["2026-01-31T12:30:00Z", "31 January"])
def test_iso_times_are_read_with_and_without_zone_and_fraction(tmp_path: Path, text: str, beside: str):
    (tmp_path / "r.ndjson").write_text(f'{{"ts": "{text}"}}\n{{"ts": "{beside}"}}\n{{"ts": "{text}"}}')
    for options in ({}, {"time_format": "iso"}, {"time_format": "ISO"}):
        rows, told, _ = read(tmp_path / "r.ndjson", columns(ts="time"), **options)
        assert {row[0] for row in rows} == {datetime(2026, 1, 31, 12, 30)}
        assert len(rows) + len(told) == 3


def test_a_format_of_strftime_may_have_a_zone(tmp_path: Path):
    (tmp_path / "r.ndjson").write_text('{"ts": "31/01/2026 14.30 +0200"}\n{"ts": "2026-01-31"}')
    rows, told, _ = read(tmp_path / "r.ndjson", columns(ts="time"), time_format="%d/%m/%Y %H.%M %z")
    assert rows == [(datetime(2026, 1, 31, 12, 30),)]
    assert told == [("column ts: \"2026-01-31\" is not a time in the format '%d/%m/%Y %H.%M %z'", 1)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("isoo", "did you mean iso?"),
        ("ISO8601", "did you mean iso?"),
        ("is0", "did you mean iso?"),
        ("rfc3339", "has no part that begins with %"),
        ("", "has no part that begins with %"),
        ("ms", "write time_unit = 's', 'ms' or 'us'"),
        ("epoch", "write time_unit"),
        ("%H:%M", "lacks the year"),
        ("%d/%m", "lacks the year"),
        ("%Y-%m-%d %I:%M", "does not read what it writes"),
        ("%Y-%m-%d %H:%M:%S.%f", "write %.f for a fraction"),
        ("%Q", "has a part that is unknown"),
        ("%Y-%", "has a part that is unknown"),
    ],
)
def test_a_time_format_that_reads_no_times_is_refused_when_the_source_is_made(text: str, problem: str):
    with pytest.raises(ConnectorError, match="time_format") as refused:
        source("file", PEOPLE, path="r.csv", time_format=text)
    assert problem in str(refused.value)
    assert "expected iso (the default), or a format of strftime such as '%d/%m/%Y %H:%M:%S%.f'; " in str(refused.value)


@pytest.mark.parametrize(
    "text", ["%F %T", "%d.%m.%Y %H:%M:%S", "%Y%m%dT%H%M%S", "%s", "%+", "%Y-%m-%dT%H:%M:%S%.f%:z", "%d %b %Y %I:%M:%S %p", "%c"]
)
def test_formats_that_read_times_are_taken(text: str):
    assert time_format(time_format=text) == TimeFormat(text)
    assert time_format(time_format=text, time_unit="ms") == TimeFormat(text, 1_000.0)
