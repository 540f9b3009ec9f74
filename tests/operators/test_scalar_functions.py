"""Expressions sent as data compute what the table of functions says, and nonsense is refused."""

import math
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.errors import RemoteProtocolError
from sbon.operators.compile import columns_of, compile_column, compile_expression
from sbon.operators.scalars import SCALARS
from sbon.query.expression import Call, Case, Cast, Column, Expression, Literal
from sbon.query.functions import FUNCTIONS
from sbon.schema import ColumnType

BOOL, INT, FLOAT = ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT
TEXT, TIME, INTERVAL = ColumnType.TEXT, ColumnType.TIME, ColumnType.INTERVAL
SECOND = 1_000_000
NAN = float("nan")


def literal(value: Any, kind: ColumnType | None = None) -> Literal:
    guessed = {bool: BOOL, int: INT, float: FLOAT, str: TEXT, type(None): TEXT}[type(value)]
    return Literal(value, kind or guessed)


def evaluate(expression: Expression, frame: pl.DataFrame | None = None) -> list[Any]:
    frame = pl.DataFrame({"row": [0]}) if frame is None else frame
    value, kind, _ = compile_column(expression, columns_of(frame))
    result = frame.with_columns(value.alias("result"))["result"]
    assert columns_of(result.to_frame()) == {"result": kind}
    return result.to_list()


def call(function: str, *arguments: Any) -> Any:
    """Returns the value of a call with literal arguments."""
    trees = [argument if isinstance(argument, Literal) else literal(argument) for argument in arguments]
    (of_literals,) = evaluate(Call(function, tuple(trees)))
    return of_literals


def of_columns(function: str, *columns: list[Any]) -> list[Any]:
    frame = pl.DataFrame({f"c{i}": values for i, values in enumerate(columns)}, strict=False)
    return evaluate(Call(function, tuple(Column(name) for name in frame.columns)), frame)


