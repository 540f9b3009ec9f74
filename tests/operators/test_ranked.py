"""Exact percentiles count every value as often as it occurs, and stay within the range of floats."""

import math

import polars as pl
import pytest

from sbon.operators.window import Window
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.windowed import WindowParams
from sbon.watermarks import WATERMARK_END

INF, NAN = math.inf, math.nan


def answers(values: list[float | None], share: float) -> list[float | None]:
    """Returns the continuous and the discrete percentile, over two panes of a hopping window."""
    asked = tuple(Aggregate(function, function, Column("x"), share) for function in ("percentile_cont", "percentile_disc"))
    window = Window(WindowParams("t", 20, 10, (), asked))
    frame = pl.DataFrame({"t": [place % 20 for place in range(len(values))], "x": values}, schema={"t": pl.Int64, "x": pl.Float64})
    window.process(0, frame.with_columns(pl.col("t").cast(pl.Datetime("us"))))
    rows = pl.concat(window.advance(WATERMARK_END)).filter(pl.col("window_start").to_physical() == 0)
    return [rows["percentile_cont"][0], rows["percentile_disc"][0]]


@pytest.mark.parametrize(
    ("values", "share", "between", "there"),
    [
        ([1.0, 1.0, 1.0, 5.0, 9.0], 0.5, 1.0, 1.0),
        ([1.0] * 11 + [5.0] * 12, 0.5, 5.0, 5.0),
        ([4.0, 1.0], 0.5, 2.5, 1.0),
        ([4.0, 1.0], 0.25, 1.75, 1.0),
        ([3.0, NAN, None, 1.0], 1.0, 3.0, 3.0),
        ([3.0, NAN, None, 1.0], 0.0, 1.0, 1.0),
        ([1.7e308, -1.7e308], 0.5, 0.0, -1.7e308),
        ([-INF, 5.0], 0.5, -INF, -INF),
        ([INF, INF, 1.0], 0.9, INF, INF),
        ([NAN, None], 0.5, None, None),
    ],
)
def test_percentiles_are_those_of_all_values(values: list[float | None], share: float, between: float | None, there: float | None):
    assert answers(values, share) == [between, there]
