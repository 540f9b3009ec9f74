"""Admission of queries under `max_latency`."""

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sbon.cost.figure import Figure, Source
from sbon.cost.latency_case import WAITING
from sbon.cost.latency_prediction import LatencyPrediction
from sbon.cost.prediction import Prediction
from sbon.errors import DelayBoundError, PlacementError
from sbon.planning.admission import Admission, Admitted, Attempt, Refused, refusal
from tests.query_worlds import plan_of

PLAN = msgspec.structs.replace(
    plan_of("SELECT window_start, k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_start, k"), max_latency_ms=100.0
)
FREE = next(spec.id for spec in PLAN.operators if spec.pinned is None)


def placed(delay_ms: float, node: str = "n1") -> Any:
    return SimpleNamespace(nodes={FREE: node, "pinned": "a"}, decision=SimpleNamespace(delay_ms=delay_ms))


def predicted(
    worst_ms: float | None, high_ms: float, network_ms: float, rules: int = 0, low_ms: float | None = None, at_worst: tuple[str, ...] = ()
) -> Prediction:
    worst = None
    if worst_ms is not None:
        low = worst_ms if low_ms is None else low_ms
        worst = Figure(value=worst_ms / 1e3, low=low / 1e3, high=high_ms / 1e3, source=Source.MEASURED)
    latency = LatencyPrediction(
        worst_s=worst,
        p99_s=None if worst is None else worst.value,
        mean_s=None if worst is None else worst.value,
        parts_s={"network": network_ms / 1e3, "n1": max(0.0, (worst_ms or 0.0) - network_ms) / 1e3},
        overloaded=("n1",) if worst is None else (),
        at_worst_overloaded=at_worst,
    )
    return Prediction(lines=(), operators={"measured": 4 - rules, "rule": rules}, latency=latency)


def test_a_placement_within_the_bound_is_admitted_and_the_network_may_use_what_is_left() -> None:
    admission = Admission(PLAN)
    first = admission.begin()
    assert isinstance(first, Attempt)
    assert first.plan.delay_bound_ms == 100.0

    found = admission.placed(placed(40.0), predicted(60.0, 70.0, 40.0))

    assert isinstance(found, Admitted)
    assert found.delay_bound_ms == pytest.approx(100.0 - (70.0 - 44.0))
    assert not found.note


def test_a_placement_beyond_the_bound_is_tried_again_with_less_for_the_network() -> None:
    admission = Admission(PLAN)
    admission.begin()

    again = admission.placed(placed(90.0), predicted(110.0, 120.0, 90.0))
    assert isinstance(again, Attempt)
    assert again.plan.delay_bound_ms == pytest.approx(70.0)
    found = admission.placed(placed(60.0), predicted(80.0, 90.0, 60.0))

    assert isinstance(found, Admitted)


def test_an_overloaded_node_is_left_out_of_the_next_attempt() -> None:
    admission = Admission(PLAN)
    admission.begin()

    again = admission.placed(placed(40.0), predicted(None, math.inf, 40.0))

    assert isinstance(again, Attempt)
    assert again.excluded == {"n1"}


def test_a_query_is_refused_with_the_predicted_figure_and_what_would_have_to_change() -> None:
    admission = Admission(PLAN)
    action = admission.begin()
    while isinstance(action, Attempt):
        action = admission.placed(placed(90.0), predicted(110.0, 120.0, 90.0))

    assert isinstance(action, Refused)
    text = str(action.problem)
    assert "predicted are 110 ms, 120 ms at most (network 90 ms, n1 20 ms)" in text
    assert "ask for 120 ms, or bring sources and sink nearer" in text


def test_overload_is_refused_as_answers_that_never_end() -> None:
    admission = Admission(PLAN)
    action = admission.begin()
    while isinstance(action, Attempt):
        action = admission.placed(placed(40.0), predicted(None, math.inf, 40.0))

    assert isinstance(action, Refused)
    assert "n1 would have more load than capacity" in str(action.problem)


