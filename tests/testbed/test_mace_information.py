"""The least scatter of statistics from few events."""

import numpy as np
import pytest

from sbon.cost.load import OperatorCost, Polynomial, Source, Upstream
from sbon.errors import ShapeError
from sbon_testbed.mace.information import least_deviation, work_of_event
from sbon_testbed.mace.virtual import NOISE, learnt, on_one_node, queries


def test_statistics_from_a_sample_are_as_good_as_any_can_be() -> None:
    """Work of an event from averages over 100 events, 30 times: its scatter is the bound's, so that another estimator cannot help."""
    case = on_one_node(1, 100, np.random.default_rng(1))
    true = work_of_event(case.operators)

    found = [work_of_event(learnt(case, 100, np.random.default_rng([2, number]))) / true for number in range(30)]

    least = least_deviation(case.operators, 100, NOISE.cost)
    assert np.std(found, ddof=1) == pytest.approx(least, rel=0.3)  # deviation of 30 samples' scatter: 13 %
    assert np.mean(found) == pytest.approx(1.0, abs=3 * least / np.sqrt(30))


def test_four_times_the_events_halve_the_deviation() -> None:
    operators = queries(1)

    assert least_deviation(operators, 500, 0.5) == pytest.approx(0.0243, abs=1e-4)
    assert least_deviation(operators, 2000, 0.5) == pytest.approx(least_deviation(operators, 500, 0.5) / 2)
    assert 0 < least_deviation(operators, 500, 0.0) < least_deviation(operators, 500, 0.5)


@pytest.mark.parametrize(
    "operator",
    [
        OperatorCost((Source(0), Source(0)), Polynomial((1.0, 0.5)), Polynomial((1.0, 1.0))),
        OperatorCost((Source(0),), Polynomial((2.0,)), Polynomial((1.0,))),
        OperatorCost((Source(0),), Polynomial((0.0,)), Polynomial((1.0,))),
        OperatorCost((Source(0),), Polynomial((1.0,), (), 1.0), Polynomial((1.0,))),
    ],
)
def test_operators_of_another_kind_are_refused(operator: OperatorCost) -> None:
    after = OperatorCost((Upstream(0),), Polynomial((1.0,)), Polynomial((1.0,)))

    with pytest.raises(ShapeError):
        least_deviation([operator, after], 500, 0.5)