def test_every_function_of_the_table_can_be_compiled():
    assert set(SCALARS) == set(FUNCTIONS)


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        ("json", (' {"a" : [1, 2.50] }',), '{"a":[1,2.50]}'),
        ("json", ("{a}",), None),
        ("json_get", ('{"a":{"b":[1,"x"]}}', "a", "b"), '[1,"x"]'),
        ("json_get", ('[1,"x"]', 1), '"x"'),
        ("json_get", ('[1,"x"]', -2), "1"),
        ("json_get", ('[1,"x"]', -3), None),
        ("json_get", ('[1,"x"]', "1"), None),
        ("json_get", ('{"1":2}', 1), None),
        ("json_get", ('{"a":null}', "a"), "null"),
        ("json_get", ('{"a":1,"a":2}', "a"), "2"),
        ("json_text", ('{"a":null}', "a"), None),
        ("json_text", ('{"a":"\\u00e9\\n"}', "a"), "é\n"),
        ("json_text", ('{"a":[ 1]}', "a"), "[ 1]"),
        ("json_text", ("5", "a"), None),
        ("json_length", ("[1,[2,3]]",), 2),
        ("json_length", ('{"a":1}',), None),
        ("json_typeof", ("-1",), "number"),
        ("json_typeof", ("false",), "boolean"),
        ("int_array", ("[1, 2.0, null]",), "[1,2,null]"),
        ("int_array", ("[1.5]",), None),
        ("bool_array", ("[true, null]",), "[true,null]"),
        ("float_array", ("[1, 2.5]",), "[1.0,2.5]"),
        ("time_array", ('["2026-01-31T10:00:00+01:00"]',), '["2026-01-31T09:00:00.000000Z"]'),
        ("json_array", ("[1.50, []]",), "[1.50,[]]"),
        ("struct_of", ('{"b": 1, "a": 2}', 'struct[["a","float"]]'), '{"a":2.0}'),
        ("struct_of", ("[{}, null]", 'struct[][["a","float"]]'), '[{"a":null},null]'),
        ("struct_of", ("[5]", 'struct[][["a","float"]]'), None),
        ("text_array", ('["a", {"b": 1}]',), '["a","{\\"b\\":1}"]'),
        ("to_json", ('a"b',), '"a\\"b"'),
        ("to_json", (NAN,), "null"),
        ("to_json", (0.5,), "0.5"),
        ("to_json", (True,), "true"),
        ("add", (2, 3), 5),
        ("add", (2, 0.5), 2.5),
        ("add", (2, None), None),
        ("sub", (2, 3), -1),
        ("mul", (4, 2.5), 10.0),
        ("div", (7, 2), 3),
        ("div", (-7, 2), -3),
        ("div", (7, -2), -3),
        ("div", (-7, -2), 3),
        ("div", (7, 0), None),
        ("div", (7.0, 2), 3.5),
        ("div", (7.0, 0.0), None),
        ("mod", (7, 3), 1),
        ("mod", (-7, 3), -1),
        ("mod", (7, -3), 1),
        ("mod", (7, 0), None),
        ("mod", (-7.5, 2.0), -1.5),
        ("mod", (2.5, 0.1), 2.5 % 0.1),
        ("mod", (1e17, 3.0), 1.0),
        ("mod", (-1.5, float("inf")), -1.5),
        ("mod", (2.5, 0.0), None),
        ("mod", (None, 2.0), None),
        ("add", (2, Literal(None, FLOAT)), None),
        ("neg", (5,), -5),
        ("eq", (1, 1.0), True),
        ("eq", ("a", "b"), False),
        ("eq", (NAN, NAN), True),
        ("gt", (NAN, 1e308), True),
        ("ne", (1, None), None),
        ("le", ("a", "b"), True),
        ("lt", (1, 1.0), False),
        ("lt", (-1, 0.5), True),
        ("ge", ("b", "b"), True),
        ("ge", (None, 1), None),
        ("and", (True, None), None),
        ("and", (False, None), False),
        ("and", (True, True, True), True),
        ("or", (True, None), True),
        ("or", (False, None), None),
        ("not", (True,), False),
        ("not", (None,), None),
        ("is_null", (None,), True),
        ("is_null", (1,), False),
        ("like", ("eu-west", "eu%"), True),
        ("like", ("eu-west", "__-west"), True),
        ("like", ("a.c", "a.c"), True),
        ("like", ("eu-west", "eu"), False),
        ("like", ("eu-west", "west"), False),
        ("like", ("eu-west", "west%"), False),
        ("like", ("abc", "a.c"), False),
        ("like", ("50%", "50\\%"), True),
        ("like", ("501", "50\\%"), False),
        ("like", ("a\nb", "a%b"), True),
        ("like", (None, "a"), None),
        ("ilike", ("EU-West", "eu%"), True),
        ("in", (2, 1, 2, 3), True),
        ("in", ("x", "a"), False),
        ("in", (None, 1), None),
        ("coalesce", (None, 3, 4), 3),
        ("coalesce", (None, 3, 4.5), 3.0),
        ("greatest", (1, None, 3), 3),
        ("greatest", (1.0, NAN), NAN),
        ("least", (4, 2, None), 2),
        ("least", ("b", "a"), "a"),
        ("abs", (-4,), 4),
        ("abs", (-0.5,), 0.5),
        ("sign", (-4,), -1),
        ("sign", (0.0,), 0.0),
        ("round", (2.5,), 3.0),
        ("round", (-2.5,), -3.0),
        ("round", (2.345, 2), 2.35),
        ("round", (7,), 7),
        ("floor", (-1.5,), -2.0),
        ("ceil", (-1.5,), -1.0),
        ("ceil", (3,), 3),
        ("sqrt", (9,), 3.0),
        ("sqrt", (-1.0,), None),
        ("ln", (1.0,), 0.0),
        ("ln", (0,), None),
        ("log10", (1000,), pytest.approx(3.0)),
        ("exp", (0,), 1.0),
        ("power", (2, 10), 1024.0),
        ("power", (-8.0, 0.5), None),
        ("power", (0, -1), None),
        ("lower", ("ÄB",), "äb"),
        ("upper", ("äb",), "ÄB"),
        ("length", ("héllo",), 5),
        ("substr", ("hello", 2), "ello"),
        ("substr", ("hello", 2, 3), "ell"),
        ("substr", ("hello", -1, 4), "he"),
        ("substr", ("hello", 0, 1), ""),
        ("substr", ("hello", 9), ""),
        ("substr", ("hello", 2, None), None),
        ("concat", ("a", "b", "c"), "abc"),
        ("concat", ("a", None), None),
        ("trim", ("  a b ",), "a b"),
        ("ltrim", (" a ",), "a "),
        ("rtrim", (" a ",), " a"),
        ("replace", ("a.b.c", ".", "-"), "a-b-c"),
        ("replace", ("abc", "", "-"), "abc"),
        ("starts_with", ("abc", "ab"), True),
        ("trim", ("xyaxy", "yx"), "a"),
        ("ltrim", ("xxa ", "x"), "a "),
        ("rtrim", (" axx", "x"), " a"),
        ("ends_with", ("abc", "bc"), True),
        ("ends_with", ("abc", None), None),
        ("strpos", ("日本語", "語"), 3),
        ("strpos", ("abc", "x"), 0),
        ("strpos", ("abc", ""), 1),
        ("strpos", ("", ""), 1),
        ("strpos", ("a", None), None),
        ("lpad", ("é", 4, "xy"), "xyxé"),
        ("lpad", ("hello", 2, "x"), "he"),
        ("lpad", ("a", -1), ""),
        ("lpad", ("a", 3, ""), "a"),
        ("lpad", ("a", 1_000), " " * 999 + "a"),
        ("lpad", ("a", 1_001), None),
        ("lpad", ("a", 2**63 - 1), None),
        ("lpad", ("a", None), None),
        ("rpad", ("é", 4, "xy"), "éxyx"),
        ("rpad", ("hello", 2), "he"),
        ("repeat", ("ab", 2), "abab"),
        ("repeat", ("ab", -1), ""),
        ("repeat", ("", 2**62), ""),
        ("repeat", ("ab", 501), None),
        ("repeat", ("ab", 2**63 - 1), None),
        ("repeat", (None, 2), None),
        ("reverse", ("ab日",), "日ba"),
        ("split_part", ("a--b-c", "-", 2), ""),
        ("split_part", ("a--b-c", "-", 3), "b"),
        ("split_part", ("a--b-c", "--", -1), "b-c"),
        ("split_part", ("a", ",", 5), ""),
        ("split_part", ("a", ",", -(2**63)), ""),
        ("split_part", ("a", ",", 0), None),
        ("split_part", (None, ",", 1), None),
        ("split_index", ("a-b", "-", 0), "a"),
        ("split_index", ("a-b", "-", 2), None),
        ("split_index", ("a-b", "-", -1), None),
        ("split_index", ("a-b", "-", 2**63 - 1), None),
        ("concat_ws", ("-", "a", None, "b"), "a-b"),
        ("concat_ws", ("-", None), ""),
        ("initcap", ("hELLO wORLD-3rd é",), "Hello World-3rd É"),
        ("chr", (0x1F389,), "🎉"),
        ("chr", (0,), None),
        ("chr", (0xD800,), None),
        ("chr", (-1,), None),
        ("chr", (0x110000,), None),
        ("ascii", ("🎉x",), 0x1F389),
        ("ascii", ("",), 0),
        ("md5", ("é",), "66ddcd97cfdeabb2f6fb8a999b4bc76f"),
        ("sha256", ("abc",), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("regexp_like", ("a\nb", "^b"), False),
        ("regexp_like", ("abc", "B", "i"), True),
        ("regexp_like", (None, "B"), None),
        ("regexp_extract", ("k=12", "([a-z])=([0-9]+)", 2), "12"),
        ("regexp_extract", ("k=12", "[0-9]+"), "12"),
        ("regexp_extract", ("k=12", "x"), None),
        ("regexp_extract", ("b", "(a)?b", 1), None),
        ("regexp_replace", ("aXbX", "X", "$"), "a$bX"),
        ("regexp_replace", ("aXbX", "x", "-", "gi"), "a-b-"),
        ("regexp_replace", ("ab", "(a)(b)", r"\2\1\\\&"), "ba\\ab"),
        ("regexp_replace", ("héa", "x*", "-", "g"), "-h-é-a-"),
        ("trunc", (-2.9,), -2.0),
        ("trunc", (1.15, 2), 1.15),
        ("trunc", (-2.345, 1), -2.3),
        ("trunc", (1e300, 15), 1e300),
        ("trunc", (NAN, 2), NAN),
        ("trunc", (7, 2), 7),
        ("cbrt", (-27,), -3.0),
        ("sin", (0.5,), math.sin(0.5)),
        ("sin", (float("inf"),), None),
        ("sin", (NAN,), NAN),
        ("cos", (0.5,), math.cos(0.5)),
        ("tan", (0.5,), math.tan(0.5)),
        ("asin", (0.5,), math.asin(0.5)),
        ("asin", (1.5,), None),
        ("asin", (NAN,), NAN),
        ("acos", (-1,), math.pi),
        ("acos", (-1.5,), None),
        ("atan", (float("inf"),), math.pi / 2),
        ("atan2", (-1, -2.0), math.atan2(-1, -2)),
        ("degrees", (math.pi,), 180.0),
        ("radians", (90,), math.pi / 2),
    ],
)
def test_functions_compute_what_their_table_says(function: str, arguments: tuple[Any, ...], expected: Any):
    value = call(function, *arguments)
    assert type(value) is type(expected) or not isinstance(expected, bool | int | float | str | None)
    assert value == (pytest.approx(expected, nan_ok=True) if isinstance(expected, float) else expected)


