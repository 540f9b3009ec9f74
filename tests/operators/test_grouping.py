"""Rows are in one group if and only if their columns are equal, whichever way the groups are numbered."""

from collections import defaultdict
from datetime import datetime
from typing import Any

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators import measures
from sbon.operators.frames import rows_where, stacked
from sbon.operators.grouping import NUMBERED_ROWS_MAX, Groups, _hashed, in_order, positions
from sbon.operators.runs import runs_of
from tests.examples import examples

INTS = st.one_of(st.integers(-5, 5), st.integers(1000, 1010), st.sampled_from([-(2**63), 2**63 - 1]))
WIDE = st.sampled_from([0, 1, 7, 2**31 - 1])
"""Two columns of these values just fit into a group's combined integer key; a third does not."""
NULLS = st.one_of(st.none(), st.integers(-3, 3))
FLOATS = st.sampled_from([None, 0.0, 1.5, float("nan"), float("inf")])
TEXTS = st.sampled_from([None, "", "a", "b"])
TIMES = st.sampled_from([datetime(2026, 1, 1), datetime(2026, 1, 2), datetime(1969, 1, 1)])
KINDS = st.sampled_from(
    [(pl.Int64(), INTS), (pl.Int64(), WIDE), (pl.Int64(), NULLS), (pl.Float64(), FLOATS), (pl.String(), TEXTS), (pl.Datetime("us"), TIMES)],
)


@st.composite
def frames(draw: st.DrawFn) -> tuple[pl.DataFrame, list[str]]:
    count = draw(st.integers(0, 20))
    columns = {}
    for at in range(draw(st.integers(0, 3))):
        dtype, values = draw(KINDS)
        columns[f"k{at}"] = pl.Series(draw(st.lists(values, min_size=count, max_size=count)), dtype=dtype)
    x = draw(st.lists(st.one_of(FLOATS, st.floats(-5, 5).map(lambda value: value + 0.0)), min_size=count, max_size=count))
    t = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    return pl.DataFrame(columns | {"x": pl.Series(x, dtype=pl.Float64()), "t": pl.Series(t, dtype=pl.Int64())}), list(columns)


def groups_of(frame: pl.DataFrame, by: list[str]) -> dict[str, list[Any]]:
    found = defaultdict(list)
    for row in frame.select(*by, "x", "t").rows():
        found[repr(row[: len(by)])].append(row[len(by) :])
    return found


@given(frames())
def test_values_are_numbered_alike_one_by_one_and_by_polars(data: tuple[pl.DataFrame, list[str]]) -> None:
    for few in data[0].get_columns():
        if few.len():
            many = pl.concat([few] * (NUMBERED_ROWS_MAX + 1), rechunk=True)
            numbers, leaders = _hashed(many)
            assert [found.tolist() for found in _hashed(few)] == [numbers[: few.len()].tolist(), leaders.tolist()]


@examples(150)
@given(frames())
def test_rows_with_equal_keys_are_one_group(data: tuple[pl.DataFrame, list[str]]) -> None:
    frame, by = data
    groups, expected = Groups.of(frame, by), groups_of(frame, by)
    names = [repr(row) for row in groups.keys.rows()] if by else [repr(())] * groups.keys.height
    assert sorted(names) == sorted(expected)
    assert groups.keys.columns == by
    assert measures.counted(groups).to_list() == [len(expected[name]) for name in names]
    assert [repr(row) for row in groups.keys_at(groups.ids).rows()] == [repr(row) for row in frame.select(by).rows()] or not by


def test_columns_that_are_too_wide_together_keep_their_values() -> None:
    rows = [(user, item, flag) for user in (0, 2**31 - 1) for item in (5, 2**31 + 4) for flag in (0, 1)]
    frame = pl.DataFrame(rows, schema=["user", "item", "flag"], orient="row")
    groups = Groups.of(frame, frame.columns)
    assert groups.keys_at(groups.ids).rows() == rows


