"""Predicted and measured latency of a running query."""

import math
from typing import Any

import msgspec
import pytest

from sbon.cost.figure import Figure, Source
from sbon.cost.highest_rate import profile_of
from sbon.cost.latency_prediction import LatencyPrediction
from sbon.cost.line import Line
from sbon.cost.prediction import Prediction, predict
from sbon.cost.store import CostStore
from sbon.planning.forecast import FIRST_S, TOLD_S, Forecast
from sbon.planning.resizing import OFF_S
from sbon.query.link_bytes import SOURCE_BATCHES_PER_S
from sbon.wire.reports import LatencyTold, OperatorReport
from tests.query_worlds import plan_of

PLAN = msgspec.structs.replace(plan_of("SELECT k, v FROM s WHERE v > 1"), max_latency_ms=250.0)
SINK = PLAN.operators[-1].id
SOURCE = PLAN.operators[0].id
RATE = next(link.rate_rows_per_s for link in PLAN.links if link.source == SOURCE)


def make_forecast() -> Forecast:
    return Forecast(PLAN, {spec.id: spec.pinned or "a" for spec in PLAN.operators}, frozenset(), {}, now=0.0)


def reports(p99_ms: float, rate: float = RATE) -> dict[str, OperatorReport]:
    latency = LatencyTold(rows=100, mean_ms=p99_ms / 2, p50_ms=p99_ms / 2, p99_ms=p99_ms, max_ms=p99_ms)
    return {
        SINK: OperatorReport(id=SINK, state="running", node="b", latency=latency),
        SOURCE: OperatorReport(id=SOURCE, state="running", node="a", rows_per_s_out=rate),
    }


def prediction(p99_ms: float | None) -> Prediction:
    worst = None if p99_ms is None else Figure(value=p99_ms / 1e3, low=p99_ms / 2e3, high=p99_ms / 5e2, source=Source.MEASURED)
    p99_s = None if p99_ms is None else p99_ms / 1e3
    latency = LatencyPrediction(worst_s=worst, p99_s=p99_s, mean_s=p99_s, parts_s={}, overloaded=() if worst else ("a",))
    rate = Line("highest rate", "3 times the expected rates", {"multiple": 3.0})
    return Prediction(lines=(rate,), operators={"measured": 3}, latency=latency)


def predicted(p99_ms: float | None) -> tuple[Forecast, CostStore]:
    forecast, cost_store = make_forecast(), CostStore("b")
    assert forecast.look(reports(100.0), cost_store, now=FIRST_S)
    forecast.predicted(prediction(p99_ms), cost_store, now=FIRST_S)
    return forecast, cost_store


def test_the_first_prediction_waits_for_measured_costs_and_answers() -> None:
    forecast, cost_store = make_forecast(), CostStore("b")

    assert not forecast.look(reports(100.0), cost_store, now=FIRST_S - 1)
    assert not forecast.look({}, cost_store, now=FIRST_S)
    assert forecast.row() is None
    assert forecast.look(reports(100.0), cost_store, now=FIRST_S + 1)
    assert not forecast.look(reports(100.0), cost_store, now=FIRST_S + 2)  # a prediction is under way


def test_a_running_query_shows_its_highest_rate() -> None:
    forecast, _ = predicted(100.0)

    assert (forecast.row() or {})["highest_rate"] == {"multiple": 3.0}


def test_what_is_measured_is_recorded_beside_the_prediction_once_a_minute() -> None:
    assert not make_forecast().is_to_tell(now=1000.0)  # there is no prediction yet
    forecast, _ = predicted(100.0)

    assert [forecast.is_to_tell(FIRST_S + after_s) for after_s in (TOLD_S - 1, TOLD_S, TOLD_S + 1, 2 * TOLD_S)] == [
        False,
        True,
        False,
        True,
    ]


def test_measured_that_leaves_predicted_for_a_minute_is_predicted_anew_and_says_why() -> None:
    forecast, cost_store = predicted(100.0)

    assert not forecast.look(reports(119.0), cost_store, now=100.0)
    assert not forecast.look(reports(130.0), cost_store, now=101.0)
    assert not forecast.look(reports(130.0), cost_store, now=100.0 + OFF_S)
    assert forecast.look(reports(130.0), cost_store, now=101.0 + OFF_S)
    forecast.predicted(prediction(131.0), cost_store, now=102.0 + OFF_S)
    row = forecast.row()
    assert row is not None
    assert row["anew_because"] == "99 % took 130 ms, predicted were 100 ms"
    assert not forecast.look(reports(130.0), cost_store, now=1000.0)


