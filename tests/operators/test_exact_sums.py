"""Exact sums equal the sums of fractions, rounded once, for any floats in any order and any pieces."""

import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.operators import digits
from sbon.operators.exact import BIN_BITS, Digits, digit_sums, product_sums
from sbon.operators.grouping import Groups
from sbon.operators.partials import TIME, ExactTable
from tests.examples import examples

FINITE = st.floats(allow_nan=False, allow_infinity=False)
DENORMAL = st.integers(-(2**52), 2**52).map(lambda n: n * 5e-324)
HALVES = st.builds(lambda n, e: math.ldexp(2 * n + 1, e), st.integers(-(2**52), 2**52 - 1), st.integers(-200, 200))
"""Many lie half-way between two floats after adding a larger number."""
POWERS = st.builds(lambda sign, e: math.ldexp(sign, e), st.sampled_from([1.0, -1.0]), st.integers(-1074, 1023))
VALUES = st.lists(st.one_of(FINITE, DENORMAL, HALVES, POWERS, st.floats(-1e3, 1e3), st.sampled_from([0.0, -0.0])), max_size=40)
DATA = st.lists(st.tuples(st.integers(0, 2), st.one_of(FINITE, POWERS, HALVES, st.floats(-10, 10))), max_size=40)


def exactly(values: list[float]) -> float:
    """Returns the exact sum, rounded once: Python rounds a quotient of integers once."""
    return as_float(sum(map(Fraction, values), Fraction(0)))


def as_float(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def value_of(found: Digits, slot: int) -> Fraction:
    pairs = zip(*(column.tolist() for column in found), strict=True)
    return sum((Fraction(digit) * Fraction(2) ** (BIN_BITS * bin_) for at, bin_, digit in pairs if at == slot), Fraction(0))


@examples(150)
@given(DATA)
def test_digits_are_worth_the_sum_of_the_floats(data: list[tuple[int, float]]) -> None:
    ids, x = np.array([slot for slot, _ in data], np.int64), np.array([value for _, value in data], np.float64)
    plain, squares = digit_sums(x, ids, 3), product_sums(x, x, ids, 3)
    for slot in range(3):
        mine = [Fraction(value) for at, value in data if at == slot]
        assert value_of(plain, slot) == sum(mine, Fraction(0))
        assert value_of(squares, slot) == sum((value * value for value in mine), Fraction(0))


@examples(150)
@given(VALUES)
def test_sums_are_rounded_once(values: list[float]) -> None:
    found, lowest = digits.table(digit_sums(np.array(values, np.float64), np.zeros(len(values), np.int64), 1), 1)
    assert digits.rounded(found, lowest)[0] == exactly(values)


@examples(150)
@given(VALUES, st.one_of(st.integers(1, 50), st.integers(1, 2**40)))
def test_means_are_rounded_once(values: list[float], count: int) -> None:
    found, lowest = digits.table(digit_sums(np.array(values, np.float64), np.zeros(len(values), np.int64), 1), 1)
    expected = as_float(sum(map(Fraction, values), Fraction(0)) / count)
    assert digits.quotients(found, lowest, np.array([count]))[0] == expected


@examples(150)
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=6), st.integers(-3, 3))
def test_any_number_in_digits_is_rounded_once(numbers: list[int], lowest: int) -> None:
    rows = len(numbers)
    parts = (np.zeros(rows, np.int64), np.arange(lowest, lowest + rows), np.array(numbers))
    found, bottom = digits.table(parts, 1)
    value = sum(Fraction(number) * Fraction(2) ** (BIN_BITS * (lowest + row)) for row, number in enumerate(numbers))
    assert digits.rounded(found, bottom)[0] == as_float(value)


@pytest.mark.parametrize("rows", [8192, 100_000])
def test_sums_of_many_rows_are_those_of_fsum(rows: int) -> None:
    rng = np.random.default_rng(rows)
    for x in (
        rng.random(rows),
        rng.normal(size=rows) * 10.0 ** rng.integers(-12, 12, rows),
        rng.integers(-(2**53), 2**53, rows).astype(float),
    ):
        ids = rng.integers(0, 5, rows)
        found, lowest = digits.table(digit_sums(x, ids, 5), 5)
        assert digits.rounded(found, lowest).tolist() == [math.fsum(x[ids == slot]) for slot in range(5)]


@examples(60)
@given(DATA, st.integers(0, 40), st.integers(0, 40))
def test_tables_of_equal_sums_are_equal_however_they_came_about(data: list[tuple[int, float]], cut: int, other: int) -> None:
    def folded(pieces: list[list[tuple[int, float]]]) -> pl.DataFrame:
        table = ExactTable("x")
        for piece in pieces:
            rows = pl.DataFrame(piece, schema={"k": pl.Int64, "x": pl.Float64}, orient="row").with_columns(pl.lit(0).alias(TIME))
            table.add(table.partial(rows, Groups.of(rows, ["k"])), ["k"])
        frame = table.folded(["k"])
        assert frame is not None
        table.check(frame)
        return table.ordered(frame, ["k"])

    whole = folded([data])
    assert whole.equals(folded([data[:cut], data[cut:]]))
    assert whole.equals(folded([data[other:][::-1], data[:other]]))


@pytest.mark.parametrize(("bin_", "digit"), [(10**6, 1), (0, 2**62), (None, 1), (0, None)])
def test_digits_that_no_floats_make_are_refused(bin_: int | None, digit: int | None) -> None:
    table = ExactTable("x")
    with pytest.raises(RemoteProtocolError, match="exact sum"):
        table.check(pl.DataFrame({"k": [1], "b": [bin_], "d": [digit]}, schema={"k": pl.Int64, "b": pl.Int64, "d": pl.Int64}))


def test_digits_of_one_group_and_bin_are_there_once() -> None:
    with pytest.raises(RemoteProtocolError, match="several"):
        ExactTable("x").check(pl.DataFrame({"k": [1, 1], "b": [0, 0], "d": [1, 2]}))
