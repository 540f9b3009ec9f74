"""Window joins equal a brute-force twin wherever a snapshot falls. Their order depends on neither batches nor interleaving."""

from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.errors import QueryError, RemoteProtocolError
from sbon.operators import held_rows, pairing, window_join
from sbon.operators.window_join import WindowJoin
from sbon.query.expression import Call, Column
from sbon.query.limits import LimitError
from sbon.query.params.joined import WindowJoinParams
from sbon.query.text import describe
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.stream_twins import Event, frame, rows_of, run
from tests.operators.test_joins import ORDER, ROWS, interleaved
from tests.query_worlds import plan_of
from tests.query_worlds import run as run_plan

WINDOWS = st.sampled_from([(10, 10), (7, 7), (9, 3), (10, 4), (100, 100), (1, 1)])
SMALL = st.booleans()
"""True: limits so small that a few rows are a large window."""
END: Event = ("watermark", 0, WATERMARK_END)
DIFFERENT = Call("ne", (Column("lv"), Column("rv")))
COLUMNS = (("lt", 0, "t"), ("k", 0, "k"), ("lv", 0, "v"), ("rk", 1, "k"), ("rv", 1, "v"))


def join(window: tuple[int, int], *, outer: bool = False, lateness: int = 0, **more: Any) -> WindowJoin:
    types = (ColumnType.TEXT, ColumnType.INT) if outer else None
    keys = ((Column("k"),), (Column("k"),))
    return WindowJoin(WindowJoinParams("t", "t", *keys, *window, COLUMNS, outer=types, allowed_lateness_us=lateness, **more))


def is_in(row: Any, start: int, size: int) -> bool:
    """Returns whether a row is in a window that was open when the row came.

    The row's fourth value, if there is one, is the start of the first open window.
    """
    return row[0] is not None and start <= row[0] < start + size and all(start >= first_open for first_open in row[3:])


