"""Edge cases of each operator; each has a file of its own for its answers."""

import math
from datetime import datetime
from typing import Any

import msgspec
import polars as pl
import psutil
import pytest

from sbon.errors import LocalProtocolError, QueryError, RemoteProtocolError
from sbon.operators.frames import column_type
from sbon.operators.join_side import Coder
from sbon.operators.registry import build
from sbon.query.expression import Call, Case, Cast, Column, Literal
from sbon.query.functions import aggregate_type
from sbon.query.limits import LimitError
from sbon.query.params.aggregate import AGGREGATE_FUNCTIONS, PAIR_FUNCTIONS, Aggregate
from sbon.query.params.joined import JoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.ordered import DeduplicateParams, OrderColumn, OverParams, TopParams
from sbon.query.params.rowwise import MapParams
from sbon.query.params.source import SinkParams
from sbon.query.params.streams import UnionParams
from sbon.query.params.windowed import SessionParams, WindowParams
from sbon.schema import ColumnType
from sbon.watermarks import WATERMARK_END

ONE = Literal(1, ColumnType.INT)
X = Column("x")
WINDOW = WindowParams("t", 10, 10, (("k", Column("k")),), (Aggregate("n", "count", None), Aggregate("total", "sum", X)))
SESSION = SessionParams("t", 10, (("k", Column("k")),), (Aggregate("n", "count", None), Aggregate("total", "sum", X)))
JOIN = JoinParams("t", "t", (Column("k"),), (Column("k"),), 5, 5, (("t", 0, "t"), ("k", 0, "k"), ("x", 0, "x"), ("y", 1, "x")))
TOP = TopParams("t", (OrderColumn("x", True, False),), ("k",), 2)
OVER = OverParams("t", ("k",), ("x",), (Aggregate("total", "sum", X),), (1,))
FIRST = DeduplicateParams("t", ("k",), (OrderColumn("x", True, False),), (), 10)
LEFT = msgspec.structs.replace(JOIN, outer=(ColumnType.FLOAT,))


def frame(*rows: tuple[Any, ...], **types: pl.DataType) -> pl.DataFrame:
    kinds = {"t": pl.Int64(), "k": pl.String(), "x": pl.Float64(), **types}
    return pl.DataFrame(rows, schema=kinds, orient="row").with_columns(pl.col("t").cast(pl.Datetime("us")))


def physical(frames: Any) -> list[tuple[Any, ...]]:
    return [row for frame in frames for row in frame.select(pl.all().to_physical()).rows()]


# ----------------------------------------------------------------------------------------------------------------- map


def test_a_filter_keeps_rows_for_which_the_predicate_is_true_not_null():
    (kept,) = build(MapParams(Call("gt", (X, ONE)), None)).process(0, frame((1, "a", 2.0), (2, "b", None), (3, "c", 0.5)))
    assert kept["k"].to_list() == ["a"]


@pytest.mark.parametrize("columns", [None, (("x", X), ("again", X)), (("one", ONE), ("negative", Call("neg", (X,))))])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("truth", "keeps"), [(True, True), (False, False), (None, False)])
def test_a_predicate_of_constants_alone_keeps_all_rows_or_none(truth: bool | None, keeps: bool, rows: int, columns: Any):
    given = frame(*[(i, "a", float(i)) for i in range(rows)])
    kept = build(MapParams(Literal(truth, ColumnType.BOOL), columns)).process(0, given)
    whole = build(MapParams(None, columns)).process(0, given)
    assert physical(kept) == (physical(whole) if keeps else [])
    assert [one.schema for one in kept] == [one.schema for one in whole] * keeps


@pytest.mark.parametrize("truth", [True, False])
def test_constants_do_not_depend_on_the_pieces_that_a_frame_lies_in(truth: bool):
    pieces = pl.concat([frame((1, "a", 1.0), (2, "b", 2.0)), frame((3, "c", 3.0))], rechunk=False)
    predicate = Call("gt", (Literal(2.5 if truth else 0.5, ColumnType.FLOAT), Literal(1.5, ColumnType.FLOAT)))
    kept = build(MapParams(predicate, None)).process(0, pieces)
    assert physical(kept) == (physical([pieces]) if truth else [])
    (made,) = build(MapParams(None, (("p", predicate), ("q", Call("add", (X, Literal(None, ColumnType.TEXT))))))).process(0, pieces)
    assert made.rows() == [(truth, None)] * 3
    (made,) = build(MapParams(None, (("q", Call("add", (X, Literal(None, ColumnType.TEXT)))),))).process(0, pieces)
    assert made.rows() == [(None,)] * 3


