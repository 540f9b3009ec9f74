"""The first rows of each window equal those of a sorting twin, however rows are split, shuffled or stored."""

import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.operators.top import Top
from sbon.operators.windowed import PENDING_ROWS_MAX
from sbon.query.limits import LimitError
from sbon.query.params.ordered import OrderColumn, TopParams
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from tests.examples import examples
from tests.operators.stream_twins import batches, frame, rows_of, run
from tests.query_worlds import plan_of
from tests.query_worlds import run as run_plan

ROWS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([0, 10, 20, 30]), st.sampled_from([0, 10, 20, 30]), st.none()),
        st.sampled_from(["a", "b", "c", None]),
        st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.0, 2.5, -1.0, float("inf")])),
    ),
    max_size=40,
)
ORDER = st.lists(st.tuples(st.sampled_from("kf"), st.booleans(), st.booleans()), min_size=1, max_size=2, unique_by=lambda item: item[0])
LIMITS = st.integers(1, 4)
CUTS = st.lists(st.integers(0, 60), max_size=4)


def params(order: list[Any], limit: int) -> TopParams:
    named = {name for name, _, _ in order}
    return TopParams("t", tuple(OrderColumn(*item) for item in order), tuple(name for name in "fk" if name not in named), limit)


def twin(rows: list[Any], order: list[Any], limit: int, before: int = 10**6) -> list[Any]:
    """Returns the first rows, sorted by each order column from last to first, as Python's sort is stable."""
    place = {"t": 0, "k": 1, "f": 2}
    answers: list[Any] = []
    for time in sorted({row[0] for row in rows if row[0] is not None and row[0] < before}):
        group = [row for row in rows if row[0] == time]
        rest = [(name, False, False) for name in "fk" if name not in {item[0] for item in order}]
        for name, descending, nulls_first in reversed([*order, *rest]):
            at = place[name]
            some = sorted((row for row in group if row[at] is not None), key=lambda row: row[at], reverse=descending)
            none = [row for row in group if row[at] is None]
            group = none + some if nulls_first else some + none
        answers += group[:limit]
    return answers


@examples(120)
@given(ROWS, ORDER, LIMITS, CUTS, st.integers(0, 2**32))
def test_answers_are_those_of_the_twin_however_rows_are_cut_and_mixed(
    rows: list[Any], order: list[Any], limit: int, cuts: list[int], seed: int
) -> None:
    mixed = random.Random(seed).sample(rows, len(rows))
    one, other = Top(params(order, limit)), Top(params(order, limit))
    found = rows_of(run(one, [*batches(rows, "tkf", cuts), ("watermark", 0, WATERMARK_END)]))
    assert found == twin(rows, order, limit)
    assert repr(rows_of(run(other, [*batches(mixed, "tkf", []), ("watermark", 0, WATERMARK_END)]))) == repr(found)
    assert one.untimed_rows == one.late_rows == sum(row[0] is None for row in rows)
    assert one.state_rows == 0


@examples(80)
@given(ROWS, ORDER, LIMITS, CUTS, st.integers(-5, 35))
def test_a_watermark_gives_the_windows_behind_it(rows: list[Any], order: list[Any], limit: int, cuts: list[int], watermark: int) -> None:
    top = Top(params(order, limit))
    early = rows_of(run(top, [*batches(rows, "tkf", cuts), ("watermark", 0, watermark)]))
    assert early == twin(rows, order, limit, watermark)
    late = rows_of(top.advance(WATERMARK_END))
    assert all(row[0] >= top.output_watermark(watermark) for row in late)
    assert early + late == twin(rows, order, limit)
    run(top, batches(rows, "tkf", cuts))
    assert (top.late_rows, top.state_rows) == (len(rows) + sum(row[0] is None for row in rows), 0)


@examples(60)
@given(st.integers(0, 2**32), st.integers(64, 300), st.integers(1, 3), st.integers(1, 40), st.booleans(), st.booleans(), LIMITS)
def test_of_many_rows_those_that_tie_are_told_apart(
    seed: int, count: int, times: int, values: int, descending: bool, holes: bool, limit: int
) -> None:
    rng = random.Random(seed)
    numbers = [float(n) for n in range(values)] + [None] * holes
    rows = sorted(((rng.randrange(times) * 10, rng.choice("abc"), rng.choice(numbers)) for _ in range(count)), key=lambda row: row[0])
    order = [("f", descending, rng.random() < 0.5)]
    found = rows_of(run(Top(params(order, limit)), [*batches(rows, "tkf", []), ("watermark", 0, WATERMARK_END)]))
    assert found == twin(rows, order, limit)


