"""Sizes of batches, and how often they leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.batching import GROWTH, ROWS_AT_FIRST, Cost, pause_s

costs = st.floats(1e-9, 1e-3)
sizes = st.lists(st.integers(0, 200_000), min_size=1, max_size=60)


@given(sizes, costs, st.floats(0, 0.01), st.floats(1e-4, 1.0), st.integers(1, 1_000_000))
def test_a_batch_has_a_row_at_least_and_grows_step_by_step(rows: list[int], row_s: float, batch_s: float, quantum_s: float, most: int):
    cost = Cost()
    for count in rows:
        cost.took(count, batch_s + count * row_s)
        allowed = cost.rows_within(quantum_s, most)
        assert 1 <= allowed <= most
        assert allowed <= max(ROWS_AT_FIRST, GROWTH * count)


@given(costs, st.floats(0, 0.002))
def test_sizes_settle_where_a_batch_takes_a_quantum(row_s: float, batch_s: float):
    cost, quantum_s, most = Cost(), 0.005, 131_072
    for _ in range(100):
        rows = cost.rows_within(quantum_s, most)
        cost.took(rows, batch_s + rows * row_s)
    took_s = batch_s + rows * row_s
    assert took_s <= 1.5 * quantum_s + row_s
    assert rows == most or took_s >= 0.4 * quantum_s


@pytest.mark.parametrize("batch_s", [0.02, 0.2])
def test_what_every_batch_costs_does_not_make_batches_ever_smaller(batch_s: float):
    cost = Cost()
    for _ in range(200):
        rows = cost.rows_within(0.005, 131_072)
        cost.took(rows, batch_s + rows * 1e-8)  # quanta before the first row
    assert rows == 131_072


def test_a_long_silence_does_not_make_the_next_rows_come_one_by_one():
    """A stream of nothing but watermarks once divided by a number of rows that had become too small to count."""
    cost = Cost()
    for rows in (10_000, 20_000, 10_000):
        cost.took(rows, 0.001 + rows * 1e-7)
    before = cost.rows_within(0.005, 131_072)
    for _ in range(6_000):
        cost.took(0, 0.0001)
    assert cost.rows_within(0.005, 131_072) == pytest.approx(min(before, ROWS_AT_FIRST), rel=0.01)


@given(st.floats(0, 10), st.floats(0.01, 1), st.floats(0, 1), st.floats(0, 60))
def test_a_pause_keeps_its_bounds(cost_s: float, share: float, least_s: float, more_s: float):
    pause = pause_s(cost_s, share, least_s, least_s + more_s)
    assert least_s <= pause <= least_s + more_s
    if pause < least_s + more_s:
        assert cost_s <= share * pause + 1e-12


def test_where_the_bounds_cross_the_longest_pause_holds():
    assert pause_s(0.0, 0.5, 0.05, 0.01) == pytest.approx(0.01)