def test_what_is_made_of_a_column_of_one_value_fills_all_rows():
    given = frame((1, "a", 2.0), (2, "b", 3.0)).with_columns(pl.lit(0, pl.Int64()).cast(pl.Datetime("us")).alias("one"))
    seconds = Cast(Literal(1.0, ColumnType.FLOAT), ColumnType.TIME)
    chosen = Case(((Call("eq", (seconds, Column("one"))), Literal(None, ColumnType.TIME)),), seconds)
    (made,) = build(MapParams(None, (("x", X), ("chosen", chosen)))).process(0, given)
    assert made.rows() == [(2.0, datetime(1970, 1, 1, 0, 0, 1)), (3.0, datetime(1970, 1, 1, 0, 0, 1))]
    window = build(WindowParams("t", 10, 10, (), (Aggregate("last", "last", chosen), Aggregate("n", "count", chosen))))
    window.process(0, given)
    ((answer,),) = window.advance_in_steps(WATERMARK_END)
    assert answer.rows()[0][2:] == (datetime(1970, 1, 1, 0, 0, 1), 2)


def test_a_filter_that_keeps_nothing_gives_no_frame():
    assert list(build(MapParams(Call("gt", (X, ONE)), None)).process(0, frame((1, "a", 0.0)))) == []


def test_a_projection_computes_its_columns_from_the_input_alone():
    swapped = MapParams(None, (("x", Call("neg", (X,))), ("y", X)))
    (result,) = build(swapped).process(0, frame((1, "a", 2.0)))
    assert result.rows() == [(-2.0, 2.0)]


def test_a_projection_of_constants_has_as_many_rows_as_its_input():
    constants = MapParams(None, (("one", ONE), ("nothing", Literal(None, ColumnType.FLOAT))))
    (result,) = build(constants).process(0, frame((1, "a", 2.0), (2, "b", 3.0)))
    assert result.schema == {"one": pl.Int64, "nothing": pl.Float64}
    assert result["one"].to_list() == [1, 1]


def test_constants_beside_columns_fill_all_rows():
    (result,) = build(MapParams(None, (("one", ONE), ("x", X)))).process(0, frame((1, "a", 2.0), (2, "b", 3.0)))
    assert result.rows() == [(1, 2.0), (1, 3.0)]


def test_a_predicate_that_is_no_condition_is_refused():
    with pytest.raises(RemoteProtocolError, match="predicate"):
        build(MapParams(ONE, None)).process(0, frame((1, "a", 2.0)))


def test_a_union_passes_its_rows_on():
    rows = frame((1, "a", 2.0))
    assert list(build(UnionParams()).process(3, rows)) == [rows]


def test_sources_and_sinks_are_not_operators():
    with pytest.raises(LocalProtocolError, match="connectors"):
        build(SinkParams("s", "discard", ()))


# ------------------------------------------------------------------------------------------------------------- windows


def test_a_window_leaves_when_the_watermark_reaches_its_end():
    window = build(WINDOW)
    window.process(0, frame((0, "b", 1.0), (9, "a", 2.0), (10, "a", 4.0)))
    assert physical(window.advance(9)) == []
    assert physical(window.advance(10)) == [(0, 10, "a", 1, 2.0), (0, 10, "b", 1, 1.0)]
    assert physical(window.advance(WATERMARK_END)) == [(10, 20, "a", 1, 4.0)]


def test_allowed_lateness_keeps_a_window_open_for_longer():
    window = build(msgspec.structs.replace(WINDOW, allowed_lateness_us=5))
    assert physical(window.advance(14)) == []
    window.process(0, frame((3, "a", 1.0)))
    assert physical(window.advance(15)) == [(0, 10, "a", 1, 1.0)]
    window.process(0, frame((3, "a", 1.0)))
    assert window.late_rows == 1
    assert window.output_watermark(14) == 10
    assert window.output_watermark(15) == 20


def test_a_hopping_row_counts_in_the_windows_that_are_still_open():
    window = build(WindowParams("t", 10, 5, (), (Aggregate("n", "count", None),)))
    window.process(0, frame((7, "a", 1.0)))
    assert physical(window.advance(10)) == [(0, 10, 1)]
    window.process(0, frame((8, "a", 1.0)))
    assert window.late_rows == 0
    assert physical(window.advance(WATERMARK_END)) == [(5, 15, 2)]


