"""Filtering and projecting a few rows as plain values gives the same as on a frame of these rows."""

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbon.operators.few_rows import few_rows
from sbon.operators.frames import frame_of_values
from sbon.operators.registry import build
from sbon.operators.values import FEW_ROWS, Values
from sbon.query.expression import Call, Column, Expression, Literal
from sbon.query.params.rowwise import MapParams
from sbon.schema import PLAIN_TYPES, ColumnType, Field

SCHEMA = tuple(Field(kind.value, kind) for kind in ColumnType)
SMALL = st.integers(-3, 3)
WHOLE = SMALL | st.integers(-(2**63), 2**63 - 1)
VALUES: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.BOOL: st.booleans(),
    ColumnType.INT: WHOLE,
    ColumnType.FLOAT: SMALL.map(float) | st.floats(),
    ColumnType.TEXT: st.sampled_from(["", "a", "b", "é", "\U0001f600", "\uffff"]),
    ColumnType.TIME: WHOLE,
    ColumnType.INTERVAL: WHOLE,
    **{kind: st.sampled_from(["null", '{"a":[1,"é"]}']) for kind in ColumnType if kind not in PLAIN_TYPES},
}
KINDS = st.sampled_from(list(ColumnType))
COMPARISONS = st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])


def literals(kind: ColumnType) -> st.SearchStrategy[Literal]:
    same = VALUES[kind].map(lambda value: Literal(value, kind))
    return same | SMALL.map(lambda value: Literal(value, ColumnType.INT)) if kind is ColumnType.FLOAT else same


@st.composite
def comparisons(draw: st.DrawFn) -> Expression:
    kind = draw(KINDS.filter(lambda kind: kind is not ColumnType.BOOL and kind in PLAIN_TYPES))
    sides: tuple[Expression, Expression] = (Column(kind.value), draw(literals(kind)))
    if kind is ColumnType.INT and draw(st.booleans()):
        size = draw(st.integers(-8, 8).filter(bool) | st.sampled_from([2**62, -(2**62)]))
        sides = (Call("mod", (Column("int"), Literal(size, ColumnType.INT))), Literal(0, ColumnType.INT))
    return Call(draw(COMPARISONS), sides if draw(st.booleans()) else sides[::-1])


CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: st.builds(
        lambda name, parts: Call(name, tuple(parts)), st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)
    ),
)
PICKED = st.lists(KINDS, min_size=1, max_size=4).map(
    lambda kinds: tuple((f"c{place}", Column(kind.value)) for place, kind in enumerate(kinds))
)


@st.composite
def rows(draw: st.DrawFn) -> Values:
    count = draw(st.integers(1, FEW_ROWS) | st.just(1))
    return Values(count, tuple(draw(st.lists(st.none() | VALUES[field.type], min_size=count, max_size=count)) for field in SCHEMA))


def compare(name: str, kind: ColumnType, bound: Any) -> Call:
    return Call(name, (Column(kind.value), Literal(bound, kind)))


def plain(values: Values) -> list[tuple[Any, ...]]:
    return [tuple("NaN" if isinstance(one, float) and math.isnan(one) else one for one in row) for row in zip(*values.columns, strict=True)]


def floats() -> Values:
    given_floats = [None, math.nan, -0.0, 0.0, 1.0, math.inf, -math.inf]
    return Values(
        len(given_floats), tuple(given_floats if field.type is ColumnType.FLOAT else [None] * len(given_floats) for field in SCHEMA)
    )


@given(st.none() | CONDITIONS, st.none() | PICKED, rows())
@example(compare("ge", ColumnType.FLOAT, 0.0), None, floats())
@example(compare("gt", ColumnType.FLOAT, -0.0), None, floats())
@example(compare("lt", ColumnType.FLOAT, 0.0), None, floats())
@example(compare("ne", ColumnType.FLOAT, 1), None, floats())
def test_the_answers_are_those_of_the_frame(predicate: Expression | None, columns: Any, values: Values) -> None:
    params = MapParams(predicate, columns)
    take = few_rows(params, SCHEMA)
    if take is None:
        return
    answers = build(params).process(0, frame_of_values(values, SCHEMA))
    expected = [row for frame in answers for row in frame.select([column.to_physical() for column in frame]).rows()]
    found = take(values)
    assert plain(found) == plain(Values(len(expected), tuple(zip(*expected, strict=True)))) if expected else found.rows == 0


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_usual_conditions_take_no_frame(name: str) -> None:
    for kind, bound in (
        (ColumnType.INT, 3),
        (ColumnType.FLOAT, 0.5),
        (ColumnType.TEXT, "a"),
        (ColumnType.TIME, 0),
        (ColumnType.INTERVAL, 1),
    ):
        both = Call("and", (compare(name, kind, bound), Call("or", (compare(name, kind, bound), compare("eq", ColumnType.INT, 1)))))
        assert few_rows(MapParams(both, (("x", Column("text")),)), SCHEMA) is not None


@pytest.mark.parametrize(
    "params",
    [
        MapParams(Column("bool"), None),
        MapParams(Call("gt", (Column("nowhere"), Literal(1, ColumnType.INT))), None),
        MapParams(Call("gt", (Column("int"), Literal(1.5, ColumnType.FLOAT))), None),
        MapParams(Call("gt", (Column("int"), Literal("1", ColumnType.INT))), None),
        MapParams(Call("gt", (Column("int"), Literal(True, ColumnType.INT))), None),
        MapParams(Call("eq", (Call("mod", (Column("int"), Literal(0, ColumnType.INT))), Literal(0, ColumnType.INT))), None),
        MapParams(None, (("x", Call("neg", (Column("int"),))),)),
        MapParams(None, (("x", Literal(1, ColumnType.INT)),)),
    ],
)
def test_what_is_not_simple_or_not_right_takes_one(params: MapParams) -> None:
    assert few_rows(params, SCHEMA) is None
