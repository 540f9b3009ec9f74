"""Rates for placement: steady although rows come in bursts, and the plan's rates before any rows come."""

import pytest

from sbon.execution.rates import Rate, SteadyRate


def run(rate: SteadyRate | Rate, seconds: int, total_at, start: int = 0) -> None:
    for second in range(start, start + seconds):
        rate.sample(float(second), float(total_at(second)))


def test_what_was_expected_holds_until_something_is_measured():
    rate = SteadyRate(80.0)
    assert rate.per_s == 80.0
    rate.sample(5.0, 0.0)
    assert rate.per_s == 80.0
    run(rate, 60, lambda second: 0.0, start=6)

    assert rate.per_s == pytest.approx(80.0 * 54 / (54 + 60))  # after a minute of silence, not yet half of this


def test_a_steady_stream_is_measured_as_it_is():
    rate = SteadyRate(1.0)
    run(rate, 601, lambda second: 50.0 * second)

    assert rate.per_s == pytest.approx(50.0)


@pytest.mark.parametrize("period", [60, 120, 300])
def test_a_window_that_closes_every_few_minutes_has_one_rate_and_not_two(period):
    rate, short = SteadyRate(10.0), Rate()
    seen, seen_short = [], []
    for second in range(1800):
        total = 1000.0 * (second // period)
        rate.sample(float(second), total)
        short.sample(float(second), total)
        if second > 700:
            seen.append(rate.per_s)
            seen_short.append(short.per_s)

    assert min(seen_short) == 0.0
    assert max(seen_short) == pytest.approx(100.0)
    assert min(seen) > 0.45 * 1000 / period  # two or three windows of 300 s end within 600 s
    assert max(seen) < 1.55 * 1000 / period


def test_a_lasting_change_is_believed_within_minutes():
    rate = SteadyRate(50.0)
    run(rate, 1000, lambda second: 50.0 * second)
    run(rate, 301, lambda second: 50_000.0 + 500.0 * (second - 1000), start=1000)

    assert rate.per_s > 250.0
    run(rate, 320, lambda second: 50_000.0 + 500.0 * (second - 1000), start=1301)
    assert rate.per_s == pytest.approx(500.0)
