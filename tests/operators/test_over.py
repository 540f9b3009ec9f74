"""Aggregates over rows equal a row-wise twin and DuckDB, in one batch and in many, wherever a snapshot falls."""

from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators import over
from sbon.operators.over import Over
from sbon.query.expression import Column
from sbon.query.limits import PRECEDING_MAX, LimitError
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.ordered import OverParams
from sbon.query.text import describe
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.stream_twins import Event, frame, rows_of, run
from tests.query_worlds import plan_of
from tests.query_worlds import run as run_plan

ROW = st.tuples(
    st.one_of(st.none(), st.integers(-20, 20)), st.one_of(st.none(), st.sampled_from("abc")), st.one_of(st.none(), st.integers(-3, 9))
)
ROWS = st.lists(ROW, max_size=25)
BEFORE = st.tuples(st.integers(0, 4), st.integers(0, 9))
MARKS = st.lists(st.integers(-25, 25), max_size=5).map(sorted)
END: Event = ("watermark", 0, WATERMARK_END)
FUNCTIONS = (("n", "count", None), ("c", "count", "v"), ("s", "sum", "v"), ("lo", "min", "v"), ("hi", "max", "v"), ("m", "avg", "v"))


def operator(before: tuple[int, int], partition: tuple[str, ...] = ("k",)) -> Over:
    """Returns an operator in which aggregates alternate between two frames."""
    aggregates = tuple(Aggregate(name, function, None if of is None else Column(of)) for name, function, of in FUNCTIONS)
    return Over(OverParams("t", partition, ("k", "v"), aggregates, tuple(before[place % 2] for place in range(len(FUNCTIONS)))))


def nulls_last(row: Any) -> Any:
    return tuple((value is None, value) if value is not None else (True, 0) for value in row)


def order_of(row: Any) -> Any:
    return row[0], nulls_last((row[1],)), nulls_last((row[2],))


def twin(rows: Any, before: tuple[int, int], *, by_key: bool = True) -> list[Any]:
    """Returns all rows with their aggregates, computed row by row."""
    found = []
    ordered = sorted((row for row in rows if row[0] is not None), key=order_of)
    for place, row in enumerate(ordered):
        mine = [other for other in ordered[: place + 1] if not by_key or other[1] == row[1]]
        frames = [mine[-rows_before - 1 :] for rows_before in before]
        values = [[value for _, _, value in part if value is not None] for part in frames]
        n, c, s, lo, hi, m = (frames[0], values[1], values[0], values[1], values[0], values[1])
        found.append(
            (*row, len(n), len(c), sum(s) if s else None, min(lo, default=None), max(hi, default=None), sum(m) / len(m) if m else None)
        )
    return found


def batches(rows: Any, size: int) -> list[Event]:
    return [("rows", 0, frame(rows[start : start + size], "tkv")) for start in range(0, len(rows), size)]


