"""UNNEST of arrays: plans, bounds, and what a host refuses."""

import polars as pl
import pytest

from sbon.arrays import ELEMENTS_MAX
from sbon.errors import RemoteProtocolError
from sbon.operators.registry import build
from sbon.operators.unnest import KEPT_BYTES_MAX, SPREAD_FIRST, TOO_LONG, TOO_WIDE
from sbon.operators.values import Values
from sbon.operators.windowed import FRAME_ROWS_MAX
from sbon.query.params.kinds import keeps_state
from sbon.query.params.rowwise import UnnestParams
from sbon.query.text import describe
from sbon.schema import ColumnType, Field
from tests.query_worlds import lines, make_catalog, plan_of, run

PARAMS = UnnestParams("a", ColumnType.INT, "e", ("k",))


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = make_catalog("""
        CREATE SOURCE s (ts TIMESTAMP, k TEXT, a BIGINT[], tags TEXT[], p JSON, price DOUBLE, WATERMARK FOR ts AS ts - INTERVAL '2 seconds')
            WITH (connector = 'datagen', nodes = 'a');
        CREATE VIEW sizes AS SELECT ts, k, size FROM s CROSS JOIN UNNEST(s.a) AS t(size);
    """)
    monkeypatch.setattr("tests.query_worlds.CATALOG", catalog)


@pytest.mark.usefixtures("orders")
def test_conditions_on_rows_come_before_and_columns_that_nobody_uses_are_left_behind() -> None:
    found = lines(plan_of("SELECT k, size FROM s CROSS JOIN UNNEST(s.a) AS t(size) WHERE size > 2 AND price > 3"))

    assert found == [
        "0 a source s (datagen)",
        "1 a where price > 3 select k, a <- 0",
        "2 - rows with unnest(a): the elements of a <- 1",
        "3 - where unnest(a) > 2 select k, unnest(a) <- 2",
        "4 b sink q (tail) of k, unnest(a) as size <- 3",
    ]


@pytest.mark.usefixtures("orders")
def test_queries_that_name_their_elements_otherwise_share_the_operator() -> None:
    one = plan_of("SELECT k, x FROM s CROSS JOIN UNNEST(s.a) AS t(x) WHERE x > 1")
    other = plan_of("SELECT u.y AS z, v.k FROM s AS v, UNNEST(a) AS u(y)")
    third = plan_of("SELECT k, size FROM sizes WHERE size < 3")

    signatures = [[spec.signature for spec in made.operators if isinstance(spec.params, UnnestParams)] for made in (one, other, third)]
    assert signatures[0] == signatures[1] == signatures[2]


@pytest.mark.usefixtures("orders")
def test_numbers_of_elements_are_made_only_where_they_are_used() -> None:
    numbered = plan_of("SELECT x, n FROM s CROSS JOIN UNNEST(s.a) WITH ORDINALITY AS t(x, n) WHERE n > 1 AND price > 3")
    unused = plan_of("SELECT x FROM s CROSS JOIN UNNEST(s.a) WITH ORDINALITY AS t(x, n)")
    plain = plan_of("SELECT x FROM s CROSS JOIN UNNEST(s.a) AS t(x)")

    assert lines(numbered)[1:4] == [
        "1 a where price > 3 select a <- 0",
        "2 - rows with unnest(a): the elements of a, numbered <- 1",
        "3 - where ordinality(a) > 1 select unnest(a), ordinality(a) <- 2",
    ]
    assert [spec.signature for spec in unused.operators] == [spec.signature for spec in plain.operators]


@pytest.mark.usefixtures("orders")
def test_three_elements_a_row_are_expected_and_the_event_time_goes_on() -> None:
    plan = plan_of("SELECT window_end, x, COUNT(*) AS n FROM TUMBLE(s, ts, INTERVAL '10 s') CROSS JOIN UNNEST(tags) AS t(x) GROUP BY 1, 2")
    (spec,) = [spec for spec in plan.operators if isinstance(spec.params, UnnestParams)]

    assert (spec.selectivity, spec.time_column, spec.pinned) == (3.0, "ts", None)
    assert spec.schema == (Field("ts", ColumnType.TIME), Field("unnest(tags)", ColumnType.TEXT))
    assert not keeps_state(spec.params)