def twin(left: Any, right: Any, window: tuple[int, int], *, outer: bool, strict: bool) -> list[Any]:
    size, slide = window
    starts = {(row[0] - back) // slide * slide for row in left if row[0] is not None for back in range(0, size, slide)}
    found = []
    for start in starts:
        for row in left:
            t, k, v = row[:3]
            if not is_in(row, start, size) or (k is None and not outer):
                continue
            bounds = (start, start + size, t, k, v)
            partners = [r for r in right if is_in(r, start, size) and k is not None and r[1] == k]
            partners = [r for r in partners if not strict or r[2] != v]
            found += [(*bounds, r[1], r[2]) for r in partners]
            if outer and not partners:
                found.append((*bounds, None, None))
    return sorted(found, key=repr)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_limits(small: bool) -> None:
        monkeypatch.setattr(window_join, "JOIN_ROWS_MAX", 4 if small else 131_072)
        monkeypatch.setattr(window_join, "STEP_ROWS", 2 if small else 32_768)
        monkeypatch.setattr(window_join, "FRAME_ROWS_MAX", 3 if small else 65_536)
        monkeypatch.setattr(held_rows, "RUN_ROWS", 3 if small else 65_536)
        monkeypatch.setattr(held_rows, "TAIL_FRAMES_MAX", 2 if small else 32)
        monkeypatch.setattr(pairing, "STREAMED_ROWS_MIN", 8 if small else 4_096)

    return set_limits


def test_answers_are_those_of_the_twin_however_batches_interleave(limits: Any) -> None:
    @examples(80)
    @given(ROWS, ROWS, WINDOWS, ORDER, ORDER, st.booleans(), st.booleans(), SMALL)
    @example([(0, "a", 0), (1, "a", 1), (2, "b", 5)], [(0, "a", 0), (2, "c", 1)], (10, 10), [], [], True, True, False)
    def check(left: Any, right: Any, window: Any, order: Any, other: Any, outer: bool, strict: bool, small: bool) -> None:
        limits(small)
        joins = [join(window, outer=outer, residual=DIFFERENT if strict else None) for _ in range(2)]
        found = rows_of(run(joins[0], [*interleaved(left, right, order), END]))
        assert sorted(found, key=repr) == twin(left, right, window, outer=outer, strict=strict)
        assert [row[0] for row in found] == sorted(row[0] for row in found)
        assert joins[0].untimed_rows == joins[0].late_rows == sum(row[0] is None for row in (*left, *right))
        assert joins[0].state_rows == 0
        limits(False)
        assert rows_of(run(joins[1], [*interleaved(left, right, other), END])) == found

    check()


def test_windows_close_one_by_one_and_late_rows_are_counted(limits: Any) -> None:
    @examples(60)
    @given(ROWS, ROWS, WINDOWS, ORDER, st.lists(st.integers(-50, 60), max_size=4).map(sorted), st.booleans(), SMALL)
    @example([(0, "a", 0)], [(0, "a", 0)], (9, 3), [], [8], False, False)  # in time for two of its three windows
    def check(left: Any, right: Any, window: Any, order: Any, marks: Any, outer: bool, small: bool) -> None:
        limits(small)
        size, slide = window
        operator, found, taken, late = join(window, outer=outer, lateness=5), [], ([], []), 0
        promise, open_from = -(2**62), -(10**6)
        events = interleaved(left, right, order)
        for number, mark in enumerate([*marks, 10**6]):
            rows = run(operator, events[number :: len(marks) + 1])
            assert not rows
            for _, port, batch in events[number :: len(marks) + 1]:
                for row in rows_of([batch]):
                    in_time = row[0] is not None and row[0] >= open_from
                    late += not in_time
                    if in_time:
                        taken[port].append((*row, open_from))
            rows = rows_of(operator.advance(mark))
            assert all(promise <= row[1] <= mark - 5 for row in rows)
            found += rows
            promise = operator.output_watermark(mark)
            open_from = (mark - size - 5) // slide * slide + slide
        assert sorted(found, key=repr) == twin(*taken, window, outer=outer, strict=False)
        assert (operator.late_rows, operator.state_rows) == (late, 0)

    check()


@pytest.mark.parametrize(("kind", "step_rows"), [(pl.Int64(), 32_768), (pl.Int64(), 700), (pl.Float64(), 32_768), (pl.String(), 700)])
def test_a_large_window_is_joined_in_buckets(kind: pl.DataType, step_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins on two keys, one of several types, more rows than one step holds, through both engines of polars.

    Several buckets are joined in one step, or one in several.
    """
    monkeypatch.setattr(window_join, "STEP_ROWS", step_rows)
    rows = 200_000
    number = pl.int_range(rows, eager=True)
    sides = []
    for step in (7, 11):
        keys = ((number * step) % 90_000).cast(kind)
        sides.append(pl.DataFrame({"t": number.cast(pl.Datetime("us")), "k": keys, "j": number % 2, "v": number}))
    columns = (("k", 0, "k"), ("a", 0, "v"), ("b", 1, "v"))
    on = (Column("k"), Column("j"))
    operator = WindowJoin(WindowJoinParams("t", "t", on, on, rows, rows, columns))
    for at in range(0, rows, 30_000):
        for port, side in enumerate(sides):
            operator.process(port, side.slice(at, 30_000))
    steps = [frame for frames in operator.advance_in_steps(rows) for frame in frames]
    assert max(frame.height for frame in steps) < 5 * step_rows  # a row has two or three partners
    found = pl.concat(steps)
    expected = sides[0].join(sides[1], on=["k", "j"]).select("k", a="v", b="v_right")
    assert found.select("k", "a", "b").sort("a", "b").equals(expected.sort("a", "b"))
    assert found["window_end"].unique().to_physical().to_list() == [rows]


def test_wrong_parameters_and_snapshots_are_refused() -> None:
    with pytest.raises(LimitError, match="windows of 3 µs every 5 µs"):
        join((3, 5))
    with pytest.raises(RemoteProtocolError, match="other parameters"):
        join((5, 5)).restore(join((6, 6)).snapshot())
    operator = join((5, 5))
    operator.process(0, frame([(1, "a", 1)], "tkv"))
    with pytest.raises(RemoteProtocolError, match="columns"):
        operator.process(0, frame([(1, "a", 1)], "tkv").rename({"v": "w"}))
    operator.process(1, frame([(1, "a", 1)], "tkv").with_columns(pl.lit(1).cast(pl.Int64).alias("k")))
    with pytest.raises(RemoteProtocolError, match="join keys of types"):
        operator.advance(5)


# Window joins from SQL

CALLS = "TUMBLE(s, ts, INTERVAL '5 s') AS x {} TUMBLE(u, ts, INTERVAL '5 s') AS y"
SQL = f"SELECT x.window_start, x.k, x.v, y.w FROM {CALLS.format('JOIN')} ON x.k = y.k AND x.window_start = y.window_start"


def signatures(sql: str) -> list[str]:
    return sorted(operator.signature for operator in plan_of(sql).operators[:-1])


def test_pairs_of_a_window_from_sql() -> None:
    found = run_plan(plan_of(SQL))
    start = pl.col("ts").dt.truncate("5s").alias("window_start")
    left, right = (
        run_plan(plan_of(f"SELECT ts, k, {value} FROM {source}")).with_columns(start) for value, source in (("v", "s"), ("w", "u"))
    )
    expected = left.join(right, on=["window_start", "k"]).select("window_start", "k", "v", "w")
    assert found.sort(pl.all()).equals(expected.sort(pl.all()))
    assert found.height > 20


def test_however_it_is_written_it_is_one_join() -> None:
    using = f"SELECT window_start, k, v, w FROM {CALLS.format('JOIN')} USING (window_start, k)"
    both = SQL + " AND x.window_end = y.window_end"
    turned = "SELECT y.window_start, x.k, y.v, x.w FROM TUMBLE(u, ts, INTERVAL '5 s') AS x, TUMBLE(s, ts, INTERVAL '5 s') AS y"
    turned += " WHERE x.window_end = y.window_end AND y.k = x.k"
    assert signatures(using) == signatures(both) == signatures(turned) == signatures(SQL)
    assert signatures(SQL) != signatures(SQL.replace("5 s", "6 s"))
    assert signatures(SQL) != signatures(SQL.replace("JOIN", "LEFT JOIN"))


def test_a_window_join_is_told_and_aggregated_and_its_conditions_go_where_they_can() -> None:
    sql = SQL.replace("x.v, y.w", "count(*) AS n") + " WHERE x.v > 1 AND y.w > x.v AND x.window_start >= TIMESTAMP '1970-01-01 00:00:10'"
    plan = plan_of(sql + " GROUP BY x.window_start, x.k")
    told = [describe(operator.params) for operator in plan.operators]
    assert any("v > 1" in line and line.startswith("where") for line in told)
    assert any("join in windows 5 s on k = k where" in line for line in told)
    raw = run_plan(plan_of(SQL)).filter(pl.col("v") > 1, pl.col("w") > pl.col("v"), pl.col("window_start").dt.epoch("s") >= 10)
    expected = raw.group_by("window_start", "k").len("n").with_columns(pl.col("n").cast(pl.Int64))
    assert run_plan(plan).sort(pl.all()).equals(expected.sort(pl.all()))
    assert not expected.is_empty()


def test_left_windows_keep_every_left_row_even_where_the_right_side_is_nowhere() -> None:
    sql = SQL.replace("JOIN", "LEFT JOIN")
    everything = run_plan(plan_of("SELECT ts FROM s")).height
    alone = run_plan(plan_of(sql + " AND y.w > 1000"))
    assert (alone.height, alone["w"].null_count()) == (everything, everything)
    nowhere = run_plan(plan_of(sql.replace("TUMBLE(u,", "TUMBLE((SELECT * FROM u WHERE _node = 'a'),")))
    assert nowhere.sort(pl.all()).equals(alone.sort(pl.all()))
    hopping = sql.replace("TUMBLE", "HOP").replace("ts, ", "ts, INTERVAL '1 s', ") + " AND y.w > 1000"
    assert run_plan(plan_of(hopping)).height == 5 * everything


def test_a_right_join_is_a_left_one_with_its_sides_exchanged() -> None:
    """Both have the same operators; columns keep the written order. An unqualified window_start is the right side's."""
    right = plan_of(SQL.replace("JOIN", "RIGHT JOIN").replace("SELECT x.window_start", "SELECT window_start"))
    turned = "SELECT y.window_start, x.k, x.v, y.w FROM {} AS y LEFT JOIN {} AS x ON x.k = y.k AND x.window_start = y.window_start"
    left = plan_of(turned.format("TUMBLE(u, ts, INTERVAL '5 s')", "TUMBLE(s, ts, INTERVAL '5 s')"))
    assert [o.signature for o in right.operators[:-1]] == [o.signature for o in left.operators[:-1]]
    assert run_plan(right).equals(run_plan(left))


@pytest.mark.parametrize("call", ["TUMBLE({}, ts, INTERVAL '5 s')", "HOP({}, ts, INTERVAL '2 s', INTERVAL '6 s')"])
@pytest.mark.parametrize("more", ["", " AND x.v < y.w AND y.w > 1"])
def test_a_full_join_has_every_row_of_both_sides(call: str, more: str) -> None:
    sides = {"s": "v", "u": "w"}
    windows = [run_plan(plan_of(f"SELECT window_start, k, {value} FROM {call.format(name)}")) for name, value in sides.items()]
    left, right = (rows.with_row_index(label) for rows, label in zip(windows, ("l", "r"), strict=True))
    pairs = left.join(right, on=["window_start", "k"])
    pairs = pairs if not more else pairs.filter((pl.col("v") < pl.col("w")) & (pl.col("w") > 1))
    alone = [rows.join(pairs, on=label, how="anti") for rows, label in ((left, "l"), (right, "r"))]
    expected = pl.concat([pairs, *alone], how="diagonal").select("window_start", "v", "w")

    on = f"x.k = y.k AND x.window_start = y.window_start{more}"
    found = run_plan(plan_of(f"SELECT window_start, v, w FROM {call.format('s')} AS x FULL JOIN {call.format('u')} AS y ON {on}"))
    assert found.sort(pl.all()).equals(expected.sort(pl.all()))
    assert min(part.height for part in alone) > 0


def test_behind_a_full_join_its_window_has_no_side() -> None:
    sql = SQL.replace("JOIN", "FULL JOIN")
    with pytest.raises(QueryError, match="no column window_start in x: it belongs to the whole join") as refused:
        plan_of(sql)
    assert refused.value.hint == "write window_start alone"
    counted = run_plan(plan_of(sql.replace("x.window_start, x.k, x.v, y.w", "window_start, count(*) AS n") + " GROUP BY window_start"))
    assert counted["n"].sum() == run_plan(plan_of(sql.replace("SELECT x.window_start,", "SELECT"))).height


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (SQL.replace(" AND x.window_start = y.window_start", ""), "does not say that its windows are the same"),
        (SQL.replace("x.k = y.k AND ", ""), "without an equality"),
        (SQL.replace("u, ts, INTERVAL '5 s'", "u, ts, INTERVAL '6 s'"), "differ in length"),
        (SQL.replace("TUMBLE", "SESSION"), "sessions cannot be joined"),
        (SQL.replace("TUMBLE(u, ts, INTERVAL '5 s')", "u"), "cannot be joined with something else"),
        (SQL.replace("TUMBLE(s, ts, INTERVAL '5 s')", "s"), "cannot be joined with something else"),
        (SQL.replace("JOIN", "LEFT JOIN").replace("SELECT x", "SELECT y"), "no column window_start in y"),
        (SQL.replace("JOIN", "RIGHT JOIN"), "no column window_start in x"),
        (f"SELECT v, w FROM {CALLS.format('FULL JOIN')} USING (window_start, k)", "USING does not go with FULL JOIN"),
        (f"{SQL} JOIN TUMBLE(u, ts, INTERVAL '5 s') AS z ON z.k = x.k AND z.window_start = x.window_start", "takes two windows"),
    ],
)
def test_what_cannot_be_joined_is_refused(sql: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        plan_of(sql)
