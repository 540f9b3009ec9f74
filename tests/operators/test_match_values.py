"""Values that conditions on a match read: the same as in frames, and exact."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.operators.compile import compile_column
from sbon.operators.frames import polars_type
from sbon.operators.match.bindings import added, answered, begun
from sbon.operators.match.log import NO_ROW, TIME, Log
from sbon.operators.match.plain import evaluator
from sbon.operators.match.store import SLACK_ROWS, RowStore
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.limits import PRECEDING_MAX, LimitError
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.matched import Navigation, Tally
from sbon.schema import ColumnType
from tests.examples import examples

INT, FLOAT, TEXT, BOOL = ColumnType.INT, ColumnType.FLOAT, ColumnType.TEXT, ColumnType.BOOL
VALUES: dict[ColumnType, Any] = {
    INT: st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    FLOAT: st.none() | st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1.0]),
    TEXT: st.none() | st.sampled_from(["", "a", "b", "ä", "\U0001f600", "\uffff"]),
    BOOL: st.none() | st.booleans(),
}
TYPES = {"i": INT, "j": INT, "x": FLOAT, "y": FLOAT, "s": TEXT, "t": TEXT, "b": BOOL}


def deep(value: Expression) -> Expression:
    for _ in range(500):
        value = Call("not", (value,))
    return value


ROWS = st.fixed_dictionaries({name: VALUES[kind] for name, kind in TYPES.items()})
N, M, X, Y, S, T, B = (Column(name) for name in TYPES)


def conditions() -> list[Expression]:
    found: list[Expression] = []
    for function in ("eq", "ne", "lt", "le", "gt", "ge"):
        found += [Call(function, pair) for pair in ((N, M), (X, Y), (N, X), (X, M), (S, T), (X, Literal(1.0, FLOAT)), (N, Literal(2, INT)))]
    for function in ("add", "sub", "mul"):
        found += [Call(function, pair) for pair in ((N, M), (X, Y), (N, X))]
    found += [Call("and", (B, Call("lt", (X, Y)))), Call("or", (Call("is_null", (N,)), B)), Call("not", (B,)), Call("abs", (N,))]
    return found


@pytest.mark.parametrize("expression", conditions(), ids=repr)
@examples(40)
@given(row=ROWS)
def test_a_value_of_one_row_is_that_of_a_frame(expression: Expression, row: dict[str, Any]) -> None:
    frame = pl.DataFrame([pl.Series(name, [row[name]], dtype=polars_type(kind)) for name, kind in TYPES.items()])
    expected = frame.select(compile_column(expression, TYPES)[0].alias("value"))["value"][0]

    found = evaluator(expression, TYPES)(row)

    assert type(found) is type(expected)
    assert found == expected or (found != found and expected != expected)


@examples(100)
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=12), order=st.randoms())
def test_sums_are_rounded_once_whatever_the_order(values: list[float], order: Any) -> None:
    shuffled = values[:]
    order.shuffle(shuffled)
    for function, exact in (("sum", sum(map(Fraction, values))), ("avg", sum(map(Fraction, values)) / max(1, len(values)))):
        state = begun(function)
        for value in shuffled:
            state = added(function, state, value)
        try:
            expected = float(exact) if values else None
        except OverflowError:
            expected = math.inf if exact > 0 else -math.inf
        assert answered(function, state) == expected


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        ("sum", [2**62, 2**62], None),
        ("sum", [2**62, 2**62, -1], 2**63 - 1),
        ("avg", [1, 2], 1.5),
        ("sum", [math.inf, 1.0], math.inf),
        ("max", [math.nan, 1.0], 1.0),
        ("min", [math.nan], math.nan),
        ("min", ["b", "a"], "a"),
        ("count", [1, 1], 2),
        ("max", [], None),
    ],
)
def test_aggregates_of_a_match(function: str, values: list[Any], expected: Any) -> None:
    state = begun(function)
    for value in values:
        state = added(function, state, value)
    found = answered(function, state)
    assert found == expected or (found != found and expected != expected)


@examples(60)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    wanted=st.lists(st.integers(0, 99), max_size=9),
    gone=st.integers(0, 99),
    kept=st.integers(1, 5),
)
def test_rows_of_a_store_keep_their_values(sizes: list[int], wanted: list[int], gone: int, kept: int) -> None:
    store, total = RowStore(), 0
    for size in sizes:
        store.add(pl.DataFrame({"x": range(total, total + size)}))
        total += size
    positions = pl.Series([number % total for number in wanted] + [-1], dtype=pl.Int64).to_numpy()
    assert store.taken(positions)["x"].to_list() == [*(number % total for number in wanted), None]
    live = list(range(gone % total, total, kept))
    store.compact(np.isin(np.arange(total), live))
    assert store.rows == len(live)
    assert store.taken(np.arange(len(live)))["x"].to_list() == live
    assert not store.needs_compaction(len(live))
    assert store.needs_compaction(0) == (len(live) > SLACK_ROWS)


def test_a_log_tells_rows_as_they_came_though_it_keeps_their_time_once() -> None:
    rows = pl.DataFrame({TIME: [7, 9], "x": [1, 2], "at": pl.Series([7, 9]).cast(pl.Datetime("us")), "y": ["a", "b"]})
    log = Log(["x", "at", "y"], "at", links=False)
    log.add(rows, np.array([0, 0]), np.array([0, 1]), np.array([NO_ROW]), np.array([0]))
    positions = np.array([1, NO_ROW, 0])
    expected = rows.drop(TIME)[[1, 0, 0]].with_columns(pl.when(pl.Series(positions) >= 0).then(pl.all()))

    assert log.taken(positions).equals(expected, null_equal=True)
    assert log.taken(positions, ["at"]).equals(expected.select("at"), null_equal=True)
    assert log.taken(positions, ["y", "at"]).equals(expected.select("y", "at"), null_equal=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Navigation("o0", None, shift=-PRECEDING_MAX - 1),
        lambda: Navigation("o0", None, skip=-1),
        lambda: Navigation("o0", None, skip=PRECEDING_MAX + 1),
        lambda: Tally("o0", Aggregate("n", "last", deep(N))),
        lambda: Tally("o0", Aggregate("n", "arg_min", N, by=deep(N))),
    ],
)
def test_an_operand_that_no_host_can_compute_is_refused(make: Any) -> None:
    with pytest.raises(LimitError):
        make()