def time(text: str) -> Literal:
    return Literal(round((datetime.fromisoformat(text) - datetime(1970, 1, 1)) / timedelta(microseconds=1)), TIME)


MOMENT = time("2018-01-31T01:49:59.650000")


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        ("add", (MOMENT, Literal(SECOND, INTERVAL)), datetime(2018, 1, 31, 1, 50, 0, 650000)),
        ("sub", (MOMENT, time("2018-01-31T01:49:00")), timedelta(seconds=59.65)),
        ("mul", (Literal(SECOND, INTERVAL), literal(1.5)), timedelta(seconds=1.5)),
        ("mul", (literal(3), Literal(SECOND, INTERVAL)), timedelta(seconds=3)),
        ("div", (Literal(-5, INTERVAL), literal(2)), timedelta(microseconds=-2)),
        ("div", (Literal(5, INTERVAL), literal(2.0)), timedelta(microseconds=2)),
        ("neg", (Literal(5, INTERVAL),), timedelta(microseconds=-5)),
        ("abs", (Literal(-5, INTERVAL),), timedelta(microseconds=5)),
        ("date_trunc", (literal("week"), MOMENT), datetime(2018, 1, 29)),
        ("date_trunc", (literal("quarter"), MOMENT), datetime(2018, 1, 1)),
        ("date_trunc", (literal("hour"), time("1969-12-31T23:59:59")), datetime(1969, 12, 31, 23)),
        ("extract_year", (MOMENT,), 2018),
        ("extract_quarter", (MOMENT,), 1),
        ("extract_week", (MOMENT,), 5),
        ("extract_month", (time("2018-11-04T05:06:07"),), 11),
        ("extract_day", (time("2018-11-04T05:06:07"),), 4),
        ("extract_hour", (time("2018-11-04T05:06:07"),), 5),
        ("extract_minute", (time("2018-11-04T05:06:07"),), 6),
        ("extract_dow", (time("2018-02-04T00:00:00"),), 0),
        ("extract_doy", (MOMENT,), 31),
        ("extract_second", (MOMENT,), 59.65),
        ("extract_epoch", (MOMENT,), 1517363399.65),
        ("extract_epoch", (Literal(1_500_000, INTERVAL),), 1.5),
        ("extract_year", (Literal(2**62, TIME),), None),
        ("to_char", (MOMENT, literal("YYYY-MM-DD HH24:MI:SS.US")), "2018-01-31 01:49:59.650000"),
        ("to_char", (MOMENT, literal("FMDD/FMMM/YY FMHH12:MI:SS.MS pm")), "31/1/18 1:49:59.650 am"),
        ("to_char", (MOMENT, literal('Dy FMDay Mon FMMonth "Q"Q%, IYYY-"W"IW-ID DDD')), "Wed Wednesday Jan January Q1%, 2018-W05-3 031"),
        ("to_char", (time("0099-12-31T13:00:00"), literal("yyyymmdd HH AM")), "00991231 01 PM"),
        ("to_char", (Literal(2**62, TIME), literal("YYYY")), None),
        ("to_timestamp", (literal("31/1/2018 01:49"), literal("DD/MM/YYYY HH24:MI")), datetime(2018, 1, 31, 1, 49)),
        ("to_timestamp", (literal("20180131014959.650"), literal("YYYYMMDDHH24MISS.MS")), datetime(2018, 1, 31, 1, 49, 59, 650000)),
        ("to_timestamp", (literal("Jan 31 2018, 1:49 pm"), literal("Mon DD YYYY, HH12:MI PM")), datetime(2018, 1, 31, 13, 49)),
        ("to_timestamp", (literal("100%- 2018-031"), literal("100%- YYYY-DDD")), datetime(2018, 1, 31)),
        ("to_timestamp", (literal("5.3.2018"), literal("FMDD.FMMM.YYYY")), datetime(2018, 3, 5)),
        ("to_timestamp", (literal("2018-02-30"), literal("YYYY-MM-DD")), None),
        ("to_timestamp", (literal("2018-+2-03"), literal("YYYY-MM-DD")), None),
        ("to_timestamp", (literal("2018-01-31 01:49:60"), literal("YYYY-MM-DD HH24:MI:SS")), None),
        ("timestampdiff", (literal("minute"), time("2018-01-31T01:49:59"), time("2018-01-31T01:49:00")), 0),
        ("timestampdiff", (literal("second"), time("2018-01-31T01:50:00.5"), MOMENT), 0),
        ("timestampdiff", (literal("day"), time("2018-01-31T01:50:00"), time("2018-01-01T02:00:00")), -29),
        ("date_trunc", (literal("day"), Literal(-(2**62), TIME)), None),
    ],
)
def test_times_and_intervals(function: str, arguments: tuple[Literal, ...], expected: Any):
    assert call(function, *arguments) == expected


