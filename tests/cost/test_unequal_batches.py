"""Batches of unequal size, drawn where only the rows of intervals are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.cost.latency_prediction import predicted_latency
from sbon.cost.unequal_batches import dispersion, drawn
from sbon_testbed.mace.bursts import running
from tests.examples import examples


@pytest.mark.parametrize("together", [1, 4])
def test_rows_that_come_together_scatter_as_many_times_as_single_ones(together: int) -> None:
    rates = 200 * np.repeat([0.2, 1.0, 1.7, 0.5, 1.6], 48) / together
    rows = together * np.random.default_rng(2).poisson(rates).astype(np.float64)

    assert dispersion(rows) == pytest.approx(together, rel=0.25)  # observed: 1.08 and 4.62


def test_smooth_rates_with_some_jumps_do_not_scatter() -> None:
    waves = 250 * (1 + 0.9 * np.sin(2 * np.pi * np.arange(240) / 32))

    assert dispersion(waves) < 0.1
    assert dispersion(np.repeat([5.0, 500.0, 5.0, 300.0], 60)) == 0
    assert dispersion(np.zeros(9)) == 0
    assert dispersion(np.ones(2)) == 0


@examples(60)
@given(seed=st.integers(0, 2**32), parts=st.integers(1, 5), scatter=st.floats(0, 3))
def test_batches_are_those_of_loops_and_keep_the_rows_of_each_interval(seed: int, parts: int, scatter: float) -> None:
    rng = np.random.default_rng(seed)
    expected = rng.choice([0.0, 1.0, 5.0], 4 * parts) * rng.random(4 * parts)

    found = drawn(expected, parts, scatter, np.random.default_rng(seed))

    numbers = np.random.default_rng(seed).standard_normal(len(expected))
    for begin in range(0, len(expected), parts):
        some = range(begin, begin + parts)
        whole = sum(expected[one] for one in some)
        noise = {one: (scatter * expected[one]) ** 0.5 * numbers[one] for one in some}
        rows = [max(0.0, expected[one] + noise[one] - expected[one] / whole * sum(noise.values())) if whole else 0.0 for one in some]
        assert found[begin : begin + parts] == pytest.approx([one / sum(rows) * whole if sum(rows) else 0.0 for one in rows])
        assert found[begin : begin + parts].sum() == pytest.approx(whole)


def test_batches_scatter_as_they_were_told_to() -> None:
    found = drawn(np.full(25_000, 40.0), 25, 2.0, np.random.default_rng(1))

    assert found.var() == pytest.approx(2.0 * 40 * 24 / 25, rel=0.05)


def test_a_query_whose_batches_alone_queue_is_predicted_with_their_scatter() -> None:
    """The rate is below the capacity in all seconds: only large batches wait, up to 20 ms."""
    one = running("levels", np.random.default_rng([705, 0]))
    (source,) = one.query.sources

    found = predicted_latency(one.query).worst_s

    assert dispersion(one.query.arrivals[source.id].rows) == pytest.approx(1.0, rel=0.5)
    assert found is not None
    assert found.value == pytest.approx(one.latency_s.max(), rel=0.1)
    assert found.high > one.latency_s.max()
