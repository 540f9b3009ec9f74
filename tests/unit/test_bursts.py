"""Latency of queries whose sources have bursts, known by second."""

import msgspec
import numpy as np
import pytest

from sbon.cost.latency_prediction import LatencyPrediction, predicted_latency
from sbon.cost.placed_query import PlacedQuery
from sbon.planning.forecast import by_second
from sbon_testbed.mace.bursts import running

ROW_S = 0.6e-3
"""Work of a row, on a node of its own."""


def query_of(rows: list[float]) -> PlacedQuery:
    """Returns a query over a source that gave so many rows in each second."""
    query = running("waves", np.random.default_rng(1)).query
    return msgspec.structs.replace(query, arrivals={source.id: by_second(rows) for source in query.sources})  # type: ignore[arg-type]


def predicted(rows: list[float]) -> tuple[LatencyPrediction, float]:
    """Returns the prediction, and its worst case in s."""
    found = predicted_latency(query_of(rows))
    assert found.worst_s is not None
    return found, found.worst_s.value


def test_a_burst_that_begins_and_ends_within_a_second_is_expected_there() -> None:
    """2,500 rows/s, 1.5 s of work a second, for 8.5 s from a quarter of a second on: 4.25 s behind, but 4 s at most if seconds are even."""
    _, worst_s = predicted([20.0] * 20 + [1880.0] + [2500.0] * 7 + [1880.0] + [20.0] * 31)

    assert worst_s == pytest.approx(8.5 * (2500 * ROW_S - 1), abs=0.1)  # observed: 4.3, with the network


def test_a_long_burst_counts_whole_wherever_the_busiest_second_is() -> None:
    """A burst of 11 s ends 26 s before the busiest second: the minute around that second would cut it."""
    found, worst_s = predicted([20.0] * 4 + [2600.0] * 11 + [20.0] * 26 + [2806.0] + [20.0] * 18)

    assert worst_s == pytest.approx(11 * (2600 * ROW_S - 1), rel=0.02)
    assert found.upper_s > 11 * (2600 * ROW_S - 1)


@pytest.mark.parametrize(("intervals", "width_s"), [(16, 0.01), (32, 0.02)])
def test_short_periods_are_in_the_busiest_second(intervals: int, width_s: float) -> None:
    query = query_of([100.0] * 30 + [2000.0] + [100.0] * 29)

    (series,) = query.series(intervals, width_s).values()

    assert series.rows == pytest.approx(2000.0 * width_s)


@pytest.mark.parametrize("intervals", [64, 65, 128])
def test_seconds_stay_whole_and_a_minute_repeats_in_its_order(intervals: int) -> None:
    rows = [float(number) for number in range(60)]

    (series,) = query_of(rows).series(intervals, 1.0).values()

    first = int(series.rows[0])
    assert series.rows == pytest.approx(np.resize(np.roll(rows, -first), intervals))
    assert series.rows[intervals // 2 - 1 : intervals // 2 + 2].max() == 59
