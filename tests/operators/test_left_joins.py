"""Left joins equal a brute-force twin, however batches interleave and wherever a snapshot falls.

Every left row is in pairs, or once alone.
"""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.operators.join import IntervalJoin
from sbon.query.expression import Call, Column
from sbon.query.limits import LimitError
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.stream_twins import Event, frame, left_join_twin, rows_of, run
from tests.operators.test_joins import BOUNDS, ORDER, ROWS, interleaved, params
from tests.query_worlds import plan_of
from tests.query_worlds import run as run_plan

NULLED = (ColumnType.TIME, ColumnType.INT)
END: Event = ("watermark", 0, WATERMARK_END)


def left_join(before: int, after: int, **more: Any) -> IntervalJoin:
    return IntervalJoin(params(before, after, outer=NULLED, **more))


def differ(one: Any, other: Any) -> bool:
    return bool(one != other)


@examples(100)
@given(ROWS, ROWS, BOUNDS, ORDER, st.booleans())
def test_answers_are_those_of_the_twin_however_batches_interleave(left: Any, right: Any, bounds: Any, order: Any, strict: bool) -> None:
    join = left_join(*bounds, residual=Call("ne", (Column("lv"), Column("rv"))) if strict else None)
    found = rows_of(run(join, [*interleaved(left, right, order), END]))
    twin = left_join_twin(left, right, *bounds, differ) if strict else left_join_twin(left, right, *bounds)
    assert sorted(found, key=repr) == twin
    assert join.state_rows == 0


@examples(100)
@given(ROWS, ROWS, BOUNDS, ORDER, st.lists(st.integers(-50, 50), max_size=4).map(sorted))
def test_watermarks_let_rows_go_alone_only_when_no_partner_can_come(left: Any, right: Any, bounds: Any, order: Any, marks: Any) -> None:
    """Each watermark comes after the rows before it. No answer is earlier than the operator's last output watermark."""
    join, found, promise, below = left_join(*bounds), [], -(2**62), -(10**6)
    for mark in [*marks, 10**6]:
        part = [[row for row in side if row[0] is not None and below <= row[0] < mark] for side in (left, right)]
        rows = rows_of(run(join, [*interleaved(*part, order), ("watermark", 0, mark)]))
        assert all(row[0] >= promise for row in rows)
        alone = [row for row in rows if row[3] is None]
        assert all(row[0] + bounds[1] < mark for row in alone)
        found += rows
        promise, below = join.output_watermark(mark), mark
        timed = [row for row in left if row[0] is not None and row[0] < mark and row[0] + bounds[1] < mark]
        assert sum(row[3] is None for row in found) == sum(row[3] is None for row in left_join_twin(timed, right, *bounds))
    assert sorted(found, key=repr) == left_join_twin(left, right, *bounds)
    assert join.late_rows == 0


def test_rows_without_partner_leave_before_the_other_side_has_brought_any() -> None:
    join = left_join(5, 5)
    join.process(0, frame([(3, "a", 1), (1, None, 2)], "tkv"))
    assert rows_of(join.advance(7)) == [(1, None, 2, None, None)]
    (alone,) = join.advance(9)
    assert rows_of([alone]) == [(3, "a", 1, None, None)]
    assert alone.schema == {"lt": pl.Datetime("us"), "k": pl.String, "lv": pl.Int64, "rt": pl.Datetime("us"), "rv": pl.Int64}
    assert rows_of(join.advance(WATERMARK_END)) == []


def test_other_types_than_the_plan_says_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="right side of a left join with types"):
        IntervalJoin(params(5, 5, outer=(ColumnType.TIME, ColumnType.TEXT))).process(1, frame([(1, "a", 1)], "tkv"))
    with pytest.raises(LimitError, match="types of 1 right columns, expected 2"):
        IntervalJoin(params(5, 5, outer=(ColumnType.TIME,)))


# Left joins from SQL

ON = "s.k = u.k AND u.ts BETWEEN s.ts - INTERVAL '1 s' AND s.ts + INTERVAL '2 s'"
LEFT = f"SELECT s.ts, s.k, s.v, u.w FROM s LEFT JOIN u ON {ON}"


def signatures(sql: str) -> list[str]:
    return sorted(operator.signature for operator in plan_of(sql).operators[:-1])


def counted(sql: str) -> dict[tuple[Any, ...], int]:
    found: dict[tuple[Any, ...], int] = {}
    for row in run_plan(plan_of(sql)).rows():
        found[row] = found.get(row, 0) + 1
    return found


