"""Formatting close times by their shared parts gives the same texts as formatting each time alone."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.formats.formatting import LineFormat
from sbon.operators import time_texts
from sbon.operators.time_texts import ROWS_MIN, format_times
from sbon.operators.times import TIME_MAX_US, TIME_MIN_US, format_time
from sbon.schema import ColumnType, Field
from tests.examples import examples

ROWS = ROWS_MIN
SCHEMA = (
    Field("at", ColumnType.TIME),
    Field("took", ColumnType.INTERVAL),
    Field("value", ColumnType.FLOAT),
    Field("name", ColumnType.TEXT),
)
STARTS = st.sampled_from((0, -1, -1_500, 1_700_000_000_000_000, TIME_MIN_US, TIME_MIN_US - 3, TIME_MAX_US - 5_000, TIME_MAX_US, 2**62))
WIDTHS = st.sampled_from((0, 999, 1_000, 400_000, 511_500_000, 512_500_000, 10**12)) | st.integers(0, 10**9)


def times(start: int, width: int, nulls: float, seed: int) -> pl.Series:
    rng = np.random.default_rng(seed)
    instants = pl.Series("at", start + rng.integers(0, width, ROWS, endpoint=True))
    return instants.set(pl.Series(rng.random(ROWS) < nulls), None).cast(pl.Datetime("us"))


def one_by_one(column: pl.Series) -> pl.Series:
    return column.to_frame().select(format_time(pl.col(column.name))).to_series()


@examples(20)
@given(start=STARTS, width=WIDTHS, nulls=st.sampled_from((0.0, 0.1, 1.0)), seed=st.integers(0, 2**32))
@example(start=0, width=400_000, nulls=0.1, seed=1)
@example(start=-1_500, width=511_500_000, nulls=0.1, seed=1)
@example(start=TIME_MIN_US - 3, width=999, nulls=0.0, seed=1)
def test_texts_are_those_of_the_formatter(start: int, width: int, nulls: float, seed: int) -> None:
    column = times(start, width, nulls, seed)
    made = column.to_frame().select(format_times(column)).to_series()
    assert made.equals(one_by_one(column), null_equal=True, check_names=True)


@pytest.mark.parametrize("kind", ["csv", "ndjson"])
@examples(10)
@given(start=STARTS, width=WIDTHS, seed=st.integers(0, 2**32))
def test_lines_of_many_rows_are_those_of_few(kind: str, start: int, width: int, seed: int) -> None:
    column = times(start, width, 0.1, seed)
    numbers = pl.Series("value", [1.0, 1e16, -0.0, float("nan"), float("inf"), None, 0.1, 5e-324] * (ROWS // 8))
    names = pl.Series("name", ["", "a,b", 'say "no"', "two\nlines", None, "true", "1", "é"] * (ROWS // 8))
    frame = pl.DataFrame([column, (column.to_physical() % 1_000_000).cast(pl.Duration("us")).alias("took"), numbers, names])
    lines = LineFormat(kind, SCHEMA)
    together = lines.lines(frame)
    pieces = [frame.slice(first, ROWS // 4) for first in range(0, ROWS, ROWS // 4)]
    assert together == b"".join(lines.lines(piece) for piece in pieces)


@pytest.mark.parametrize("width_us", [400_000, 400_000_000])
def test_times_within_minutes_are_not_formatted_one_by_one(width_us: int, monkeypatch: pytest.MonkeyPatch) -> None:
    column = times(1_700_000_000_000_000, width_us, 0.1, 1)
    expected = one_by_one(column)
    monkeypatch.setattr(time_texts, "format_time", None)
    assert column.to_frame().select(format_times(column)).to_series().equals(expected, null_equal=True)


def test_texts_are_iso_8601() -> None:
    began = datetime(2024, 2, 28, 23, 59, 59, 999_990)
    column = pl.Series("at", [began + timedelta(microseconds=3 * row) for row in range(ROWS)])
    texts = column.to_frame().select(format_times(column)).to_series().to_list()
    assert texts == [f"{time.isoformat(timespec='microseconds')}Z" for time in column]
