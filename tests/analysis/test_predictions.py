"""The report's section on predicted latency equals figures computed from the raw rows."""

import numpy as np
import polars as pl
import pytest

from sbon.analysis.quantiles import RELATIVE_ERROR
from sbon.telemetry.frames import METADATA, Recorded, frame_of
from sbon.telemetry.rows import PredictionRow
from sbon.telemetry.schema import TABLES

BEGIN_US = 1_790_000_000_000_000


def row(query: str, worst_ms: float | None, measured_max_ms: float | None, anew: str = "", **more: object) -> PredictionRow:
    """Returns a prediction given by its worst case. The 99 % quantile is half of the worst case, the mean a quarter."""
    given = {"rests_on_rules": False, "max_latency_ms": None, "worst_high_ms": None if worst_ms is None else 1.5 * worst_ms} | more
    part = {"p99_ms": 0.5, "mean_ms": 0.25}
    return PredictionRow(
        query=query,
        worst_ms=worst_ms,
        worst_low_ms=worst_ms,
        parts=(),
        anew_because=anew,
        measured_rows=None if measured_max_ms is None else 10,
        measured_max_ms=measured_max_ms,
        measured_p99_ms=None if measured_max_ms is None else 0.5 * measured_max_ms,
        measured_mean_ms=None if measured_max_ms is None else 0.25 * measured_max_ms,
        **{name: None if worst_ms is None else share * worst_ms for name, share in part.items()},
        **given,  # type: ignore[arg-type]
    )


ROWS = [
    row("a.1", 100.0, None),
    row("a.1", 100.0, 110.0),
    row("a.1", 100.0, 160.0, max_latency_ms=150.0),  # above its bound, and above the query's max_latency
    row("a.1", 160.0, 200.0, "99 % took longer"),  # 200 was measured under the prediction of 100
    row("a.1", 160.0, 200.0, "99 % took longer"),  # the same prediction again: 200 was measured under 160
    row("a.2", 50.0, 40.0, rests_on_rules=True),
    row("a.2", None, 40.0, "99 % took no end"),  # 40 was measured under the prediction of 50
    row("a.2", None, 40.0, "99 % took no end"),  # the prediction in force is unbounded: no comparison
]
ERRORS = [10 / 110, 60 / 160, 100 / 200, 40 / 200, 10 / 40, 10 / 40]


@pytest.fixture(scope="module")
def found(analyse, tmp_path_factory):
    log, out = tmp_path_factory.mktemp("log"), tmp_path_factory.mktemp("out")
    recorded = [Recorded(BEGIN_US + 60_000_000 * number, "a", "s", number, one) for number, one in enumerate(ROWS)]
    frame, refused = frame_of(TABLES["predictions"], recorded)
    assert not refused
    folder = log / "telemetry" / "kind=predictions" / "date=2026-09-21" / "hour=13"
    folder.mkdir(parents=True)
    frame.write_parquet(folder / "part-0.parquet", metadata=METADATA)
    return analyse(log, out)


def test_each_measurement_is_compared_with_the_prediction_in_force(found):
    numbers = found.numbers["predictions"]

    assert (numbers["queries"], numbers["predictions"], numbers["predicted_anew"]) == (2, 8, 2)
    assert numbers["compared"] == len(ERRORS)
    for name in ("worst", "p99", "mean"):
        for share_name, share in (("p50", 0.5), ("p90", 0.9)):
            exact = np.quantile(ERRORS, share, method="inverted_cdf")
            assert numbers[f"{name}_error_{share_name}"] == pytest.approx(exact, abs=RELATIVE_ERROR.width)


def test_answers_later_than_bounds_are_counted(found):
    numbers = found.numbers["predictions"]

    assert (numbers["bounded"], numbers["outside_bounds"]) == (6, 2)
    assert numbers["outside_share"] == pytest.approx(2 / 6)
    assert numbers["above_max_latency"] == 1
    assert numbers["queries_by_rule"] == 1


def test_the_report_shows_queries_and_errors(found):
    assert "Predictions furthest off" in found.html
    assert "Errors of predicted latency" in found.html
    by_query = pl.scan_parquet(found.out / "tables" / "predictions_by_query" / "*.parquet").collect().sort("query")
    assert by_query["outside"].to_list() == [2, 0]
    assert by_query["measured_max_ms"].to_list() == [200.0, 40.0]


def test_real_agents_predictions_are_in_the_report(overlay, analysis_of):
    raw = pl.concat([pl.read_parquet(path, hive_partitioning=False) for path in overlay.glob("**/kind=predictions/**/*.parquet")])

    numbers = analysis_of("overlay").numbers["predictions"]

    assert numbers["predictions"] == raw.height > 0
    assert numbers["queries"] == raw["query"].n_unique()