def test_rows_that_come_in_bursts_are_predicted_as_they_come() -> None:
    """At the same mean rate, answers come later if one second in ten has eleven times the rows of the others."""
    forecast, even = make_forecast(), reports(100.0, 20_000.0)
    bursts = (*[2_500] * 36, *[27_500] * 4) * 6
    uneven = {**even, SOURCE: msgspec.structs.replace(even[SOURCE], bursts=bursts)}
    nodes = {spec.id: spec.pinned or "a" for spec in PLAN.operators}

    asked = [forecast.query(nodes, told, CostStore("b"), lambda a, b: 10.0, now=1.0) for told in (even, uneven)]
    plain, bursty = (one for one in asked if one is not None)

    assert plain.arrivals == {}
    assert bursty.arrivals[SOURCE].rows.tolist() == list(bursts)
    assert max(bursty.arrivals[SOURCE].batches) == SOURCE_BATCHES_PER_S / 4
    before, after = (predict(query).latency.worst_s for query in (plain, bursty))
    assert before is not None
    assert after is None or after.value > 2 * before.value
    assert profile_of(bursty)[""][SOURCE] == 110_000, "without a declared profile, the query must carry the greatest measured rate"


def test_a_coarse_prediction_looks_at_the_greatest_burst_alone() -> None:
    """A quarter of a second with the most rows is half a minute away from two seconds that make answers later."""
    forecast, even = make_forecast(), reports(100.0, 20_000.0)
    bursts = (*[2_500] * 60, 30_000, *[2_500] * 119, *[27_500] * 8, *[2_500] * 52)
    told = {**even, SOURCE: msgspec.structs.replace(even[SOURCE], bursts=bursts)}
    nodes = {spec.id: spec.pinned or "a" for spec in PLAN.operators}

    fine, coarse = (forecast.query(nodes, told, CostStore("b"), lambda a, b: 10.0, now=1.0, detail=detail) for detail in ("fine", "coarse"))

    assert fine is not None
    assert coarse is not None
    late, early = (predict(query).latency.worst_s for query in (fine, coarse))
    assert early is not None
    assert late is not None
    assert late.value > 1.5 * early.value
    assert (fine.detail.draws, coarse.detail.draws) == (5, 1)


def test_a_short_departure_is_forgotten() -> None:
    forecast, cost_store = predicted(100.0)

    forecast.look(reports(150.0), cost_store, now=100.0)
    forecast.look(reports(100.0), cost_store, now=130.0)

    assert not forecast.look(reports(150.0), cost_store, now=100.0 + OFF_S)


def test_what_was_to_never_end_and_ends_is_predicted_anew() -> None:
    forecast, cost_store = predicted(None)

    forecast.look(reports(100.0), cost_store, now=100.0)

    assert forecast.look(reports(100.0), cost_store, now=100.0 + OFF_S)


def test_a_failed_prediction_is_tried_again_in_a_minute() -> None:
    forecast, cost_store = make_forecast(), CostStore("b")
    assert forecast.look(reports(100.0), cost_store, now=FIRST_S)
    forecast.failed(now=FIRST_S)

    assert not forecast.look(reports(100.0), cost_store, now=FIRST_S + OFF_S - 1)
    assert forecast.look(reports(100.0), cost_store, now=FIRST_S + OFF_S)


@pytest.mark.parametrize(
    ("latest_ms", "rate", "reason"),
    [
        (240.0, 10 * RATE, ""),
        (260.0, 10 * RATE, f"source s on a gives {10 * RATE:.0f} rows/s, expected {RATE:.0f}"),
        (260.0, RATE, "all sources and hosts are as expected"),
    ],
)
def test_a_broken_bound_names_the_source_that_left_the_profile(latest_ms: float, rate: float, reason: str) -> None:
    forecast, cost_store = predicted(100.0)

    forecast.look(reports(latest_ms, rate), cost_store, now=100.0)

    assert reason in forecast.reason
    assert bool(forecast.reason) == (latest_ms > 250)


def test_a_broken_bound_names_the_host_on_which_others_use_more() -> None:
    forecast, cost_store = predicted(100.0)
    host: Any = CostStore("a")
    for second in range(30):
        host.sample(float(second), 1.5, {})
    cost_store.hear("a", host.own(2, 0.0, now=30.0), (), now=30.0)

    forecast.look(reports(300.0), cost_store, now=31.0)

    assert "others use 1.5 cores of a, expected 0.0" in forecast.reason


def test_rates_of_the_present_replace_those_of_the_plan() -> None:
    plan = make_forecast().measured_plan(reports(100.0, 3 * RATE))

    link = next(link for link in plan.links if link.source == SOURCE)
    assert link.rate_rows_per_s == pytest.approx(3 * RATE)
    assert math.isfinite(link.rate_bytes_per_s)


def test_a_running_query_is_predicted_without_its_own_use_of_a_host_and_with_that_of_others() -> None:
    """The query's source uses 0.3 of the 0.8 cores that operators use on its host."""
    cost_store, forecast = CostStore("b"), make_forecast()
    other = CostStore("a")
    for second in range(5):
        other.sample(float(second), 1.0, {"x": round(second * 0.8e9)})
    cost_store.hear("a", other.own(2, 1e9, now=5.0), (), now=5.0)
    found = reports(100.0)
    used = msgspec.structs.replace(found[SOURCE], cpu_ns_per_row=3e6, rows_per_s_in=100.0)

    query = forecast.query({}, {**found, SOURCE: used}, cost_store, lambda source, target: 10.0, 5.0)

    assert query is not None
    assert query.nodes["a"].operators is not None
    assert query.nodes["a"].operators.seconds == pytest.approx((0.5,) * 3)
