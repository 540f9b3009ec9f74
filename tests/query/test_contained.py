"""Nested functions stay small when they are compiled, and give the same values as the single functions in turn."""

import functools
from typing import Any

import polars as pl
import pytest

from sbon.operators import contained
from sbon.operators.compile import columns_of, compile_expression
from sbon.operators.contained import leaves
from sbon.query.expression import Call, Case, Cast, Column, Expression, Literal
from sbon.query.functions import FUNCTIONS
from sbon.schema import ColumnType

INT, FLOAT, TEXT, TIME, BOOL = ColumnType.INT, ColumnType.FLOAT, ColumnType.TEXT, ColumnType.TIME, ColumnType.BOOL
FRAME = pl.DataFrame(
    {
        "i": [1, -2, None, 700, 0],
        "f": [0.5, None, -0.0, float("nan"), 1e9],
        "t": ["12", " a+", None, "", "1970-01-02 00:00"],
        "b": [True, None, False, True, None],
        "w": pl.Series([0, 86_400_000_001, None, -1, 10**15]).cast(pl.Datetime("us")),
    }
)
ONE = Literal(1, INT)
NESTED: dict[str, tuple[Column, Any]] = {
    "mod": (Column("i"), lambda inner: Call("mod", (inner, Column("i")))),
    "mod of floats": (Column("f"), lambda inner: Call("mod", (inner, Column("i")))),
    "div": (Column("i"), lambda inner: Call("div", (inner, Column("i")))),
    "div of floats": (Column("f"), lambda inner: Call("div", (inner, Column("f")))),
    "sqrt": (Column("f"), lambda inner: Call("sqrt", (inner,))),
    "power": (Column("f"), lambda inner: Call("power", (inner, Literal(1.5, FLOAT)))),
    "greatest": (Column("i"), lambda inner: Call("greatest", (inner, Column("i")))),
    "substr": (Column("t"), lambda inner: Call("substr", (inner, ONE, Call("length", (inner,))))),
    "times": (Column("i"), lambda inner: Cast(Cast(inner, TIME), INT)),
    "texts": (Column("b"), lambda inner: Cast(Cast(inner, TEXT), BOOL)),
    "parsed": (Column("t"), lambda inner: Cast(Cast(inner, TIME), TEXT)),
    "case": (Column("i"), lambda inner: Case(((Call("gt", (inner, ONE)), inner),), Column("i"))),
}


def compiled(expression: Expression) -> pl.Expr:
    return compile_expression(expression, columns_of(FRAME)).value


def values(expression: Expression) -> pl.Series:
    return FRAME.select(compiled(expression).alias("value")).to_series()


@pytest.mark.parametrize("kind", NESTED)
def test_functions_within_each_other_do_not_look_at_their_columns_ever_more_often(kind: str):
    """Without a limit a tenth level would take a gigabyte."""
    expression, around = NESTED[kind]
    for level in range(8):
        written = sum(1 for _ in range(2**level if kind in ("case", "substr") else level + 1))
        expression = around(expression)
        assert leaves(compiled(expression)) <= contained.LEAVES_MAX + 8 * written
    assert FRAME.select(compiled(expression)).height == FRAME.height


@pytest.mark.parametrize("name", ["and", "or", "in", "greatest", "least", "coalesce", "concat"])
def test_a_long_list_of_arguments_is_no_deep_tree(name: str):
    column = {"and": Call("gt", (Column("i"), ONE)), "or": Call("gt", (Column("i"), ONE)), "concat": Column("t")}.get(name, Column("i"))
    many: tuple[Expression, ...] = (column,) * 1_000
    if name == "in":
        many = (Column("i"), *(Literal(n, INT) for n in range(700, 2_700)))
    few = many[:3]
    expected = FRAME.select(compiled(Call(name, few))).to_series().to_list()
    found = FRAME.select(compiled(Call(name, many))).to_series().to_list()
    if name == "concat":
        expected = [None if text is None else text * 1_000 for text in FRAME["t"].to_list()]
    assert found == expected


def test_a_case_of_many_branches_gives_the_first_that_holds():
    branches = tuple((Call("eq", (Column("i"), Literal(n, INT))), Literal(-n, INT)) for n in range(2_000, 0, -1))
    case = Case((*branches, (Call("lt", (Column("i"), ONE)), Literal(5, INT))), Literal(None, INT))
    assert FRAME.select(compiled(case)).to_series().to_list() == [-1, 5, None, -700, 5]


@pytest.mark.parametrize("kind", NESTED)
def test_what_is_contained_gives_what_it_gives_otherwise(kind: str, monkeypatch: pytest.MonkeyPatch):
    column, around = NESTED[kind]
    expression = functools.reduce(lambda inner, _: around(inner), range(2), column)
    plain = values(expression)
    monkeypatch.setattr(contained, "LEAVES_MAX", 0)
    assert plain.equals(values(expression), null_equal=True)


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() & {"mod", "div", "power", "greatest", "least"}))
def test_constants_beside_columns_are_contained_with_them(name: str, monkeypatch: pytest.MonkeyPatch):
    call = Call(name, (Call("add", (Column("i"), ONE)), Literal(3, INT)))
    plain = values(call)
    monkeypatch.setattr(contained, "LEAVES_MAX", 0)
    assert plain.equals(values(call), null_equal=True)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_constant_beside_columns_has_as_many_values_as_they_have_rows(rows: int):
    frame = pl.DataFrame({"a": list(range(rows))}, schema={"a": pl.Int64})
    total = contained.contained(lambda parts: parts[0] + parts[1], [pl.col("a"), pl.lit(1, pl.Int64)], pl.Int64())
    assert frame.select(total.alias("a")).to_series().to_list() == [n + 1 for n in range(rows)]


def test_arguments_of_different_lengths_are_an_error():
    total = contained.contained(lambda parts: parts[0] + parts[1], [pl.col("a"), pl.col("a").filter(pl.col("a") > 0)], pl.Int64())
    with pytest.raises(pl.exceptions.PolarsError):
        pl.DataFrame({"a": [0, 1, 2]}).select(total)
