"""First rows of keys and partitions equal those of a plain twin, however rows are split, shuffled or stored."""

import random
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.operators import deduplicate, ranges, seen, top
from sbon.operators.assign import Assign
from sbon.operators.deduplicate import Deduplicate
from sbon.operators.operator import Operator
from sbon.operators.top import Top
from sbon.operators.windowed import PENDING_ROWS_MAX
from sbon.query.limits import LimitError
from sbon.query.params.ordered import DeduplicateParams, OrderColumn, TopParams
from sbon.query.params.windowed import AssignParams
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.stream_twins import Row, frame, rows_of
from tests.query_worlds import lines, plan_of
from tests.query_worlds import run as run_plan

ROWS = st.lists(
    st.tuples(
        st.one_of(st.integers(-5, 60), st.integers(0, 20), st.none()),
        st.sampled_from(["a", "b", None]),
        st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.0, 2.5])),
    ),
    max_size=30,
)
STEPS = st.lists(st.one_of(ROWS, st.integers(-10, 70)), max_size=6)
SPANS = st.sampled_from([1, 7, 10])
BEST_LAST = (OrderColumn("f", True, False),)


def params(span: int, session: bool, lateness: int = 0) -> DeduplicateParams:
    return DeduplicateParams("t", ("k",), BEST_LAST, (), span, session, lateness)


def fed(operator: Operator, steps: list[Any], rng: random.Random | None = None) -> list[Row]:
    """Returns an operator's answers. With `rng`, shuffles and splits the rows between two watermarks."""
    found: list[pl.DataFrame] = []
    for step in steps:
        if isinstance(step, int):
            found += operator.advance(step)
            continue
        rows = step if rng is None else rng.sample(step, len(step))
        cuts = [0, len(rows)] if rng is None else sorted({0, len(rows), rng.randint(0, len(rows))})
        for begin, end in pairwise(cuts):
            found += operator.process(0, frame(rows[begin:end], "tkf"))
    return rows_of(found)


def twin(steps: list[Any], span: int, session: bool, lateness: int) -> tuple[list[Row], int]:
    """Returns the first rows, sorted, and the number of late rows."""
    passed, late, kept = -(2**62), 0, list[Any]()
    for step in steps:
        if isinstance(step, int):
            passed = max(passed, step - lateness)
            continue
        in_time = [row for row in step if row[0] is not None and row[0] >= passed]
        late += len(step) - len(in_time)
        kept += in_time
    answer: list[Row] = []
    for key in {row[1] for row in kept}:
        mine = sorted((row for row in kept if row[1] == key), key=lambda row: (row[0], row[2] is None, -(row[2] or 0.0)))
        before: Any = None
        for row in mine:
            window = row[0] // span * span
            if session and (before is None or row[0] - before >= span):
                answer.append((row[0], *row))
            if not session and before != window:
                answer.append((window, window + span, *row))
            before = row[0] if session else window
    return sorted(answer, key=repr), late


def as_twin(rows: list[Row]) -> list[Row]:
    return sorted((tuple(value + 0.0 if isinstance(value, float) else value for value in row) for row in rows), key=repr)


@examples(90)
@given(STEPS, SPANS, st.booleans(), st.sampled_from([0, 4]), st.integers(0, 2**32))
def test_first_rows_are_those_of_the_twin_however_rows_are_cut_and_mixed(
    steps: list[Any], span: int, session: bool, lateness: int, seed: int
) -> None:
    steps = [step for step in [*steps, WATERMARK_END] if step != []]
    one, other = Deduplicate(params(span, session, lateness)), Deduplicate(params(span, session, lateness))
    expected, late = twin(steps, span, session, lateness)
    expected = as_twin(expected)
    assert as_twin(fed(one, steps)) == expected
    assert as_twin(fed(other, steps, random.Random(seed))) == expected
    assert one.late_rows == other.late_rows == late
    assert (one.state_rows, other.state_rows) == (0, 0)


@examples(50)
@given(ROWS.filter(bool), ROWS.filter(bool), SPANS, st.booleans(), st.integers(-10, 70), st.sampled_from([0, 4]))
def test_a_row_leaves_when_the_watermark_has_passed_it_and_none_comes_behind_the_promise(
    first: list[Any], second: list[Any], span: int, session: bool, watermark: int, lateness: int
) -> None:
    operator = Deduplicate(params(span, session, lateness))
    early = fed(operator, [first, watermark])
    assert early == [row for row in fed(Deduplicate(params(span, session)), [first, WATERMARK_END]) if row[-3] < watermark - lateness]
    promised = operator.output_watermark(watermark)
    for row in fed(operator, [second, WATERMARK_END]):
        assert row[-3] >= promised
        assert session or row[1] >= promised