@examples(150)
@given(frames())
def test_firsts_lasts_and_extremes_are_those_of_each_group(data: tuple[pl.DataFrame, list[str]]) -> None:
    frame, by = data
    groups, expected = Groups.of(frame, by), groups_of(frame, by)
    names = [repr(row) for row in groups.keys.rows()] if by else [repr(())] * groups.keys.height
    order = [[(x, t) for x, t in expected[name] if x is not None] for name in names]
    least = [min((x for x, _ in rows if x == x), default=rows[0][0] if rows else None) for rows in order]
    assert repr(measures.extreme_of(groups, frame["x"], greatest=False).to_list()) == repr(least)
    value, _ = measures.edge_of(groups, frame["x"], frame["t"], last=False)
    first = [min(rows, key=lambda row: (row[1], row[0] != row[0], row[0]))[0] if rows else None for rows in order]
    assert repr(value.to_list()) == repr(first)
    value, _ = measures.edge_of(groups, frame["x"], frame["t"], last=True)
    last = [max(rows, key=lambda row: (row[1], row[0] != row[0], row[0]))[0] if rows else None for rows in order]
    assert repr(value.to_list()) == repr(last)


@examples(60)
@given(frames())
def test_groups_are_found_among_others(data: tuple[pl.DataFrame, list[str]]) -> None:
    frame, by = data
    if not by:
        return
    wanted = frame.select(by).unique(maintain_order=True)
    found = positions(wanted, frame, by)
    assert wanted[found].equals(frame.select(by))
    assert (positions(wanted.head(1), frame, by) >= -1).all()


@examples(100)
@given(frames())
def test_rows_in_order_are_those_that_sorting_gives(data: tuple[pl.DataFrame, list[str]]) -> None:
    frame, by = data
    groups = Groups.of(frame, by).keys
    expected = groups.sort(by) if by else groups
    assert in_order(groups, by).equals(expected)
    assert in_order(expected, by) is expected or any(
        groups[name].null_count() or groups[name].dtype in (pl.String, pl.Float64) for name in by
    )


@examples(60)
@given(frames(), st.integers(0, 3), st.integers(0, 3))
def test_rows_picked_and_put_together_are_those_of_polars(data: tuple[pl.DataFrame, list[str]], low: int, high: int) -> None:
    frame, _ = data
    for rows in (frame, frame.sort("t")):
        picked = rows_where(rows, ((rows["t"] >= low) & (rows["t"] <= high)).to_numpy())
        assert picked.equals(rows.filter(pl.col("t").is_between(low, high)))
        assert stacked([picked, rows, picked.clear()]).equals(pl.concat([picked, rows]))


@examples(80)
@given(st.lists(st.integers(0, 6), max_size=30), st.sampled_from([1, 10**6, 2**59]))
def test_runs_bring_equal_numbers_together(numbers: list[int], apart: int) -> None:
    codes = np.array(numbers, np.int64) * apart
    runs = runs_of(codes, 6 * apart + 1)
    assert codes[runs.order].tolist() == sorted(codes.tolist())
    assert codes[runs.leaders].tolist() == sorted(set(codes.tolist()))
    assert codes[runs.leaders][runs.numbers()].tolist() == codes.tolist()
    assert runs.lengths.tolist() == [codes.tolist().count(code) for code in sorted(set(codes.tolist()))]


def test_numbers_close_together_are_addressed_directly_and_others_are_not() -> None:
    near, far = pl.DataFrame({"k": np.arange(100, 200)}), pl.DataFrame({"k": np.arange(100) * 10**12})
    assert Groups.of(near, ["k"]).size == 200
    assert Groups.of(far, ["k"]).size == 100


def test_extremes_have_no_sign_of_zero() -> None:
    for values in ([-0.0, -1.0], [-0.0, float("nan")], [-0.0, None]):
        series = pl.Series(values, dtype=pl.Float64())
        groups = Groups.of(pl.DataFrame({"k": [1, 1]}), ["k"])
        assert repr(measures.extreme_of(groups, series, greatest=True).to_list()) == "[0.0]"
