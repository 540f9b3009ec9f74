"""Every operator's answers and their order depend only on its input.

They do not depend on a frame's pieces in memory, on batches, on computing in steps, on a move to another host, or on this machine's hashes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import msgspec
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.execution.closing import Closing
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.expression import Column
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.ordered import DeduplicateParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import ExchangeParams, SplitParams
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from tests.examples import examples
from tests.operators.operators import EVENTS, HALVES, OPERATORS, K, cut, frame, frames_of, made, small_steps
from tests.operators.stream_twins import content, rows_of

Answers = list[list[Any]]
"""Answers by event, so that a later answer cannot hide a missing one."""
KEPT = [kind for kind in OPERATORS if not made(kind).is_stateless]
WHOLE_ANSWERS = [kind for kind, params in OPERATORS.items() if not isinstance(params, JoinParams | ExchangeParams | SplitParams)]
"""Kinds whose answers do not depend on batches.

An interval join orders pairs by the later of their two batches; an exchange or a splitter splits each batch.
"""
CUTS = st.lists(st.integers(1, 15), min_size=1, max_size=6)


def given_to(operator: Operator, events: Sequence[Any]) -> Answers:
    """Returns the operator's answers to each event."""
    answers = [operator.advance(event) if isinstance(event, int) else operator.process(*event) for event in events]
    return [without_notes(operator, frames) for frames in answers]


def without_notes(operator: Operator, frames: Sequence[pl.DataFrame]) -> list[Any]:
    """Returns rows without the notes of a splitter, which depend on batches; and a copy tells all of them again."""
    return rows_of([frame.drop([] if operator.noted is None else [operator.noted]) for frame in frames])


def with_end(kind: str, events: list[Any]) -> list[Any]:
    """Returns the events with frames, then for lookups a table, then the final watermark."""
    table = [(1, HALVES)] if isinstance(OPERATORS[kind], LookupParams) else []
    return frames_of(kind, [*events, *table, WATERMARK_END])


def counted(operator: Operator) -> tuple[int, int]:
    return operator.late_rows, operator.state_rows


@pytest.mark.parametrize("kind", OPERATORS)
@examples(10)
@given(events=EVENTS, cuts=CUTS)
@example(events=[(0, HALVES), (1, HALVES), 30], cuts=[4])
@example(events=[(0, HALVES[::-1]), (1, HALVES), 30], cuts=[4, 6])
def test_rows_in_one_piece_of_memory_and_in_many_have_the_same_answers(kind: str, events: list[Any], cuts: list[int]) -> None:
    whole = with_end(kind, events)
    apart = [event if isinstance(event, int) else (event[0], pl.concat(cut(event[1], cuts), rechunk=False)) for event in whole]

    assert given_to(made(kind), apart) == given_to(made(kind), whole)


@pytest.mark.parametrize("kind", OPERATORS)
@examples(10)
@given(events=EVENTS, cuts=CUTS)
def test_rows_in_one_batch_and_in_many_have_the_same_answers(kind: str, events: list[Any], cuts: list[int]) -> None:
    whole, batches = made(kind), made(kind)
    expected, found = Answers(), Answers()
    for event in with_end(kind, events):
        expected += given_to(whole, [event])
        parts = [event] if isinstance(event, int) else [(event[0], part) for part in cut(event[1], cuts)]
        found.append([row for answer in given_to(batches, parts) for row in answer])
    if kind not in WHOLE_ANSWERS:
        expected, found = ([sorted(rows, key=repr) for rows in answers] for answers in (expected, found))

    assert found == expected
    assert counted(batches) == counted(whole)


@pytest.mark.parametrize("kind", KEPT)
@examples(20)
@given(events=EVENTS, stop=st.integers(0, 8))
@example(
    events=[(0, [(0, "a", 1, -1.0, True), (7, None, None, 4.0, None), (47, "a", 1, 5.0, None), (50, "b", 1, -1.0, True)]), 2, 53], stop=3
)
def test_a_restored_snapshot_continues_as_if_nothing_had_happened(kind: str, events: list[Any], stop: int) -> None:
    frames = with_end(kind, events)
    stop %= len(frames)
    whole, before, after = made(kind), made(kind), made(kind)
    expected = given_to(whole, frames)
    begun = given_to(before, frames[:stop])
    after.restore(before.snapshot())

    assert content(after) == content(before)
    assert after.late_rows == before.late_rows
    if isinstance(OPERATORS[kind], DeduplicateParams):  # counts keys that no longer matter until they leave memory; a snapshot has none
        assert after.state_rows == sum(len(rows) for _, rows in content(after)[1].values()) <= before.state_rows
    else:
        assert after.state_rows == before.state_rows
    assert begun + given_to(after, frames[stop:]) == expected
    assert counted(after) == counted(whole)


@pytest.mark.parametrize("kind", KEPT)
@examples(10)
@given(before=EVENTS, after=EVENTS)
def test_a_fork_stays_as_it_was_and_comes_to_the_same_by_the_same_input(kind: str, before: list[Any], after: list[Any]) -> None:
    frames = with_end(kind, [*before, *after])
    operator, twin = made(kind), made(kind)
    given_to(operator, frames[: len(before)])
    given_to(twin, frames[: len(before)])
    fork = operator.fork()
    answered = given_to(operator, frames[len(before) :])

    assert content(fork) == content(twin), "input after the fork changed the fork"
    copied, parts = made(kind), fork.parts()
    assert parts is not None
    copied.adopt(parts)
    assert given_to(copied, frames[len(before) :]) == answered
    assert counted(copied) == counted(operator)


