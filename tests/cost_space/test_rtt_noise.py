"""Noise of round trips, learnt from samples of the same peer and subtracted where a peer has few samples."""

import numpy as np
import pytest

from sbon.cost_space.config import CoordinateConfig
from sbon.cost_space.coordinate import ORIGIN, Coordinate
from sbon.cost_space.memory import Memory
from sbon.cost_space.rtt_noise import DIFFERENCES_MIN, RttNoise

RATIO = 1.3


def noise_of(differences: list[float]) -> RttNoise:
    noise = RttNoise()
    for difference in differences:
        noise.learn(100.0, 100.0 * (1.0 + difference), RATIO)
    return noise


def test_the_share_is_the_median_difference_and_needs_a_few():
    assert noise_of([0.1] * (DIFFERENCES_MIN - 1)).share == 0.0
    assert noise_of([0.02, 0.02, 0.02, 0.1, 0.1, 0.1, 0.1, 0.2]).share == pytest.approx(0.1)


def test_the_order_of_two_samples_does_not_matter():
    noise = RttNoise()
    for _ in range(DIFFERENCES_MIN):
        noise.learn(110.0, 100.0, RATIO)

    assert noise.share == pytest.approx(0.1)


def test_another_level_is_no_noise():
    """Two thirds of all paths double: that must not make the others look noisy."""
    assert noise_of([0.01, 1.0, 1.0] * 40).share == pytest.approx(0.01)


def test_old_differences_are_forgotten():
    assert noise_of([0.2] * 100 + [0.01] * 64).share == pytest.approx(0.01)


def test_the_fewer_the_samples_the_more_is_taken_off():
    noise = noise_of([0.12] * 20)

    assert noise.without(112.0, samples=1, rank=0) == pytest.approx(100.0)
    assert noise.without(106.0, samples=2, rank=0) == pytest.approx(100.0)
    assert noise.without(100.0 * (1 + 0.12 * (1 / 4 + 1 / 3)), samples=4, rank=1) == pytest.approx(100.0)


def test_nothing_is_taken_off_where_round_trips_are_exact():
    memory = Memory(CoordinateConfig())
    for lap in range(4):
        for peer in range(20):
            assert memory.add(f"p{peer}", ORIGIN, 50.0 + peer, 100.0 * lap + peer) == 50.0 + peer


@pytest.mark.parametrize(("window", "bound"), [(1, 0.05), (2, 0.04), (4, 0.03), (10, 0.03)])
def test_exponential_noise_of_a_tenth_does_not_lengthen_what_coordinates_rest_on(window: int, bound: float):
    """Takes the median over 200 peers of known RTT, each measured `window` times. A single sample lies 7 % above the RTT."""
    rng = np.random.default_rng(3)
    memory = Memory(CoordinateConfig())
    # The noise is learnt from other peers, which are probed often.
    for turn in range(400):
        memory.add(f"often{turn % 20}", ORIGIN, 80.0 * (1.0 + rng.exponential(0.1)), float(turn))
    found = [[memory.add(f"p{peer}", ORIGIN, 60.0 * (1.0 + rng.exponential(0.1)), 400.0) for _ in range(window)][-1] for peer in range(200)]

    assert abs(float(np.median(found)) / 60.0 - 1.0) < bound


def test_what_is_told_of_a_measured_peer_is_what_was_measured():
    memory = Memory(CoordinateConfig())
    for turn in range(40):
        memory.add("p", Coordinate((1.0, 2.0, 3.0), 0.0, 0.1), 50.0 if turn % 2 else 60.0, float(turn))

    assert memory.filtered_rtt_ms("p") == 50.0
    assert memory.rtt_ms[0] < 50.0
