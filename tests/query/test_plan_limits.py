"""Parameters that no host could run are refused where they are made and where a message is decoded: for every operator."""

import math
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import pytest

from sbon.errors import UnsupportedError
from sbon.query.expression import Call, Cast, Column, Expression, Literal
from sbon.query.limits import (
    COLUMNS_MAX,
    EXPRESSION_DEPTH_MAX,
    EXPRESSION_NODES_MAX,
    IDLE_US_MAX,
    INSTANCES_MAX,
    LIMIT_MAX,
    PANES_MAX,
    PRECEDING_MAX,
    SPAN_US_MAX,
    LimitError,
)
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import VARIABLES_MAX, MatchParams, Navigation
from sbon.query.params.ordered import DeduplicateParams, OverParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.params.streams import PIECES_MAX, ExchangeParams, MergeParams, MulticastParams, SplitParams, Turns, UnionParams
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.plan import OperatorSpec
from sbon.query.row_pattern import REPEATS_MAX, Excluded, Repeat, Sequence, Variable
from sbon.schema import ColumnType, Field
from sbon.wire.deployment import Instantiate, User
from sbon.wire.messages import decode, encode

K = Column("k")
PAIR = (("k", 0, "k"), ("x", 1, "x"))
COUNT = (Aggregate("n", "count", None),)


@dataclass
class Case:
    """Parameters of one operator within all limits, and values of single parameters beyond the limits."""

    params: Params
    beyond: dict[str, list[Any]]


def deep(levels: int) -> Expression:
    value: Expression = K
    for _ in range(levels):
        value = Cast(value, ColumnType.TEXT)
    return value