@pytest.mark.parametrize("session", [False, True])
def test_many_rows_that_are_due_at_once_leave_in_steps(session: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    rows = [(rng.randrange(200), rng.choice("abcdef"), rng.choice([1.0, 2.0, None])) for _ in range(2000)]
    expected, _ = twin([rows], 10, session, 0)
    monkeypatch.setattr(deduplicate, "STEP_ROWS", 64)
    operator = Deduplicate(params(10, session))
    operator.process(0, frame(rows, "tkf"))
    steps = list(operator.advance_in_steps(WATERMARK_END))
    assert as_twin([row for frames in steps for row in rows_of(frames)]) == as_twin(expected)
    assert len(steps) > 15
    assert operator.state_rows == 0


@pytest.mark.parametrize("session", [False, True])
def test_keys_are_forgotten_and_rows_waiting_are_looked_through(session: bool) -> None:
    """A long stream has few keys, short windows and a watermark far behind: the numbers of keys and rows held stay bounded."""
    operator = Deduplicate(params(1000, session))
    given = 0
    for start in range(0, 400_000, 4000):
        operator.process(0, frame([(start + n, "abc"[n % 3], 1.0) for n in range(0, 4000, 2)], "tkf"))
        given += sum(answer.height for answer in operator.advance(start - 50_000))
    waiting = 60_000 / 2
    assert operator.state_rows <= (waiting if session else PENDING_ROWS_MAX + 300) + 10
    given += sum(answer.height for answer in operator.advance(WATERMARK_END))
    assert given == (3 if session else 3 * 400)
    assert operator.state_rows == 0


@examples(10)
@given(st.integers(0, 2**32), st.integers(1, 40), st.sampled_from([1, 3, 2**64]))
def test_keys_are_known_by_what_they_are_and_not_by_their_hashes(seed: int, keys: int, hashes: int) -> None:
    """All keys share one hash, or three hashes, or have their own."""
    rng = np.random.default_rng(seed)
    subject, known = seen.Seen(["a", "b"]), dict[Any, int]()
    real = seen.key_hashes
    try:
        seen.key_hashes = lambda rows, names: real(rows, names) % np.uint64(hashes) if hashes < 2**64 else real(rows, names)  # type: ignore[assignment]
        for now in range(0, 120, 10):
            drawn = pl.DataFrame(
                {
                    "t": rng.integers(now, now + 10, 20),
                    "a": rng.integers(0, keys, 20),
                    "b": [["x", "y", None][n] for n in rng.integers(0, 3, 20)],
                },
                schema={"t": pl.Int64(), "a": pl.Int64(), "b": pl.String()},
            ).with_columns(pl.when(pl.col("a") > 0).then(pl.col("a")))
            for key, instant in zip(drawn.select("a", "b").rows(), subject.instants(drawn), strict=True):
                before = known.get(key, seen.NEVER)
                assert instant == before or (instant == seen.NEVER and before < now - 60)
            subject.add(drawn)
            for time, *key in drawn.rows():
                known[tuple(key)] = max(time, known.get(tuple(key), seen.NEVER))
            kept = subject.frame(now - 50)
            assert kept is not None
            assert sorted(map(repr, kept.rows())) == sorted(repr((time, *key)) for key, time in known.items() if time >= now - 50)
            subject.forget(now - 50)
    finally:
        seen.key_hashes = real


@pytest.mark.parametrize("wrong", [{"span_us": 0}, {"keys": ()}, {"allowed_lateness_us": -1}])
def test_deduplication_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LimitError, match="expected"):
        DeduplicateParams(**({"time_column": "t", "keys": ("k",), "order": (), "ties": (), "span_us": 10} | wrong))


# Windows as columns


@examples(50)
@given(ROWS.filter(bool), st.sampled_from([(10, 10), (10, 5), (10, 3), (7, 1)]), st.integers(-20, 70), st.sampled_from([0, 4]))
def test_every_row_has_each_window_that_it_lies_in(rows: list[Any], window: tuple[int, int], watermark: int, lateness: int) -> None:
    size, slide = window
    operator = Assign(AssignParams("t", size, slide, lateness))
    expected: list[Row] = []
    for row in rows:
        if row[0] is None:
            expected.append((None, None, *row))
            continue
        expected += [(start, start + size, *row) for start in range(-200, 200) if start % slide == 0 and start <= row[0] < start + size]
    found = rows_of(operator.process(0, frame(rows, "tkf")))
    assert [repr(row) for row in found] == [repr(row) for row in expected]
    open_ends = [row[1] for row in found if row[0] is not None and row[2] >= watermark - lateness]
    assert all(end >= operator.output_watermark(watermark) for end in open_ends)
    assert operator.output_watermark(watermark) > watermark - lateness


