"""Pairs of rows of two sides: every key equals itself, NaN too, however the sides are ordered."""

import math

import polars as pl
import pytest

from sbon.operators.pairing import paired

NAN = math.nan


@pytest.mark.parametrize(
    ("left", "right", "pairs"),
    [
        ([NAN], [NAN], 1),
        ([1.0, NAN, NAN], [1.0, NAN], 3),
        ([-2.5, NAN, 0.0], [-0.0, 0.5, NAN, NAN], 3),
        ([NAN, 1.0], [NAN, 1.0], 2),
        ([1.0], [NAN], 0),
        ([None, NAN], [None, NAN], 1),
        ([], [NAN], 0),
    ],
)
@pytest.mark.parametrize("order", ["as it is", "ascending", "descending"])
@pytest.mark.parametrize("how", ["inner", "left"])
def test_not_a_number_equals_itself_in_sides_of_any_order(left, right, pairs, order, how):
    sides = [pl.DataFrame({name: pl.Series(keys, dtype=pl.Float64)}) for name, keys in (("l", left), ("r", right))]
    sides = [side.with_columns(of=pl.int_range(pl.len())).rename({"of": f"of {side.columns[0]}"}) for side in sides]
    if order != "as it is":
        sides[1] = sides[1].sort("r", descending=order == "descending")
        sides[0] = sides[0].sort("l", descending=order == "descending")
    found = paired(sides[0], sides[1], ["l"], ["r"], how)
    assert found["of r"].count() == pairs
