"""The moving percentile filter: spikes stay hidden, lasting shifts show soon."""

import pytest

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.rtt_filter import RttFilter, percentile

CONFIG = CoordinateConfig()


def fill(rtts: list[float], interval_s: float = 5.0, config: CoordinateConfig = CONFIG) -> list[float]:
    """Returns the filtered RTT after each sample."""
    rtt_filter = RttFilter()
    return [rtt_filter.add(rtt, config, number * interval_s) for number, rtt in enumerate(rtts)]


def test_the_twentieth_percentile_of_ten_samples_is_the_second_lowest():
    assert fill([31.0, 30.0, 35.0, 32.0, 38.0, 39.0, 40.0, 41.0, 42.0, 43.0])[-1] == 31.0


def test_single_spikes_never_show():
    filtered = fill([30.0, 31.0, 30.0, 900.0, 31.0, 30.0, 1200.0, 800.0, 30.0])

    assert max(filtered) <= 31.0


def test_a_doubled_latency_shows_after_four_samples():
    filtered = fill([50.0] * 10 + [100.0] * 4)

    assert filtered[12] == 50.0
    assert filtered[13] == 100.0


def test_a_halved_latency_shows_within_two_samples():
    assert fill([100.0] * 10 + [50.0] * 2)[-1] == 50.0


def test_noise_around_one_level_is_no_shift():
    noisy = [50.0, 55.0, 52.0, 58.0, 51.0, 57.0, 53.0, 56.0, 54.0, 59.0, 58.0, 59.0, 57.0, 58.0]

    assert all(50.0 <= value <= 53.0 for value in fill(noisy))


def test_a_seldom_probed_peer_is_not_judged_by_its_distant_past():
    """With a sample a minute, a window of ten would take eight minutes to show a change."""
    assert fill([50.0, 50.0, 50.0, 100.0, 100.0], interval_s=50.0)[-1] == 100.0


def test_a_percentile_takes_no_share_of_the_outlier_above_it():
    assert percentile([30.0, 900.0], 20.0) == 30.0
    assert percentile([7.0], 20.0) == 7.0
    assert percentile([1.0, 2.0, 3.0], 100.0) == 3.0


@pytest.mark.parametrize("field", [{"filter_window": 0}, {"shift_ratio": 1.0}, {"filter_percentile": 101.0}, {"scale_min": 5.0}])
def test_settings_out_of_range_are_refused(field: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(field)) if "scale_min" not in field else "scale_max"):
        CoordinateConfig(**field)


def test_old_samples_stay_while_new_ones_agree_with_them():
    """The peer is probed every two minutes: without old samples, the RTT would follow the noise of each sample."""
    assert fill([50.0, 58.0, 62.0, 55.0], interval_s=120.0) == [50.0, 50.0, 50.0, 50.0]
    assert fill([50.0, 58.0, 62.0, 55.0, 57.0], interval_s=120.0)[-1] == 55.0


@pytest.mark.parametrize("after", [70.0, 35.0])
def test_old_samples_go_with_the_first_that_contradicts_them(after: float):
    assert fill([50.0, 51.0, 52.0, after], interval_s=120.0)[-1] == after


def test_the_window_tells_what_its_value_rests_on():
    rtt_filter = RttFilter()
    rtt_filter.add(50.0, CONFIG, 0.0)
    assert (rtt_filter.samples, rtt_filter.rank, rtt_filter.before_ms) == (1, 0, None)
    for rtt_ms in (55.0, 52.0, 51.0, 53.0, 54.0):
        rtt_filter.add(rtt_ms, CONFIG, 1.0)

    assert (rtt_filter.samples, rtt_filter.rank, rtt_filter.before_ms) == (6, 1, 53.0)
    assert rtt_filter.value_ms == 51.0