def test_every_function_of_the_table_has_an_example_above():
    marks = [*test_functions_compute_what_their_table_says.pytestmark, *test_times_and_intervals.pytestmark]
    examples = {example[0] for mark in marks for example in mark.args[1]}

    assert examples == set(FUNCTIONS)


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (literal(2.5), INT, 3),
        (literal(-2.5), INT, -3),
        (literal(NAN), INT, None),
        (literal(1e300), INT, None),
        (literal(" 42 "), INT, 42),
        (literal("4x"), INT, None),
        (literal("1e3"), FLOAT, 1000.0),
        (literal("Yes"), BOOL, True),
        (literal("maybe"), BOOL, None),
        (literal(0), BOOL, False),
        (literal(True), INT, 1),
        (literal(False), TEXT, "false"),
        (literal(1.5), TEXT, "1.5"),
        (literal("2018-01-31T01:49:59.650Z"), TIME, datetime(2018, 1, 31, 1, 49, 59, 650000)),
        (literal("2001-01-01 00:47"), TIME, datetime(2001, 1, 1, 0, 47)),
        (literal("2001-01-01"), TIME, datetime(2001, 1, 1)),
        (literal("2018-01-31T01:49:00+02:00"), TIME, datetime(2018, 1, 30, 23, 49)),
        (literal("yesterday"), TIME, None),
        (literal(90), TIME, datetime(1970, 1, 1, 0, 1, 30)),
        (literal(2**62), TIME, None),
        (MOMENT, TEXT, "2018-01-31T01:49:59.650000Z"),
        (MOMENT, INT, 1517363399),
        (Literal(-1, TIME), INT, -1),
        (Literal(-1_000_000, TIME), INT, -1),
        (Literal(-1_000_001, TIME), INT, -2),
        (literal("1.5 hours"), INTERVAL, timedelta(hours=1.5)),
        (literal("250 ms"), INTERVAL, timedelta(milliseconds=250)),
        (literal("7 us"), INTERVAL, timedelta(microseconds=7)),
        (literal("2 fortnights"), INTERVAL, None),
        (literal(1.5), INTERVAL, timedelta(seconds=1.5)),
        (Literal(1_500_000, INTERVAL), TEXT, "1.5 s"),
        (literal(None), INT, None),
    ],
)
def test_casts_convert_or_give_null(value: Literal, target: ColumnType, expected: Any):
    assert evaluate(Cast(value, target)) == [expected]


