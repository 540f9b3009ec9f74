"""CPU load as a dimension of the cost space."""

import pytest

from sbon.cost_space.load import LoadConfig, LoadDimension, scaled_load_ms


@pytest.mark.parametrize("scaling", ["linear", "nonlinear", "multiplicative"])
def test_every_scaling_leads_from_nothing_at_rest_to_full_at_full_load(scaling: str):
    config = LoadConfig(scaling=scaling, full_ms=80.0)

    assert scaled_load_ms(0.0, config) == 0.0
    assert scaled_load_ms(1.0, config) == pytest.approx(80.0)


def test_power_and_exponential_spare_the_lightly_loaded():
    light = [scaled_load_ms(0.3, LoadConfig(scaling=scaling)) for scaling in ("linear", "nonlinear", "multiplicative")]

    assert light == [pytest.approx(30.0), pytest.approx(2.7), pytest.approx(0.695, abs=0.01)]


def test_overload_stays_finite_and_within_what_a_coordinate_may_hold():
    assert scaled_load_ms(1e300, LoadConfig(scaling="multiplicative", factor=1e9)) == 100_000.0


def test_a_short_burst_moves_the_load_little_and_a_long_one_fully():
    load = LoadDimension(LoadConfig(smoothing_s=15.0, hysteresis_ms=0.0))
    load.update(0.0, now=0.0)

    assert load.update(1.0, now=1.0) == pytest.approx(6.4, abs=0.1)
    assert load.update(1.0, now=100.0) == pytest.approx(100.0, abs=0.2)


def test_small_changes_are_not_published():
    load = LoadDimension(LoadConfig(smoothing_s=0.0, hysteresis_ms=5.0))

    assert [load.update(fraction, now=float(i)) for i, fraction in enumerate([0.5, 0.53, 0.47, 0.56, 0.52])] == pytest.approx(
        [50.0, 50.0, 50.0, 56.0, 56.0]
    )


def test_a_node_that_falls_idle_says_so_despite_the_hysteresis():
    load = LoadDimension(LoadConfig(smoothing_s=0.0, hysteresis_ms=5.0))
    load.update(0.3, now=0.0)

    assert load.update(0.0, now=1.0) == 0.0


def test_a_reading_that_is_no_number_is_passed_over():
    load = LoadDimension(LoadConfig(smoothing_s=0.0))
    load.update(0.4, now=0.0)

    assert load.update(float("nan"), now=1.0) == pytest.approx(40.0)
    assert load.update(float("inf"), now=2.0) == pytest.approx(40.0)