def test_rows_between_windows_belong_to_none_and_are_not_late():
    window = build(WindowParams("t", 2, 10, (), (Aggregate("n", "count", None),)))
    window.process(0, frame((1, "a", 1.0), (5, "a", 1.0), (11, "a", 1.0)))
    assert physical(window.advance(WATERMARK_END)) == [(0, 2, 1), (10, 12, 1)]
    assert window.late_rows == 0


def test_windows_before_1970_begin_at_multiples_of_the_slide_too():
    window = build(WINDOW)
    window.process(0, frame((-1, "a", 1.0), (-10, "a", 1.0), (-11, "a", 1.0)))
    assert physical(window.advance(0)) == [(-20, -10, "a", 1, 1.0), (-10, 0, "a", 2, 2.0)]


def test_rows_without_a_sane_event_time_are_late():
    window = build(WINDOW)
    window.process(0, frame((None, "a", 1.0), (2**62, "a", 1.0), (-(2**63), "a", 1.0), (2**63 - 1, "a", 1.0)))
    assert (window.late_rows, window.state_rows) == (4, 0)


def test_null_is_a_key_like_others_and_zeros_are_one_key():
    window = build(WindowParams("t", 10, 10, (("x", X),), (Aggregate("n", "count", None),)))
    window.process(0, frame((0, "a", None), (1, "a", -0.0), (2, "a", 0.0), (3, "a", None)))
    assert [(row[2], row[3]) for row in physical(window.advance(WATERMARK_END))] == [(None, 2), (0.0, 2)]


@pytest.mark.parametrize(
    "params",
    [
        WindowParams("t", 10, 10, (("x", X),), (Aggregate("n", "count", None),)),
        SessionParams("t", 10, (("x", X),), (Aggregate("n", "count", None),)),
        *(WindowParams("t", 10, 10, (), (Aggregate("x", function, X),)) for function in ("min", "max", "first", "last", "sum", "avg")),
        TOP,
        FIRST,
    ],
)
def test_no_answer_has_the_sign_of_the_zero_that_came_first(params: Params):
    """The sign would show in texts and quotients, and which zero comes first is chance."""
    operator = build(params)
    operator.process(0, frame((0, "a", -0.0)))
    (answer,) = operator.advance(WATERMARK_END)
    assert [math.copysign(1.0, value) for value in answer["x"]] == [1.0]


def takes(function: str, kind: ColumnType) -> bool:
    try:
        aggregate_type(function, kind, kind if function in PAIR_FUNCTIONS else None)
    except QueryError:
        return False
    return True


def test_aggregates_of_every_type_have_the_type_that_the_table_says():
    rows = frame((0, "a", 1.5)).with_columns(
        i=pl.lit(3, pl.Int64), b=pl.lit(True), d=pl.lit(5, pl.Int64).cast(pl.Duration("us")), s=pl.lit("text longer than twelve bytes")
    )
    asked = [(f, c) for c in "ixdstb" for f in AGGREGATE_FUNCTIONS if takes(f, column_type(rows.schema[c]))]
    assert {f for f, _ in asked} == set(AGGREGATE_FUNCTIONS)
    params = WindowParams(
        "t", 10, 10, (), tuple(Aggregate(f"{f}_{c}", f, Column(c), by=Column(c) if f in PAIR_FUNCTIONS else None) for f, c in asked)
    )
    window = build(params)
    window.process(0, rows)
    window.restore(window.snapshot())
    (answer,) = window.advance(WATERMARK_END)
    assert answer["avg_i"].to_list() == [3.0]
    assert answer.schema["max_d"] == answer.schema["first_d"] == pl.Duration("us")
    assert answer["first_s"].to_list() == ["text longer than twelve bytes"]
    assert answer["max_t"].to_list() == [datetime(1970, 1, 1)]
    assert answer["stddev_x"].to_list() == [None]
    for name in answer.columns[2:]:
        function, _, column = name.rpartition("_")
        kind = column_type(rows.schema[column])
        assert column_type(answer.schema[name]) is aggregate_type(function, kind, kind)


def test_integer_sums_are_exact_and_null_beyond_64_bits():
    params = WindowParams("t", 10, 10, (("k", Column("k")),), (Aggregate("total", "sum", X),))
    window = build(params)
    window.process(0, frame((0, "a", 2**62), (1, "a", 2**62), (2, "b", 2**62), (3, "b", 2**62 - 1), x=pl.Int64()))
    assert [row[2:] for row in physical(window.advance(WATERMARK_END))] == [("a", None), ("b", 2**63 - 1)]


