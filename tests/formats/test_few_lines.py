"""A few NDJSON lines are read like the same lines among thousands."""

import json

from hypothesis import given
from hypothesis import strategies as st

from sbon.formats.json_rows import JsonRows
from sbon.formats.time_format import TimeFormat
from sbon.misfits import Misfits
from sbon.schema import ColumnType, Field

SCHEMA = (
    Field("ts", ColumnType.TIME),
    Field("n", ColumnType.INT),
    Field("x", ColumnType.FLOAT),
    Field("s", ColumnType.TEXT),
    Field("b", ColumnType.BOOL),
    Field("j", ColumnType.JSON),
    Field("a", ColumnType.INTS),
    Field("w", ColumnType.TEXTS),
)
DEEP = json.loads("[" * 101 + "]" * 101)
TIMES = st.one_of(
    st.datetimes().map(lambda time: time.isoformat()),
    st.datetimes().map(lambda time: time.isoformat(" ")),
    st.datetimes().map(lambda time: time.isoformat() + "Z"),
    st.datetimes().map(lambda time: time.isoformat(timespec="milliseconds") + "Z"),
    st.sampled_from(
        ["2026-01-31", "2026-02-30T00:00:00", "2026-01-01T23:59:60", "0000-01-01T00:00:00", " 2026-01-01T00:00:00", "", "soon"]
    ),
    st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00+02:00", "2026-01-01T00:00:00.1234567", "2026-01-01 00:00"]),
    st.integers(-(10**10), 10**10),
    st.none(),
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "ts": TIMES,
        "n": st.one_of(st.none(), st.integers(-(2**64), 2**64), st.integers(-9, 9), st.just("one")),
        "x": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-9, 9)),
        "s": st.one_of(st.none(), st.text(max_size=4)),
        "b": st.one_of(st.none(), st.booleans()),
        "j": st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda part: st.lists(part) | st.dictionaries(st.text(), part))
        | st.just(DEEP),
        "a": st.none() | st.lists(st.none() | st.integers(-(2**64), 2**64) | st.sampled_from([1.0, 0.5, "1"]), max_size=3) | st.integers(),
        "w": st.lists(st.none() | st.text(max_size=3) | st.integers(), max_size=3) | st.just(DEEP) | st.text(max_size=3),
    },
)


@given(st.lists(ROWS, max_size=4))
def test_few_lines_read_as_many_do(rows):
    lines = [json.dumps(row).encode() for row in rows]
    of_few, of_many = Misfits(), Misfits()

    few = JsonRows(SCHEMA, TimeFormat(), of_few).read(lines)
    expected = JsonRows(SCHEMA, TimeFormat(), of_many).read_many(lines)

    assert few.equals(expected)
    assert few.schema == expected.schema
    assert of_few.told() == of_many.told()


def test_lines_around_bad_ones_are_read():
    good, bad = [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'], [b"{", b'{"n": "x"}']
    lines = [good[0], bad[0], good[1], bad[1], good[2]]

    for way in (JsonRows.read, JsonRows.read_many):
        misfits = Misfits()
        rows = way(JsonRows(SCHEMA, TimeFormat(), misfits), lines)
        assert (rows["n"].to_list(), misfits.rows) == ([1, 2, 3], 2)
