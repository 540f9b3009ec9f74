"""Session windows equal a brute-force twin, however rows are split into batches and wherever a snapshot falls."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators.session import Session, closing_us
from sbon.query.expression import Column
from sbon.query.limits import LimitError
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.windowed import SessionParams
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.stream_twins import Event, frame, rows_of, run, session_twin
from tests.operators.test_windows import AGGREGATES, NAMES, ROWS, cut

GAPS = st.one_of(st.integers(1, 25), st.sampled_from([33, 50]))
CUTS = st.lists(st.integers(0, 100), max_size=5)


def params(gap: int, lateness: int = 0) -> SessionParams:
    return SessionParams("t", gap, (("key", Column("k")),), AGGREGATES, lateness)


def ended(gap: int, lateness: int, watermark: int) -> int:
    """Returns the time up to which ended sessions have left."""
    step = closing_us(gap)
    return (watermark - lateness) // step * step


def expected(twin: dict[tuple[int, int, str | None], dict[str, Any]]) -> list[tuple[Any, ...]]:
    order = sorted(twin, key=lambda group: (group[1], group[0], group[2] is not None, group[2] or ""))
    return [(start, end, key, *(twin[start, end, key][name] for name in NAMES)) for start, end, key in order]


@examples(50)
@given(ROWS, GAPS, CUTS)
def test_answers_are_those_of_the_twin_to_the_last_bit(rows: list[Any], gap: int, cuts: list[int]) -> None:
    frames = run(Session(params(gap)), [*cut(rows, cuts), ("watermark", 0, WATERMARK_END)])
    assert rows_of(frames) == expected(session_twin(rows, gap, None))


@examples(50)
@given(ROWS, GAPS, st.sampled_from([0, 7]), CUTS, st.integers(-80, 100))
def test_a_watermark_ends_what_no_row_can_join_and_no_more(
    rows: list[Any], gap: int, lateness: int, cuts: list[int], watermark: int
) -> None:
    session = Session(params(gap, lateness))
    early = rows_of(run(session, [*cut(rows, cuts), ("watermark", 0, watermark)]))
    assert early == expected(session_twin(rows, gap, ended(gap, lateness, watermark)))
    promise = session.output_watermark(watermark)
    late = rows_of(session.advance(WATERMARK_END))
    assert all(row[1] >= promise for row in late)
    assert early + late == expected(session_twin(rows, gap, None))
    assert session.state_rows == 0


@examples(35)
@given(ROWS, GAPS, CUTS, st.lists(st.integers(-80, 100), max_size=6))
def test_rows_in_time_give_the_same_sessions_whatever_watermarks_come_between(
    rows: list[Any], gap: int, cuts: list[int], marks: list[int]
) -> None:
    """Rows come in time order; each watermark is as late as the remaining rows allow."""
    timed = sorted((row for row in rows if row[0] is not None), key=lambda row: row[0])
    events: list[Event] = []
    for mark in sorted(marks):
        events += [*cut([row for row in timed if row[0] < mark], cuts), ("watermark", 0, mark)]
        timed = [row for row in timed if row[0] >= mark]
    session = Session(params(gap))
    found = rows_of(run(session, [*events, *cut(timed, cuts), ("watermark", 0, WATERMARK_END)]))
    assert found == expected(session_twin(rows, gap, None))
    assert session.late_rows == 0


@examples(35)
@given(ROWS, GAPS, st.sampled_from([0, 7]), st.integers(-80, 80))
def test_late_rows_are_those_that_alone_would_have_ended(rows: list[Any], gap: int, lateness: int, watermark: int) -> None:
    session = Session(params(gap, lateness))
    run(session, [("watermark", 0, watermark), *cut(rows, [])])
    session.snapshot()
    assert session.late_rows == sum(time is None or time + gap <= ended(gap, lateness, watermark) for time, *_ in rows)


def test_a_row_between_two_sessions_makes_them_one() -> None:
    session = Session(SessionParams("t", 5, (), (Aggregate("n", "count", None),)))
    session.process(0, frame([(0, "a", None, 1), (8, "b", None, 1)], "tkfi"))
    assert rows_of(session.advance(4)) == []
    session.process(0, frame([(4, "c", None, 1)], "tkfi"))
    assert rows_of(session.advance(14)) == []
    assert rows_of(session.advance(15)) == [(0, 13, 3)]


def test_rows_a_gap_apart_are_two_sessions() -> None:
    session = Session(SessionParams("t", 5, (), (Aggregate("n", "count", None),)))
    session.process(0, frame([(0, "a", None, 1), (5, "a", None, 1)], "tkfi"))
    assert rows_of(session.advance(WATERMARK_END)) == [(0, 5, 1), (5, 10, 1)]


@pytest.mark.parametrize(("gap", "lateness"), [(0, 0), (2**61, 0), (5, -1)])
def test_sessions_that_make_no_sense_are_refused(gap: int, lateness: int) -> None:
    with pytest.raises(LimitError, match="expected"):
        SessionParams("t", gap, (), (), lateness)


@pytest.mark.parametrize(
    ("gap", "step"), [(1, 1), (3_000, 3_000), (10_000, 5_000), (80_000, 5_000), (160_000, 10_000), (10_000_000, 625_000)]
)
def test_sessions_are_closed_sixteen_times_a_gap_but_not_each_instant_of_a_short_one(gap: int, step: int) -> None:
    assert closing_us(gap) == step