def test_a_left_join_has_the_pairs_of_a_join_and_the_rest_alone() -> None:
    pairs, both, left = (run_plan(plan_of(sql)) for sql in (LEFT.replace("LEFT ", ""), LEFT, "SELECT ts, k, v FROM s"))
    alone = left.join(pairs, on=["ts", "k", "v"], how="anti", nulls_equal=True)
    assert both.height == pairs.height + alone.height
    assert alone.height > 5
    assert pairs.height > 5


@pytest.mark.parametrize(
    ("condition", "keep"),
    [
        ("s.v > 1", lambda row: row[2] is not None and row[2] > 1),
        ("u.w > 1", lambda row: row[3] is not None and row[3] > 1),
        ("u.w IS NULL", lambda row: row[3] is None),
        ("s.k = 'k1'", lambda row: row[1] == "k1"),
        ("u.k = 'k1'", None),
        ("coalesce(u.w, 9) > 3", lambda row: (9 if row[3] is None else row[3]) > 3),
    ],
)
def test_where_sees_what_comes_out_of_a_left_join(condition: str, keep: Any) -> None:
    whole = run_plan(plan_of(f"SELECT s.ts, s.k, s.v, u.w, u.k AS uk FROM s LEFT JOIN u ON {ON}"))
    wanted = [row for row in whole.rows() if (row[4] == "k1" if keep is None else keep(row))]
    found = run_plan(plan_of(f"SELECT s.ts, s.k, s.v, u.w, u.k AS uk FROM s LEFT JOIN u ON {ON} WHERE {condition}"))
    assert sorted(found.rows(), key=repr) == sorted(wanted, key=repr)
    assert 0 < len(wanted) < whole.height


@pytest.mark.parametrize("condition", ["s.v > 1", "u.w > 1", "u.w > s.v", "s.k = 'k1'", "u.k = 'k1'"])
def test_on_decides_on_pairs_and_keeps_every_left_row(condition: str) -> None:
    left = run_plan(plan_of("SELECT ts, k, v FROM s"))
    both = run_plan(plan_of(f"{LEFT} AND {condition}"))
    pairs = counted(f"{LEFT.replace('LEFT ', '')} AND {condition}")
    assert sum(pairs.values()) + left.join(_frame(pairs), on=["ts", "k", "v"], how="anti", nulls_equal=True).height == both.height
    assert left.join(both, on=["ts", "k", "v"], how="anti", nulls_equal=True).is_empty()


def _frame(rows: dict[tuple[Any, ...], int]) -> pl.DataFrame:
    types = {"ts": pl.Datetime("us"), "k": pl.String(), "v": pl.Float64(), "w": pl.Float64()}
    return pl.DataFrame(list(rows), schema=types, orient="row")


def test_a_left_join_is_neither_its_inner_one_nor_the_other_way_round() -> None:
    other_way = LEFT.replace("FROM s LEFT JOIN u", "FROM u LEFT JOIN s")
    assert len({tuple(signatures(sql)) for sql in (LEFT, LEFT.replace("LEFT ", ""), other_way)}) == 3
    bounds = "p.ts BETWEEN q.ts - INTERVAL '2 s' AND q.ts + INTERVAL '1 s'"
    renamed = f"SELECT q.w, p.v, p.k, p.ts FROM s AS p LEFT OUTER JOIN u AS q ON q.k = p.k AND {bounds}"
    assert signatures(renamed) == signatures(LEFT)


def test_windows_without_a_partner_leave_with_nulls() -> None:
    def windows(source: str, condition: str = "") -> str:
        call = f"TUMBLE((SELECT ts, k FROM {source}{condition}), ts, INTERVAL '5 s')"
        return f"(SELECT window_end, k, count(*) AS c FROM {call} GROUP BY window_end, k)"

    left = windows("s")
    rows = run_plan(
        plan_of(
            f"SELECT a.window_end, a.k, a.c, b.c AS d FROM {left} AS a LEFT JOIN {windows('u', ' WHERE w > 3')} AS b USING (window_end, k)"
        )
    )
    assert rows.height == run_plan(plan_of(left.strip("()"))).height
    assert 0 < rows["d"].null_count() < rows.height


def test_a_right_side_that_is_nowhere_gives_nulls() -> None:
    rows = run_plan(plan_of(f"{LEFT} AND u._node = 'a'"))
    assert rows.height == run_plan(plan_of("SELECT ts FROM s")).height
    assert rows["w"].null_count() == rows.height
