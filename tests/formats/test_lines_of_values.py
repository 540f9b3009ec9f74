"""Writing a few rows as plain values gives the same bytes as writing their frame."""

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.formats.formatting import LineFormat
from sbon.operators.frames import frame_of_values
from sbon.operators.values import FEW_ROWS, Values
from sbon.schema import PLAIN_TYPES, ColumnType, Field, Schema

WHOLE = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-(10**7), 10**7)
CHARACTERS = st.characters(exclude_categories=("Cs",)) | st.sampled_from("\",;\\/\r\n\t\0\x08\x0c\x1f\x7f\x85\u2028\ufeff '")
VALUES = {
    ColumnType.BOOL: st.booleans(),
    ColumnType.INT: WHOLE | SMALL,
    ColumnType.FLOAT: st.floats() | SMALL.map(float) | st.floats(-1e-3, 1e-3) | st.floats(-1, 1).map(lambda x: round(x, 4)),
    ColumnType.TEXT: st.text(CHARACTERS, max_size=12) | st.sampled_from(["null", "NaN", "1", "true"]),
    ColumnType.TIME: WHOLE | st.integers(-62_135_596_800_000_001, 253_402_300_800_000_000) | SMALL,
    ColumnType.INTERVAL: WHOLE | SMALL,
    **{kind: st.sampled_from(["null", '{"a":[1,"é,"]}', '"x\\n"', "[]"]) for kind in ColumnType if kind not in PLAIN_TYPES},
}
NAMES = st.lists(st.text(CHARACTERS, min_size=1, max_size=8).filter(lambda name: name[0] not in "*^"), min_size=1, max_size=5, unique=True)
"""Not those that polars takes for patterns."""


@st.composite
def rows(draw: st.DrawFn) -> tuple[Schema, Values]:
    schema = tuple(Field(name, draw(st.sampled_from(ColumnType))) for name in draw(NAMES))
    count = draw(st.integers(0, FEW_ROWS) | st.just(1))
    columns = [draw(st.lists(st.none() | VALUES[field.type], min_size=count, max_size=count)) for field in schema]
    return schema, Values(count, tuple(columns))


def one(kind: ColumnType, *values: object) -> tuple[Schema, Values]:
    return (Field("v", kind),), Values(len(values), (values,))


@pytest.mark.parametrize("kind", ["ndjson", "csv"])
@given(given_rows=rows())
@example(one(ColumnType.FLOAT, 1e16, -0.0, 9999999999999998.0, 1e-5, 1e-7, 5e-324))
@example(one(ColumnType.FLOAT, float("nan"), None))
@example(one(ColumnType.FLOAT, float("-inf")))
@example(one(ColumnType.TIME, -62_135_596_800_000_000, -62_135_596_800_000_001, 253_402_300_799_999_999, 253_402_300_800_000_000))
@example(one(ColumnType.INTERVAL, 1, 10, 123, -1, 2**53 + 1, 2**63 - 1, -(2**63)))
@example(one(ColumnType.TEXT, "", None, '"', "\r", "é\0"))
def test_plain_values_are_written_as_their_frame_is(kind: str, given_rows: tuple[Schema, Values]) -> None:
    schema, values = given_rows
    lines = LineFormat(kind, schema)
    assert lines.lines_of_values(values) == lines.lines(frame_of_values(values, schema))


@pytest.mark.parametrize("kind", ["ndjson", "csv"])
def test_usual_values_never_become_a_frame(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = tuple(Field(kind.value, kind) for kind in PLAIN_TYPES)
    lines = LineFormat(kind, schema)
    monkeypatch.setattr(lines, "lines", None)
    assert lines.lines_of_values(Values(1, ((True,), (7,), (0.1,), ("x",), (0,), (1,)))).endswith(b"\n")


@given(st.lists(SMALL | WHOLE, min_size=1, max_size=20))
@example([-255_501_086_390_250_001])
def test_intervals_are_the_seconds_that_one_would_write(spans_us: list[int]) -> None:
    frame = pl.DataFrame({"v": pl.Series(spans_us, dtype=pl.Duration("us"))})
    written = LineFormat("csv", (Field("v", ColumnType.INTERVAL),)).lines(frame).decode().split()
    assert [float(text) for text in written] == [us / 1_000_000 for us in spans_us]
