"""The lookup operator: versions take effect as a whole, rows wait for the first version, and impossible input is refused."""

from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.operators.hashes import hashes
from sbon.operators.lookup import FRAME_ROWS_MAX, Lookup
from sbon.operators.registry import build
from sbon.operators.sizes import held_bytes
from sbon.query.expression import Call, Column
from sbon.query.params.joined import LookupParams
from sbon.query.table_versions import ROWS_MAX
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END, WATERMARK_MIN
from tests.examples import examples
from tests.operators.stream_twins import content, rows_of

INNER = LookupParams((Column("k"),), (Column("id"),), (("k", 0, "k"), ("v", 0, "v"), ("name", 1, "name")))
LEFT = msgspec.structs.replace(INNER, outer=(ColumnType.TEXT,))
Rows = list[tuple[Any, ...]]


def stream(*rows: tuple[Any, ...]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema={"k": pl.Int64(), "v": pl.Float64()}, orient="row")


def table(version: int, rows: Rows, count: int | None = None) -> pl.DataFrame:
    """Returns the rows of a version; for an empty version, the row that says so."""
    given = [(*row, version, len(rows) if count is None else count) for row in rows] or [(None, None, version, 0)]
    return pl.DataFrame(given, schema={"id": pl.Int64(), "name": pl.String(), "version": pl.Int64(), "rows": pl.Int64()}, orient="row")


def lookup(params: LookupParams = INNER, rows: Rows | None = None) -> Lookup:
    made = build(params)
    assert isinstance(made, Lookup)
    if rows is not None:
        made.process(1, table(1, rows))
    return made


def test_rows_and_their_watermark_wait_until_the_first_version_is_whole() -> None:
    join = lookup()
    assert list(join.process(0, stream((1, 0.5)))) == []
    assert list(join.process(1, table(7, [(1, "a")], count=2))) == []
    assert (join.output_watermark(50), join.rows_ahead(), join.state_rows) == (WATERMARK_MIN, (1, 0), 2)
    assert rows_of(join.process(1, table(7, [(2, "b")], count=2))) == [(1, 0.5, "a")]
    assert (join.output_watermark(50), join.rows_ahead(), join.state_rows) == (50, (), 2)
    assert rows_of(join.process(0, stream((2, 1.5)))) == [(2, 1.5, "b")]


def test_a_new_version_takes_effect_as_a_whole_and_the_old_one_until_then() -> None:
    join = lookup(rows=[(1, "old"), (2, "gone")])
    join.process(1, table(2, [(1, "new")], count=2))
    assert rows_of(join.process(0, stream((1, 0.0), (2, 0.0)))) == [(1, 0.0, "old"), (2, 0.0, "gone")]
    join.process(1, table(2, [(3, "three")], count=2))
    assert rows_of(join.process(0, stream((1, 0.0), (2, 0.0), (3, 0.0)))) == [(1, 0.0, "new"), (3, 0.0, "three")]


def test_a_version_that_never_became_whole_is_forgotten_with_the_next() -> None:
    join = lookup(rows=[(1, "first")])
    whole = table(3, [(1, "third"), (2, "more")])
    join.process(1, pl.concat([table(2, [(1, "half")], count=2), whole, table(4, [(1, "half again")], count=5)]))
    assert rows_of(join.process(0, stream((1, 0.0)))) == [(1, 0.0, "third")]
    assert join.state_rows == 3


def test_a_version_without_rows_leaves_no_partner() -> None:
    assert rows_of(lookup(rows=[]).process(0, stream((1, 0.0)))) == []
    assert rows_of(lookup(LEFT, rows=[]).process(0, stream((1, 0.0), (None, 1.0)))) == [(1, 0.0, None), (None, 1.0, None)]


def test_null_equals_nothing_and_a_key_that_is_there_twice_gives_two_rows_in_order() -> None:
    rows: Rows = [(2, "b"), (1, "z"), (None, "null"), (1, "a")]
    given = stream((None, 0.0), (1, 1.0), (3, 2.0), (2, 3.0))
    pairs = [(1, 1.0, "z"), (1, 1.0, "a"), (2, 3.0, "b")]
    assert rows_of(lookup(rows=rows).process(0, given)) == pairs
    expected = [(None, 0.0, None), *pairs[:2], (3, 2.0, None), pairs[2]]
    assert rows_of(lookup(LEFT, rows=rows).process(0, given)) == expected


def test_a_condition_on_pairs_leaves_a_row_of_a_left_lookup_alone() -> None:
    same = Call("eq", (Column("name"), Column("name")))
    assert rows_of(lookup(msgspec.structs.replace(LEFT, residual=same), [(1, None), (2, "b")]).process(0, stream((1, 0.0), (2, 0.0)))) == [
        (1, 0.0, None),
        (2, 0.0, "b"),
    ]


