"""Predictions of running queries in virtual time are coarse, except where tests are about them."""

import pytest

FINE = {
    f"test_{name}"
    for name in (
        "admission_orders",
        "delay_bounds",
        "expected_recovery",
        "highest_rates",
        "latency_bounds_kept",
        "mace_agents",
        "plan_resources",
        "plan_selection",
        "predictions",
        "replanning",
        "replanning_order",
        "sizing",
        "window_sizing",
    )
}
"""Modules whose tests are about predictions, or about what planners and owners decide by them."""


@pytest.fixture(autouse=True)
def _coarse_predictions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets owners predict latencies from the bursts of 16 s instead of 128 s, and from one draw of batches instead of five.

    Otherwise stories of crashes and moves would spend most of their time on predictions, which they do not look at. A prediction only tells
    people what to expect, and takes no virtual time, so that a seed has the same faults and moves with both.
    """
    if request.module.__name__.rpartition(".")[2] not in FINE:
        monkeypatch.setattr("sbon.cost.latency_prediction.BURSTS", (0.25, 64))
        monkeypatch.setattr("sbon.cost.latency_prediction.DRAWS", 1)
