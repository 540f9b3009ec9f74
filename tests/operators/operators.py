"""Parameters for every operator of the registry, and the rows and watermarks that tests give to all operators."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import strategies as st

from sbon.extensions import Extensions
from sbon.functions import batch_function
from sbon.operators import join, over, partials, ranges, session, top, window, window_join, windowed
from sbon.operators.match import operator as match
from sbon.operators.operator import Operator
from sbon.operators.registry import build
from sbon.query.expression import Call, Case, Cast, Column, Expression, Literal
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import MatchNumber, MatchParams, Navigation, Tally
from sbon.query.params.ordered import DeduplicateParams, OrderColumn, OverParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.streams import ExchangeParams, MergeParams, MulticastParams, SplitParams, Turns, UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.row_pattern import Repeat, Sequence, Variable
from sbon.schema import ColumnType

BOOL, INT, FLOAT, TEXT = ColumnType.BOOL, ColumnType.INT, ColumnType.FLOAT, ColumnType.TEXT
NOTHING = Literal(None, TEXT)
N, X, K, B = (Column(name) for name in "ixkb")


def call(name: str, *arguments: Expression) -> Call:
    return Call(name, arguments)


THREE = call("abs", Literal(-3, INT))
"""A constant expression that no planner has folded."""
ROOT = call("sqrt", Literal(4.0, FLOAT))
CHOSEN = Case(((B, N),), NOTHING)
MAYBE = {
    "case": call("eq", CHOSEN, THREE),
    "nullif": call("ne", THREE, Case(((call("eq", N, THREE), NOTHING),), N)),
    "ln": call("lt", call("ln", X), ROOT),
    "sqrt": call("ge", ROOT, call("sqrt", X)),
    "constant": call("gt", THREE, Literal(1, INT)),
    "nothing": call("eq", THREE, Cast(NOTHING, INT)),
}
KEYS = (("k", K), ("far", MAYBE["ln"]))
AGGREGATES = (
    Aggregate("n", "count", None),
    Aggregate("sum", "sum", Case(((MAYBE["case"], X),), ROOT)),
    Aggregate("most", "max", call("add", CHOSEN, THREE)),
    Aggregate("kinds", "count_distinct", CHOSEN),
    Aggregate("spread", "stddev", X),
    Aggregate("first", "first", N),
    Aggregate("last", "last", N),
)
COLUMNS = (("t", 0, "t"), ("k", 0, "k"), ("i", 0, "i"), ("x", 1, "x"))
RESIDUAL = call("lt", Case(((call("gt", N, THREE), X),), NOTHING), ROOT)
JOIN = JoinParams("t", "t", (K, CHOSEN), (K, N), 5, 5, COLUMNS, RESIDUAL)
WINDOW_JOIN = WindowJoinParams("t", "t", (K, CHOSEN), (K, N), 20, 10, COLUMNS, RESIDUAL)
LOOKUP = LookupParams((K, N), (K, N), COLUMNS)


STAIRS = Sequence((Variable(0), Repeat(Variable(1), 1, None)))
READS = (
    Navigation("o0", N, shift=-1),
    Navigation("o1", N),
    Navigation("o2", X, shift=1),
    Navigation("o3", X, (0,), first=True),
    Tally("o4", Aggregate("", "sum", X)),
    Navigation("o5", None),
    MatchNumber("o6"),
)
TOLD = tuple((f"m{place}", Column(f"o{place}")) for place in range(7))


@batch_function(name="pieces", version="1", inputs={"i": "int", "b": "bool"}, outputs={"i": "int", "pieces": "int"})
def pieces(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select("i", pieces=pl.lit(max(frame.n_chunks("all")), pl.Int64()))


EXTENSIONS = Extensions(functions={"pieces": lambda: pieces})
OPERATORS: dict[str, Params] = {
    **{f"filter {name}": MapParams(condition, None) for name, condition in MAYBE.items()},
    "projection": MapParams(None, tuple(MAYBE.items())),
    "filtered projection": MapParams(MAYBE["case"], (("a", THREE), ("b", call("add", CHOSEN, THREE)), ("i", N))),
    "projection of constants": MapParams(None, (("a", THREE), ("b", ROOT))),
    "window": WindowParams("t", 20, 10, KEYS, AGGREGATES),
    "late window": WindowParams("t", 9, 7, (), AGGREGATES, 7),
    "session": SessionParams("t", 7, KEYS, AGGREGATES),
    "late session": SessionParams("t", 33, (), AGGREGATES, 7),
    "top": TopParams("t", (OrderColumn("x", True, False),), ("k", "i", "b"), 2),
    "over": OverParams("t", ("k",), ("i", "x", "b"), (Aggregate("n", "count", None), Aggregate("s", "sum", Column("x"))), (2, 5)),
    "match": MatchParams(
        "t",
        ("k",),
        ("i", "x", "b"),
        ("a", "c"),
        (call("gt", Column("o3"), Literal(0.0, FLOAT)), call("lt", Column("o0"), Column("o1"))),
        STAIRS,
        READS,
        TOLD,
        None,
    ),
    "match of all rows": MatchParams(
        "t",
        ("k",),
        ("i", "x", "b"),
        ("a", "c"),
        (None, call("lt", Column("o0"), Column("o1"))),
        STAIRS,
        READS,
        TOLD,
        ("t", "i"),
        within_us=9,
        unmatched=True,
    ),
    "match to the next row": MatchParams(
        "t", (), ("k", "i", "x", "b"), ("a",), (call("is_null", Column("o2")),), Repeat(Variable(0), 0, 3), READS, TOLD, None, "next"
    ),
    "assign": AssignParams("t", 20, 10),
    "unnest": UnnestParams("a", INT, "e", ("k", "i", "b")),
    "first of windows": DeduplicateParams("t", ("k", "i"), (OrderColumn("x", True, False),), ("b",), 20),
    "first behind a pause": DeduplicateParams("t", ("k",), (), ("x", "i", "b"), 7, session=True),
    "join": JOIN,
    "left join": msgspec.structs.replace(JOIN, outer=(FLOAT,)),
    "window join": WINDOW_JOIN,
    "left window join": msgspec.structs.replace(WINDOW_JOIN, outer=(FLOAT,)),
    "lookup": LOOKUP,
    "left lookup": msgspec.structs.replace(LOOKUP, outer=(FLOAT,)),
    "function": FunctionParams("pieces", "1", (), pieces.input_schema, pieces.output_schema, None),
    "union": UnionParams(),
    "multicast": MulticastParams("q.1"),
    "exchange": ExchangeParams((Column("k"), Column("x")), 3),
    "split": SplitParams(Turns("t", 5, 12), 3, "opens window", "auto", 1.0),
    "merge": MergeParams("t", ("k", "x", "i"), ("b",)),
}
TWO_SIDED = (JoinParams, WindowJoinParams, LookupParams)


def made(kind: str) -> Operator:
    return build(OPERATORS[kind], EXTENSIONS)


# ------------------------------------------------------------------------------------------------------------------------- input

ROWS = st.lists(
    st.tuples(
        st.integers(0, 60) | st.integers(0, 60) | st.none(),
        st.sampled_from(["a", "b", None]),
        st.sampled_from([1, 2, 3, 4, 5, None]),
        st.sampled_from([-1.0, 0.5, 4.0, 5.0, 1e9, None]),
        st.sampled_from([True, False, None]),
    ),
    min_size=1,
    max_size=16,
)
EVENTS = st.lists(st.tuples(st.integers(0, 1), ROWS) | st.integers(-10, 70), min_size=1, max_size=8)
"""Rows on a port, or a watermark."""
ARRAYS = {"a": "[1, null]", "b": "[2]"}
SCHEMA = {"t": pl.Int64(), "k": pl.String(), "i": pl.Int64(), "x": pl.Float64(), "b": pl.Boolean()}
# Conditions are NULL for all rows of the second half.
HALVES = [(n, "a", i, 4.0 if n < 4 else None, n < 4) for n, i in enumerate([3, 1, 3, 4, 5, None, 3, 3])]


def frame(rows: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(
        pl.col("t").cast(pl.Datetime("us")), a=pl.col("k").replace_strict(ARRAYS, default=None, return_dtype=pl.String())
    )


def frames_of(kind: str, events: list[Any]) -> list[Any]:
    """Returns events as (port, frame); watermarks stay as they are. A frame on a lookup's second port is a version of its table."""
    params = OPERATORS[kind]
    found: list[Any] = []
    for number, event in enumerate(events):
        if isinstance(event, int):
            found.append(event)
            continue
        port, rows = event
        whole = frame(rows)
        if isinstance(params, LookupParams) and port == 1:
            whole = whole.with_columns(version=pl.lit(number, pl.Int64), rows=pl.lit(whole.height, pl.Int64))
        found.append((port if isinstance(params, TWO_SIDED) else 0, whole))
    return found


