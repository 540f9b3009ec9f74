"""Polars misaligns frames in pieces; guards prevent this. `test_operator_conformance` tries every operator."""

import polars as pl
import pytest

from sbon.errors import LocalProtocolError
from sbon.operators.compile import compile_expression
from sbon.operators.frames import computed, evaluated
from sbon.query.expression import Case, Cast, Expression, Literal
from tests.operators.operators import HALVES, INT, NOTHING, ROOT, TEXT, THREE, N, call, frame

EIGHT = frame(HALVES)
PLAIN = pl.lit(-3).cast(pl.Int64).abs() == pl.when("b").then("i").otherwise(None)


def test_polars_still_misaligns_a_computed_constant_over_pieces():
    """Fails once polars has fixed this bug: then the guards can go."""
    assert EIGHT.select(PLAIN).height == 8
    assert pl.concat([EIGHT[:4], EIGHT[4:]], rechunk=False).select(PLAIN).height == 5, "polars has fixed its bug: the guards can go"


def test_an_expression_is_evaluated_over_one_piece():
    """`select_seq` is right for this expression over pieces, but nothing guarantees it for all expressions."""
    expected = [True, False, True, False, None, None, None, None]
    pieces = pl.concat([EIGHT[:4], EIGHT[4:]], rechunk=False)
    assert evaluated(pieces, PLAIN).to_list() == expected
    assert computed(pieces, [PLAIN.alias("q")])["q"].to_list() == expected
    counted = pl.col("i").map_batches(lambda column: pl.Series([column.n_chunks()] * column.len()), return_dtype=pl.Int64())
    assert pieces.select_seq(counted).to_series().to_list() == [2] * 8
    assert evaluated(pieces, counted).to_list() == [1] * 8
    assert computed(pieces, [counted.alias("q")])["q"].to_list() == [1] * 8


@pytest.mark.parametrize("values", [pl.lit(pl.Series([True] * 5)), pl.lit(pl.Series([True] * 9)), pl.col("i").sum()])
def test_values_that_are_not_those_of_the_rows_are_an_error(values: pl.Expr):
    """Too few values, too many, and one value that depends on the rows are errors."""
    with pytest.raises(LocalProtocolError, match="values for 8 rows"):
        evaluated(EIGHT, values)
    with pytest.raises(LocalProtocolError, match="values for 8 rows"):
        computed(EIGHT, [values.alias("q")])


def test_one_value_that_holds_for_all_rows_is_given_to_all():
    nothing = pl.lit(2.0) >= pl.when(pl.col("x") < 0).then(pl.col("x")).sqrt()
    assert EIGHT.select(nothing).height == 1
    assert evaluated(EIGHT, nothing).to_list() == [None] * 8
    assert computed(EIGHT, [pl.col("i"), nothing.alias("q")])["q"].to_list() == [None] * 8


@pytest.mark.parametrize("expression", [THREE, ROOT, Cast(Literal("5", TEXT), INT), Case(((call("gt", THREE, ROOT), THREE),), NOTHING)])
def test_what_is_constant_is_computed_when_it_is_compiled(expression: Expression):
    compiled = compile_expression(call("eq", N, expression), {"i": INT})
    assert compiled.value.meta.root_names() == ["i"]
    assert not any(word in str(compiled.value) for word in ("abs", "sqrt", "str.", "when"))
