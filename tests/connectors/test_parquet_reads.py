"""A source that skips unneeded parts of a Parquet file gives a query the same rows and watermarks as one that reads all."""

from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.operators.times import TIME_MAX_US
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.params.source import Reads
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_MIN
from tests.connector_world import columns, context, drain, source
from tests.examples import examples

ROWS, GROUP_ROWS = 160, 20
SCHEMA = columns(i="int", ts="time", n="int", x="float", name="text", unused="float")
NAN, INF = float("nan"), float("inf")
POOLS: dict[str, list[Any]] = {
    "n": [-(2**63), -5, -1, 0, 1, 2, 7, 2**53, 2**53 + 1, 2**63 - 1],
    "x": [-INF, -1.5, -0.0, 0.0, 0.1, 0.5, 1.0, 2.0, NAN, INF],
    "name": ["", "a", "ab", "b", "B", "é", "\U0001f389", "zz", "a" * 80, "a" * 79 + "b"],
    "ts": [0, 1, 1_000, 1_700_000_000_000_000, 1_700_000_000_000_001, -1, TIME_MAX_US],
}
TYPES = {field.name: field.type for field in SCHEMA}
SIGNS = {"eq": "=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parquet")


def column(name: str, seed: int, nulls: float) -> list[Any]:
    """Returns values in runs, so that some row groups have few distinct values."""
    rng = np.random.default_rng([seed, sum(name.encode())])
    pool = POOLS[name]
    picks = np.sort(rng.integers(0, len(pool), ROWS)) if rng.random() < 0.6 else np.repeat(rng.integers(0, len(pool), ROWS // 10), 10)
    without = rng.random(ROWS) < nulls
    return [None if empty else pool[pick] for pick, empty in zip(picks, without, strict=True)]


def written(path: Path, seed: int, nulls: float, statistics: bool) -> None:
    names = ("ts", "n", "x", "name")
    types = {"ts": pl.Int64, "n": pl.Int64, "x": pl.Float64, "name": pl.String}
    frame = pl.DataFrame([pl.Series(name, column(name, seed, nulls), dtype=types[name]) for name in names])
    frame = frame.with_columns(pl.col("ts").cast(pl.Datetime("us")), pl.int_range(ROWS).alias("i"), pl.lit(0.5).alias("unused"))
    frame.write_parquet(path, row_group_size=GROUP_ROWS, statistics=statistics)


def sql_of(name: str, sign: str, value: Any) -> str:
    if name == "ts":
        return f"epoch_us(ts) {SIGNS[sign]} {value}"
    text = f"'{value}'" if isinstance(value, str) else f"'{value}'::DOUBLE" if isinstance(value, float) else f"({value})::BIGINT"
    return f"{name} {SIGNS[sign]} {text}"


@st.composite
def conditions(draw: st.DrawFn) -> list[tuple[str, str, Any, bool]]:
    names = draw(st.lists(st.sampled_from(sorted(POOLS)), min_size=1, max_size=2))
    return [(name, draw(st.sampled_from(sorted(SIGNS))), draw(st.sampled_from(POOLS[name])), draw(st.booleans())) for name in names]


def expression(name: str, sign: str, value: Any, turned: bool) -> Expression:
    literal = Literal(value, TYPES[name])
    if turned:
        return Call({"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq"}[sign], (literal, Column(name)))
    return Call(sign, (Column(name), literal))


def seen(path: Path, reads: Reads | None) -> dict[int, int]:
    """Returns row numbers in order, each with the watermark before the row arrived."""
    options: dict[str, Any] = {"path": path.name, "batch_rows_max": 1, "time": "ts", "delay_us": 5, "reads": reads}
    _, answers = drain(source("file", SCHEMA, context(path.parent), **options))
    found: dict[int, int] = {}
    watermark = WATERMARK_MIN
    for polled in answers:
        if polled.frame is not None:
            found[polled.frame["i"].item()] = watermark
        watermark = polled.watermark_us
    assert answers[-1].finished
    return found


@examples(12)
@given(
    seed=st.integers(0, 1000), nulls=st.sampled_from((0.0, 0.2)), statistics=st.booleans() | st.just(True), given_conditions=conditions()
)
@example(seed=1, nulls=0.0, statistics=True, given_conditions=[("x", "gt", 0.5, False)])
@example(seed=1, nulls=0.0, statistics=True, given_conditions=[("x", "eq", 0.0, False)])
@example(seed=1, nulls=0.0, statistics=True, given_conditions=[("x", "lt", 0.0, True)])
@example(seed=1, nulls=0.2, statistics=True, given_conditions=[("name", "ge", "a" * 79 + "b", False)])
def test_answers_and_their_watermarks_are_those_of_the_whole_file(
    folder: Path, seed: int, nulls: float, statistics: bool, given_conditions: list[tuple[str, str, Any, bool]]
) -> None:
    path = folder / "a.parquet"
    written(path, seed, nulls, statistics)
    wanted = " AND ".join(sql_of(name, sign, value) for name, sign, value, _ in given_conditions)
    rows = [row for (row,) in duckdb.sql(f"SELECT i FROM '{path}' WHERE {wanted} ORDER BY i").fetchall()]
    whole = seen(path, None)
    parts = seen(path, Reads(("i",), tuple(expression(*condition) for condition in given_conditions)))

    assert list(whole) == list(range(ROWS))
    assert list(parts) == sorted(parts)
    assert {row: parts.get(row) for row in rows} == {row: whole[row] for row in rows}


def rows_read(path: Path, **options: Any) -> pl.DataFrame:
    return drain(source("file", SCHEMA, context(path.parent), path=path.name, **options))[0]


def sorted_file(path: Path, **changes: pl.Expr) -> None:
    frame = pl.DataFrame({"i": range(ROWS), "n": range(ROWS)}).with_columns(
        (pl.lit(datetime(2024, 1, 1)) + pl.duration(seconds=pl.col("i"))).alias("ts"),
        pl.col("i").cast(pl.Float64).alias("x"),
        pl.format("{}", pl.col("i") + 1000).alias("name"),
        pl.lit(0.5).alias("unused"),
    )
    frame.with_columns(**changes).write_parquet(path, row_group_size=GROUP_ROWS)


@pytest.mark.parametrize(
    ("condition", "begin", "end"),
    [
        (Call("ge", (Column("n"), Literal(100, ColumnType.INT))), 100, 160),
        (Call("gt", (Column("n"), Literal(99, ColumnType.INT))), 100, 160),
        (Call("ge", (Column("n"), Literal(99, ColumnType.INT))), 80, 160),
        (Call("le", (Column("n"), Literal(100, ColumnType.INT))), 0, 120),
        (Call("eq", (Column("n"), Literal(100, ColumnType.INT))), 100, 120),
        (Call("eq", (Column("n"), Literal(119, ColumnType.INT))), 100, 120),
        (Call("lt", (Column("x"), Literal(40.0, ColumnType.FLOAT))), 0, 40),
        (Call("eq", (Column("name"), Literal("1050", ColumnType.TEXT))), 40, 60),
        (Call("gt", (Literal(1_704_067_220_000_000, ColumnType.TIME), Column("ts"))), 0, 20),
        (Call("gt", (Column("x"), Literal(100.0, ColumnType.FLOAT))), 0, 160),
        (Call("eq", (Column("n"), Literal(40.0, ColumnType.FLOAT))), 0, 160),
    ],
    ids=[
        "from",
        "above",
        "from the greatest",
        "up to the least",
        "the least",
        "the greatest",
        "numbers",
        "texts",
        "times",
        "NaN might be greater",
        "another type",
    ],
)
def test_row_groups_without_an_answer_are_not_read(tmp_path: Path, condition: Expression, begin: int, end: int) -> None:
    sorted_file(tmp_path / "a.parquet")
    found = rows_read(tmp_path / "a.parquet", time="ts", reads=Reads(("i",), (condition,)))
    assert found["i"].to_list() == list(range(begin, end))


def test_columns_that_the_query_does_not_use_are_not_read(tmp_path: Path) -> None:
    sorted_file(tmp_path / "a.parquet", x=pl.format("{}", pl.col("i")))  # a text may not be a number
    found = rows_read(tmp_path / "a.parquet", time="ts", reads=Reads(("i",)), not_null=("n",))
    assert {name: found[name].null_count() for name in found.columns} == {"i": 0, "ts": 0, "n": 0, "x": 0, "name": ROWS, "unused": ROWS}
    assert found.schema == rows_read(tmp_path / "a.parquet", time="ts").schema
    assert rows_read(tmp_path / "a.parquet", reads=Reads(())).height == ROWS


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"unused": pl.when(pl.col("i") == 3).then(pl.lit("none")).otherwise(pl.lit("0.5"))}, {}),
        ({"unused": pl.when(pl.col("i") != 3).then(0.5)}, {"not_null": ("unused",)}),
    ],
    ids=["a value that does not fit", "a NULL where none may be"],
)
def test_rows_that_are_left_out_are_counted_as_ever(tmp_path: Path, changes: dict[str, pl.Expr], options: dict[str, Any]) -> None:
    sorted_file(tmp_path / "a.parquet", **changes)
    condition = Call("ge", (Column("n"), Literal(100, ColumnType.INT)))
    for reads in (None, Reads(("i",), (condition,))):
        reading = source("file", SCHEMA, context(tmp_path), path="a.parquet", time="ts", reads=reads, **options)
        found, _ = drain(reading)
        assert reading.dropped_rows == 1
        assert found.filter(pl.col("i") >= 100).height == 60


def test_a_file_whose_footer_is_too_large_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbon.formats.parquet_footer.FOOTER_BYTES_MAX", 100)
    sorted_file(tmp_path / "a.parquet")
    condition = Call("ge", (Column("n"), Literal(100, ColumnType.INT)))
    assert rows_read(tmp_path / "a.parquet", reads=Reads(("i",), (condition,))).height == ROWS
