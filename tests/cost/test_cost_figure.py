"""Figures with bounds and sources, and moments of quantities."""

import numpy as np
import pytest

from sbon.cost.figure import Edge, Figure, Source, around, better, by_rule, declared
from sbon.cost.moments import MomentCounter, Moments, moments_of
from sbon.errors import ShapeError


def test_bounds_are_two_standard_errors_and_the_lower_one_is_never_zero():
    figure = around(10.0, 20.0, Source.MEASURED, samples=4)

    assert (figure.low, figure.value, figure.high) == (2.0, 10.0, 50.0)
    assert [figure.at(edge) for edge in Edge] == [2.0, 10.0, 50.0]
    assert figure.error == pytest.approx(2.4)


def test_a_rule_is_wider_than_what_is_declared_and_never_zero():
    assert by_rule(8.0).low == 2.0
    assert by_rule(8.0).high == 32.0
    assert declared(8.0).high == 16.0
    with pytest.raises(ShapeError, match="more than 0"):
        by_rule(0.0)


@pytest.mark.parametrize(
    ("low", "value", "high"), [(2.0, 1.0, 3.0), (0.0, 4.0, 3.0), (-1.0, 0.0, 1.0), (0.0, float("nan"), 1.0), (0.0, 1.0, float("inf"))]
)
def test_a_figure_out_of_order_is_refused(low: float, value: float, high: float):
    with pytest.raises(ShapeError):
        Figure(value=value, low=low, high=high, source=Source.RULE)


def test_bounds_widen_with_age_without_end():
    figure = around(10.0, 1.0, Source.MEASURED, samples=100)
    old, older = figure.aged(3600.0), figure.aged(864_000.0)

    assert older.low < old.low < figure.low
    assert figure.high < old.high < older.high
    assert older.value == 10.0
    assert older.low > 0
    assert older.age_s == 864_000.0


def test_the_better_source_wins_then_narrower_bounds_and_few_samples_do_not_beat_what_is_declared():
    measured = around(10.0, 1.0, Source.MEASURED, samples=100)
    narrower = around(12.0, 0.5, Source.MEASURED, samples=100)
    few = around(10.0, 1.0, Source.MEASURED, samples=3)
    said, rule = declared(5.0), by_rule(7.0)

    assert better(measured, said) is measured
    assert better(said, few) is said
    assert better(rule, few) is few
    assert better(measured, narrower) is narrower
    assert better(narrower, measured) is narrower
    assert better(around(3.0, 2.0, Source.SAMPLED, samples=500), said).source is Source.SAMPLED


def test_moments_are_those_of_the_sample():
    values = np.random.default_rng(1).gamma(2.0, 3.0, 500)
    found = moments_of(values)

    assert found.first == pytest.approx(values.mean())
    assert found.variance == pytest.approx(values.var())
    assert found.scv == pytest.approx(values.var() / values.mean() ** 2)
    assert found.skewness == pytest.approx(float(((values - values.mean()) ** 3).mean() / values.std() ** 3))
    assert found.scaled(2.0).variance == pytest.approx(4 * found.variance)
    assert moments_of([4.0, 4.0]).skewness == 0.0


def test_a_counter_forgets():
    counter = MomentCounter(memory=20)
    for value in [100.0] * 200 + [1.0] * 100:
        counter.add(value)

    assert counter.moments is not None
    assert counter.moments.first == pytest.approx(1.0, abs=1.0)
    assert counter.count == pytest.approx(1 / (1 - np.exp(-1 / 20)))
    assert MomentCounter().moments is None


@pytest.mark.parametrize("moments", [(1.0, 2.0, 3.0, 20.0), (1.0, 1.0, 4.0, 5.0), (1.0, -1.0, 1.0, 1.0), (1.0, 1.0, float("inf"), 1.0)])
def test_moments_that_no_quantity_has_are_refused(moments: tuple[float, float, float, float]):
    with pytest.raises(ShapeError):
        Moments(*moments)


def test_a_sample_with_nonsense_is_refused():
    for sample in ([], [-1.0], [float("nan")], [float("inf")]):
        with pytest.raises(ShapeError):
            moments_of(sample)


def test_observations_in_one_go_count_like_one_after_the_other():
    values = np.random.default_rng(2).gamma(2.0, 3.0, 70)
    each, at_once = MomentCounter(memory=30), MomentCounter(memory=30)
    for value in values:
        each.add(float(value))
    at_once.add_all(values[:40])
    at_once.add_all(values[40:])

    assert each.moments is not None
    assert at_once.moments is not None
    np.testing.assert_allclose(
        [at_once.count, at_once.first, at_once.second, at_once.third], [each.count, each.first, each.second, each.third], rtol=1e-9
    )
