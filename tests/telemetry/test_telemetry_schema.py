"""Tables, places and digests of telemetry."""

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.digest import Digest, bucket_of, middle_ms, quantile
from sbon.telemetry.layout import file_name, folder, hour_of, parse_folder
from sbon.telemetry.schema import COMMON, PERIODIC, TABLES


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_table_has_types_and_says_what_it_holds(table):
    schema = table.polars_schema()

    assert table.meaning
    assert list(schema)[: len(COMMON)] == ["time", "agent", "start", "sequence", "version"]
    assert list(schema)[len(COMMON) :] == list(table.row.__struct_fields__)
    assert schema["time"] == pl.Datetime("us", "UTC")
    assert not {"kind", "date", "hour"} & set(schema)  # Spark takes these from the folders


def test_types_follow_the_rows():
    schema = TABLES["placements"].polars_schema()

    assert schema["delay_ms"] == pl.Float64
    assert schema["dropped"] == pl.List(pl.String)
    operators = schema["operators"]
    assert isinstance(operators, pl.List)
    candidates = dict(operators.inner.to_schema())["candidates"]
    assert candidates.inner.to_schema()["free_slots"] == pl.Int64
    assert TABLES["migrations"].polars_schema()["paused_at"] == pl.Datetime("us", "UTC")
    assert {column.name: column.nullable for column in TABLES["migrations"].columns}["paused_at"]


def test_periodic_kinds_are_kinds():
    assert set(PERIODIC) <= set(TABLES)


@given(st.sampled_from(list(TABLES)), st.integers(0, 4_102_444_800_000_000))
def test_folders_are_read_back(kind, time_us):
    hour = hour_of(time_us)

    assert parse_folder(folder(kind, hour)) == (kind, hour)
    assert 0 <= time_us - hour.timestamp() * 1e6 < 3_600_000_000


@pytest.mark.parametrize("path", ["kind=Probes/date=2026-11-21/hour=04", "kind=probes/date=2026-13-21/hour=04", "probes/2026/04", ""])
def test_other_folders_are_not_ours(path):
    assert parse_folder(path) is None


@given(st.integers(-(2**63), 2**63))
def test_any_instant_has_an_hour(time_us):
    assert len(folder("load", hour_of(time_us))) == len("kind=load/date=2026-11-21/hour=04")


@given(st.from_regex(r"[A-Za-z0-9_.:-]{1,64}", fullmatch=True))
def test_file_names_are_visible_and_safe(agent):
    name = file_name(agent, "00c0ffee", 1)

    assert name[0].isalnum()
    assert not set(name) & set("/:\\ ")


@given(
    st.lists(st.tuples(st.floats(0.01, 1e6), st.integers(1, 50)), min_size=1, max_size=60),
    st.sampled_from([0.01, 0.3, 0.5, 0.9, 0.99, 1.0]),
)
def test_quantiles_are_within_one_percent(durations, share):
    first, second = Digest(), Digest()
    for index, (duration, rows) in enumerate(durations):
        (first if index % 2 else second).add(duration, rows)
    together: dict[int, int] = {}
    for number, rows in (*first.buckets, *second.buckets):
        together[number] = together.get(number, 0) + rows

    every = np.sort(np.repeat(*map(np.array, zip(*durations, strict=True))))
    near = [every[math.ceil(share * len(every) + slip) - 1] for slip in (-1e-9, 0)]  # a rank may fall to either side by rounding

    assert min(near) / 1.0101 <= quantile(together, share) <= max(near) * 1.0101
    assert first.rows + second.rows == sum(rows for _, rows in durations)


@given(st.floats(allow_nan=False, allow_infinity=True))
def test_any_duration_has_a_bucket(duration_ms):
    digest = Digest()
    digest.add(duration_ms, 3)

    assert bucket_of(duration_ms) in {number for number, _ in digest.buckets}
    assert 0 <= digest.quantile(0.5) <= max(0.0, duration_ms)
    assert middle_ms(bucket_of(0.0)) == pytest.approx(0.001, rel=0.02)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_the_page_on_telemetry_names_every_kind_and_column(table):
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if line.startswith(f"| `{table.kind}` |")]

    columns = [name.strip(" `") for name in line.split("|")[3].split(",")]
    assert columns == [column.name for column in table.columns[len(COMMON) :]]
    assert all(f"`{column.name}`" in page for column in COMMON)