@pytest.mark.usefixtures("orders")
def test_arrays_within_arrays_of_json_are_taken_apart_one_after_the_other() -> None:
    plan = plan_of("SELECT k, i -> 'n' AS n, j FROM s CROSS JOIN UNNEST(p -> 'items') AS t(i) CROSS JOIN UNNEST(i -> 'tags') AS u(j)")
    given = pl.DataFrame({"k": ["a", "b"], "p": ['{"items":[{"n":1,"tags":["x",null]},{"n":2},{"n":3,"tags":[{}]}]}', '{"items":{}}']})

    assert run(plan, {"s": given}).rows() == [("a", "1", '"x"'), ("a", "1", "null"), ("a", "3", "{}")]


def test_what_one_row_becomes_has_a_bound() -> None:
    longest = "[" + "1," * (ELEMENTS_MAX - 1) + "1]"
    wide = "x" * (KEPT_BYTES_MAX // ELEMENTS_MAX)
    rows = [("a", "[1]"), ("b", longest), ("c", "[1," + longest[1:]), (wide, longest), (wide + "y", longest), ("d", "[2]")]
    operator = build(PARAMS)
    frames = operator.process(0, pl.DataFrame(rows, schema={"k": pl.String, "a": pl.String}, orient="row"))

    assert sum(frame.height for frame in frames) == 2 * ELEMENTS_MAX + 2
    assert all(frame.height < FRAME_ROWS_MAX + ELEMENTS_MAX for frame in frames)
    assert [frame["k"].unique().sort().str.head(1).to_list() for frame in frames] == [["a", "b"], ["x"], ["d"]]
    take = operator.of_values((Field("k", ColumnType.TEXT), Field("a", ColumnType.INTS)))
    assert take is not None
    assert take(Values(6, tuple(zip(*rows, strict=True)))).rows == 2 * ELEMENTS_MAX + 2
    assert operator.misfits is not None
    assert [(found.column, found.cause, found.rows) for found in operator.misfits.told()] == [("a", TOO_LONG, 2), ("a", TOO_WIDE, 2)]


@pytest.mark.usefixtures("orders")
def test_an_array_that_a_cast_makes_of_long_json_is_counted_where_it_is_taken_apart() -> None:
    plan = plan_of("SELECT x FROM s CROSS JOIN UNNEST(CAST(p AS BIGINT[])) AS t(x)")
    (params,) = [spec.params for spec in plan.operators if isinstance(spec.params, UnnestParams)]
    longest = "[" + "1," * ELEMENTS_MAX + "1]"

    sizes = plan_of("SELECT CARDINALITY(CAST(p AS BIGINT[])) AS n, CAST(p AS BIGINT[])[2] AS second FROM s")
    assert run(sizes, {"s": pl.DataFrame({"p": [longest]})}).rows() == [(ELEMENTS_MAX + 1, 1)]
    operator = build(params)
    assert not operator.process(0, pl.DataFrame({params.array: [longest, "{}", None], **{name: ["b"] * 3 for name in params.columns}}))
    assert operator.misfits is not None
    assert [found.rows for found in operator.misfits.told()] == [1]


def test_the_longer_the_arrays_the_fewer_rows_are_taken_at_a_time() -> None:
    operator = build(PARAMS)
    take = operator.of_values((Field("k", ColumnType.TEXT), Field("a", ColumnType.INTS)))
    assert take is not None
    seen = [operator.spread]
    for array in ("[1,2]", "[" + "1," * 999 + "1]", "[]"):
        operator.process(0, pl.DataFrame({"k": ["a", "b"], "a": [array, array]}))
        seen.append(operator.spread)
    take(Values(1, (["a"], ["[" + "1," * 99 + "1]"])))

    assert [*seen, operator.spread] == [SPREAD_FIRST, 1, 1000, 1, 100]


def test_a_column_that_is_not_there_or_no_text_is_refused() -> None:
    for frame in (pl.DataFrame({"k": ["a"]}), pl.DataFrame({"k": ["a"], "a": [1]}), pl.DataFrame({"a": ["[]"]})):
        with pytest.raises(RemoteProtocolError, match="arrays in column"):
            build(PARAMS).process(0, frame)
    assert build(PARAMS).of_values((Field("k", ColumnType.TEXT), Field("a", ColumnType.INT))) is None


def test_watermarks_pass_and_the_plan_says_what_it_does() -> None:
    assert build(PARAMS).output_watermark(17) == 17
    assert describe(PARAMS) == "rows with e: the elements of a"
