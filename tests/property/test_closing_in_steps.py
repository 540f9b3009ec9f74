"""What an operator gives for a watermark is the same, row for row, however small the steps and however soon others want the thread."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from sbon.operators import join, partials, ranges, session, top, window, window_join, windowed
from sbon.operators.operator import Operator
from sbon.operators.ranges import in_ranges
from sbon.operators.registry import build
from sbon.query.plan import WATERMARK_END
from sbon_agent.engine.closing import Closing
from tests.property.stream_twins import content
from tests.property.test_forks import EVENTS, OPERATORS

SMALL = ((ranges, "RANGE_ROWS"), (ranges, "RANGES_MAX"), (ranges, "PIECE_ROWS"), (ranges, "SAMPLES"), (join, "RANGE_ROWS"))
SMALL += (
    (top, "RANGE_ROWS"),
    (window, "ROWS_AT_ONCE"),
    (window, "PIECE_ROWS"),
    (session, "ROWS_AT_ONCE"),
    (window_join, "JOIN_ROWS_MAX"),
    (window_join, "STEP_ROWS"),
    (partials, "FOLD_ROWS_MIN"),
    (partials, "FOLD_ROWS_MAX"),
    (partials, "FOLD_FRAMES"),
    (windowed, "PENDING_ROWS_MAX"),
)


@contextmanager
def small_steps(rows: int) -> Iterator[None]:
    """Steps of so many rows instead of thousands."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in SMALL:
            patch.setattr(module, name, rows)
        yield


def at_once(operator: Operator, watermark_us: int) -> list[pl.DataFrame]:
    return list(operator.advance(watermark_us))


def in_parts(rows_max: int, over: Sequence[bool]) -> Callable[[Operator, int], list[pl.DataFrame]]:
    """As the engine asks, which now and then finds that the time is over."""
    looks = iter([*over] * 1000)

    def advance(operator: Operator, watermark_us: int) -> list[pl.DataFrame]:
        steps = operator.advance_in_steps(watermark_us)
        if isinstance(steps, Sequence):
            return [frame for frames in steps for frame in frames]
        closing, given_ = Closing(iter(steps), watermark_us), list[pl.DataFrame]()
        while not closing.done:
            given_ += closing.part(rows_max, lambda: next(looks, False))
        return given_

    return advance


def answers(operator: Operator, events: list[Any], ports: int, advance: Callable[[Operator, int], list[pl.DataFrame]]) -> list[list[Any]]:
    """By event, so that what comes later does not make up for what is missing."""
    given_: list[list[Any]] = []
    for event in events:
        if isinstance(event, int):
            frames = advance(operator, event)
        else:
            frame = pl.DataFrame(event[1], schema={"t": pl.Int64(), "k": pl.String(), "x": pl.Float64()}, orient="row")
            frames = list(operator.process(event[0] % ports, frame.with_columns(pl.col("t").cast(pl.Datetime("us")))))
        given_.append([row for frame in frames for row in frame.rows()])
    return given_


@pytest.mark.parametrize("kind", OPERATORS)
@settings(max_examples=40, deadline=None)
@given(events=EVENTS, rows=st.integers(2, 6), rows_max=st.integers(1, 9), over=st.lists(st.booleans(), min_size=1, max_size=5))
def test_the_answers_do_not_depend_on_the_steps(kind: str, events: list[Any], rows: int, rows_max: int, over: list[bool]):
    ports = 2 if "join" in kind else 1
    whole, stepped = build(OPERATORS[kind]), build(OPERATORS[kind])
    expected = answers(whole, [*events, WATERMARK_END], ports, at_once)
    with small_steps(rows):
        found = answers(stepped, [*events, WATERMARK_END], ports, in_parts(rows_max, over))

    assert found == expected
    assert content(stepped) == content(whole)
    assert (stepped.late_rows, stepped.state_rows) == (whole.late_rows, whole.state_rows)


@pytest.mark.parametrize("kind", ["window", "session", "left join", "window join", "top"])
def test_a_large_closing_takes_many_steps_and_gives_its_answers_one_by_one(kind: str):
    operator = build(OPERATORS[kind])
    frame = pl.DataFrame({"t": range(400), "k": [f"k{i % 50}" for i in range(400)], "x": [float(i) for i in range(400)]})
    frame = frame.with_columns(pl.col("t").cast(pl.Datetime("us")))
    with small_steps(20):
        for part in frame.iter_slices(40):
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
    operator = build(OPERATORS[kind])
    longest, most = 0, 0
    with small_steps(8):
        for number in range(300):
            frame = pl.DataFrame({"t": [0] * 20, "k": [f"k{i}" for i in range(20)], "x": [1.0] * 20})
            operator.process(0, frame.with_columns(pl.col("t").cast(pl.Datetime("us"))))
            most = max(most, operator.state_rows)
            if watermarks:
                longest = max(longest, len(list(operator.advance_in_steps(number - 400))))
        given_ = pl.concat(operator.advance(WATERMARK_END))

    assert given_["count"].to_list() == [300] * 20 * (2 if kind == "window" else 1)
    tables = 3  # counts and extremes, sums, sums of squares
    assert most <= 20 * tables * (partials.PUT_OFF_MAX + 2)
    assert longest > 5 or not watermarks


VALUES: dict[str, tuple[pl.DataType, st.SearchStrategy[Any]]] = {
    "int": (pl.Int64(), st.integers(-9, 9)),
    "null": (pl.Int64(), st.none() | st.integers(-2, 2)),
    "text": (pl.String(), st.none() | st.sampled_from(["", "a", "b", "ä", "zz"])),
    "float": (pl.Float64(), st.none() | st.sampled_from([0.0, -1.5, 2.0, float("nan"), float("inf")])),
    "bool": (pl.Boolean(), st.none() | st.booleans()),
    "one": (pl.Int64(), st.just(7)),
}


@settings(max_examples=150, deadline=None)
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
