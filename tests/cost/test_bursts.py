"""Latency of queries whose sources have bursts, known by quarters of a second."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.latency_prediction import LatencyPrediction, predicted_latency
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.waiting import Waits
from sbon.execution.rates import ByQuarter
from sbon.planning.forecast import by_quarter
from sbon_testbed.mace.bursts import running
from tests.examples import examples

ROW_S = 0.6e-3
"""Work of a row, on a node of its own."""
HIGH, LOW = 2500 / 4, 20 / 4
"""Rows of a quarter of a second: 1.5 s of work a second, and nearly none."""


def query_of(rows: list[float]) -> PlacedQuery:
    """Returns a query over a source that gave so many rows in each quarter of a second."""
    query = running("waves", np.random.default_rng(1)).query
    return msgspec.structs.replace(query, arrivals={source.id: by_quarter(rows) for source in query.sources})  # type: ignore[arg-type]


def predicted(rows: list[float]) -> tuple[LatencyPrediction, float]:
    """Returns the prediction, and its worst case in s."""
    found = predicted_latency(query_of(rows))
    assert found.worst_s is not None
    return found, found.worst_s.value


def test_a_burst_that_begins_and_ends_within_a_quarter_of_a_second_is_expected_there() -> None:
    """Half of a quarter, 33 quarters, and half of one: 4.19 s behind with even quarters, 4.25 s if the rate jumps in their middle."""
    half = (HIGH + LOW) / 2

    _, worst_s = predicted([LOW] * 80 + [half] + [HIGH] * 33 + [half] + [LOW] * 125)

    assert worst_s == pytest.approx(8.5 * (2500 * ROW_S - 1) + 0.055, abs=0.02)  # the network and the work of a batch


def test_the_upper_bound_counts_the_rows_of_a_quarter_as_coming_at_its_end() -> None:
    """400 rows are 0.24 s of work: none waits if they come evenly, and the bound is 0.34 s then, for nodes and links that may be slow."""
    query = query_of([LOW] * 100 + [400.0] + [LOW] * 139)
    nodes = {name: msgspec.structs.replace(node, waits=Waits((0.0,), (0.0,), (), (), (0.0,) * 5)) for name, node in query.nodes.items()}

    found = predicted_latency(msgspec.structs.replace(query, nodes=nodes))

    assert found.upper_s > 0.34 + 400 * ROW_S


def test_bursts_count_whole_wherever_the_busiest_moment_is() -> None:
    """A burst of 11 s ends 26 s before the busiest quarter of a second: the minute around that would cut it."""
    found, worst_s = predicted([LOW] * 16 + [HIGH] * 44 + [LOW] * 106 + [HIGH + 1] + [LOW] * 73)

    assert worst_s == pytest.approx(11 * (2500 * ROW_S - 1), rel=0.02)
    assert found.upper_s > 11 * (2500 * ROW_S - 1)


def test_a_burst_at_the_end_of_the_minute_is_not_followed_by_the_one_at_its_start() -> None:
    _, worst_s = predicted([HIGH] * 20 + [LOW] * 200 + [HIGH] * 20)

    assert worst_s == pytest.approx(5 * (2500 * ROW_S - 1), abs=0.1)


def test_batches_of_bursts_take_longer_than_mean_ones() -> None:
    """15 rows instead of 10 take 9 ms at the filter, and nothing else waits."""
    _, worst_s = predicted([LOW] * 100 + [375.0] * 4 + [LOW] * 136)

    assert worst_s == pytest.approx(2 * 0.02 + 15 * ROW_S + 3 * 0.02e-3, rel=0.01)  # 0.0461 with mean batches


def test_what_was_not_measured_does_not_count_in_quantiles() -> None:
    """The walk has two minutes, of which one was measured."""
    query = query_of([LOW] * 100 + [HIGH] * 8 + [LOW] * 132)
    late = predicted_latency(query_of([100.0] * 100 + [600.0] * 5 + [100.0] * 135))

    assert late.p99_s is not None
    assert late.worst_s is not None
    assert late.p99_s > 0.9 * late.worst_s.value, "rows of the last quarter of the burst are 2 % of the measured ones"
    measured = query.measured(512, 0.25)

    assert np.count_nonzero(measured) == 240
    (series,) = query.series(512, 0.25).values()
    assert series.rows[measured].tolist() == pytest.approx([LOW] * 100 + [HIGH] * 8 + [LOW] * 132)
    assert series.rows[~measured] == pytest.approx(series.rows[measured].mean())
    assert query_of([LOW] * 240).measured(512, 0.25).sum() == 240
    assert msgspec.structs.replace(query, arrivals={}).measured(64, 1.0).all()


@pytest.mark.parametrize(("intervals", "width_s"), [(16, 0.01), (8, 0.02)])
def test_short_periods_are_in_the_busiest_quarter(intervals: int, width_s: float) -> None:
    query = query_of([25.0] * 120 + [500.0] + [25.0] * 119)

    (series,) = query.series(intervals, width_s).values()

    assert series.rows == pytest.approx(2000.0 * width_s)


@examples(100)
@given(seed=st.integers(0, 2**32), seconds=st.integers(1, 80))
def test_a_source_tells_the_rows_of_each_quarter_of_the_last_minute_while_its_seconds_differ(seed: int, seconds: int) -> None:
    rng = np.random.default_rng(seed)
    start_s = float(rng.uniform(0, 1000))
    at_s = np.sort(rng.uniform(start_s - 1, start_s + seconds, int(rng.integers(0, 10 * seconds))))
    rows = rng.integers(1, 5, len(at_s)) * np.where(rng.random(len(at_s)) < 0.1, 20, 1)
    rate, told = ByQuarter(), 0
    for second in range(seconds + 1):
        while told < len(at_s) and at_s[told] < start_s + second:
            rate.gained(float(at_s[told]), int(rows[told]))
            told += 1
        rate.sample(start_s + second, 0.0)

    end = int((start_s + seconds) * 4)
    count = min(60, (end - int(start_s * 4)) // 4) * 4
    quarters = [sum(int(row) for one, row in zip(at_s, rows, strict=True) if int(one * 4) == end - count + n) for n in range(count)]
    by_second = [sum(quarters[n : n + 4]) for n in range(0, count, 4)]
    assert rate.bursts == (tuple(quarters) if max(by_second) > 1.5 * sum(by_second) / len(by_second) else ())