def test_case_takes_the_first_condition_that_is_true_and_widens_its_results():
    level = Column("x")
    tree = Case(
        ((Call("gt", (level, literal(2))), literal(10)), (Call("gt", (level, literal(1))), literal(0.5))),
        literal(None),
    )
    assert evaluate(tree, pl.DataFrame({"x": [3, 2, 1, None]})) == [10.0, 0.5, None, None]


def test_columns_and_literals_mix_row_by_row():
    assert of_columns("div", [7, -7, 7, None], [2, 2, 0, 1]) == [3, -3, None, None]
    assert of_columns("greatest", [1.0, None, NAN], [2.0, 3.0, 1.0])[:2] == [2.0, 3.0]
    assert of_columns("substr", ["hello", "abc"], [2, -1], [2, 3]) == ["el", "a"]
    assert of_columns("starts_with", ["abc", "abc"], ["ab", "b"]) == [True, False]


def test_integers_wrap_at_64_bits():
    assert call("add", 2**63 - 1, 1) == -(2**63)


@pytest.mark.parametrize(
    "tree",
    [
        Column("missing"),
        Call("system", (literal("rm"),)),
        Call("add", (literal(1),)),
        Call("add", (literal(1), literal("a"))),
        Call("like", (Column("x"), Column("x"))),
        Call("date_trunc", (literal("fortnight"), MOMENT)),
        Call("round", (literal(1.0), literal(99))),
        Cast(literal(True), TIME),
        Case((), literal(1)),
        Case(((literal(1), literal(1)),), literal(1)),
        Literal("1", INT),
        Literal(True, INT),
        Literal(2**70, INT),
        Call("like", (literal("a"), literal("a\\"))),
        Call("regexp_like", (Column("x"), Column("x"))),
        Call("regexp_like", (Column("x"), literal("(a"))),
        Call("regexp_like", (Column("x"), literal("(a{999}){999}"))),
        Call("regexp_like", (Column("x"), literal("a" * 1_001))),
        Call("regexp_extract", (Column("x"), literal("a"), literal(1))),
        Call("regexp_replace", (Column("x"), literal("a"), literal("\\q"))),
        Call("regexp_replace", (Column("x"), literal("a"), Column("x"))),
        Call("to_char", (MOMENT, literal("what"))),
        Call("to_char", (MOMENT, literal("-" * 201))),
        Call("to_timestamp", (Column("x"), literal("YYYY"))),
        Call("split_part", (Column("x"), literal(""), literal(1))),
        Call("lpad", (Column("x"), literal(3), Column("x"))),
        Call("trunc", (literal(1.5), literal(16))),
        Call("timestampdiff", (literal("month"), MOMENT, MOMENT)),
    ],
)
def test_nonsense_from_a_peer_is_refused(tree: Expression):
    with pytest.raises(RemoteProtocolError):
        compile_expression(tree, {"x": TEXT})


