"""The three workloads for comparing stream engines, as SQL for one agent and as batch runs in polars.

Rows are (ts, key, value) in order of event time, `EVENT_ROWS_PER_S` in each second of event time; `value` is random, 0 <= value < 1.

W1 : filter and project: `SELECT key, value * 2 WHERE value > 0.5 AND key % 4 = 0`; 1,000 keys, uniform; one row in eight leaves
W2 : count, sum and greatest value by key in tumbling windows of one second; 1,000 keys, the k-th in proportion to 1/k (Zipf)
W3 : equi-join of two independent streams within windows of one second; keys are uniform and below 10 million: about one row in a
     hundred has a partner
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import polars as pl

EVENT_ROWS_PER_S = 100_000
COLUMNS = "ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts"
SIDES = ("left", "right")
"""Streams of a workload with two sources; a workload with one source has the first."""


class Keys(NamedTuple):
    """The distribution of keys over the rows of a workload."""

    kind: str
    """`uniform`: each as often as any other; `zipf`: the k-th in proportion to 1/k."""
    number: int
    """Keys are whole numbers, 0 <= key < number."""


class Workload(NamedTuple):
    """One workload."""

    sources: int
    keys: Keys
    select: str
    """The query; `{left}` and `{right}` are its sources."""
    aged_select: str
    """The query with a column that gives the age of the answers; empty: `select` has such a column."""
    age_column: str
    """Name of that column."""
    batch: Callable[..., pl.LazyFrame]
    """Computes the answers from a table of each source."""
    keyed: bool = True
    """True if the query has an operator with keys, which may have several instances."""


def _window_end() -> pl.Expr:
    return (pl.col("ts").dt.truncate("1s") + pl.duration(seconds=1)).alias("window_end")


def _filtered(left: pl.LazyFrame) -> pl.LazyFrame:
    return left.filter((pl.col("value") > 0.5) & (pl.col("key") % 4 == 0)).select("key", doubled=pl.col("value") * 2)


def _summed(left: pl.LazyFrame) -> pl.LazyFrame:
    value = pl.col("value")
    return left.group_by(_window_end(), "key").agg(n=pl.len().cast(pl.Int64), total=value.sum(), most=value.max())


def _joined(left: pl.LazyFrame, right: pl.LazyFrame) -> pl.LazyFrame:
    pairs = left.with_columns(_window_end()).join(right.with_columns(_window_end()), on=["window_end", "key"])
    return pairs.select("key", left_value="value", right_value="value_right")


WORKLOADS = {
    "W1": Workload(
        1,
        Keys("uniform", 1_000),
        "SELECT key, value * 2 AS doubled FROM {left} WHERE value > 0.5 AND key % 4 = 0",
        "SELECT ts, key, value * 2 AS doubled FROM {left} WHERE value > 0.5 AND key % 4 = 0",
        "ts",
        _filtered,
        keyed=False,
    ),
    "W2": Workload(
        1,
        Keys("zipf", 1_000),
        "SELECT window_end, key, COUNT(*) AS n, SUM(value) AS total, MAX(value) AS most "
        "FROM TUMBLE({left}, ts, INTERVAL '1 second') GROUP BY window_end, key",
        "",
        "window_end",
        _summed,
    ),
    "W3": Workload(
        2,
        Keys("uniform", 10_000_000),
        "SELECT x.key, x.value AS left_value, y.value AS right_value "
        "FROM TUMBLE({left}, ts, INTERVAL '1 second') x JOIN TUMBLE({right}, ts, INTERVAL '1 second') y "
        "ON x.key = y.key AND x.window_start = y.window_start",
        "SELECT x.window_end, x.key, x.value AS left_value, y.value AS right_value "
        "FROM TUMBLE({left}, ts, INTERVAL '1 second') x JOIN TUMBLE({right}, ts, INTERVAL '1 second') y "
        "ON x.key = y.key AND x.window_start = y.window_start",
        "window_end",
        _joined,
    ),
}


def source_names(name: str, run: str) -> list[str]:
    """Returns the names of the sources of a workload; `run` distinguishes runs in one agent."""
    return [f"{name.lower()}_{run}_{side}" for side in SIDES[: WORKLOADS[name].sources]]


def statements(name: str, run: str, sources: Sequence[Sequence[str]], sink: str, *, aged: bool = False, instances: int = 1) -> str:
    """Returns SQL that creates the sources of a workload and a sink for its answers.

    Parameters
    ----------
    run : part of the names of sources and sink, so that an agent can have several runs of a workload
    sources : options (WITH) of each source; several if the source is a union of parts
    sink : options of the sink
    aged : the answers have the column that gives their age
    instances : instances of each operator with keys, if there is one
    """
    workload = WORKLOADS[name]
    sink = f"{sink}, instances = {instances}" if workload.keyed and instances > 1 else sink
    names = source_names(name, run)
    texts = []
    for source, parts in zip(names, sources, strict=True):
        made = part_names(source, len(parts))
        texts += [f"CREATE SOURCE {part} ({COLUMNS}) WITH ({options});" for part, options in zip(made, parts, strict=True)]
        if len(parts) > 1:
            texts.append(f"CREATE VIEW {source} AS {' UNION ALL '.join(f'SELECT ts, key, value FROM {part}' for part in made)};")
    select = (aged and workload.aged_select) or workload.select
    texts.append(f"CREATE SINK {sink_name(name, run)} FROM ({select.format(**dict(zip(SIDES, names, strict=False)))}) WITH ({sink});")
    return "\n".join(texts)


def removal(name: str, run: str, parts: int) -> str:
    """Returns SQL that drops everything that `statements` creates with `parts` parts of each source."""
    texts = [f"DROP SINK {sink_name(name, run)};"]
    for source in source_names(name, run):
        texts += [f"DROP VIEW {source};"] if parts > 1 else []
        texts += [f"DROP SOURCE {part};" for part in part_names(source, parts)]
    return "\n".join(texts)


def part_names(source: str, parts: int) -> list[str]:
    """Returns the names of the parts of a source; its own name if it has one part."""
    return [source] if parts == 1 else [f"{source}_{part}" for part in range(parts)]


def sink_name(name: str, run: str) -> str:
    """Returns the name of the sink that `statements` creates."""
    return f"{name.lower()}_{run}_answers"


def expected(name: str, tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Computes all answers of a workload in a batch run over these tables, one for each source; in no particular order."""
    return WORKLOADS[name].batch(*(table.lazy() for table in tables)).collect()
