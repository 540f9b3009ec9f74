"""Waits, tails, the largest of several delays, and quantiles, compared with simulations."""

import math

import numpy as np
import pytest

from sbon.cost.moments import Moments, moments_of
from sbon.cost.queues import gg1_wait, largest_of_normals
from sbon.errors import ShapeError
from sbon.types import FloatArray

COUNT = 400_000


def simulated(gaps: FloatArray, services: FloatArray) -> FloatArray:
    """Returns waits by Lindley's recursion W_{n+1} = max(0, W_n + S_n - T_n), computed with a running minimum."""
    walk = np.concatenate([[0.0], np.cumsum(services - gaps)])
    return walk - np.minimum.accumulate(walk)


def test_lindley_as_a_running_minimum_is_the_loop():
    rng = np.random.default_rng(1)
    gaps, services = rng.exponential(1.0, 300), rng.exponential(0.9, 300)
    waits, wait = [0.0], 0.0
    for gap, service in zip(gaps, services, strict=True):
        wait = max(0.0, wait + service - gap)
        waits.append(wait)

    np.testing.assert_allclose(simulated(gaps, services), waits, atol=1e-9)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("scv", [0.0, 0.5, 1.0, 4.0])
def test_exponential_gaps_give_pollaczek_and_khinchine(load: float, scv: float):
    """E[W] = E[S^2] / (2 (1 - load) E[T]) and E[W^2] = 2 E[W]^2 + E[S^3] / (3 (1 - load) E[T]) are exact for M/G/1."""
    # The service times have a gamma distribution with mean `load`; an scv of 0 makes them constant.
    second = load**2 * (1 + scv)
    third = load**3 * (1 + scv) * (1 + 2 * scv)
    found = gg1_wait(Moments(1, 1.0, 2.0, 6.0), Moments(1, load, second, third))

    mean = second / (2 * (1 - load))
    assert found.mean == pytest.approx(mean)
    assert found.waits == pytest.approx(load)
    assert found.variance == pytest.approx(mean**2 + third / (3 * (1 - load)))
    assert found.load == pytest.approx(load)


@pytest.mark.parametrize(("shape_of_gaps", "shape_of_services"), [(4.0, 1.0), (4.0, 0.5), (0.5, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("load", [0.6, 0.9])
def test_a_wait_is_near_the_simulated_one(shape_of_gaps: float, shape_of_services: float, load: float):
    rng = np.random.default_rng(7)
    gaps, services = rng.gamma(shape_of_gaps, 1 / shape_of_gaps, COUNT), rng.gamma(shape_of_services, load / shape_of_services, COUNT)
    waits = simulated(gaps, services)
    found = gg1_wait(moments_of(gaps[:20_000]), moments_of(services[:20_000]))

    # Observed: mean within 17 %, deviation within 21 %, probability of a wait within 9 %.
    assert found.mean == pytest.approx(waits.mean(), rel=0.25)
    assert math.sqrt(found.variance) == pytest.approx(waits.std(), rel=0.25)
    assert found.waits == pytest.approx((waits > 1e-9).mean(), rel=0.15)


def test_overload_never_ends_and_even_work_never_waits():
    even = Moments(1, 1.0, 1.0, 1.0)

    assert gg1_wait(even, even.scaled(1.0)).mean == math.inf
    assert gg1_wait(even, even.scaled(2.0)).variance == math.inf
    assert gg1_wait(even, even.scaled(0.9)).mean == 0.0
    assert gg1_wait(even, Moments(1, 0.0, 0.0, 0.0)).mean == 0.0
    with pytest.raises(ShapeError):
        gg1_wait(Moments(1, 0.0, 0.0, 0.0), even)


def test_the_largest_of_normals_is_that_of_tables_and_of_a_simulation():
    """Teichroew (1956) has means 0.56419, 0.84628, 1.53875 and 2.50759; the variance of the larger of two is 1 - 1 / pi."""
    assert [largest_of_normals(n)[0] for n in (2, 3, 10, 100)] == pytest.approx([0.56419, 0.84628, 1.53875, 2.50759], abs=1e-4)
    assert largest_of_normals(2)[1] == pytest.approx(math.sqrt(1 - 1 / math.pi), abs=1e-5)
    largest = np.random.default_rng(2).normal(size=(20_000, 40)).max(1)
    mean, deviation = largest_of_normals(40)
    assert mean == pytest.approx(largest.mean(), abs=0.02)
    assert deviation == pytest.approx(largest.std(), abs=0.02)
    with pytest.raises(ShapeError):
        largest_of_normals(0)
