"""Row patterns give what other engines' tests expect in the same situations, in one batch and row by row."""

import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sbon.errors import QueryError
from sbon.operators.frames import arranged, empty
from sbon.operators.match import sequential
from sbon.operators.registry import build
from sbon.query.params.source import SinkParams, SourceParams
from sbon.query.plan import Plan
from sbon.watermarks import WATERMARK_END
from tests.query_worlds import make_catalog, plan_of

WHOLE = tomllib.loads(Path(__file__).with_name("pattern_cases.toml").read_text(encoding="utf-8"))
SOURCE = """CREATE SOURCE t (ts TIMESTAMP, minute TIMESTAMP, sec BIGINT, v DOUBLE, k TEXT, note TEXT, WATERMARK FOR ts AS ts)
    WITH (connector = 'datagen', nodes = 'a');
CREATE SOURCE same_time (ts TIMESTAMP, minute TIMESTAMP, sec BIGINT, v DOUBLE, k TEXT, note TEXT, WATERMARK FOR minute AS minute)
    WITH (connector = 'datagen', nodes = 'a');"""


def statement(case: dict[str, Any]) -> str:
    if "statement" in case:
        return str(case["statement"])
    clause = case["clause"]
    by_minute = clause.startswith("ORDER BY minute")
    whole = clause if clause.startswith(("PARTITION", "ORDER")) else f"ORDER BY ts {clause}"
    end = "" if " AS m WHERE " in clause else " AS m"
    return f"SELECT {case.get('select', 'sec, m, val, label')} FROM {'same_time' if by_minute else 't'} MATCH_RECOGNIZE ({whole}){end}"


def table(name: str) -> pl.DataFrame:
    rows = [
        (number, 0, number, *(None if value == "NULL" else value for value in row), *[None] * (3 - len(row)))
        for number, row in enumerate(WHOLE["tables"][name], 1)
    ]
    schema = {"ts": pl.Int64, "minute": pl.Int64, "sec": pl.Int64, "v": pl.Float64, "k": pl.String, "note": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
    return frame.with_columns(pl.col("ts", "minute") * 1_000_000).with_columns(pl.col("ts", "minute").cast(pl.Datetime("us")))


def answer(plan: Plan, rows: pl.DataFrame, size: int) -> list[list[Any]]:
    """Returns the rows that reach the sink, for batches of `size` rows with a watermark after each."""
    chain = [one for one in plan.operators if not isinstance(one.params, SourceParams | SinkParams)]
    sink = plan.operators[-1]
    assert isinstance(sink.params, SinkParams)
    machines = [build(one.params) for one in chain]

    def passed(at: int, frames: list[pl.DataFrame], mark: int) -> list[pl.DataFrame]:
        if at == len(machines):
            return frames
        made = [out for frame in frames if frame.height for out in machines[at].process(0, frame)] + list(machines[at].advance(mark))
        return passed(at + 1, made, machines[at].output_watermark(mark))

    source = plan.operators[0].params
    assert isinstance(source, SourceParams)
    time = "minute" if source.name == "same_time" else "ts"
    given = rows.select(name for name in rows.columns if name in dict.fromkeys(field.name for field in plan.operators[0].schema))
    found: list[pl.DataFrame] = []
    for begin in range(0, rows.height, size):
        rest = rows[begin + size :][time].cast(pl.Int64).min()
        found += passed(0, [given[begin : begin + size]], WATERMARK_END if rest is None else rest)
    whole = arranged(pl.concat([empty(chain[-1].schema), *found]), sink.params.columns)
    return [["NULL" if value is None else value for value in row] for row in whole.rows()]


@pytest.mark.parametrize("case", WHOLE["case"], ids=lambda case: case["name"])
@pytest.mark.parametrize("rows_min", [0, 1_000])
def test_a_situation_of_other_engines(case: dict[str, Any], rows_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "ROWS_MIN", rows_min)
    catalog = make_catalog(SOURCE)
    if "refused" in case:
        with pytest.raises(QueryError, match=case["refused"]):
            plan_of(statement(case), catalog)
        return
    plan = plan_of(statement(case), catalog)
    for size in (100, 1):
        found = answer(plan, table(case["table"]), size)
        assert sorted(found, key=repr) == sorted(_floats(case["rows"], found), key=repr)


def _floats(rows: list[list[Any]], like: list[list[Any]]) -> list[list[Any]]:
    """Returns the expected rows with integers as floats where the answer has floats: TOML has 9 for 9.0."""
    kinds = [next((type(row[at]) for row in like if row[at] != "NULL"), None) for at in range(len(like[0]))] if like else []
    return [
        [kind(value) if kind is float and value != "NULL" else value for kind, value in zip(kinds, row, strict=True)] if kinds else row
        for row in rows
    ]
