"""Operators that differ in any setting have two signatures: sharing them would give one query the other's answers."""

from typing import Any, get_args

import msgspec
import pytest

from sbon.query.expression import Call, Column, Literal
from sbon.query.params.aggregate import Aggregate
from sbon.query.params.joined import JoinParams, LookupParams, WindowJoinParams
from sbon.query.params.kinds import Params
from sbon.query.params.matched import MatchNumber, MatchParams, Navigation
from sbon.query.params.ordered import DeduplicateParams, OrderColumn, OverParams, TopParams
from sbon.query.params.rowwise import FunctionParams, MapParams, UnnestParams
from sbon.query.params.source import Reads, SinkParams, SourceParams
from sbon.query.params.streams import (
    ExchangeParams,
    MergeParams,
    MulticastParams,
    SplitParams,
    Turns,
    UnionParams,
    WindowChoice,
    WindowPart,
)
from sbon.query.params.windowed import AssignParams, SessionParams, WindowParams
from sbon.query.row_pattern import Sequence, Variable
from sbon.query.signature import signature
from sbon.schema import ColumnType, Field
from tests.query_worlds import plan_of

SCHEMA = (Field("k", ColumnType.INT),)
K, X = Column("k"), Column("x")
OVER = Call("gt", (X, Literal(2, ColumnType.INT)))
ORDER = (OrderColumn("x", False, False),)
COUNT, SUM = Aggregate("n", "count", None), Aggregate("n", "sum", X)
STAIRS = Sequence((Variable(0), Variable(1), Variable(1), Variable(0)))

MEANINGS = [
    (SourceParams("s", "file", (("path", "a"),), SCHEMA, "ts"), {"not_null": ("k",), "reads": Reads(("k",))}),
    (MapParams(OVER, (("k", K),)), {"predicate": None, "columns": None}),
    (WindowParams("ts", 10, 5, (("k", K),), (COUNT,)), {"keys": (("k", X),), "aggregates": (SUM,)}),
    (SessionParams("ts", 10, (("k", K),), (COUNT,)), {"keys": (("k", X),), "aggregates": (SUM,)}),
    (
        TopParams("ts", ORDER, ("k",), 3, ("p",)),
        {"order": (OrderColumn("x", True, False),), "ties": (), "partition": (), "number": "n"},
    ),
    (
        OverParams("ts", ("p",), ("k",), (COUNT,), (3,)),
        {"partition": ("k",), "ties": (), "aggregates": (msgspec.structs.replace(COUNT, operand=X),), "preceding": (4,)},
    ),
    (
        MatchParams("ts", ("p",), ("k",), ("a", "b"), (OVER, None), STAIRS, (Navigation("o0", X),), (("m", K),), ("k",), "last", (1,), 5),
        {
            "partition": ("k",),
            "ties": (),
            "variables": ("a", "c"),
            "conditions": (None, None),
            "pattern": Sequence((Variable(0), Variable(1), Variable(1))),
            "operands": (MatchNumber("o0"),),
            "measures": (("m", X),),
            "passed": None,
            "skip_to": "first",
            "skip_variables": (0, 1),
            "known": ("a", "b"),
            "dealt": WindowPart(5, 0, 2, ("a", "b", "c", "d")),
        },
    ),
    (AssignParams("ts", 10, 5), {}),
    (UnnestParams("a", ColumnType.INT, "e", ("k",)), {"kind": ColumnType.FLOAT, "columns": ("k", "l"), "ordinal": "n"}),
    (DeduplicateParams("ts", ("k",), ORDER, ("x",), 10), {"keys": ("x",), "order": (OrderColumn("x", False, True),), "ties": ()}),
    (
        JoinParams("a", "b", (K,), (K,), 1, 2, (("k", 0, "k"),)),
        {
            "left_keys": (X,),
            "right_keys": (X,),
            "columns": (("k", 1, "k"),),
            "residual": OVER,
            "outer": (),
        },
    ),
    (
        WindowJoinParams("a", "b", (K,), (K,), 10, 5, (("k", 0, "k"),)),
        {
            "left_keys": (X,),
            "right_keys": (X,),
            "columns": (("k", 1, "k"),),
            "residual": OVER,
            "outer": (),
            "slice_column": "slice",
        },
    ),
    (
        LookupParams((K,), (K,), (("k", 0, "k"),)),
        {"left_keys": (X,), "right_keys": (X,), "columns": (("k", 1, "k"),), "residual": OVER, "outer": ()},
    ),
    (
        FunctionParams("f", "1", (("factor", 2),), (*SCHEMA, Field("x", ColumnType.INT)), SCHEMA, "ts", partition=("k",), commutes=True),
        {"arguments": (("factor", 3),), "inputs": SCHEMA, "outputs": (), "partition": ("x",)},
    ),
    (SinkParams("q", "file", (("path", "a"),)), {"options": (("path", "b"),)}),
    (MulticastParams("q.1"), {}),
    (UnionParams(), {}),
    (ExchangeParams((K,), 2), {"keys": (X,), "turns": Turns("ts", 5, 6)}),
    (SplitParams(Turns("ts", 5, 6), 2, "o", "auto", 1.0), {"turns": Turns("ts", 5, 7), "dealer": "model"}),
    (MergeParams("ts", ("k",)), {"order": ("x",), "hidden": ("k",), "choice": WindowChoice("a", "b", "c")}),
]
"""One operator of each kind, and another value for each field that is not a number, a text or a boolean."""
WITHOUT_MEANING = {*((JoinParams, "apart"), (WindowJoinParams, "apart"), (SinkParams, "name"))}
"""Fields that are no part of the signature. `apart` follows from the operator's inputs, whose signatures are part of it. A sink
is never shared, and its name does not change its costs."""