WIDE = Call("concat", (K,) * (EXPRESSION_NODES_MAX + 1))
TOO_LARGE = [deep(EXPRESSION_DEPTH_MAX + 1), WIDE]
SPANS = [0, -1, SPAN_US_MAX + 1, 2**63 - 1]
LATENESS = [-1, SPAN_US_MAX + 1]
SLIDES = [0, -5, 2**59 // PANES_MAX - 1, SPAN_US_MAX + 1]
MANY = COLUMNS_MAX + 1
FIELDS = tuple(Field(f"c{n}", ColumnType.INT) for n in range(MANY))
STAIRS = Sequence((Variable(0), Repeat(Variable(1), 1, 1)))
READS = (Navigation("o0", K, (1,)),)
CASES = {
    "source": Case(
        SourceParams("s", "datagen", (), (Field("t", ColumnType.TIME),), "t", SPAN_US_MAX, IDLE_US_MAX),
        {
            "watermark_delay_us": LATENESS,
            "idle_after_us": [-1, IDLE_US_MAX + 1],
            "columns": [FIELDS],
            "options": [(("a", "b"),) * MANY],
            "not_null": [("u",), ("t", "u")],
        },
    ),
    "map": Case(
        MapParams(deep(EXPRESSION_DEPTH_MAX - 1), (("k", K),) * COLUMNS_MAX),
        {"predicate": TOO_LARGE, "columns": [(("k", K),) * MANY, *((("k", value),) for value in TOO_LARGE), (("k", deep(100)),) * 1_000]},
    ),
    "window": Case(
        WindowParams("t", 2**59, 2**59 // PANES_MAX + 1, (("k", K),), COUNT, SPAN_US_MAX),
        {
            "size_us": SPANS,
            "slide_us": SLIDES,
            "allowed_lateness_us": LATENESS,
            "keys": [(("k", K),) * MANY, (("k", TOO_LARGE[0]),)],
            "aggregates": [COUNT * MANY, (Aggregate("n", "sum", WIDE),)],
        },
    ),
    "session": Case(
        SessionParams("t", SPAN_US_MAX, (("k", K),), COUNT, SPAN_US_MAX),
        {"gap_us": SPANS, "allowed_lateness_us": LATENESS, "keys": [(("k", K),) * MANY], "aggregates": [COUNT * MANY]},
    ),
    "top": Case(TopParams("t", (), (), LIMIT_MAX), {"limit": [0, -1, LIMIT_MAX + 1, 2**62], "ties": [("k",) * MANY]}),
    "over": Case(
        OverParams("t", ("k",), (), COUNT, (PRECEDING_MAX,)),
        {
            "preceding": [(-1,), (PRECEDING_MAX + 1,), (), (1, 1)],
            "ties": [("k",) * MANY],
            "aggregates": [(), (Aggregate("n", "last", K),), *((Aggregate("n", "sum", value),) for value in TOO_LARGE)],
        },
    ),
    "match": Case(
        MatchParams("t", ("k",), (), ("a", "b"), (None, None), STAIRS, READS, (("m", Column("o0")),), None, "last", (1,), SPAN_US_MAX),
        {
            "ties": [("k",) * MANY],
            "variables": [(), ("a",) * (VARIABLES_MAX + 1), ("a",)],
            "conditions": [(), (TOO_LARGE[0], None)],
            "pattern": [
                Variable(2),
                Variable(-1),
                Repeat(Variable(1), 0, REPEATS_MAX + 1),
                Repeat(Variable(1), 3, 2),
                Repeat(Variable(1), 0, 0),
                Repeat(Repeat(Variable(1), 1, 100), 1, 100),
                Excluded(Variable(0)),
            ],
            "operands": [(Navigation("o0", None, (2,)),), (Navigation("o0", K),) * MANY],
            "measures": [(("m", TOO_LARGE[0]),)],
            "passed": [("k",) * MANY],
            "skip_to": ["past", "nowhere"],
            "skip_variables": [(), (0,), (7,)],
            "within_us": SPANS,
            "known": [("t",), ("t", "u", "v")],
        },
    ),
    "assign": Case(
        AssignParams("t", 2**59, 2**59 // PANES_MAX + 1, SPAN_US_MAX),
        {"size_us": [*SPANS, 1], "slide_us": [*SLIDES, SPAN_US_MAX], "allowed_lateness_us": LATENESS},
    ),
    "unnest": Case(
        UnnestParams("k", ColumnType.TEXT, "e", ("t", "x")),
        {
            "kind": [ColumnType.INTERVAL, ColumnType.TEXTS],
            "element": ["t"],
            "columns": [("t", "t"), ("e",), tuple(map(str, range(MANY)))],
            "ordinal": ["e", "t"],
        },
    ),
    "exchange": Case(
        ExchangeParams((K,), INSTANCES_MAX), {"keys": [(), (K,) * MANY, (TOO_LARGE[0],)], "instances": [1, INSTANCES_MAX + 1]}
    ),
    "split": Case(
        SplitParams(Turns("t", 1, PIECES_MAX), 2, "o", "auto", 1.0),
        {
            "turns": [Turns("t", 1, PIECES_MAX + 1)],
            "instances": [1, INSTANCES_MAX + 1],
            "dealer": ["", "best"],
            "bound_s": [0.0, -1.0, math.nan, math.inf],
        },
    ),
    "merge": Case(MergeParams("t", ("k",)), {"order": [("k",) * MANY], "hidden": [("k",) * MANY], "delay_us": LATENESS}),
    "deduplicate": Case(
        DeduplicateParams("t", ("k",), (), (), SPAN_US_MAX, False, SPAN_US_MAX),
        {"span_us": SPANS, "allowed_lateness_us": LATENESS, "keys": [(), ("k",) * MANY], "ties": [("k",) * MANY]},
    ),
    "join": Case(
        JoinParams("t", "t", (K,), (K,), SPAN_US_MAX, -SPAN_US_MAX, PAIR),
        {
            "before_us": [SPAN_US_MAX + 1, -SPAN_US_MAX - 1],
            "after_us": [SPAN_US_MAX + 1, -(2**63)],
            "left_keys": [(), (K, K), (TOO_LARGE[0],)],
            "columns": [PAIR * MANY, (("k", 2, "k"),)],
            "residual": TOO_LARGE,
            "outer": [(), (ColumnType.INT,) * 2],
        },
    ),
    "window_join": Case(
        WindowJoinParams("t", "t", (K,), (K,), 2**59, 2**59 // PANES_MAX + 1, PAIR, None, None, SPAN_US_MAX),
        {
            "size_us": [*SPANS, 1],
            "slide_us": [*SLIDES, SPAN_US_MAX],
            "allowed_lateness_us": LATENESS,
            "right_keys": [(), (K, K), (TOO_LARGE[0],)],
            "columns": [PAIR * MANY, (("k", -1, "k"),)],
            "residual": TOO_LARGE,
            "outer": [(), (ColumnType.INT,) * 2],
        },
    ),
    "lookup": Case(
        LookupParams((K,), (K,), PAIR),
        {
            "left_keys": [(), (K, K), (TOO_LARGE[0],)],
            "columns": [PAIR * MANY, (("k", 2, "k"),)],
            "residual": TOO_LARGE,
            "outer": [(), (ColumnType.INT,) * 2],
        },
    ),
    "function": Case(
        FunctionParams("f", "1", (), (), (), None),
        {"selectivity": [float("nan"), float("inf"), -1.0], "inputs": [FIELDS], "arguments": [(("a", 1),) * MANY]},
    ),
    "union": Case(UnionParams(), {}),
    "multicast": Case(MulticastParams("q.1"), {}),
    "sink": Case(SinkParams("k", "discard", ()), {"options": [(("a", "b"),) * MANY], "columns": [(("a", "b"),) * MANY]}),
}
ASKED = [(kind, name, value) for kind, case in CASES.items() for name, values in case.beyond.items() for value in values]


def message_of(params: Params) -> Instantiate:
    spec = OperatorSpec("q.1", params, (Field("k", ColumnType.TEXT),), None, None, "s")
    return Instantiate(spec, (), (), User("q", "a"))


def forged(message: Instantiate, name: str, value: Any) -> bytes:
    """Returns the bytes of a message with a value of a parameter that no constructor would accept."""
    builtin = msgspec.msgpack.decode(encode(message))
    builtin["spec"]["params"][name] = msgspec.to_builtins(value)
    return msgspec.msgpack.encode(builtin)


def test_every_operator_is_tried():
    assert {type(case.params) for case in CASES.values()} == set(get_args(Params))


@pytest.mark.parametrize("kind", CASES)
def test_parameters_at_their_limits_are_decoded(kind: str):
    message = message_of(CASES[kind].params)
    assert decode(encode(message)) == message


@pytest.mark.parametrize(("kind", "name", "value"), ASKED, ids=[f"{kind}.{name}.{n}" for n, (kind, name, _) in enumerate(ASKED)])
def test_parameters_beyond_a_limit_are_neither_made_nor_decoded(kind: str, name: str, value: Any):
    params = CASES[kind].params
    with pytest.raises(LimitError):
        msgspec.structs.replace(params, **{name: value})
    with pytest.raises(UnsupportedError, match=r"expected"):
        decode(forged(message_of(params), name, value))


@pytest.mark.parametrize(("name", "value"), [("ports", 3), ("ports", -1), ("selectivity", float("inf")), ("schema", FIELDS)])
def test_an_operator_with_too_much_of_something_is_not_decoded(name: str, value: Any):
    message = message_of(UnionParams())
    builtin = msgspec.msgpack.decode(encode(message))
    builtin["spec"][name] = msgspec.to_builtins(value)
    with pytest.raises(UnsupportedError, match="expected"):
        decode(msgspec.msgpack.encode(builtin))


@pytest.mark.parametrize(
    "aggregate",
    [{"function": "medium"}, {"share": 1.5}, {"share": float("nan")}, {"function": "corr"}, {"by": K}, {"separator": "x" * 101}],
)
def test_an_aggregate_that_there_is_not_is_refused(aggregate: dict[str, Any]):
    with pytest.raises(LimitError):
        msgspec.structs.replace(Aggregate("p", "approx_percentile", Literal(1, ColumnType.INT)), **aggregate)
