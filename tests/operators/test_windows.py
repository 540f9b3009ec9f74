"""Windows equal a brute-force twin, however rows are split into batches and wherever a snapshot falls."""

from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators.window import Window
from sbon.query.expression import Column
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.windowed import WindowParams
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.stream_twins import Event, batches, rows_of, run, window_twin

F, I = Column("f"), Column("i")  # noqa: E741
AGGREGATES = (
    Aggregate("rows", "count", None),
    Aggregate("count_f", "count", F),
    Aggregate("sum_f", "sum", F),
    Aggregate("avg_f", "avg", F),
    Aggregate("min_f", "min", F),
    Aggregate("max_f", "max", F),
    Aggregate("stddev_f", "stddev", F),
    Aggregate("sum_i", "sum", I),
    Aggregate("avg_i", "avg", I),
    Aggregate("distinct_i", "count_distinct", I),
    Aggregate("approx_distinct_i", "approx_count_distinct", I),
    Aggregate("first_i", "first", I),
    Aggregate("last_i", "last", I),
)
NAMES = [aggregate.name for aggregate in AGGREGATES]

FLOATS = st.one_of(
    st.none(),
    st.floats(-1e6, 1e6),
    st.sampled_from([0.0, 1e16, -1e16, 1.0, 1e-300, 5e-324, 0.1]),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e150, max_value=1e150),
)
ROWS = st.lists(
    st.tuples(
        st.one_of(st.integers(-60, 60), st.integers(-60, 60), st.none()),
        st.sampled_from(["a", "b", None]),
        FLOATS,
        st.one_of(st.none(), st.integers(-5, 5), st.integers(-(2**40), 2**40)),
    ),
    max_size=30,
)
SHAPES = st.tuples(st.integers(1, 30), st.integers(1, 30), st.sampled_from([0, 0, 7]))


def params(size: int, slide: int, lateness: int) -> WindowParams:
    return WindowParams("t", size, slide, (("key", Column("k")),), AGGREGATES, lateness)


def cut(rows: list[Any], cuts: list[int]) -> list[Event]:
    return batches(rows, "tkfi", cuts)


def expected(twin: dict[tuple[int, str | None], dict[str, Any]], size: int) -> list[tuple[Any, ...]]:
    order = sorted(twin, key=lambda group: (group[0], group[1] is not None, group[1] or ""))
    return [(start, start + size, key, *(twin[start, key][name] for name in NAMES)) for start, key in order]


@examples(50)
@given(ROWS, SHAPES, st.lists(st.integers(0, 100), max_size=4))
def test_answers_are_those_of_the_twin_to_the_last_bit(rows: list[Any], shape: tuple[int, int, int], cuts: list[int]):
    size, slide, lateness = shape
    frames = run(Window(params(*shape)), [*cut(rows, cuts), ("watermark", 0, WATERMARK_END)])
    assert rows_of(frames) == expected(window_twin(rows, size, slide, lateness, None), size)


@examples(35)
@given(ROWS, SHAPES, st.lists(st.integers(0, 100), max_size=4))
def test_keys_that_are_whole_numbers_change_nothing(rows: list[Any], shape: tuple[int, int, int], cuts: list[int]):
    size, slide, lateness = shape
    numbers = {None: 7, "a": 8, "b": 11}
    events = [(kind, port, value.with_columns(pl.col("k").replace_strict(numbers))) for kind, port, value in cut(rows, cuts)]
    frames = run(Window(params(*shape)), [*events, ("watermark", 0, WATERMARK_END)])
    texts = {number: text for text, number in numbers.items()}
    found = [(start, end, texts[key], *answers) for start, end, key, *answers in rows_of(frames)]
    assert found == expected(window_twin(rows, size, slide, lateness, None), size)


@examples(35)
@given(ROWS, SHAPES, st.integers(-80, 80))
def test_a_watermark_closes_what_has_ended_and_no_more(rows: list[Any], shape: tuple[int, int, int], watermark: int):
    size, slide, lateness = shape
    window = Window(params(*shape))
    early = rows_of(run(window, [*cut(rows, []), ("watermark", 0, watermark)]))
    assert early == expected(window_twin(rows, size, slide, lateness, watermark), size)
    promise = window.output_watermark(watermark)
    late = rows_of(window.advance(WATERMARK_END))
    assert all(row[1] >= promise for row in late)
    assert sorted(early + late, key=repr) == sorted(expected(window_twin(rows, size, slide, lateness, None), size), key=repr)
    assert window.state_rows == 0


@examples(35)
@given(ROWS, SHAPES, st.integers(-80, 80))
def test_late_rows_are_those_whose_windows_have_all_closed(rows: list[Any], shape: tuple[int, int, int], watermark: int):
    size, slide, lateness = shape
    window = Window(params(*shape))
    run(window, [("watermark", 0, watermark), *cut(rows, [])])
    late = sum(time is None or time // slide * slide + size + lateness <= watermark for time, *_ in rows)
    assert window.late_rows == late
