"""A small catalogue to plan queries against, and `run`, which executes a plan without agents: each operator once, in the plan's order."""

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from sbon.operators.frames import arranged, empty, polars_schema
from sbon.operators.registry import build
from sbon.query.catalog import Catalog
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import OperatorSpec, Plan
from sbon.query.planner import plan
from sbon.query.sql import CreateSink, CreateSource, CreateView, SelectQuery, parse
from sbon.query.text import describe
from sbon.schema import held_type
from sbon.watermarks import WATERMARK_END

NODES = {"a": {"region": "eu"}, "b": {"region": "us"}, "c": {"region": "eu", "site": "x"}}

SOURCES = """
CREATE SOURCE s (ts TIMESTAMP, k TEXT, v DOUBLE, n BIGINT, ok BOOLEAN, WATERMARK FOR ts AS ts - INTERVAL '2 seconds')
    WITH (connector = 'datagen', labels = 'region=eu', rows_per_second = 100);
CREATE SOURCE u (ts TIMESTAMP, k TEXT, w DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = 'b');
CREATE SOURCE plain (k TEXT, v DOUBLE) WITH (connector = 'file', path = 'x.csv');
CREATE VIEW fast AS SELECT ts, k, v FROM s WHERE v > 1;
CREATE VIEW per_key AS SELECT window_end, k, sum(v) AS total, count(*) AS rows FROM TUMBLE(s, ts, INTERVAL '10 s') GROUP BY window_end, k;
"""


def make_catalog(text: str = SOURCES) -> Catalog:
    catalog = Catalog()
    for number, statement in enumerate(parse(text)):
        if isinstance(statement, CreateSource):
            source = msgspec.structs.replace(statement.definition, home="b")
            catalog.put("source", statement.name, sql=statement.sql, owner="b", stamp=number, source=source)
        elif isinstance(statement, CreateView):
            catalog.put("view", statement.name, sql=statement.sql, owner="b", stamp=number)
    return catalog


CATALOG = make_catalog()


def plan_of(
    sql: str, catalog: Catalog | None = None, *, here: str = "b", query: str = "q", nodes: Mapping[str, Mapping[str, str]] = NODES
) -> Plan:
    (statement,) = parse(sql)
    assert isinstance(statement, SelectQuery | CreateSink)
    return plan(statement, catalog or CATALOG, nodes, here, query)


def lines(plan_: Plan) -> list[str]:
    """Returns one line per operator: number, node, text, and the operators that feed it."""
    found = []
    for operator in plan_.operators:
        inputs = [
            f"{link.source.partition('.')[2]}" + (f":{link.port}" if link.port else "")
            for link in plan_.links
            if link.target == operator.id
        ]
        arrow = f" <- {' '.join(inputs)}" if inputs else ""
        found.append(f"{operator.id.partition('.')[2]} {operator.pinned or '-'} {describe(operator.params)}{arrow}")
    return found


def rows_of(source: OperatorSpec, count: int = 40) -> pl.DataFrame:
    """Returns rows for a source, the same each time: a second apart, with few keys and some NULLs."""
    number = pl.int_range(count, eager=True)
    values = {
        "bool": pl.select((number % 3 == 0).alias("x")).to_series(),
        "int": number % 7,
        "float": (number * 37 % 100) / 10 - 3,
        "text": pl.Series([f"k{i * 5 % 4}" for i in range(count)]),
        "time": pl.Series([i * 1_000_000 for i in range(count)]).cast(pl.Datetime("us")),
        "interval": pl.Series([i * 1_000 for i in range(count)]).cast(pl.Duration("us")),
    }
    frame = pl.DataFrame({column.name: values[held_type(column.type).value] for column in source.schema})
    assert isinstance(source.params, SourceParams)
    if source.params.time_column is None:
        return frame
    keep = pl.col(source.params.time_column).dt.epoch("s") % 11 != 5
    return frame.with_columns(
        pl.when(keep | (pl.col(c.name).is_not_null() & (c.name == source.params.time_column))).then(pl.col(c.name)).alias(c.name)
        for c in source.schema
    )


def run(plan_: Plan, inputs: Mapping[str, pl.DataFrame] | None = None) -> pl.DataFrame:
    """Returns the rows that reach the sink; `inputs` is by the name of a source, or by node for all sources on it."""
    results: dict[str, pl.DataFrame] = {}
    dealt: dict[str, Sequence[pl.DataFrame]] = {}
    for operator in plan_.operators:
        frames = [
            (link.port, results[link.source] if link.part is None else dealt[link.source][link.part.index])
            for link in plan_.links
            if link.target == operator.id
        ]
        if isinstance(operator.params, SourceParams):
            given = None if inputs is None else inputs.get(operator.params.name, inputs.get(operator.pinned or ""))
            results[operator.id] = rows_of(operator) if given is None else given
            continue
        if isinstance(operator.params, SinkParams):
            results[operator.id] = arranged(pl.concat([frame for _, frame in frames]), operator.params.columns)
            assert dict(results[operator.id].schema) == dict(polars_schema(operator.schema)), operator.id
            continue
        machine = build(operator.params)
        if machine.deals:
            ((_, frame),) = frames
            dealt[operator.id] = machine.process(0, frame)
            continue
        made = [out for port, frame in frames if not frame.is_empty() for out in machine.process(port, frame)]
        made += machine.advance(WATERMARK_END)
        results[operator.id] = pl.concat([empty(operator.schema), *made])
        assert dict(results[operator.id].schema) == dict(polars_schema(operator.schema)), operator.id
        assert machine.late_rows == 0
    return results[plan_.operators[-1].id]
