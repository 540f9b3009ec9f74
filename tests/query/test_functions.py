"""User-defined functions: their declarations, their calls in SQL, and their operators."""

from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from sbon.errors import QueryError, RemoteProtocolError
from sbon.extensions import Extensions, described
from sbon.functions import BatchFunction, FunctionError, StatefulFunction, batch_function
from sbon.operators.registry import build
from sbon.query.params.rowwise import FunctionParams
from sbon.query.plan import Plan
from sbon.query.planner import plan
from sbon.query.signature import signature
from sbon.query.sql import CreateSink, SelectQuery, parse
from sbon.query.text import describe
from tests.query_worlds import CATALOG, NODES


@batch_function(
    name="scaled",
    version="3",
    inputs={"ts": "time", "v": "float"},
    outputs={"ts": "time", "w": "float"},
    arguments={"factor": float, "label": "x"},
    event_time="ts",
    selectivity=0.5,
)
def scaled(frame: pl.DataFrame, factor: float, label: str) -> pl.DataFrame:
    return frame.select("ts", w=pl.col("v") * factor)


@batch_function(name="running", version="1", inputs={"v": "float"}, outputs={"total": "float"})
class Running(StatefulFunction):
    def __init__(self) -> None:
        self.total = 0.0

    def process(self, frame: pl.DataFrame) -> pl.DataFrame:
        self.total += frame["v"].sum()
        return pl.DataFrame({"total": [self.total]})

    def advance(self, watermark_us: int) -> pl.DataFrame | None:
        return pl.DataFrame({"total": [-1.0]}) if watermark_us == 5 else None

    def output_watermark(self, watermark_us: int) -> int:
        return watermark_us - 2

    def snapshot(self) -> bytes:
        return str(self.total).encode()

    def restore(self, state: bytes) -> None:
        self.total = float(state)