def test_infinities_and_nan_take_part_as_floats_do():
    window = build(WindowParams("t", 10, 10, (("k", Column("k")),), (Aggregate("s", "sum", X), Aggregate("d", "stddev", X))))
    inf = float("inf")
    window.process(0, frame((0, "a", inf), (1, "a", 1.0), (2, "b", inf), (3, "b", -inf)))
    rows = physical(window.advance(WATERMARK_END))
    assert [row[2:4] for row in rows[:1]] == [("a", inf)]
    assert all(value != value for value in (rows[0][4], rows[1][3], rows[1][4]))


def test_many_hopping_windows_closing_at_once_come_in_order():
    window = build(WindowParams("t", 400, 1, (), (Aggregate("n", "count", None),)))
    window.process(0, frame(*((t, "a", 1.0) for t in range(0, 8_000, 2))))
    rows = physical(window.advance(WATERMARK_END))
    assert [row[0] for row in rows] == list(range(-399, 7_999))
    assert {row[2] for row in rows[399:7_500]} == {200}


def test_a_window_without_length_is_refused():
    with pytest.raises(LimitError, match="expected 1 to"):
        WindowParams("t", 0, 10, (), ())


def test_a_window_over_something_else_than_a_time_is_refused():
    with pytest.raises(RemoteProtocolError, match="no time column"):
        build(msgspec.structs.replace(WINDOW, time_column="x")).process(0, frame((0, "a", 1.0)))


def test_an_aggregate_that_does_not_fit_its_operand_is_refused():
    with pytest.raises(RemoteProtocolError, match="sum"):
        build(msgspec.structs.replace(WINDOW, aggregates=(Aggregate("s", "sum", Column("k")),))).process(0, frame((0, "a", 1.0)))


# --------------------------------------------------------------------------------------------------------------- joins


def test_a_pair_is_given_once_by_whichever_row_comes_later():
    join = build(JOIN)
    assert physical(join.process(0, frame((10, "a", 1.0)))) == []
    assert physical(join.process(1, frame((15, "a", 2.0), (16, "a", 3.0), (5, "b", 4.0)))) == [(10, "a", 1.0, 2.0)]
    assert physical(join.process(0, frame((11, "a", 5.0)))) == [(11, "a", 5.0, 2.0), (11, "a", 5.0, 3.0)]


def test_pairs_are_ordered_by_the_batch_that_completed_them_then_by_arrival():
    join = build(JOIN)
    join.process(0, frame((3, "a", 1.0), (1, "a", 2.0)))
    join.process(0, frame((2, "a", 3.0)))
    pairs = physical(join.process(1, frame((4, "a", 9.0), (0, "a", 8.0))))
    assert [(row[3], row[2]) for row in pairs] == [(9.0, 1.0), (9.0, 2.0), (9.0, 3.0), (8.0, 1.0), (8.0, 2.0), (8.0, 3.0)]


def test_rows_behind_the_watermark_are_late_and_the_promise_holds_to_the_microsecond():
    join = build(msgspec.structs.replace(JOIN, before_us=7, after_us=3))
    join.process(1, frame((93, "a", 2.0), (92, "a", 3.0)))
    join.advance(100)
    assert join.output_watermark(100) == 93
    assert physical(join.process(0, frame((99, "a", 1.0), (100, "a", 1.0)))) == [(100, "a", 1.0, 2.0)]
    assert join.late_rows == 1


def test_a_busy_key_is_paired_within_the_interval_only():
    """Pairing by key alone would make 4 * 10^8 pairs and throw most of them away."""
    join = build(JOIN)
    times = [(t * 10, "a", 0.0) for t in range(20_000)]
    join.process(0, frame(*times))
    assert len(physical(join.process(1, frame(*times)))) == 20_000


def test_keys_of_integers_and_floats_meet():
    join = build(msgspec.structs.replace(JOIN, left_keys=(X,), right_keys=(X,)))
    join.process(0, frame((0, "a", 2), x=pl.Int64()))
    assert len(physical(join.process(1, frame((0, "b", 2.0))))) == 1


def test_keys_that_cannot_be_compared_are_refused():
    join = build(msgspec.structs.replace(JOIN, right_keys=(X,)))
    join.process(0, frame((0, "a", 1.0)))
    with pytest.raises(RemoteProtocolError, match="join keys"):
        join.process(1, frame((0, "a", 1.0)))


