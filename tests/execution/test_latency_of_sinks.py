"""Ages of rows at sinks, and lateness of the event loop: recent and total digests."""

import asyncio
from datetime import datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.digest import Digest, RecentDigest, quantile
from sbon.errors import ConnectorError
from sbon.operators.values import FEW_ROWS, Values
from sbon_agent.loop_lag import LoopLag
from tests.connector_world import columns, context, sink

TAKEN = datetime(2026, 11, 22, 12)
ANSWERS = columns(window_end="time", n="int")


def measuring_sink():
    where = context()
    where.host.wall = lambda: (TAKEN - datetime(1970, 1, 1)).total_seconds()
    where.host.now = lambda: 100.0
    return sink("discard", ANSWERS, where, latency_column="window_end")


def frame(*ages_ms: float | None) -> pl.DataFrame:
    times = [None if age is None else TAKEN - timedelta(milliseconds=age) for age in ages_ms]
    return pl.DataFrame({"window_end": pl.Series(times, dtype=pl.Datetime("us")), "n": [1] * len(ages_ms)})


def test_a_sink_says_how_old_its_rows_were():
    out = measuring_sink()
    out.write(frame(*[10.0] * 98, 500.0, None))
    out.write(frame(2000.0))
    told = out.latency.told(100.0)
    assert told["rows"] == sum(rows for _, rows in told["buckets"]) == 100  # a row without a time has no age
    assert told["p50_ms"] == pytest.approx(10, rel=0.02)
    assert told["p99_ms"] == pytest.approx(500, rel=0.02)
    assert told["max_ms"] == 2000
    assert out.rows == 101


@given(st.lists(st.none() | st.floats(-10, 1e7) | st.floats(0, 2), max_size=100))
def test_a_row_is_as_old_as_a_value_as_in_a_frame(ages_ms):
    whole, frames, values = measuring_sink(), measuring_sink(), measuring_sink()
    whole.write(frame(*ages_ms))
    for begin in range(0, len(ages_ms), FEW_ROWS):
        part = frame(*ages_ms[begin : begin + FEW_ROWS])
        frames.write(part)
        times_us = part["window_end"].cast(pl.Int64).to_list()
        values.write_values(Values(len(times_us), (times_us, [1] * len(times_us))))
    assert frames.latency.total.buckets == values.latency.total.buckets == whole.latency.total.buckets
    assert frames.latency.told(100.0) == values.latency.told(100.0) == whole.latency.told(100.0)
    assert frames.rows == values.rows == whole.rows == len(ages_ms)


def test_rows_from_a_clock_ahead_of_ours_are_new():
    out = measuring_sink()
    out.write(frame(-5000.0))
    assert out.latency.told(100.0)["max_ms"] <= 0.001


def test_only_a_time_has_an_age():
    with pytest.raises(ConnectorError, match="option latency_column = 'n', expected a column that holds a time: window_end"):
        sink("discard", ANSWERS, latency_column="n")
    assert sink("discard", ANSWERS).latency is None


@given(st.lists(st.tuples(st.floats(0.01, 1e6), st.integers(1, 5)), min_size=1, max_size=50))
def test_what_is_counted_at_once_is_counted_alike(durations):
    one, recent = Digest(), RecentDigest()
    for duration_ms, rows in durations:
        one.add(duration_ms, rows)
        recent.add(0.0, duration_ms, rows)
    assert recent.total.buckets == one.buckets
    assert recent.told(0.0)["p99_ms"] == round(one.quantile(0.99), 4)


def test_recent_figures_forget_and_two_looks_can_be_subtracted():
    recent = RecentDigest()
    recent.add(0.0, 1000.0)
    before = dict(recent.told(1.0)["buckets"])
    recent.add(31.0, 2.0)
    assert recent.told(31.0)["rows"] == 2  # of the present window and the one before
    recent.add(70.0, 2.0)
    assert recent.told(70.0)["max_ms"] == 2.0
    between = {number: rows - before.get(number, 0) for number, rows in recent.told(70.0)["buckets"]}
    assert quantile(between, 1.0) == pytest.approx(2.0, rel=0.02)
    assert recent.told(500.0)["rows"] == 0


def test_a_busy_event_loop_is_seen_to_be_late():
    async def watch() -> dict[str, float]:
        loop = asyncio.get_running_loop()
        real, ahead = loop.time, 0.0
        lag = LoopLag(loop, clock=lambda: real() + ahead)
        lag.start()
        ahead = 0.3  # as if something had blocked the loop
        while lag.told()["rows"] == 0:
            await asyncio.sleep(0)
        lag.stop()
        return lag.told()

    told = asyncio.run(watch())
    assert told["rows"] == 1
    assert told["max_ms"] >= 300