def test_rules_of_thumb_alone_refuse_nothing() -> None:
    admission = Admission(PLAN)
    action = admission.begin()
    while isinstance(action, Attempt):
        action = admission.placed(placed(40.0), predicted(300.0, 900.0, 40.0, rules=1, low_ms=50.0))

    assert isinstance(action, Admitted)
    assert action.note == (
        "max_latency = 100 ms may not be kept: predicted are 300 ms, 900 ms at most, by rules of thumb for 1 of 4 operators that "
        "never ran; `sbon queries` shows what they take"
    )


def test_a_load_that_only_rules_call_too_high_is_admitted_with_a_note() -> None:
    admission = Admission(PLAN)
    action = admission.begin()
    while isinstance(action, Attempt):
        action = admission.placed(placed(40.0), predicted(None, math.inf, 40.0, rules=2))

    assert isinstance(action, Admitted)
    assert "n1 may have more load than capacity, by rules of thumb for 2 of 4" in action.note


def test_rules_alone_refuse_no_query_for_the_bound_of_a_running_one_and_the_note_names_the_host() -> None:
    admission = Admission(msgspec.structs.replace(PLAN, max_latency_ms=None))
    admission.begin()

    found = admission.placed(placed(40.0, "n2"), predicted(60.0, 70.0, 40.0, rules=1), {"a": (0.02, 0.01)})

    assert isinstance(found, Admitted)
    assert found.note.startswith("a running query with max_latency on a may be late: this one may hold it up for 20 ms at once, by rules")


def test_what_no_figure_can_change_refuses_even_beside_rules() -> None:
    admission = Admission(PLAN)
    action = admission.begin()
    while isinstance(action, Attempt):
        action = admission.placed(placed(110.0), predicted(300.0, 900.0, 110.0, rules=1, low_ms=105.0))

    assert isinstance(action, Refused)


def test_a_bound_below_propagation_is_refused_with_the_least_that_can_be_had() -> None:
    admission = Admission(PLAN)
    admission.begin()

    found = admission.unplaceable(DelayBoundError(100.0, 140.02))

    assert isinstance(found, Refused)
    assert "max_latency = 100 ms: the network alone takes 140.1 ms" in str(found.problem)


def test_a_query_that_would_break_the_bound_of_a_running_one_goes_elsewhere_or_is_refused() -> None:
    admission = Admission(msgspec.structs.replace(PLAN, max_latency_ms=None))
    first = admission.begin()
    assert isinstance(first, Attempt)
    assert first.plan.delay_bound_ms is None

    again = admission.placed(placed(40.0), predicted(60.0, 70.0, 40.0), {"n1": (0.02, 0.01)})
    assert isinstance(again, Attempt)
    assert again.excluded == {"n1"}
    found = admission.placed(placed(40.0, "n2"), predicted(60.0, 70.0, 40.0))
    assert isinstance(found, Admitted)
    assert found.delay_bound_ms is None

    pinned = admission.placed(placed(40.0, "n2"), predicted(60.0, 70.0, 40.0), {"a": (0.02, 0.01)})
    assert isinstance(pinned, Refused)
    assert "a query with max_latency on a would be late: work there may take 10 ms longer" in str(pinned.problem)


def test_other_reasons_are_told_as_they_are() -> None:
    admission = Admission(PLAN)
    admission.begin()
    problem = PlacementError("no room")

    assert admission.unplaceable(problem) == Refused(problem)


def test_the_best_placement_counts_where_the_next_attempt_finds_none() -> None:
    admission = Admission(PLAN)
    admission.begin()
    admission.placed(placed(90.0), predicted(110.0, 120.0, 90.0))

    found = admission.unplaceable(DelayBoundError(70.0, 90.0))

    assert isinstance(found, Refused)
    assert "120 ms at most" in str(found.problem)


def test_where_most_is_waiting_for_processors_a_refusal_asks_for_less_other_work() -> None:
    prediction = predicted(150.0, 200.0, 10.0)
    parts_s = {"network": 0.01, "n1": 0.02, WAITING: 0.12}
    waiting = msgspec.structs.replace(prediction, latency=msgspec.structs.replace(prediction.latency, parts_s=parts_s))

    said = refusal(100.0, waiting)

    assert said.startswith("max_latency = 100 ms cannot be kept: predicted are 150 ms, 200 ms at most (waiting for processors 120 ms")
    assert said.endswith("ask for 200 ms, or give the nodes on the way less other work or more cores")
