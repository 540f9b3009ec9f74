"""Interval joins equal a brute-force twin, however batches interleave and wherever a snapshot falls."""

from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators.join import IntervalJoin
from sbon.query.expression import Column
from sbon.query.params.joined import JoinParams
from sbon.watermarks import WATERMARK_END
from tests.examples import examples
from tests.operators.stream_twins import Event, frame, join_twin, rows_of, run

ROWS = st.lists(
    st.tuples(st.one_of(st.integers(-40, 40), st.integers(-40, 40), st.none()), st.sampled_from(["a", "b", None]), st.integers(0, 9)),
    max_size=20,
)
BOUNDS = st.tuples(st.integers(-15, 25), st.integers(-15, 25))
ORDER = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6)), max_size=12)


def params(before: int, after: int, **more: Any) -> JoinParams:
    columns = (("lt", 0, "t"), ("k", 0, "k"), ("lv", 0, "v"), ("rt", 1, "t"), ("rv", 1, "v"))
    return JoinParams("t", "t", (Column("k"),), (Column("k"),), before, after, columns, **more)


def interleaved(left: list[Any], right: list[Any], order: list[tuple[int, int]]) -> list[Event]:
    """Returns batches of both sides in the given order and sizes, then the remaining rows."""
    rest = [list(left), list(right)]
    events: list[Event] = []
    for port, count in [*order, (0, 1000), (1, 1000)]:
        batch, rest[port] = rest[port][:count], rest[port][count:]
        if batch:
            events.append(("rows", port, frame(batch, "tkv")))
    return events


@examples(100)
@given(ROWS, ROWS, BOUNDS, ORDER)
def test_pairs_are_those_of_the_twin_however_batches_interleave(left: Any, right: Any, bounds: tuple[int, int], order: Any):
    join = IntervalJoin(params(*bounds))
    assert sorted(rows_of(run(join, interleaved(left, right, order))), key=repr) == join_twin(left, right, *bounds)
    assert join.untimed_rows == join.late_rows == sum(row[0] is None for row in (*left, *right))


@examples(60)
@given(ROWS, ROWS, BOUNDS, ORDER, st.integers(-50, 50))
def test_a_watermark_lets_rows_go_without_losing_a_pair(left: Any, right: Any, bounds: tuple[int, int], order: Any, watermark: int):
    early = [[row for row in side if row[0] is not None and row[0] < watermark] for side in (left, right)]
    late = [[row for row in side if row[0] is not None and row[0] >= watermark] for side in (left, right)]
    join = IntervalJoin(params(*bounds))
    first = rows_of(run(join, [*interleaved(*early, order), ("watermark", 0, watermark)]))
    kept = join.state_rows
    promise = join.output_watermark(watermark)
    second = rows_of(run(join, interleaved(*late, order)))
    assert sorted(first + second, key=repr) == join_twin(early[0] + late[0], early[1] + late[1], *bounds)
    assert all(min(row[0], row[3]) >= promise for row in second)
    before, after = bounds
    still_wanted = sum(row[0] + after >= watermark for row in early[0] if row[1]) + sum(
        row[0] + before >= watermark for row in early[1] if row[1]
    )
    assert kept == still_wanted
    join.advance(WATERMARK_END)
    assert join.state_rows == 0


def test_rows_far_from_one_another_in_time_and_slices_that_follow_the_watermark_lose_no_pair():
    """Joins on two keys, with each key type, merges, evictions, and gaps in time longer than any slice."""
    for kind in (pl.Int64(), pl.Float64(), pl.String(), pl.Datetime("us")):
        key = (Column("k"), Column("v"))
        join = IntervalJoin(JoinParams("t", "t", key, key, 1000, 2000, (("k", 0, "k"), ("lt", 0, "t"), ("rt", 1, "t"))))
        found: list[Any] = []
        sides: tuple[list[Any], list[Any]] = ([], [])
        for step in range(24):
            # Three years lie between groups of eight batches; slices cover some hundred microseconds.
            base = step * 400 + step // 8 * 10**14
            for port, factor in ((0, 7), (1, 11)):
                rows = [(base + i * factor % 400, i * factor % 13, i % 3) for i in range(120)]
                batch = pl.DataFrame(rows, schema=["t", "k", "v"], orient="row")
                sides[port].append(batch)
                found += join.process(port, batch.with_columns(pl.col("t").cast(pl.Datetime("us")), pl.col("k").cast(kind)))
            found += join.advance(base)
        left, right = (pl.concat(side) for side in sides)
        near = left.join(right, on=["k", "v"]).filter(pl.col("t_right").is_between(pl.col("t") - 1000, pl.col("t") + 2000))
        assert sum(part.height for part in found) == near.height > 10_000
        assert join.state_rows < 4_000