@examples(60)
@given(ROWS, BEFORE, st.integers(1, 9), st.booleans(), st.booleans())
@example([(3, "a", 1), (3, "a", 0), (1, None, 5), (2, None, 6), (3, "b", None)], (1, 2), 1, True, False)
def test_every_row_has_the_aggregates_of_the_twin(rows: Any, before: Any, size: int, small: bool, by_key: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(over, "FRAME_ROWS", 6 if small else 65_536)
        made = operator(before, ("k",) if by_key else ())
        found = rows_of(run(made, [*batches(rows, size), END]))
    assert found == twin(rows, before, by_key=by_key)
    assert made.untimed_rows == made.late_rows == sum(row[0] is None for row in rows)


@examples(60)
@given(ROWS, BEFORE, st.integers(1, 5), MARKS, st.randoms())
def test_however_it_is_cut_it_gives_the_same_but_for_late_rows(rows: Any, before: Any, size: int, marks: Any, random: Any) -> None:
    events = batches(rows, size)
    for mark in reversed(marks):
        events.insert(random.randint(0, len(events)), ("watermark", 0, mark))
    made, found, taken, promise = operator(before), [], [], -(10**9)
    for event in [*events, END]:
        if event[0] == "rows":
            taken += [row for row in rows_of([event[2]]) if row[0] is not None and row[0] >= promise]
        else:
            promise = max(promise, event[2])
        answers = rows_of(run(made, [event]))
        assert all(row[0] < promise for row in answers)
        found += answers
    assert found == twin(taken, before)
    assert made.late_rows == len(rows) - len(taken)
    assert made.state_rows <= 4 * max(before)


@examples(60)
@given(ROWS, ROWS, BEFORE, MARKS, st.integers(-22, 22), st.integers(0, 9), st.randoms())
@example([(0, "a", 1), (1, "a", 2)], [(2, "a", 3), (3, "a", 4), (5, "a", 5), (6, "a", 6), (7, "a", 7)], (1, 1), [6], 3, 9, None)
@example([(0, "a", 1)], [(1, "a", 3), (2, "a", 4), (3, "a", 5)], (1, 1), [2], 0, 3, None)
def test_from_an_instant_on_rows_with_a_full_frame_are_given(
    former: Any, rows: Any, before: Any, marks: Any, begin_us: int, moves_after: int, random: Any
) -> None:
    """Rows before the instant may be missing. So each key gets its first answer once as many rows as its frame needs have come since."""
    made = operator(before)
    events: list[Event] = batches(rows, 1)
    for mark in reversed(marks):
        events.insert(len(events) // 2 if random is None else random.randint(0, len(events)), ("watermark", 0, mark))
    earlier = [row for row in former if row[0] is not None and row[0] < begin_us]  # what a living operator has from before the crash
    run(made, [*batches(earlier, 2), ("watermark", 0, begin_us)])
    made.begins_at(begin_us, is_whole=False)
    given: list[Any] = []
    found, promise = list[Any](), begin_us
    for place, event in enumerate([*events, END]):
        if place == moves_after:
            parts, made = made.parts(), operator(before)
            made.adopt(parts)
            made.begins_at(begin_us, is_whole=True)
        if event[0] == "rows":
            given += [row for row in rows_of([event[2]]) if row[0] is not None and row[0] >= promise]
        else:
            promise = max(promise, event[2])
        found += rows_of(run(made, [event]))
    wanted, of_key = [], dict.fromkeys([None, *"abc"], 0)
    for row in twin(given, before):
        if of_key[row[1]] >= max(before):
            wanted.append(row)
        of_key[row[1]] += 1
    assert found == wanted


def test_rows_from_before_the_instant_that_still_wait_are_in_no_frame() -> None:
    made = operator((1, 1))
    made.process(0, frame([(1, "a", 1), (3, "a", 3), (4, "a", 4)], "tkv"))
    made.begins_at(2, is_whole=False)
    assert rows_of(run(made, [END])) == twin([(3, "a", 3), (4, "a", 4)], (1, 1))[1:]


def test_frames_reach_back_over_watermarks() -> None:
    rows = [(time, "ab"[time % 2], time) for time in range(20)]
    made = operator((3, 2))
    found = []
    for row in rows:
        found += rows_of(run(made, [("rows", 0, frame([row], "tkv")), ("watermark", 0, row[0] + 1)]))
        assert made.state_rows <= 2 * 3
    assert found == twin(rows, (3, 2))


def test_sums_of_floats_do_not_depend_on_rows_that_have_left_the_frame() -> None:
    """A running sum would lose the small values beside the large one."""
    rows = pl.DataFrame({"t": pl.Series([1, 2, 3, 4]).cast(pl.Datetime("us")), "x": [1e17, 0.1, 0.2, float("nan")]})
    made = Over(OverParams("t", (), ("x",), (Aggregate("s", "sum", Column("x")),), (1,)))
    made.process(0, rows)
    (answer,) = made.advance(WATERMARK_END)
    assert answer["s"].to_list()[:3] == [1e17, 1e17 + 0.1, 0.1 + 0.2]


SQL = """SELECT ts, k, v, COUNT(*) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS n,
    v - AVG(v) OVER (PARTITION BY k ORDER BY ts ROWS 3 PRECEDING) AS away,
    SUM(n) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN CURRENT ROW AND CURRENT ROW) AS own FROM s WHERE ok IS NULL OR NOT ok"""


def test_from_sql_it_is_what_duckdb_gives(tmp_path: Any) -> None:
    one = {"a": {"region": "eu"}}  # several nodes would give rows with equal times
    streams = run_plan(plan_of("SELECT * FROM s", nodes=one, here="a"))
    streams.write_parquet(tmp_path / "s.parquet")
    expected = duckdb.sql(SQL.replace("FROM s ", f"FROM '{tmp_path}/s.parquet' AS s ")).fetchall()
    found = run_plan(plan_of(SQL, nodes=one, here="a")).rows()
    assert streams.height > len(found) > 20
    for ours, theirs in zip(sorted(found, key=repr), sorted(expected, key=repr), strict=True):
        assert ours[:4] == theirs[:4]
        assert ours[4] == theirs[4] or ours[4] == pytest.approx(theirs[4], abs=1e-9)
        assert ours[5] == theirs[5]


def test_it_is_told_shared_and_filtered_by_partition() -> None:
    plan = plan_of(f"SELECT k, away FROM ({SQL}) WHERE k = 'k1' AND away > 0")
    told = [describe(operator.params) for operator in plan.operators]
    assert any("k = 'k1'" in line and line.startswith("where") for line in told[:4])
    assert any(line.startswith("rows with avg(v) of 4 rows of 4 rows by k") for line in told)
    away = run_plan(plan_of(SQL))
    assert run_plan(plan_of(f"SELECT * FROM ({SQL}) WHERE v > 0")).sort(pl.all()).equals(away.filter(pl.col("v") > 0).sort(pl.all()))
    one = "SELECT k, MAX({0}) OVER (PARTITION BY {1} ORDER BY ts ROWS 3 PRECEDING) AS m FROM {2}"
    signatures = [
        [o.signature for o in plan_of(sql).operators[:-1]]
        for sql in (
            one.format("v", "k", "s"),
            one.format("x.v", "x.k", "s AS x").replace("k,", "x.k,").replace("m", "y", 1).replace("y", "m", 1),
        )
    ]
    assert signatures[0] == signatures[1]


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        ("SUM(v) OVER (PARTITION BY k ORDER BY ts)", "OVER without a frame", "ROWS BETWEEN 9 PRECEDING"),
        (
            "SUM(v) OVER (PARTITION BY k ORDER BY ts RANGE BETWEEN INTERVAL '1 s' PRECEDING AND CURRENT ROW)",
            "a frame of ROWS",
            "FROM TUMBLE",
        ),
        ("SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)", "ends at the CURRENT ROW", "ROWS BETWEEN"),
        ("SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS UNBOUNDED PRECEDING)", "a number of rows PRECEDING, at most 1000", "ROWS BETWEEN"),
        ("SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS 1001 PRECEDING)", "a number of rows PRECEDING, at most 1000", "ROWS BETWEEN"),
        ("SUM(v) OVER (PARTITION BY k ORDER BY v ROWS 1 PRECEDING)", "v is not the event time", "write ORDER BY ts"),
        ("SUM(v) OVER (PARTITION BY k ORDER BY ts DESC ROWS 1 PRECEDING)", "ascending, and nothing else", "ORDER BY ts ROWS"),
        ("SUM(v) OVER (PARTITION BY k ROWS 1 PRECEDING)", "ascending, and nothing else", "ORDER BY ts ROWS"),
        ("STDDEV(v) OVER (PARTITION BY k ORDER BY ts ROWS 1 PRECEDING)", "STDDEV has no OVER here", "COUNT, SUM, AVG, MIN and MAX"),
        ("RANK() OVER (PARTITION BY k ORDER BY ts)", "RANK has no OVER here", "ROW_NUMBER()"),
        ("LAG(v) OVER (PARTITION BY k ORDER BY ts ROWS 1 PRECEDING)", "LAG has no OVER here", "COUNT, SUM, AVG, MIN and MAX"),
        ("SUM(k) OVER (PARTITION BY k ORDER BY ts ROWS 1 PRECEDING)", "sum", ""),
        (
            "SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS 1 PRECEDING) AS a, SUM(v) OVER (ORDER BY ts ROWS 1 PRECEDING)",
            "two OVER of one SELECT differ",
            "in brackets",
        ),
    ],
)
def test_what_cannot_be_said_over_rows_is_refused(call: str, message: str, hint: str) -> None:
    with pytest.raises(QueryError) as refused:
        plan_of(f"SELECT {call} AS x FROM s")
    assert message in refused.value.message
    assert hint in refused.value.hint


def test_wrong_parameters_and_snapshots_are_refused() -> None:
    for changed in (
        {"preceding": (PRECEDING_MAX + 1,)},
        {"preceding": (-1,)},
        {"preceding": ()},
        {"aggregates": (Aggregate("n", "stddev", None),)},
    ):
        with pytest.raises(LimitError):
            OverParams(
                **{"time_column": "t", "partition": (), "ties": (), "aggregates": (Aggregate("n", "count", None),), "preceding": (1,)}
                | changed
            )
    with pytest.raises(RemoteProtocolError, match="other parameters"):
        operator((1, 1)).restore(operator((1, 2)).snapshot())
    with pytest.raises(RemoteProtocolError, match="columns"):
        run(operator((1, 1)), [("rows", 0, frame([(1, "a", 1)], "tkv")), ("rows", 0, frame([(1, "a", 1)], "tkv").rename({"v": "w"}))])