@batch_function(name="dice", version="1", inputs={"v": "float"}, outputs={"v": "float"}, deterministic=False)
def dice(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def extensions(*functions: BatchFunction) -> Extensions:
    return Extensions(functions={function.name: lambda function=function: function for function in functions})


KNOWN = extensions(scaled, Running, dice)


def planned(sql: str, query: str = "q", known: Extensions = KNOWN) -> Plan:
    (statement,) = parse(sql)
    assert isinstance(statement, SelectQuery | CreateSink)
    return plan(statement, CATALOG, NODES, "b", query, extensions=known)


def function_of(made: Plan) -> Any:
    (found,) = [operator for operator in made.operators if isinstance(operator.params, FunctionParams)]
    return found


def params(function: BatchFunction, **arguments: Any) -> FunctionParams:
    given = function.bind((), arguments)
    columns = function.input_schema, function.output_schema
    return FunctionParams(function.name, function.version, given, *columns, function.event_time, 1.0, function.deterministic)


FRAME = pl.DataFrame({"v": [1.0, 2.0]})


class TestSql:
    def test_positional_and_named_arguments_are_one(self):
        one, other = planned("SELECT ts, w FROM scaled(s, 2, 'y')"), planned("SELECT ts, w FROM scaled(s, label => 'y', factor => 2.0)")

        assert function_of(one).params.arguments == (("factor", 2.0), ("label", "y"))
        assert function_of(one).signature == function_of(other).signature
        assert describe(function_of(one).params) == "function scaled 3(factor => 2.0, label => 'y')"

    def test_the_operator_may_go_anywhere_and_gets_its_columns_only(self):
        made = planned("SELECT w FROM scaled(s, 2) WHERE w > 1")
        operator = function_of(made)
        feeds = {link.source for link in made.links if link.target == operator.id}

        assert operator.pinned is None
        assert operator.time_column == "ts"
        assert operator.selectivity == 0.5
        assert all([c.name for c in o.schema] == ["ts", "v"] for o in made.operators if o.id in feeds)

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT window_end, max(w) FROM TUMBLE(scaled(s, 2), ts, INTERVAL '5 s') GROUP BY window_end",
            "SELECT window_end, max(w) FROM TUMBLE((SELECT * FROM scaled(s, 2)), ts, INTERVAL '5 s') GROUP BY window_end",
            "SELECT x.w, u.w AS other FROM scaled((SELECT ts, v + 1 AS v FROM s), 2) AS x JOIN u ON x.w = u.w AND x.ts = u.ts",
            "SELECT w FROM scaled(fast, 2) UNION ALL SELECT total FROM running(s)",
        ],
    )
    def test_goes_where_a_stream_goes(self, sql: str):
        assert any(isinstance(operator.params, FunctionParams) for operator in planned(sql).operators)

    def test_versions_and_arguments_tell_signatures_apart(self):
        base = params(scaled, factor=2.0)
        forms = {signature(p, (), [["x"]]) for p in (base, params(scaled, factor=3.0))}

        assert len(forms) == 2

    def test_what_is_not_deterministic_is_not_shared(self):
        assert (
            function_of(planned("SELECT v FROM dice(s)", "q1")).signature != function_of(planned("SELECT v FROM dice(s)", "q2")).signature
        )
        assert (
            function_of(planned("SELECT w FROM scaled(s, 1)", "q1")).signature
            == function_of(planned("SELECT w AS other FROM scaled(s, 1)", "q2")).signature
        )

    @pytest.mark.parametrize(
        ("sql", "message"),
        [
            ("SELECT w FROM scaled(s)", "argument factor of scaled is missing: write factor => a number"),
            ("SELECT w FROM scaled(s, 'x')", "argument factor of scaled is 'x', expected a number"),
            ("SELECT w FROM scaled(s, 1, 'y', 3)", "scaled takes 2 arguments after the stream: write scaled"),
            ("SELECT w FROM scaled(s, size => 1)", "argument size of scaled is unknown: write scaled"),
            ("SELECT w FROM scaled(s, 1, factor => 1)", "argument factor of scaled is given twice"),
            ("SELECT w FROM scaled(s, n)", "arguments of a function must be constants"),
            ("SELECT w FROM scaled((SELECT ts FROM s), 1)", "scaled needs column v float, its input has no such column"),
            ("SELECT w FROM scaled((SELECT ts, n AS v FROM s), 1)", "scaled needs column v float, its input has v int"),
            ("SELECT w FROM scaled((SELECT ts + INTERVAL '1 s' AS ts, v FROM s), 1)", "needs ts as its input's event time, and it is none"),
            ("SELECT w FROM scaled()", "the input of scaled is a source, a view"),
            ("SELECT w FROM unscaled(s, 1)", "there is no table function unscaled"),
        ],
    )
    def test_wrong_calls_are_refused_with_their_place(self, sql: str, message: str):
        with pytest.raises(QueryError, match=message) as refused:
            planned(sql)

        assert refused.value.line == 1
        assert refused.value.column > 1


class TestDeclaration:
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"name": "No-Name"}, "expected a name of lower-case letters"),
            ({"version": ""}, "version '', expected 1 to 64"),
            ({"inputs": {"v": "double"}}, "v double, expected columns of the types bool, int, float"),
            ({"outputs": {}}, "no column, expected columns"),
            ({"arguments": {"x": None}}, "argument x = None, expected bool, int, float, str"),
            ({"event_time": "v"}, "event_time 'v', expected a column of type time"),
            ({"selectivity": -1.0}, "selectivity -1.0, expected 0 or more"),
        ],
    )
    def test_nonsense_is_refused(self, wrong: Mapping[str, Any], message: str):
        with pytest.raises(FunctionError, match=message):
            batch_function(**{"name": "f", "version": "1", "inputs": {"v": "float"}, "outputs": {"v": "float"}} | wrong)(
                lambda frame: frame
            )

    def test_are_told_with_their_defaults_and_problems(self):
        def broken() -> BatchFunction:
            raise FunctionError("function broken cannot be loaded: ImportError: no numbers")

        told = described(Extensions(functions={"scaled": lambda: scaled, "broken": broken}))

        assert [row["call"] for row in told] == ["broken(...)", "scaled(stream, factor => float, label => 'x')"]
        assert told[0]["problem"].endswith("no numbers")
        assert (told[1]["version"], told[1]["gives"], told[1]["problem"]) == ("3", "ts time, w float", "")