@pytest.mark.parametrize("wrong", [(0, 0, 0), (5, 10, 0), (10, 10, -1)])
def test_windows_that_make_no_sense_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(LimitError, match="expected"):
        AssignParams("t", *wrong)


# First rows of partitions


@examples(50)
@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 3), st.booleans(), st.booleans(), st.integers(1, 3))
def test_first_rows_of_partitions_are_numbered(seed: int, count: int, keys: int, descending: bool, holes: bool, limit: int) -> None:
    rng = random.Random(seed)
    values = [float(n) for n in range(6)] + [None] * holes
    rows: list[Any] = [(rng.randrange(3) * 10, rng.choice(["a", "b", None][:keys]), rng.choice(values)) for _ in range(count)]
    order = (OrderColumn("f", descending, not descending),)
    operators = [Top(TopParams("t", order, (), limit, ("k",), "n")) for _ in range(2)]
    expected: list[Row] = []
    for time in sorted({row[0] for row in rows}):
        for key in {row[1] for row in rows}:
            mine = [row[2] for row in rows if row[:2] == (time, key)]
            some = sorted((value for value in mine if value is not None), reverse=descending)
            none = [None] * mine.count(None)
            first = (some + none if descending else none + some)[:limit]
            expected += [(time, key, value, number + 1) for number, value in enumerate(first)]
    expected.sort(key=repr)
    for operator in operators:
        assert sorted(fed(operator, [rows, WATERMARK_END], rng), key=repr) == expected
    half = Top(TopParams("t", order, (), limit, ("k",), "n"))
    operators[0] = Top(TopParams("t", order, (), limit, ("k",), "n"))
    fed(operators[0], [rows])
    half.restore(operators[0].snapshot())
    assert sorted(fed(half, [WATERMARK_END]), key=repr) == expected


def test_a_window_of_many_partitions_closes_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(10, f"{n * 7919 % 1000:03}", float(n * 31 % 97)) for n in range(4000)]
    whole, stepped = (Top(TopParams("t", BEST_LAST, (), 2, ("k",), "n")) for _ in range(2))
    at_once = fed(whole, [rows, 11])
    stepped.process(0, frame(rows, "tkf"))
    for module in (ranges, top):
        monkeypatch.setattr(module, "RANGE_ROWS", 128)
    steps = list(stepped.advance_in_steps(11))
    assert [row for frames in steps for row in rows_of(frames)] == at_once
    assert len(at_once) == 2000
    assert max(sum(frame.height for frame in frames) for frames in steps) <= 128


def test_a_number_in_a_column_that_is_taken_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="column 'k' for row numbers is already a column"):
        Top(TopParams("t", (), ("f",), 2, ("k",), "k")).process(0, frame([(0, "a", 1.0)], "tkf"))


# First rows from SQL

CALL = "TUMBLE(s, ts, INTERVAL '10 s')"


def ranked(partition: str, order: str, condition: str, call: str = CALL, columns: str = "*") -> str:
    inner = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY {partition} ORDER BY {order}) AS place FROM {call}"
    return f"SELECT {columns} FROM ({inner}) WHERE {condition}"


def sorted_rows(sql: str) -> list[Row]:
    return sorted(run_plan(plan_of(sql)).rows(), key=repr)


def batch(by: list[str], order: list[str], descending: list[bool], limit: int) -> list[Row]:
    """Returns the first rows of each group, computed over all rows at once."""
    rows = run_plan(plan_of(f"SELECT * FROM {CALL}"))
    rows = rows.sort([*order, *rows.columns], descending=[*descending, *[False] * rows.width], nulls_last=True)
    place = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(by).alias("place")
    return sorted(rows.with_columns(place).filter(pl.col("place") <= limit).rows(), key=repr)


@pytest.mark.parametrize("call", [CALL, "HOP(s, ts, INTERVAL '10 s', INTERVAL '10 s')"])
def test_the_first_row_of_each_key_is_that_of_a_batch_run(call: str) -> None:
    found = sorted_rows(ranked("window_start, k", "ts", "place = 1", call))
    assert found == batch(["window_start", "k"], ["ts"], [False], 1)
    assert len(found) == 20
    assert "first row of each k in windows 10 s" in str(lines(plan_of(ranked("window_start, k", "ts", "place = 1", call))))


