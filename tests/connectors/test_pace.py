"""Replays at the pace of event times, and the order of parts that are read at the same time."""

from datetime import datetime

import polars as pl
import pytest

from sbon.connectors.pace import InOrder, Pace, newest_us, times_us
from sbon.types import IntArray

BEGIN = datetime(2026, 1, 1)


def instants(*seconds: float | None) -> IntArray:
    begin_us = round((BEGIN - datetime(1970, 1, 1)).total_seconds() * 1e6)
    column = pl.Series([None if one is None else begin_us + round(one * 1e6) for one in seconds], dtype=pl.Int64).cast(pl.Datetime("us"))
    return times_us(column)


def test_rows_are_due_as_long_after_the_first_as_their_event_times_are():
    pace = Pace(1.0)
    assert pace.due(instants(0, 1, 3), 100.0) == (1, 101.0)
    assert pace.due(instants(1, 3), 101.0) == (1, pytest.approx(103.0))
    assert pace.due(instants(3), 103.0) == (1, 103.0)


def test_speed_and_what_was_replayed_elsewhere_bring_rows_forward():
    pace = Pace(10.0)
    pace.due(instants(0), 100.0)
    assert pace.due(instants(5, 20), 100.5) == (1, pytest.approx(102.0))
    pace = Pace(1.0)
    pace.resume(30.0)
    assert pace.due(instants(0, 30, 40), 100.0) == (2, pytest.approx(110.0))


def test_a_row_without_a_time_goes_with_the_one_before_it():
    pace = Pace(1.0)
    assert pace.due(instants(None, None), 100.0) == (2, 100.0)
    assert pace.due(instants(0, None, 5), 100.0) == (2, 105.0)


def test_the_newest_time_of_a_batch_is_not_a_missing_one():
    assert newest_us(instants(0, None, 5, 3)) == instants(5)[0]
    assert newest_us(instants(None, None)) is None
    assert newest_us(instants()) is None


def test_results_are_taken_in_the_order_in_which_their_work_began():
    parts = InOrder[str]()
    assert parts.take() is None
    assert not parts.arrived(1, "second")
    assert parts.take() is None
    assert parts.arrived(0, "first")
    assert (len(parts), parts.next_number) == (2, 0)
    assert [parts.take() for _ in range(3)] == ["first", "second", None]
    assert (len(parts), parts.next_number) == (0, 2)


def test_what_is_dropped_is_not_taken():
    parts = InOrder[str]()
    parts.arrived(0, "first")
    parts.clear()
    assert parts.take() is None