# ----------------------------------------------------------------------------------------------------------- snapshots


def test_a_snapshot_with_other_tables_is_refused():
    window = build(WINDOW)
    window.process(0, frame((0, "a", 1.0)))
    content = msgspec.msgpack.decode(window.snapshot())
    content["frames"]["main"] = content["frames"]["input"]
    with pytest.raises(RemoteProtocolError, match="main"):
        build(WINDOW).restore(msgspec.msgpack.encode(content))


def _texts(batch: int) -> pl.DataFrame:
    """Returns 4 MB of texts: ten values that every batch has, and one that only this batch has."""
    number = pl.int_range(10_000, eager=True) % 10
    number = pl.concat([number[1:], pl.Series([1000 + batch])])
    key = pl.concat_str([pl.lit("x" * 400), number.cast(pl.String)])
    return pl.DataFrame({"t": number.cast(pl.Datetime("us")), "x": number.cast(pl.Float64)}).select("t", key.alias("k"), "x")


@pytest.mark.parametrize(
    "params",
    [
        WindowParams("t", 10**6, 10**6, (), (Aggregate("n", "count_distinct", Column("k")), Aggregate("last", "last", Column("k")))),
        TopParams("t", (OrderColumn("x", True, False),), (), 2, ("k",)),
    ],
)
def test_a_text_that_is_kept_does_not_keep_the_texts_of_its_batch(params: Params):
    operator, process = build(params), psutil.Process()
    for batch in range(10):
        operator.process(0, _texts(batch))
    before = process.memory_info().rss
    for batch in range(10, 70):
        operator.process(0, _texts(batch))
    assert operator.state_rows < 50_000, "includes rows that are not looked at yet"
    assert process.memory_info().rss - before < 120 * 2**20, "240 MB have passed"


def test_rows_are_numbered_from_one_in_each_partition():
    top = build(msgspec.structs.replace(TOP, partition=("k",), number="place", limit=3))
    top.process(0, frame((0, "a", 1.0), (0, "a", 3.0), (0, "b", 2.0), (0, "a", 2.0), (1, "a", 9.0)))
    (answer,) = top.advance(WATERMARK_END)

    assert answer.select("k", "x", "place").rows() == [("a", 3.0, 1), ("a", 2.0, 2), ("a", 1.0, 3), ("b", 2.0, 1), ("a", 9.0, 1)]


def test_null_key_is_no_number_of_the_other_side():
    """A NULL among whole numbers is hashed as 0."""
    numbers = [("k", Column("n"))]
    params = msgspec.structs.replace(LEFT, left_keys=(numbers[0][1],), right_keys=(Column("n"),))
    join = build(params)
    join.process(1, frame((0, "r", 1.0)).with_columns(pl.lit(0, pl.Int64).alias("n")))
    found = physical(join.process(0, frame((0, "l", 2.0)).with_columns(pl.lit(None, pl.Int64).alias("n"))))
    found += physical(join.advance(WATERMARK_END))

    assert found == [(0, "l", 2.0, None)]


def test_keys_of_one_hash_are_two_keys():
    """The second pair of numbers is made to have the hash of the first."""
    factor, whole = 0x9E3779B97F4A7C15, 2**64

    def mixed(number: int) -> int:
        product = number * factor % whole
        return (product ^ product >> 32) * factor % whole

    def unmixed(code: int) -> int:
        inverse = pow(factor, -1, whole)
        product = code * inverse % whole
        return (product ^ product >> 32) * inverse % whole

    one, other = 5, 6
    partner = unmixed(mixed(7) ^ (mixed(one) * factor % whole) ^ (mixed(other) * factor % whole))
    partner -= whole if partner >= 2**63 else 0
    keys = (Column("n"), Column("m"))
    join = build(msgspec.structs.replace(JOIN, left_keys=keys, right_keys=keys))
    sides = [
        frame((0, "a", 1.0)).with_columns(pl.lit(n, pl.Int64).alias("n"), pl.lit(m, pl.Int64).alias("m"))
        for n, m in ((one, 7), (other, partner))
    ]
    hashed = [
        Coder((("k0", None), ("k1", None)), 0, 0).hashes(side.select(pl.col("n").alias("k0"), pl.col("m").alias("k1"))) for side in sides
    ]
    assert hashed[0].tolist() == hashed[1].tolist()

    found = [*join.process(0, sides[0]), *join.process(1, sides[1]), *join.process(1, sides[0])]
    assert len(physical(found)) == 1
