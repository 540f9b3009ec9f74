"""A fork of an operator is the operator as it was: what the one is given afterwards does not show in the other, and both go on alike."""

from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.expression import Column
from sbon.query.plan import (
    WATERMARK_END,
    Aggregate,
    DeduplicateParams,
    JoinParams,
    OrderColumn,
    OverParams,
    Params,
    SessionParams,
    TopParams,
    WindowJoinParams,
    WindowParams,
)
from sbon.query.schema import ColumnType
from tests.property.stream_twins import content

X = Column("x")
AGGREGATES = tuple(
    Aggregate(function, function, None if function == "count" else X) for function in ("count", "sum", "min", "max", "first", "stddev")
)
KEYS = (("k", Column("k")),)
JOIN = JoinParams("t", "t", (Column("k"),), (Column("k"),), 5, 5, (("t", 0, "t"), ("k", 0, "k"), ("x", 0, "x"), ("y", 1, "x")))
OPERATORS: dict[str, Params] = {
    "window": WindowParams("t", 20, 10, KEYS, AGGREGATES),
    "session": SessionParams("t", 7, KEYS, AGGREGATES),
    "join": JOIN,
    "left join": msgspec.structs.replace(JOIN, outer=(ColumnType.FLOAT,)),
    "window join": WindowJoinParams("t", "t", (Column("k"),), (Column("k"),), 20, 10, (("k", 0, "k"), ("x", 0, "x"), ("y", 1, "x"))),
    "over": OverParams("t", ("k",), ("x",), (Aggregate("n", "count", None), Aggregate("s", "sum", Column("x"))), (2, 5)),
    "top": TopParams("t", (OrderColumn("x", True, False),), ("k",), 2),
    "first of windows": DeduplicateParams("t", ("k",), (OrderColumn("x", True, False),), (), 20),
    "first behind a pause": DeduplicateParams("t", ("k",), (), ("x",), 7, session=True),
}
ROWS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abc"), st.floats(-8, 8, width=16)), min_size=1, max_size=12)
EVENTS = st.lists(st.one_of(st.tuples(st.integers(0, 1), ROWS), st.integers(0, 70)), max_size=12)


def given_to(operator: Operator, events: list[Any], ports: int) -> list[tuple[Any, ...]]:
    """What the operator answers."""
    answer: list[pl.DataFrame] = []
    for event in events:
        if isinstance(event, int):
            answer += operator.advance(event)
            continue
        port, rows = event
        frame = pl.DataFrame(rows, schema={"t": pl.Int64(), "k": pl.String(), "x": pl.Float64()}, orient="row")
        answer += operator.process(port % ports, frame.with_columns(pl.col("t").cast(pl.Datetime("us"))))
    return [row for frame in answer for row in frame.rows()]


@pytest.mark.parametrize("kind", OPERATORS)
@settings(max_examples=25, deadline=None)
@given(before=EVENTS, after=EVENTS)
def test_a_fork_stays_as_it_was_and_comes_to_the_same_by_the_same_input(kind: str, before: list[Any], after: list[Any]):
    ports = 2 if "join" in kind else 1
    operator, twin = build(OPERATORS[kind]), build(OPERATORS[kind])
    given_to(operator, before, ports)
    given_to(twin, before, ports)
    fork = operator.fork()

    answered = given_to(operator, after, ports)
    assert content(fork) == content(twin), "what came behind the fork shows in it"
    copied = build(OPERATORS[kind])
    parts = fork.parts()
    assert parts is not None
    copied.adopt(parts)
    assert given_to(copied, [*after, WATERMARK_END], ports) == answered + given_to(operator, [WATERMARK_END], ports)
    assert copied.late_rows == operator.late_rows