def test_no_more_than_the_limit_is_kept_of_a_window() -> None:
    top = Top(params([("f", True, False)], 3))
    for start in range(0, 100_000, 1000):
        top.process(0, frame([(start // 50_000 * 10, "a", float(n % 977)) for n in range(start, start + 1000)], "tkf"))
    assert top.state_rows < PENDING_ROWS_MAX + 500
    top.snapshot()
    assert top.state_rows == 6
    assert [row[2] for row in rows_of(top.advance(11))] == [976.0] * 6


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_limit_that_makes_no_sense_is_refused(limit: int) -> None:
    with pytest.raises(LimitError, match="expected 1 to 10000"):
        params([("f", True, False)], limit)


def test_an_order_by_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="column 'z' of the order"):
        Top(TopParams("t", (OrderColumn("z", False, False),), (), 1)).process(0, frame([(0, "a", 1.0)], "tkf"))


@pytest.mark.parametrize("watermark", [WATERMARK_MIN, WATERMARK_END])
def test_the_ends_of_time_pass_through(watermark: int) -> None:
    assert Top(params([("f", True, False)], 3)).output_watermark(watermark) == watermark


# First rows from SQL

CALL = "TUMBLE(s, ts, INTERVAL '10 s')"
GROUPED = f"SELECT window_end, k, sum(n) AS total FROM {CALL} GROUP BY window_end, k"


def top_signature(sql: str) -> str:
    return next(o.signature for o in plan_of(sql).operators if isinstance(o.params, TopParams))


def test_each_window_has_its_first_rows() -> None:
    rows = run_plan(plan_of(f"{GROUPED} ORDER BY total DESC NULLS LAST LIMIT 2"))
    every = run_plan(plan_of(GROUPED))
    order = every.sort(["window_end", "total", "k"], descending=[False, True, False], nulls_last=True)
    expected = order.group_by("window_end", maintain_order=True).head(2)
    assert rows.equals(expected.select(rows.columns))
    assert 0 < rows.height < every.height


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT k FROM {CALL} GROUP BY window_end, k ORDER BY sum(n) DESC NULLS LAST LIMIT 2",
        f"SELECT k FROM ({GROUPED} ORDER BY 3 DESC NULLS LAST LIMIT 2)",
        f"SELECT k FROM ({GROUPED}) ORDER BY total DESC NULLS LAST LIMIT 2",
        f"WITH t AS ({GROUPED}) SELECT q.k FROM t AS q ORDER BY -q.total, q.k LIMIT 2",
    ],
)
def test_what_is_ordered_by_need_not_be_shown(sql: str) -> None:
    shown = run_plan(plan_of(f"{GROUPED} ORDER BY total DESC NULLS LAST LIMIT 2"))["k"]
    assert run_plan(plan_of(sql))["k"].to_list() == shown.to_list()


def test_a_condition_around_it_sees_the_first_rows_only() -> None:
    inner = f"{GROUPED} ORDER BY total DESC NULLS LAST LIMIT 2"
    first = run_plan(plan_of(inner))
    for condition, keep in (
        ("k = 'k1'", pl.col("k") == "k1"),
        ("window_end > '1970-01-01 00:00:15'", pl.col("window_end").dt.second() > 15),
    ):
        found = run_plan(plan_of(f"SELECT * FROM ({inner}) WHERE {condition}"))
        assert found.equals(first.filter(keep))
        assert 0 < found.height < first.height


def test_the_first_rows_can_be_windowed_and_joined_again() -> None:
    inner = f"{GROUPED} ORDER BY total DESC LIMIT 2"
    again = run_plan(plan_of(f"SELECT window_end, count(*) AS c FROM ({inner}) GROUP BY window_end"))
    assert set(again["c"].to_list()) == {2}
    joined = plan_of(f"SELECT a.k, b.total FROM ({inner}) AS a LEFT JOIN ({GROUPED}) AS b USING (window_end, k)")
    assert run_plan(joined).height == again["c"].sum()


def test_one_meaning_has_one_signature_and_another_has_another() -> None:
    one = top_signature(f"{GROUPED} ORDER BY total DESC LIMIT 2")
    window = "TUMBLE((SELECT n AS m, ts AS t, k FROM s), t, INTERVAL '10000 ms')"
    assert one == top_signature(
        f"SELECT sum(m) AS x, k AS key, window_end FROM {window} GROUP BY k, window_start ORDER BY x DESC NULLS FIRST LIMIT 2"
    )
    others = [
        f"{GROUPED} ORDER BY total DESC LIMIT 3",
        f"{GROUPED} ORDER BY total LIMIT 2",
        f"{GROUPED} ORDER BY total DESC NULLS LAST LIMIT 2",
        f"{GROUPED} ORDER BY k, total DESC LIMIT 2",
        f"{GROUPED} ORDER BY total DESC, k DESC LIMIT 2",
    ]
    assert len({one, *map(top_signature, others)}) == 6
