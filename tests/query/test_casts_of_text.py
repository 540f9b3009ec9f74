"""A cast of text takes only a complete literal of the type. DuckDB refuses all strings that are refused here, too."""

from datetime import datetime, timedelta
from typing import Any

import duckdb
import polars as pl
import pytest

from sbon.operators.compile import compile_expression
from sbon.query.expression import Cast, Column, Expression, Literal
from sbon.query.fold import fold
from sbon.query.params.rowwise import MapParams
from sbon.schema import ColumnType
from tests.query_worlds import plan_of

INT, FLOAT, BOOL, TIME, INTERVAL = ColumnType.INT, ColumnType.FLOAT, ColumnType.BOOL, ColumnType.TIME, ColumnType.INTERVAL
NEW_YEAR = datetime(2020, 1, 1)
TAKEN: list[tuple[ColumnType, str, Any]] = [
    (INT, "5", 5),
    (INT, "+5", 5),
    (INT, "-5", -5),
    (INT, " \t010\n", 10),
    (INT, "-9223372036854775808", -(2**63)),
    (FLOAT, "-.5", -0.5),
    (FLOAT, "+1.5e+3", 1500.0),
    (FLOAT, "-inf", float("-inf")),
    (BOOL, "tRuE", True),
    (BOOL, " no ", False),
    (TIME, "2020-1-1", NEW_YEAR),
    (TIME, "2020-01-01T00:00:00Z", NEW_YEAR),
    (TIME, "2020-01-01 02:00:00.0+02:00", NEW_YEAR),
    (INTERVAL, "-5 s", timedelta(seconds=-5)),
    (INTERVAL, "1.5 Minutes", timedelta(seconds=90)),
    (INTERVAL, "5ms", timedelta(milliseconds=5)),
    (INTERVAL, "5 milliseconds", timedelta(milliseconds=5)),
    (INTERVAL, "2 m", timedelta(minutes=2)),
    (INTERVAL, "7us", timedelta(microseconds=7)),
]
REFUSED: list[tuple[ColumnType, str]] = [
    *((INT, text) for text in ("+-5", "-+5", "++5", "--5", "+", "-", "", " ", "5\u00a0", "\u20075", "٣", "９", "9223372036854775808")),
    *((FLOAT, text) for text in ("-+5", "--5", "+-+1", "1e", "e3", "5\u00a0", "infin", "1 2", "1d", ".", "+")),
    *((BOOL, text) for text in ("truex", "2", "-1", "on ", "", "true\u00a0", "1.0")),
    *((TIME, text) for text in ("+2020-01-01", "+020-01-01", "2020-01- 1", "2020- 01-01", "2020-+1-01", "2020-02-30", "2020-01-01 00:-1")),
    *((TIME, text) for text in ("2020-01-01\u00a0", "2020-01-01 00:00:+1", "20200101")),
    *((INTERVAL, text) for text in ("+-5 s", "5 ss", "5 u", "5 mss", "5 hourss", "s", "5 s 3", "5\u00a0s s", "٣ s")),
]


def ours(kind: ColumnType, text: str) -> Any:
    value = compile_expression(Cast(Column("t"), kind), {"t": ColumnType.TEXT}).value
    found = pl.DataFrame({"t": [text]}).select(value).item()
    constant = fold(Cast(Literal(text, ColumnType.TEXT), kind))
    assert not isinstance(constant, Literal) or (constant.value is None) == (found is None)
    return found


@pytest.mark.parametrize(("kind", "text", "expected"), TAKEN)
def test_a_value_that_is_written_in_full_is_taken(kind: ColumnType, text: str, expected: Any):
    assert ours(kind, text) == expected


@pytest.mark.parametrize(("kind", "text"), REFUSED)
def test_anything_else_is_null_as_in_duckdb(kind: ColumnType, text: str):
    name = {INT: "BIGINT", FLOAT: "DOUBLE", BOOL: "BOOLEAN", TIME: "TIMESTAMP", INTERVAL: "INTERVAL"}[kind]
    assert ours(kind, text) is None
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT TRY_CAST(? AS {name})", [text]).fetchone() == (None,)


def projected(sql: str) -> Expression:
    """Returns the only expression of a query's projection, which is the same on all nodes."""
    found = [value for one in plan_of(sql).operators if isinstance(one.params, MapParams) for _, value in one.params.columns or ()]
    assert found == [found[0]] * len(found)
    return found[0]


@pytest.mark.parametrize("number", [-(2**63), -4, -3, -2, -1, 0, 1, 2, 3, 4, 2**63 - 1])
def test_left_by_a_negative_number_leaves_out_the_end(number: int):
    value = compile_expression(projected("SELECT LEFT(k, n) AS l FROM s"), {"k": ColumnType.TEXT, "n": INT}).value
    assert pl.DataFrame({"k": ["aé😀"], "n": [number]}).select(value).item() == "aé😀"[: max(-3, min(number, 3))]


@pytest.mark.parametrize(
    ("call", "expected"), [("LEFT('abc', -1)", "ab"), ("LEFT('abc', 2)", "ab"), ("LEFT('abc', -9)", ""), ("LEFT('', -1)", "")]
)
def test_left_of_constants_is_computed_when_planned(call: str, expected: str):
    assert projected(f"SELECT {call} AS a FROM s") == Literal(expected, ColumnType.TEXT)
