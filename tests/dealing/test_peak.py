"""The predicted peak of an instance: no batch takes longer, but for chance."""

import numpy as np
import pytest

from sbon.dealing.peak import CHANCE, MOST_S, peak_s
from sbon.types import FloatArray

OVER_S = 60.0


def longest_s(rng: np.random.Generator, batches_per_s: float, cost_s: float, begun_s: float) -> float:
    """Returns the longest time that a batch takes in a minute of random arrivals: Lindley's recursion."""
    waiting_s, before_s, longest = begun_s, 0.0, 0.0
    for at_s in np.sort(rng.uniform(0, OVER_S, rng.poisson(batches_per_s * OVER_S))).tolist():
        waiting_s = max(0.0, waiting_s - (at_s - before_s)) + cost_s
        before_s, longest = at_s, max(longest, waiting_s)
    return longest


def of_one(batches_per_s: float, cost_s: float, begun_s: float = 0.0) -> float:
    costs_s: FloatArray = np.full((1, 12), cost_s)
    return peak_s(batches_per_s, costs_s, OVER_S / 12, np.array([begun_s]), OVER_S)


@pytest.mark.parametrize(
    ("batches_per_s", "cost_s", "begun_s"), [(10.0, 0.01, 0.0), (20.0, 0.03, 0.0), (5.0, 0.16, 0.0), (20.0, 0.02, 2.0)]
)
def test_fewer_minutes_have_a_longer_batch_than_chance_allows(batches_per_s: float, cost_s: float, begun_s: float) -> None:
    peak = of_one(batches_per_s, cost_s, begun_s)
    found = np.array([longest_s(np.random.default_rng(seed), batches_per_s, cost_s, begun_s) for seed in range(200)])
    assert (found > peak).mean() <= CHANCE + 0.02
    assert peak < 3 * np.median(found)


def test_the_dearest_instance_decides() -> None:
    costs_s: FloatArray = np.array([[0.01] * 12, [0.03] * 12])
    assert peak_s(20.0, costs_s, 5.0, np.zeros(2), OVER_S) == pytest.approx(of_one(20.0, 0.03), rel=0.03)


def test_an_overload_without_end_and_no_instance_at_all() -> None:
    assert peak_s(20.0, np.full((1, 10), 1.0), 1e4, np.zeros(1), OVER_S) == MOST_S
    assert peak_s(20.0, np.zeros((0, 10)), 1.0, np.zeros(0), OVER_S) == 0.0