def another(params: Params, name: str, given: dict[str, Any]) -> Any:
    """Returns another value for a field."""
    if name in given:
        return given[name]
    value = getattr(params, name)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}2"
    return (("path", "b"),) if name == "options" else (Field("other", ColumnType.TEXT),)


@pytest.mark.parametrize(("params", "given"), MEANINGS, ids=lambda value: type(value).__name__)
def test_signature_changes_with_every_field(params: Params, given: dict[str, Any]):
    fields = [name for name in params.__struct_fields__ if (type(params), name) not in WITHOUT_MEANING]
    others = [msgspec.structs.replace(params, **{name: another(params, name, given)}) for name in fields]
    digests = [signature(one, SCHEMA, [["i"]]) for one in [params, *others]]

    same = [name for name, digest in zip(fields, digests[1:], strict=True) if digest == digests[0]]
    assert same == []
    assert len(set(digests)) == len(digests)


def test_every_kind_of_operator_is_there():
    assert {type(params) for params, _ in MEANINGS} == set(get_args(Params))


def test_signature_changes_with_schema_inputs_and_place():
    params = MEANINGS[2][0]
    digests = {
        signature(params, SCHEMA, [["i"]]),
        signature(params, (Field("k", ColumnType.TEXT),), [["i"]]),
        signature(params, SCHEMA, [["j"]]),
        signature(params, SCHEMA, [["i"], []]),
        signature(params, SCHEMA, [["i"]], "node"),
    }

    assert len(digests) == 5
    assert signature(params, SCHEMA, [["i", "j"]]) == signature(params, SCHEMA, [["j", "i"]])


@pytest.mark.parametrize(("one", "other"), [({}, {"function": "max"}), ({}, {"operand": K}), ({"share": 0.5}, {"share": 0.9})])
def test_signature_changes_with_an_aggregate(one: dict[str, Any], other: dict[str, Any]):
    percentile = Aggregate("n", "approx_percentile", X, **one)

    assert signature(WindowParams("ts", 10, 10, (), (percentile,)), SCHEMA, []) != signature(
        WindowParams("ts", 10, 10, (), (msgspec.structs.replace(percentile, **other),)), SCHEMA, []
    )


def test_signature_changes_with_the_second_operand():
    one, other = (WindowParams("ts", 10, 10, (), (Aggregate("n", "arg_max", X, by=by),)) for by in (K, OVER))

    assert signature(one, SCHEMA, []) != signature(other, SCHEMA, [])


def test_the_next_query_with_such_a_sink_knows_what_it_costs():
    one, other = (plan_of(f"CREATE SINK {name} AS SELECT k FROM s WITH (connector = 'discard')", query=name) for name in ("p", "q"))

    assert [spec.signature for spec in one.operators] == [spec.signature for spec in other.operators]
