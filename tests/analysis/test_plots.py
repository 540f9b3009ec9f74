"""Plots can be drawn from any log: no values, one value, zeros, unknown or non-finite values."""

import math
import re
import warnings
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

pytest.importorskip("matplotlib", reason="the extra 'analysis' is not installed")

from sbon.analysis import plots
from sbon.analysis.migrations_told import tell
from sbon.telemetry.schema import TABLES

NAN, INF = math.nan, math.inf
MOMENTS = [datetime(2026, 11, 1, tzinfo=UTC) + timedelta(seconds=seconds) for seconds in range(3)]
VALUES = [[], [0.0], [5.0], [3.0, 3.0], [None], [NAN, 1.0], [INF, -1.0, 2.0], [0.0, 1e-300], [1e308, 1e-308]]


@pytest.fixture(autouse=True)
def _strict():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("ys", VALUES, ids=str)
def test_lines_of_any_values_are_drawn(ys):
    for xs in (ys, [1.0] * len(ys)):
        assert "<svg" in plots.lines([plots.Series("a", xs, ys)], "x", "y", log_x=True, percent=True, top=2.0)
    assert "<svg" in plots.lines([plots.Series("a", MOMENTS[: len(ys)], ys)], "UTC", "y", log_y=True)


@pytest.mark.parametrize("ys", VALUES, ids=str)
def test_points_of_any_values_are_drawn(ys):
    for xs in (ys, [1.0] * len(ys)):
        assert "<svg" in plots.points(xs, ys, "x", "y", diagonal=True, log=True)


def test_logarithmic_axes_leave_out_what_they_cannot_show_and_keep_the_rest():
    drawn = [
        len(re.findall("<use ", plots.points([1.0, 10.0, NAN, *zeros], [5.0, 20.0, 1.0, *zeros], "x", "y", log=True)))
        for zeros in ([], [0.0])
    ]

    assert drawn[0] == drawn[1]
    assert plots.points([1.0, 10.0], [5.0, 20.0], "x", "y", log=True) != plots.points([1.0, 10.0], [5.0, 20.0], "x", "y")


def test_only_migration_may_lack_measured_usage_and_may_not_have_paused():
    """Pauses are 0 in virtual time; usage is not measured on a new link."""
    at = datetime(2026, 11, 1, tzinfo=UTC)
    row = dict.fromkeys(TABLES["migrations"].polars_schema())
    row |= {"operator": "q.1", "queries": ["q"], "from_node": "a", "to_node": "b", "committed": True, "reason": "asked", "outcome": ""}
    row |= {"asked_at": at, "ended_at": at, "pause_ms": 0.0, "duration_ms": 0.0, "state_bytes": 0}
    measured = {f"{name}_{side}": pl.Float64 for name in ("usage_measured", "latency_ms") for side in ("before", "after")}
    moves = pl.DataFrame([row | dict.fromkeys(measured)], schema=dict(TABLES["migrations"].polars_schema()) | measured)
    unknown = dict.fromkeys(("median_saving_measured", "median_saving_predicted", "share_that_saved"))
    numbers = {"committed": 1, "abandoned": 0, "operators_moved": 1, "flaps": 0, "measured": 0, "reviews": {}, **unknown}
    numbers |= {"median_pause_ms": 0.0, "p90_pause_ms": 0.0, "max_pause_ms": 0.0, "median_state_bytes": 0.0}

    found = tell(numbers, moves, pl.DataFrame())

    (benefit,) = [part for part in found.section.parts if part.title == "Before and after each migration"]
    assert benefit.text.startswith("No migration has usage of its operator's links")
