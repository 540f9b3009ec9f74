"""Footers of Parquet files as polars and DuckDB write them, and damaged ones."""

import io
import random
import struct
from itertools import accumulate
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

import sbon_agent.connectors.file_reader as file_reader
from sbon.formats.parquet_footer import RowGroup, row_groups
from tests.connector_world import columns, context, source

ROWS = 5_000
FRAME = pl.DataFrame(
    {
        "n": pl.Series([row * 7 % 1_000 if row % 5 else None for row in range(ROWS)], dtype=pl.Int64),
        "x": [row / 8 for row in range(ROWS)],
        "name": [f"name {row:04}" for row in range(ROWS)],
        "ok": [row % 2 == 0 for row in range(ROWS)],
        "many": [[row, row] for row in range(ROWS)],
    }
)


def written_by_polars(path: Path) -> None:
    FRAME.write_parquet(path, row_group_size=2_000)


def written_by_duckdb(path: Path) -> None:
    FRAME.write_parquet(path.with_name("first.parquet"))
    duckdb.sql(f"COPY (FROM '{path.with_name('first.parquet')}') TO '{path}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")


def found(data: bytes) -> list[RowGroup] | None:
    return row_groups(io.BytesIO(data))


@pytest.mark.parametrize("write", [written_by_polars, written_by_duckdb])
def test_row_groups_and_bounds_are_those_of_the_rows(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "a.parquet")
    groups = found((tmp_path / "a.parquet").read_bytes())
    assert groups is not None
    assert len(groups) > 1
    begins = accumulate((group.rows for group in groups), initial=0)
    for begin, group in zip(begins, groups, strict=False):
        part = FRAME.slice(begin, group.rows)
        for name, form in (("n", "<q"), ("x", "<d")):
            bounds = group.bounds[name]
            assert [struct.unpack(form, bound)[0] for bound in (bounds.least, bounds.greatest)] == [part[name].min(), part[name].max()]
        assert group.bounds["name"].least <= part["name"][0].encode()
        assert group.bounds["name"].greatest >= part["name"][-1].encode()
        assert "many" not in group.bounds
    assert sum(group.rows for group in groups) == ROWS


def test_a_file_without_statistics_has_no_bounds(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "a.parquet", statistics=False)
    groups = found((tmp_path / "a.parquet").read_bytes())
    assert groups is not None
    assert [len(group.bounds) for group in groups] == [0] * len(groups)


def test_a_footer_that_is_not_understood_says_nothing(tmp_path: Path) -> None:
    written_by_polars(tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    rng = random.Random(1)
    for _ in range(2_000):  # neither an exception nor rows that the file does not have
        damaged = bytearray(data[-8 - length :])
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(length)] = rng.randrange(256)
        groups = found(bytes(damaged))
        assert groups is None or all(group.rows >= 0 for group in groups)
    for data_of_another in (b"", b"PAR1", data[:-1], data[:-4] + b"PARE", b"\xff\xff\xff\x7fPAR1", b"\x00" * 8, data[-8:]):
        assert found(data_of_another) is None


def test_a_list_that_claims_more_than_there_is_costs_nothing() -> None:
    huge = b"\x49\xfc" + b"\xff" * 4 + b"\x0f"  # field 4: a list of 2**32 structures
    assert found(huge + len(huge).to_bytes(4, "little") + b"PAR1") is None
    deep = b"\x1c" * 5_000
    assert found(deep + len(deep).to_bytes(4, "little") + b"PAR1") is None


@pytest.mark.parametrize("most", [1_000, 2_500, 6_000])
def test_chunks_end_with_row_groups_where_one_ends(tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reader, "PARQUET_ROWS_MIN", 100)
    monkeypatch.setattr(file_reader, "PARQUET_ROWS_MAX", most)
    written_by_polars(tmp_path / "a.parquet")
    groups = found((tmp_path / "a.parquet").read_bytes())
    assert groups is not None
    ends = set(accumulate(group.rows for group in groups))
    reader = source("file", columns(n="int", x="float"), context(tmp_path), path="a.parquet").reader
    frames = []
    while (frame := reader.read()) is not None:
        frames.append(frame)
    assert pl.concat(frames).equals(FRAME.select("n", "x"), null_equal=True)
    assert max(frame.height for frame in frames) <= most
    if most > 2_000:
        assert ends.issuperset(list(accumulate(frame.height for frame in frames))[1:])
        assert len(frames) <= 1 + len(ends)