def test_a_tree_too_deep_for_the_stack_is_refused():
    tree: Expression = Column("x")
    for _ in range(5000):
        tree = Call("neg", (tree,))
    with pytest.raises(RemoteProtocolError, match="deep"):
        compile_expression(tree, {"x": INT})


@given(
    st.lists(st.none() | st.floats(-1e6, 1e6) | st.integers(-9999, 9999).map(float), min_size=1, max_size=20),
    st.sampled_from([10.0, 1000.0, 3.0, 2.0, 1e6, -7.0]) | st.floats(0.1, 1e6),
)
def test_quotients_are_rounded_once(dividends, divisor):
    frame = pl.DataFrame({"x": pl.Series(dividends, dtype=pl.Float64)})
    expected = [None if x is None else x / divisor for x in dividends]
    assert evaluate(Call("div", (Column("x"), literal(divisor))), frame) == expected
    numbers = pl.DataFrame({"x": pl.Series([None if x is None else round(x) for x in dividends], dtype=pl.Int64)})
    seconds = evaluate(Cast(Column("x"), FLOAT), numbers.with_columns(pl.col("x").cast(pl.Duration("us"))))
    assert seconds == [None if x is None else x / SECOND for x in numbers["x"]]


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20) | st.none(), min_size=1, max_size=20),
    st.integers(-9, 9).filter(bool) | st.sampled_from([2**62, -(2**62), 2**63 - 1, -(2**63), 1000, -1024]),
)
def test_remainders_by_a_number_that_is_written_down_are_those_of_any_other(dividends, divisor):
    frame = pl.DataFrame({"x": pl.Series(dividends, dtype=pl.Int64), "d": pl.Series([divisor] * len(dividends), dtype=pl.Int64)})
    mod = Call("mod", (Column("x"), literal(divisor)))
    zero = literal(0)

    expected = [None if x is None else abs(x) % abs(divisor) * (-1 if x < 0 else 1) for x in dividends]
    assert evaluate(mod, frame) == expected
    assert evaluate(Call("mod", (Column("x"), Column("d"))), frame) == expected
    divisible = [None if rest is None else rest == 0 for rest in expected]
    assert evaluate(Call("eq", (mod, zero)), frame) == divisible
    assert evaluate(Call("eq", (zero, mod)), frame) == divisible
    assert evaluate(Call("ne", (mod, zero)), frame) == [None if whole is None else not whole for whole in divisible]


