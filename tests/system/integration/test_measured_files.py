"""Measured streams (if they are beside the project) through connector and operators, compared with polars over the whole file."""

import datetime
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sbon.operators.registry import build
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.windowed import WindowParams
from sbon.watermarks import WATERMARK_END
from tests.connector_world import columns, context, drain, source

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
MINUTE_US = 60_000_000

pytestmark = pytest.mark.skipif(not (DATA / "stream").is_dir(), reason=f"needs the measured data in {DATA}")


def test_earthquakes_keep_their_commas_and_fractions_of_seconds():
    schema = columns(time="time", mag="float", place="text", depth_km="float")
    stream = source("file", schema, context(DATA), path="stream/earthquakes.csv.gz", time="time")
    rows, answers = drain(stream)
    assert (rows.height, stream.dropped_rows) == (1194, 0)
    assert rows.row(0) == (datetime.datetime(2018, 1, 31, 1, 49, 59, 650000), 0.31, "37km NNE of Amboy, Washington", 3.28)
    assert answers[-1].watermark_us == WATERMARK_END


@pytest.mark.parametrize(
    ("name", "time", "rows"),
    [
        ("stream/flights.csv.gz", "time", 14_000),
        ("stream/web_log.csv.gz", "time", 6_999),
        ("stream/llm_requests.csv.gz", "time", 8_819),
        ("stream/mentions.csv.gz", "time", None),
        ("load/aws_server_metrics.csv.gz", "time", None),
        ("stream/wireless_sensors.csv.gz", "second", None),
    ],
)
def test_every_stream_is_read_to_its_last_row(name: str, time: str, rows: int | None):
    whole = pl.read_csv(DATA / name)
    stream = source("file", columns(**{time: "time"}), context(DATA), path=name, time=time)
    read, _ = drain(stream)
    assert read.height == (rows or whole.height)
    assert stream.dropped_rows == 0
    assert read[time].null_count() == 0


def test_windows_over_load_equal_plain_polars():
    schema = columns(series="text", time="time", value="float")
    stream = source("file", schema, context(DATA), path="load/aws_server_metrics.csv.gz", batch_rows_max=1000)
    rows, answers = drain(stream)
    aggregates = (Aggregate("n", "count", None), Aggregate("mean", "avg", Column("value")), Aggregate("top", "max", Column("value")))
    window = build(WindowParams("time", 60 * MINUTE_US, 15 * MINUTE_US, (("series", Column("series")),), aggregates))
    for answer in answers:
        if answer.frame is not None:
            window.process(0, answer.frame)
    got = pl.concat(window.advance(WATERMARK_END))
    expected = (
        rows.sort("time")
        .group_by_dynamic("time", every="15m", period="1h", group_by="series")
        .agg(pl.len().cast(pl.Int64).alias("n"), pl.col("value").mean().alias("mean"), pl.col("value").max().alias("top"))
        .rename({"time": "window_start"})
        .sort("window_start", "series")
    )
    # polars begins with the last window that starts before the first row; sbon, correctly, also has the three windows before it.
    keys = ["window_start", "series"]
    assert got.height == expected.height + 3 * rows["series"].n_unique()
    assert_frame_equal(got.select(expected.columns).join(expected, on=keys, how="semi").sort(keys), expected.sort(keys))
