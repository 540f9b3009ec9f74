"""A 99th percentile needs a thousand samples; with fewer there is none."""

import numpy as np
import pytest

from sbon.digest import quantile
from sbon_testbed.bench.percentiles import SAMPLES_MIN, p99, pooled
from sbon_testbed.bench.sinks import came


def test_fewer_than_a_thousand_samples_make_no_percentile() -> None:
    samples = [float(number) for number in range(SAMPLES_MIN)]

    assert p99(samples) == pytest.approx(float(np.quantile(samples, 0.99)))
    assert p99(samples[1:]) is None
    assert pooled([{5: SAMPLES_MIN - 1}]) == (quantile({5: 1}, 0.5), None)


def test_samples_of_all_runs_count_together() -> None:
    assert pooled([[1.0] * 980, [2.0] * 20]) == (1.0, 2.0)
    assert pooled([{5: 980}, {5: 0, 9: 20}]) == (quantile({5: 1}, 0.5), quantile({9: 1}, 0.5))


def test_rows_before_the_first_look_do_not_count() -> None:
    assert came({5: 1_000}, {5: 1_500, 9: 499}, 1.0) == {5: 500, 9: 499}
