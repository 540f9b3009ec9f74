"""Latency over time of a query whose arrivals are known, and the question of `sbon plan latency`."""

import msgspec
import numpy as np
import pytest

from sbon.cost.latency_prediction import predicted_latency
from sbon.cost.latency_series import covering, predicted_series
from sbon.errors import ConfigError, ShapeError
from sbon.planning.known_arrivals import latency
from tests.cost.test_bursts import HIGH, LOW, ROW_S, query_of

BURST = [LOW] * 20 + [HIGH] * 8 + [LOW] * 60
"""Two seconds at a rate of 1.5 cores, from the fifth second on."""
WAY_S = 0.04
"""Propagation from the source to the sink."""


def test_the_backlog_of_a_burst_is_where_it_comes() -> None:
    """Half a second of work a second is too much for two seconds, and drains in one."""
    series = predicted_series(query_of(BURST))

    assert len(series.latest_s) == len(BURST)
    assert series.latest_s[:20] == pytest.approx(WAY_S + 2 * ROW_S, abs=0.02)
    assert int(np.argmax(series.latest_s)) in (27, 28)
    assert series.latest_s.max() == pytest.approx(WAY_S + 2 * (2500 * ROW_S - 1), rel=0.05)
    assert series.mace_s[27] == pytest.approx(WAY_S + 2 * (2500 * ROW_S - 1), rel=0.05)
    assert series.latest_s[34:] == pytest.approx(WAY_S + 2 * ROW_S, abs=0.02)
    assert series.load_s[20:28] == pytest.approx(HIGH * ROW_S, rel=0.01), "the filter has a node of its own"
    assert series.free_s == pytest.approx(0.25)
    assert (series.upper_s >= series.latest_s).all()
    assert (series.lower_s <= series.mace_s + 1e-9).all()


def test_the_worst_of_the_series_is_the_worst_case_of_the_query() -> None:
    """The worst case also counts a rare wait for a processor, of which this query has none."""
    query = covering(query_of(BURST))
    told = predicted_latency(query)

    assert told.worst_s is not None
    assert predicted_series(query).latest_s.max() == pytest.approx(told.worst_s.value, abs=1e-9)


def test_intervals_without_rows_have_no_late_answers_and_wider_ones_the_latest_of_their_quarters() -> None:
    series = predicted_series(query_of([HIGH] * 4 + [0.0] * 7 + [LOW]))

    assert series.latest_s[4:11].tolist() == [0.0] * 7
    assert series.latest_s[11] > 0
    wide = series.by(1.25)
    assert wide.width_s == 1.25
    assert wide.latest_s.tolist() == [series.latest_s[:5].max(), 0.0, series.latest_s[11]]
    assert wide.upper_s[0] == series.upper_s[:5].max()
    assert wide.load_s[0] == pytest.approx(series.load_s[:5].sum())
    with pytest.raises(ShapeError, match=r"a multiple of 0\.25 s"):
        series.by(0.3)


def test_arrivals_of_several_sources_or_of_none_have_no_series() -> None:
    with pytest.raises(ShapeError, match="arrivals of 0 sources"):
        predicted_series(msgspec.structs.replace(query_of(BURST), arrivals={}))


def test_the_answer_has_the_prediction_over_all_arrivals_and_each_interval() -> None:
    rows = [round(one) for one in BURST]
    query = msgspec.structs.replace(query_of(BURST), arrivals={})

    found = latency(query, {"arrivals": rows, "width": 2.0})

    over = found["intervals"]
    assert over["width_s"] == 2.0
    assert len(over["latest_ms"]) == len(over["mace_ms"]) == len(over["upper_ms"]) == len(rows) // 8
    assert found["worst_ms"] == pytest.approx(max(over["latest_ms"]))
    assert found["text"].startswith("worst ")
    assert 0 < over["epsilon_ms"] < 100


def test_more_arrivals_are_predicted_at_their_own_rates() -> None:
    """Batches are larger at ten times the rate, so a batch of each operator is more work."""
    query = msgspec.structs.replace(query_of(BURST), arrivals={})

    slow, fast = (latency(query, {"arrivals": [rows] * 40})["intervals"]["epsilon_ms"] for rows in (40, 400))

    assert fast > 5 * slow


def test_a_slower_node_makes_answers_later() -> None:
    """With 0.9 times the speed, two seconds of 1.5 cores leave 1.33 s instead of 1.0."""
    query = msgspec.structs.replace(query_of(BURST), arrivals={})
    rows = [round(one) for one in BURST]

    usual, slow = (latency(query, {"arrivals": rows, "speed": speed})["worst_ms"] for speed in (1.0, 0.9))

    assert slow - usual == pytest.approx(333.0, rel=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the rows of 1 to 4800 quarters"),
        ({"arrivals": []}, "the rows of 1 to 4800 quarters"),
        ({"arrivals": [1, -1]}, "-1, expected whole numbers"),
        ({"arrivals": [1, True]}, "True, expected whole numbers"),
        ({"arrivals": [0, 0]}, "no row at all"),
        ({"arrivals": [1], "width": 0.4}, r"a multiple of 0\.25 s"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        latency(query_of(BURST), options)