def cut(whole: pl.DataFrame, cuts: list[int]) -> list[pl.DataFrame]:
    """Splits a frame at the cuts."""
    edges = [0, *sorted({at for at in cuts if 0 < at < whole.height}), whole.height]
    return [whole[start:end] for start, end in pairwise(edges)]


SMALL = ((ranges, "RANGE_ROWS"), (ranges, "RANGES_MAX"), (ranges, "PIECE_ROWS"), (ranges, "SAMPLES"), (join, "RANGE_ROWS"))
SMALL += (
    (top, "RANGE_ROWS"),
    (window, "ROWS_AT_ONCE"),
    (window, "PIECE_ROWS"),
    (session, "ROWS_AT_ONCE"),
    (over, "FRAME_ROWS"),
    (match, "STEP_ROWS"),
    (match, "ANSWER_ROWS"),
    (window_join, "JOIN_ROWS_MAX"),
    (window_join, "STEP_ROWS"),
    (partials, "FOLD_ROWS_MIN"),
    (partials, "FOLD_ROWS_MAX"),
    (partials, "FOLD_FRAMES"),
    (windowed, "TOGETHER_ROWS_MAX"),
)


@contextmanager
def small_steps(rows: int) -> Iterator[None]:
    """Limits operators to steps of `rows` rows instead of thousands."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in SMALL:
            patch.setattr(module, name, rows)
        yield
