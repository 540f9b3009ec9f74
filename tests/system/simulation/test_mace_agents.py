"""The evaluation of predicted latencies on whole agents."""

import pytest

from sbon_testbed.mace.agents import compared, evaluate_agents


@pytest.mark.soak
def test_whole_agents_predict_what_their_sinks_measure() -> None:
    """Observed: 1 % of the worst case, 0.2 % of the mean."""
    found = evaluate_agents(4, 2, 200, seed=2, real=False, report=lambda name, done, total: None)

    assert found["compared"] == found["queries"] == 2
    assert found["error"] < 0.05
    assert found["p99_error"] < 0.05
    assert found["mean_error"] < 0.02
    assert found["outside_bounds"] == 0


def test_a_query_above_its_bound_is_counted_and_one_without_figures_left_out() -> None:
    measured = {"rows": 10, "mean_ms": 20.0, "p50_ms": 20.0, "p99_ms": 40.0, "max_ms": 50.0}
    told = {"worst_ms": 40.0, "worst_high_ms": 45.0, "mean_ms": 20.0, "p99_ms": 40.0, "rests_on_rules": False, "measured": measured}
    rows = [{"operators": [1, 2], "prediction": told}, {"operators": [1], "prediction": None}]

    found = compared(rows)

    assert (found["queries"], found["compared"], found["operators"], found["outside_bounds"]) == (2, 1, 3, 1)
    assert found["error"] == 0.2
    assert found["mean_error"] == found["p99_error"] == 0.0
    (one,) = found["each"]
    assert (one["predicted_mean_s"], one["measured_mean_s"], one["predicted_p99_s"], one["measured_p99_s"]) == (0.02, 0.02, 0.04, 0.04)
