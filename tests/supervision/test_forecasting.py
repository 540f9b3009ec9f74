"""A prediction that fails because of a bug is logged; a prediction that is impossible is not."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from sbon.errors import PlacementError
from sbon.optimiser.config import OptimiserConfig
from sbon.supervision.forecasting import Forecasting
from sbon.supervision.record import QueryRecord


class Threads:
    """Runs work immediately."""

    def now(self) -> float:
        return 0.0

    def execute(self, work: Callable[[], Any], done: Callable[[Any], None], *, rows: int) -> None:
        try:
            done(work())
        except Exception as problem:
            done(problem)


@pytest.mark.parametrize(
    ("problem", "logged"), [(PlacementError("no node has room"), []), (ZeroDivisionError("by zero"), ["query.not_predicted"])]
)
def test_a_fault_of_a_prediction_is_logged_and_the_next_one_is_made(problem: Exception, logged: list[str]) -> None:
    failed: list[bool] = []

    def plan_anew(query: object) -> None:
        raise problem

    resizing = SimpleNamespace(look=lambda *_: True, plan_anew=plan_anew, failed=lambda: failed.append(True))
    ordering = SimpleNamespace(look=lambda *_: False)
    forecast = SimpleNamespace(
        resizing=resizing, ordering=ordering, query=lambda *_, **__: object(), look=lambda *_: False, is_to_tell=lambda _: False
    )
    record = cast("QueryRecord", SimpleNamespace(id="q", forecast=forecast, nodes={}, reports={}))
    forecasting = Forecasting(Threads(), lambda *_: None, cast("Any", None), lambda _: None, lambda _: None, OptimiserConfig)
    with capture_logs() as told:
        forecasting.look(record)
    assert failed == [True]
    assert [one["event"] for one in told] == logged
    assert all("ZeroDivisionError: by zero" in one["reason"] for one in told)


@pytest.mark.parametrize("setting", ["fine", "coarse"])
def test_a_running_query_is_predicted_with_the_effort_of_the_settings(setting: str) -> None:
    asked: list[str] = []
    forecast = SimpleNamespace(query=lambda *_, anywhere, detail: asked.append(detail))
    record = cast("QueryRecord", SimpleNamespace(id="q", forecast=forecast, nodes={}, reports={}))
    settings = OptimiserConfig(predictions="coarse" if setting == "coarse" else "fine")

    Forecasting(Threads(), lambda *_: None, cast("Any", None), lambda _: None, lambda _: None, lambda: settings).as_it_runs(record)

    assert asked == [setting]