def in_parts(rows_max: int, over: Sequence[bool]) -> Callable[[Operator, int], list[pl.DataFrame]]:
    """Advances in parts as the engine does; `over` says when a part's time is used up."""
    looks: Iterator[bool] = iter([*over] * 1000)

    def advance(operator: Operator, watermark_us: int) -> list[pl.DataFrame]:
        steps = operator.advance_in_steps(watermark_us)
        if isinstance(steps, Sequence):
            return [frame for frames in steps for frame in frames]
        closing, given_ = Closing(iter(steps), watermark_us), list[pl.DataFrame]()
        while not closing.done:
            given_ += closing.part(rows_max, lambda: next(looks, False))
        return given_

    return advance


@pytest.mark.parametrize("kind", KEPT)
@examples(13)
@given(events=EVENTS, rows=st.integers(2, 6), rows_max=st.integers(1, 9), over=st.lists(st.booleans(), min_size=1, max_size=5))
def test_answers_do_not_depend_on_the_steps_they_are_computed_in(
    kind: str, events: list[Any], rows: int, rows_max: int, over: list[bool]
) -> None:
    frames = with_end(kind, events)
    whole, stepped, advance = made(kind), made(kind), in_parts(rows_max, over)
    expected = given_to(whole, frames)
    with small_steps(rows):
        answers = [advance(stepped, event) if isinstance(event, int) else stepped.process(*event) for event in frames]
    found = [without_notes(stepped, given_) for given_ in answers]

    assert found == expected
    assert content(stepped) == content(whole)
    assert counted(stepped) == counted(whole)


HASHED = [Column(name) for name in "tkixb"]
JOINED = WindowJoinParams("t", "t", (K,), (K,), 20, 10, (("k", 0, "k"), ("i", 0, "i"), ("x", 1, "x")), None, (ColumnType.FLOAT,))


@pytest.mark.parametrize("kind", [*OPERATORS, *(f"window join by {key.name}" for key in HASHED)])
def test_an_answer_and_its_order_do_not_depend_on_the_hashes_of_polars(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These hashes may differ between machines and versions."""
    by = tuple(key for key in HASHED if kind == f"window join by {key.name}")
    params = OPERATORS[kind] if not by else msgspec.structs.replace(JOINED, left_keys=by, right_keys=by)
    rows = [(n % 7, "abc"[n % 3], n % 5, n / 4 - 3, n % 2 == 0) for n in range(40)]
    monkeypatch.setitem(OPERATORS, kind, params)
    events = with_end(kind, [(0, rows), (1, rows[::-1]), 30])
    before = given_to(made(kind), events)
    series, expression = pl.Series.hash, pl.Expr.hash
    monkeypatch.setattr(pl.Series, "hash", lambda self, *seeds: series(self, 12345))
    monkeypatch.setattr(pl.Expr, "hash", lambda self, *seeds: expression(self, 12345))

    assert given_to(made(kind), events) == before


def test_the_order_of_a_window_join_is_the_same_everywhere() -> None:
    """Rows are ordered by their key's bucket, then by arrival; buckets are equal on every machine."""
    golden: list[tuple[list[Any], list[Any]]] = [
        ([1, 2, 3, 4, 5, -1], [-1, 4, 5, 3, 1, 2]),
        (["a", "b", "c", "é", ""], ["", "é", "a", "b", "c"]),
        ([0.5, -0.25, float("inf"), 1e300], [0.5, float("inf"), -0.25, 1e300]),
        ([True, False], [False, True]),
    ]
    for keys, expected in golden:
        left = pl.DataFrame({"t": [0] * len(keys), "k": keys}).with_columns(pl.col("t").cast(pl.Datetime("us")))
        operator = build(WindowJoinParams("t", "t", (K,), (K,), 10, 10, (("k", 0, "k"),)))
        operator.process(0, left)
        operator.process(1, left)
        assert [row[2] for row in rows_of(operator.advance(WATERMARK_END))] == expected


@pytest.mark.parametrize("watermark", [WATERMARK_MIN, WATERMARK_END])
@pytest.mark.parametrize("kind", OPERATORS)
def test_the_ends_of_time_pass_through(kind: str, watermark: int) -> None:
    assert made(kind).output_watermark(watermark) == watermark


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("state", [b"nonsense", b"\x81\xa1a\x01", b"\xc1", bytes(100)])
def test_what_is_no_snapshot_is_refused(kind: str, state: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        made(kind).restore(state)


@pytest.mark.parametrize("kind", OPERATORS)
def test_the_snapshot_of_a_fresh_operator_restores_a_fresh_operator(kind: str) -> None:
    operator = made(kind)
    operator.restore(made(kind).snapshot())

    assert counted(operator) == (0, 0)


@pytest.mark.parametrize("kind", KEPT)
def test_a_snapshot_does_not_continue_under_other_parameters(kind: str) -> None:
    for other in KEPT:
        if other != kind:
            with pytest.raises(RemoteProtocolError, match="other parameters"):
                made(other).restore(made(kind).snapshot())


@pytest.mark.parametrize("kind", KEPT)
def test_another_schema_in_mid_stream_is_refused(kind: str) -> None:
    operator = made(kind)
    operator.process(0, frame(HALVES))
    with pytest.raises(RemoteProtocolError, match="columns"):
        operator.process(0, frame(HALVES).with_columns(pl.col("i").cast(pl.Float64())))


def test_every_operator_is_tried() -> None:
    assert {type(params) for params in OPERATORS.values()} == set(get_args(Params)) - {SourceParams, SinkParams}