@pytest.mark.parametrize(
    ("order", "names", "descending"),
    [("ts DESC NULLS LAST", ["ts"], [True]), ("v DESC NULLS LAST, n", ["v", "n"], [True, False]), ("ts", ["ts"], [False])],
)
def test_the_first_rows_of_each_key_are_those_of_a_batch_run(order: str, names: list[str], descending: list[bool]) -> None:
    """Covers the conditions `<= 2`, `< 2` and `= 2` on the place."""
    assert sorted_rows(ranked("window_end, k", order, "place <= 2")) == batch(["window_start", "k"], names, descending, 2)
    assert sorted_rows(ranked("window_end", order, "place < 2")) == batch(["window_start"], names, descending, 1)
    second = [row for row in batch(["window_start", "k"], names, descending, 2) if row[-1] == 2]
    assert sorted_rows(ranked("window_end, k", order, "place = 2")) == second


def test_distinct_on_is_the_first_row() -> None:
    columns = "window_start, k, ts, v, n"
    numbered = sorted_rows(ranked("window_start, k", "v DESC NULLS LAST, ts", "place = 1", columns=columns))
    sql = f"SELECT DISTINCT ON (window_start, k) {columns} FROM {CALL} ORDER BY k, window_start, v DESC NULLS LAST, ts"
    assert sorted_rows(sql) == numbered
    first = sorted_rows(ranked("window_start, k", "ts", "place = 1", columns=columns))
    assert sorted_rows(f"SELECT DISTINCT ON (window_start, k) {columns} FROM {CALL}") == first


def test_behind_a_pause_a_row_is_a_first_one_again() -> None:
    """On both nodes, each key comes every four seconds, except where the key is NULL."""
    sql = ranked("window_start, k", "ts", "place = 1", "SESSION((SELECT ts, k FROM s WHERE k IS NOT NULL), ts, INTERVAL '5 s')", "ts, k")
    times = run_plan(plan_of("SELECT ts, k FROM s WHERE k IS NOT NULL")).unique().sort("k", "ts")
    apart = (pl.col("ts") - pl.col("ts").shift().over("k")).dt.total_seconds()
    expected = times.filter((apart >= 5).fill_null(True))
    assert sorted_rows(sql) == sorted(expected.rows(), key=repr)
    assert 4 < expected.height < times.height


def test_a_condition_inside_comes_before_and_one_around_behind() -> None:
    every = sorted_rows(ranked("window_start, k", "ts", "place = 1", columns="window_start, k, ts, v"))
    around = sorted_rows(ranked("window_start, k", "ts", "place = 1 AND v > 1", columns="window_start, k, ts, v"))
    assert around == [row for row in every if row[3] is not None and row[3] > 1]
    inside = sorted_rows(ranked("window_start, k", "ts", "place = 1", f"{CALL} WHERE v > 1", "window_start, k, ts, v"))
    assert all(row[3] > 1 for row in inside)
    assert len(inside) > len(around) > 0
    keys = ranked("window_start, k", "ts", "place = 1 AND k = 'k1'", columns="window_start, k, ts, v")
    assert sorted_rows(keys) == [row for row in every if row[1] == "k1"]
    assert "where k = 'k1'" in lines(plan_of(keys))[1]


def test_one_meaning_has_one_signature() -> None:
    def signature(sql: str) -> str:
        return next(o.signature for o in plan_of(sql).operators if isinstance(o.params, DeduplicateParams | TopParams))

    one = signature(ranked("window_start, k", "ts", "place = 1", "TUMBLE((SELECT ts, k, v FROM s), ts, INTERVAL '10 s')"))
    same = "TUMBLE((SELECT v AS x, ts AS t, k AS key FROM s), t, INTERVAL '10000 ms')"
    assert one == signature(ranked("key, window_end, window_start", "t", "1 >= place AND place > 0", same, "key, t"))
    assert one == signature(f"SELECT DISTINCT ON (window_end, key) window_start, key, t, x FROM {same}")
    assert one != signature(ranked("window_start, k", "ts, v", "place = 1", "TUMBLE((SELECT ts, k, v FROM s), ts, INTERVAL '10 s')"))
    assert one != signature(ranked("window_start, k", "ts", "place = 1", "SESSION((SELECT ts, k, v FROM s), ts, INTERVAL '10 s')"))
