"""Operators split long work into steps: closing windows, folding partial aggregates, sorting rows into ranges."""

from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from sbon.operators import partials, windowed
from sbon.operators.ranges import in_ranges
from sbon.operators.registry import build
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.kinds import Params
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.operators import K, X, frame, made, small_steps

SUMS = tuple(Aggregate(name, name, None if name == "count" else X) for name in ("count", "sum", "min", "max", "first", "stddev"))
ROUNDS = 60
FOLDED: dict[str, Params] = {
    "window": WindowParams("t", 20, 10, (("k", K),), SUMS),
    "session": SessionParams("t", 7, (("k", K),), SUMS),
}


@pytest.mark.parametrize("kind", ["window", "session", "left join", "window join", "top"])
def test_a_large_closing_takes_many_steps_and_gives_its_answers_one_by_one(kind: str):
    operator = made(kind)
    whole = frame([(n, f"k{n % 50}", 5, float(n % 4), True) for n in range(200)])
    with small_steps(20):
        for part in whole.iter_slices(40):
            for port in (0, 1) if kind == "window join" else (0,):
                operator.process(port, part)
        steps = [sum(given_.height for given_ in frames) for frames in operator.advance_in_steps(WATERMARK_END)]

    assert len(steps) > 10
    assert sum(steps) >= 50
    assert max(steps) <= sum(steps) / 2
    assert operator.state_rows == 0


@pytest.mark.parametrize("watermarks", [True, False])
@pytest.mark.parametrize("kind", ["window", "session"])
def test_partials_are_folded_in_steps_and_at_the_latest_when_there_are_several_times_as_many(kind: str, watermarks: bool):
    operator = build(FOLDED[kind])
    longest, most = 0, 0
    with small_steps(8):
        for number in range(ROUNDS):
            operator.process(0, frame([(0, f"k{n}", None, 1.0, None) for n in range(20)]))
            most = max(most, operator.state_rows)
            if watermarks:
                longest = max(longest, len(list(operator.advance_in_steps(number - 400))))
        given_ = pl.concat(operator.advance(WATERMARK_END))

    assert given_["count"].to_list() == [ROUNDS] * 20 * (2 if kind == "window" else 1)
    tables = 3  # counts and extremes, sums, sums of squares
    assert most <= 20 * tables * (partials.PUT_OFF_MAX + 2)
    assert longest > 5 or not watermarks


@pytest.mark.parametrize("limit", ["TOGETHER_ROWS_MAX", "TOGETHER_BYTES_MAX"])
def test_rows_wait_for_each_other_until_they_are_many_or_large(limit: str, monkeypatch: pytest.MonkeyPatch):
    rows = frame([(0, "k", n, 1.0, None) for n in range(100)])
    monkeypatch.setattr(windowed, limit, 250 if limit == "TOGETHER_ROWS_MAX" else 2.5 * rows.estimated_size())
    operator = build(FOLDED["window"])
    held = []
    for _ in range(4):
        operator.process(0, rows)
        held.append(operator.state_rows)

    few = held[2]
    assert few < 20, "one key's partials"
    assert held == [100, 200, few, 100 + few]


VALUES: dict[str, tuple[pl.DataType, st.SearchStrategy[Any]]] = {
    "int": (pl.Int64(), st.integers(-9, 9)),
    "null": (pl.Int64(), st.none() | st.integers(-2, 2)),
    "text": (pl.String(), st.none() | st.sampled_from(["", "a", "b", "ä", "zz"])),
    "float": (pl.Float64(), st.none() | st.sampled_from([0.0, -1.5, 2.0, float("nan"), float("inf")])),
    "bool": (pl.Boolean(), st.none() | st.booleans()),
    "one": (pl.Int64(), st.just(7)),
}


@examples(90)
@given(st.data(), st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3), st.integers(2, 6))
def test_ranges_follow_each_other_in_order_and_keep_equal_rows_together(data: st.DataObject, kinds: list[str], rows: int):
    by = [f"b{number}" for number in range(len(kinds))]
    schema = {name: VALUES[kind][0] for name, kind in zip(by, kinds, strict=True)}
    row = st.tuples(*(VALUES[kind][1] for kind in kinds))
    tables: dict[str, list[pl.DataFrame]] = {}
    for name in ("main", "other"):
        drawn = data.draw(st.lists(st.lists(row, max_size=25), min_size=1, max_size=4))
        numbers = iter(range(1000))
        tables[name] = [
            pl.DataFrame(part, schema=schema, orient="row").with_columns(pl.Series("n", [next(numbers) for _ in part], pl.Int64()))
            for part in drawn
        ]
    with small_steps(rows):
        found = [part for part in in_ranges(tables, by) if part is not None]

    for name, frames in tables.items():
        whole = pl.concat(frames)
        parts = [part[name].sort(by, maintain_order=True) for part in found]
        assert_frame_equal(pl.concat([whole.clear(), *parts]), whole.sort(by, maintain_order=True))
    whole = [pl.concat(part.values()) for part in found]
    assert all(part.height for part in whole)
    for part in whole:
        assert part.height <= rows or part.select(by).unique().height == 1
    for one, other in pairwise(whole):
        assert one.select(by).join(other.select(by), on=by, nulls_equal=True).is_empty()