@pytest.mark.parametrize("zero", [0.0, 0, -0.0])
def test_the_sign_of_zero_is_that_of_the_sum_beside_a_constant_zero(zero):
    """Polars simplifies 0.0 + x to x and 0.0 - x to -x."""
    values = [-0.0, 0.0, 1.5, -1.5, NAN, float("inf"), None]
    frame = pl.DataFrame({"x": values})
    for function, apply in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
        for arguments in ((literal(zero), Column("x")), (Column("x"), literal(zero))):
            sides = [[zero] * len(values) if isinstance(argument, Literal) else values for argument in arguments]
            expected = [None if None in pair else float(apply(*pair)) for pair in zip(*sides, strict=True)]
            assert list(map(repr, evaluate(Call(function, arguments), frame))) == list(map(repr, expected))


def test_replacements_within_each_other_end_before_they_fill_the_memory():
    tree: Expression = Column("c0")
    for _ in range(40):
        tree = Call("replace", (tree, literal("a"), literal("aaaaaaaaaa")))
    frame = pl.DataFrame({"c0": ["a", "b", None]})

    assert evaluate(tree, frame) == [None, "b", None]
    assert evaluate(Call("replace", (Column("c0"), literal("a"), literal("a" * 1_000_000))), frame) == ["a" * 1_000_000, "b", None]
    assert evaluate(Call("replace", (Column("c0"), literal("a"), literal("é" * 500_001))), frame) == [None, "b", None]


@pytest.mark.parametrize(
    ("pattern", "new", "flags"),
    [("a", r"\&\&\&\&\&\&\&\&", "g"), ("", "a" * 10, "g"), ("^.*$", r"\&\&\&\&\&\&\&\&\&", "")],
)
def test_replaced_matches_within_each_other_end_before_they_fill_the_memory(pattern: str, new: str, flags: str):
    tree: Expression = Column("c0")
    for _ in range(40):
        tree = Call("regexp_replace", (tree, literal(pattern), literal(new), literal(flags)))

    assert evaluate(tree, pl.DataFrame({"c0": ["a", None]})) == [None, None]