class TestOperator:
    def test_state_survives_a_snapshot_and_a_fork(self):
        operator = build(params(Running), KNOWN)
        assert [frame["total"].to_list() for frame in operator.process(0, FRAME)] == [[3.0]]
        forked = operator.fork()
        operator.process(0, FRAME)
        restored = build(params(Running), KNOWN)
        restored.restore(forked.snapshot())

        assert [frame["total"].to_list() for frame in restored.process(0, FRAME)] == [[6.0]]
        assert operator.snapshot() == restored.snapshot()
        assert not operator.is_stateless
        assert build(params(scaled, factor=1.0), KNOWN).is_stateless

    def test_watermarks_reach_it(self):
        operator = build(params(Running), KNOWN)

        assert list(operator.advance(4)) == []
        assert [frame["total"].to_list() for frame in operator.advance(5)] == [[-1.0]]
        assert operator.output_watermark(5) == 3

    @pytest.mark.parametrize("given", [None, "soon", float("nan"), float("inf")])
    def test_a_watermark_that_is_none_fails_it_by_name(self, monkeypatch, given):
        monkeypatch.setattr(Running.make, "output_watermark", lambda self, watermark_us: given)
        with pytest.raises(FunctionError, match=r"function running 1: output_watermark gave .*, expected microseconds since 1970"):
            build(params(Running), KNOWN).output_watermark(5)

    def test_a_snapshot_of_another_is_refused(self):
        with pytest.raises(RemoteProtocolError, match="snapshot of another function than function running 1"):
            build(params(Running), KNOWN).restore(b"x" * 20)
        with pytest.raises(RemoteProtocolError, match="which has no state"):
            build(params(scaled, factor=1.0), KNOWN).restore(b"x")

    @pytest.mark.parametrize(
        ("gives", "message"),
        [
            (lambda frame: 1 / 0, "function f 1: ZeroDivisionError: division by zero"),
            (lambda frame: None, "function f 1 gave a NoneType, expected a polars DataFrame"),
            (lambda frame: frame.rename({"v": "w"}), r"function f 1 gave the columns \(w Float64\), declared are \(v Float64\)"),
            (lambda frame: frame.cast(pl.Int64), r"gave the columns \(v Int64\), declared"),
        ],
    )
    def test_errors_name_the_function(self, gives: Any, message: str):
        function = batch_function(name="f", version="1", inputs={"v": "float"}, outputs={"v": "float"})(gives)

        with pytest.raises(FunctionError, match=message):
            build(params(function), extensions(function)).process(0, FRAME)

    def test_hosts_without_it_or_with_another_refuse(self):
        later = batch_function(name="running", version="2", inputs={"v": "float"}, outputs={"total": "float"})(Running.make)
        other = batch_function(name="running", version="1", inputs={"v": "int"}, outputs={"total": "float"})(Running.make)

        with pytest.raises(FunctionError, match="function running is not installed here; install its package"):
            build(params(Running))
        with pytest.raises(FunctionError, match="running is installed here in version 2, the query wants version 1"):
            build(params(Running), extensions(later))
        with pytest.raises(FunctionError, match="running 1 is declared here with other columns"):
            build(params(Running), extensions(other))

    def test_state_without_determinism_is_refused(self):
        function = batch_function(name="f", version="1", inputs={"v": "float"}, outputs={"v": "float"}, deterministic=False)(Running.make)

        with pytest.raises(FunctionError, match="keeps state, so it must be deterministic"):
            build(params(function), extensions(function))