def test_many_rows_of_one_key_are_given_in_frames_of_a_bounded_size() -> None:
    join = lookup(rows=[(1, f"n{n}") for n in range(1000)])
    assert join.spread == 1000
    frames = join.process(0, stream(*[(1, float(n)) for n in range(150)]))
    assert sum(frame.height for frame in frames) == 150_000
    assert max(frame.height for frame in frames) <= FRAME_ROWS_MAX


def test_zero_has_no_sign_in_keys() -> None:
    assert len(set(hashes(pl.Series([0.0, -0.0])).tolist())) == 1
    by_value = LookupParams((Column("v"),), (Column("v"),), (("k", 0, "k"), ("name", 1, "name")))
    versions = table(1, [(1, "a"), (2, "b")]).with_columns(v=pl.Series([-0.0, 1.0])).select("id", "name", "v", "version", "rows")
    join = lookup(by_value)
    join.process(1, versions)
    assert rows_of(join.process(0, stream((1, 0.0), (2, -0.0), (3, 1.0)))) == [(1, "a"), (2, "a"), (3, "b")]


def test_the_memory_of_the_table_is_counted() -> None:
    assert held_bytes(lookup(rows=[(n, "x" * 100) for n in range(1000)])) > 100_000


def test_a_stream_that_ends_before_its_table_has_come_is_a_failure_not_an_answer() -> None:
    join = lookup()
    join.process(0, stream((1, 0.0)))
    with pytest.raises(RemoteProtocolError, match="the stream has ended and its table has not come: 1 rows wait"):
        join.advance(WATERMARK_END)
    assert list(lookup(rows=[(1, "a")]).advance(WATERMARK_END)) == []


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just(0), st.lists(st.tuples(st.sampled_from([1, 2, 3, None]), st.floats(0, 9, width=16)), min_size=1, max_size=5)),
        st.tuples(st.just(1), st.lists(st.tuples(st.sampled_from([1, 2, 3, None]), st.sampled_from("abc")), max_size=5)),
    ),
    max_size=8,
)


@examples(100)
@given(EVENTS, st.integers(0, 30), st.booleans())
def test_answers_are_those_of_a_twin_and_a_restored_snapshot_continues(events: Any, stop: int, outer: bool) -> None:
    """The table comes row by row, so snapshots fall within versions."""
    params = LEFT if outer else INNER
    frames: list[tuple[int, pl.DataFrame]] = []
    expected: Rows = []
    known: Rows | None = None
    waiting: Rows = []
    for version, (port, rows) in enumerate(events):
        if port == 1:
            frames += [(1, piece) for piece in table(version, rows).iter_slices(1)]
            known = rows
        else:
            frames.append((0, stream(*rows)))
            waiting += rows
        if known is not None:
            for key, value in waiting:
                names = [name for id_, name in known if id_ is not None and id_ == key]
                expected += [(key, value, name) for name in names or ([None] if outer else [])]
            waiting = []
    join, found = lookup(params), list[Any]()
    for place, (port, frame) in enumerate(frames):
        if place == stop:
            copied = lookup(params)
            copied.restore(join.snapshot())
            assert content(copied) == content(join)
            join = copied.fork()
        found += rows_of(join.process(port, frame))
    assert found == expected
    assert len(waiting) == (join.rows_ahead() or (0, 0))[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (table(1, [(1, "a"), (2, "b")], count=1), "2 rows of a version of a table, expected 1"),
        (table(1, [(1, "a")], count=ROWS_MAX + 1), "with 1000001 rows, expected 0 to 1000000"),
        (table(1, [(1, "a")], count=-1), "with -1 rows"),
        (table(1, [(1, "a")]).with_columns(version=pl.lit(None, pl.Int64)), "version None"),
        (table(1, [(1, "a")]).with_columns(version=pl.lit("x")), "version 'x'"),
        (table(1, [(1, "a")]).with_columns(pl.col("id").cast(pl.String)), "keys of types"),
        (table(1, [(1, "a")]).drop("name"), "lookup column 'name' is not among the input columns"),
    ],
)
def test_what_is_no_table_is_refused(rows: pl.DataFrame, message: str) -> None:
    join = lookup()
    join.process(0, stream((1, 0.0)))
    with pytest.raises(RemoteProtocolError, match=message):
        join.process(1, rows)


def test_nulls_of_a_left_lookup_have_the_types_of_the_table() -> None:
    join = lookup(msgspec.structs.replace(LEFT, outer=(ColumnType.INT,)))
    join.process(0, stream((1, 0.0)))
    with pytest.raises(RemoteProtocolError, match="table of a left lookup with types"):
        join.process(1, table(1, [(1, "a")]))


def test_snapshots_of_something_else_are_refused() -> None:
    parts = lookup(rows=[(1, "a")]).parts()
    assert parts is not None
    for frames in ({"more": stream()}, {"table": stream()}, {**parts.frames, "table": stream()}):
        with pytest.raises(RemoteProtocolError, match="lookup snapshot"):
            lookup().adopt(parts._replace(frames=frames))
