"""Runs a workload over a number of rows in one agent, to compare its answers or to time it."""

import time
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import polars as pl

from sbon.errors import SbonError
from sbon_testbed.answers import equal, written
from sbon_testbed.bench.agent_process import AgentProcess
from sbon_testbed.bench.rows import table
from sbon_testbed.bench.supply import GENERATED, Senders, Supply, sending
from sbon_testbed.bench.workloads import SIDES, WORKLOADS, expected, removal, sink_name, source_names, statements

TIMEOUT_S = 600.0
IDLE_S = 0.5
"""Seconds for which the agent is measured at rest."""
SUFFIXES = {"parquet": "", "csv": ".csv", "ndjson": ".ndjson"}
"""Formats of file sinks, with the ending of their paths; Parquet is written to a folder."""
_numbers = count()
"""Numbers that make the names of runs unique, as operators of an earlier run may still be ending."""


class Cost(NamedTuple):
    """Rows and times of a run."""

    rows: int
    wall_s: float
    cpu_s: float
    """Processor time of the agent, without its use at rest."""


def idle_cores(agent: AgentProcess) -> float:
    """Returns the cores that the agent uses at rest, while it is polled as often as in a run."""
    used, began = agent.cpu_s(), time.monotonic()
    while time.monotonic() - began < IDLE_S:
        agent.operators()
        time.sleep(agent.LOOK_S)
    return (agent.cpu_s() - used) / (time.monotonic() - began)


def timed(agent: AgentProcess, name: str, supply: Supply, sink: str, idle: float = 0.0, instances: int = 1) -> Cost:
    """Runs a workload over all rows of a supply, into a sink, and returns its cost.

    Parameters
    ----------
    sink : `discard`, or a format of `SUFFIXES`
    idle : cores that the agent uses at rest
    instances : instances of each operator with keys
    """
    run = f"t{next(_numbers)}"
    options = "connector = 'discard'" if sink == "discard" else f"connector = 'file', path = '{run}{SUFFIXES[sink]}', format = '{sink}'"
    used, began = agent.cpu_s(), time.monotonic()
    agent.submit(statements(name, run, supply.options, options, instances=instances))
    with sending(supply.senders) as senders:
        if supply.senders:
            used, began = agent.cpu_s(), time.monotonic()
            senders.begin()
        _wait(agent, name, run, supply, senders)
        wall_s = time.monotonic() - began
        used = agent.cpu_s() - used
    _drop(agent, name, run, supply)
    return Cost(supply.rows, wall_s, max(used - idle * wall_s, 0.0))


def answers_equal(agent: AgentProcess, name: str, supply: Supply, sink: str, instances: int = 1) -> bool:
    """Tells whether the answers that a workload writes to a sink equal those of a batch run over the same rows.

    The agent also writes generated rows to files, so that the batch run can read them. If sources do not end by themselves, windows that
    are still open after the last row are left out.
    """
    run = f"c{next(_numbers)}"
    form = "parquet" if sink == "discard" else sink
    path = f"{run}{SUFFIXES[form]}"
    options = f"connector = 'file', path = '{path}', format = '{form}'"
    agent.submit(statements(name, run, supply.options, options, instances=instances))
    with sending(supply.senders) as senders:
        tables = _made(agent, name, run, supply) if supply.kind in GENERATED else _written(name, supply)
        answers = expected(name, tables if supply.ends else _closed(name, tables))
        senders.begin()
        _wait(agent, name, run, supply, senders)
        if not supply.ends:
            agent.wait_until(lambda: agent.rows_taken() >= answers.height, f"{answers.height:,} answers of {name}", TIMEOUT_S)
    _drop(agent, name, run, supply)
    return equal(written(agent.data_dir / path, form, answers.schema), answers)


def _made(agent: AgentProcess, name: str, run: str, supply: Supply) -> list[pl.DataFrame]:
    """Returns the rows that the agent has generated for each source."""
    tables = []
    for side, source in zip(SIDES, source_names(name, run), strict=False):
        path = f"{run}_{side}_rows"
        agent.submit(
            f"CREATE SINK {path} FROM (SELECT ts, key, value FROM {source}) WITH (connector = 'file', path = '{path}', format = 'parquet');"
        )
        agent.wait_until(lambda path=path: agent.finished(path), f"{supply.rows:,} rows of {name}", TIMEOUT_S)  # type: ignore[misc]
        tables.append(written(agent.data_dir / path, "parquet", table(name, 0, 1).schema))
    found = sum(rows.height for rows in tables)
    if found != supply.rows:
        raise SbonError(f"{name}: the sources have made {found} rows, expected {supply.rows}")
    return tables


def _written(name: str, supply: Supply) -> list[pl.DataFrame]:
    sources = WORKLOADS[name].sources
    return [table(name, side, supply.rows // sources) for side in range(sources)]


def _closed(name: str, tables: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """Returns the rows whose windows end at or before the earliest last time of the sources."""
    if name == "W1":
        return list(tables)
    newest = pl.Series([rows["ts"].max() for rows in tables]).min()
    end = pl.select(pl.lit(newest).dt.truncate("1s")).item()
    return [rows.filter(pl.col("ts") < end) for rows in tables]


def _wait(agent: AgentProcess, name: str, run: str, supply: Supply, senders: Senders) -> None:
    """Waits until all rows have been processed."""
    if supply.ends:
        agent.wait_until(lambda: agent.finished(sink_name(name, run)), f"{name} over {supply.rows:,} rows", TIMEOUT_S)
        return

    def taken() -> bool:
        senders.check()
        rows = [operator["rows_in"] for operator in agent.operators() if operator["kind"] not in ("source", "sink")]
        return max(rows, default=0) >= supply.rows

    agent.wait_until(taken, f"{name} takes {supply.rows:,} rows", TIMEOUT_S)


def _drop(agent: AgentProcess, name: str, run: str, supply: Supply) -> None:
    """Drops the run's sink and sources, and waits until the agent has no operators."""
    agent.submit(removal(name, run, supply.parts))
    agent.wait_until(lambda: not agent.operators(), "the operators of the last run leave")
