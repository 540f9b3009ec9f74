"""A quantile of counts is the least value at or below which at least the share of rows lies."""

import polars as pl
import pytest

pytest.importorskip("pyspark", reason="the extra 'analysis' is not installed")

from sbon.analysis.quantiles import BIN, COUNT, RELATIVE_ERROR, quantile_of


@pytest.mark.parametrize(("share", "expected"), [(0.1, 0), (0.5, 0), (0.50001, 1), (0.9, 1), (1.0, 2)])
def test_value_at_which_the_share_is_reached_is_the_quantile(share: float, expected: int):
    counts = pl.DataFrame({BIN: [2, 0, 1, 0], COUNT: [10, 40, 40, 10]})

    assert quantile_of(counts, share, RELATIVE_ERROR) == pytest.approx((expected + 0.5) * RELATIVE_ERROR.width)


def test_nothing_has_no_quantile():
    assert quantile_of(pl.DataFrame(schema={BIN: pl.Int32, COUNT: pl.Int64}), 0.5, RELATIVE_ERROR) is None
