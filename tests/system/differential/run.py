"""Runs the same queries over the same files in an agent and in DuckDB, and compares the answers.

The agent runs in virtual time: it reads the files with its connector, plans and runs the queries, and writes the answers into files. Only
clock, network and threads differ from a real agent. All queries of a seed share the agents.

By hand: `python -m tests.system.differential.run SEED [QUERIES [NUMBER]]`.
"""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from sbon.errors import SbonError
from sbon_testbed.random_queries.comparing import difference
from sbon_testbed.random_queries.data import (
    COLUMNS,
    DELAY_US,
    SECOND,
    DataSet,
    Row,
    Table,
    make_data,
    write,
)
from sbon_testbed.random_queries.oracle import Oracle
from sbon_testbed.random_queries.parts import QUERIES, Query
from sbon_testbed.random_queries.reading import read, without_special
from sbon_testbed.random_queries.statements import make_query
from tests.worlds import settled_world

ANSWER_S_MAX = 600.0
"""Longest virtual time for all queries of a seed to end."""
NO_ROW = "no row can come"
"""Part of the message that refuses a query whose conditions are never true."""
SHRINK_TRIES = 60


class Answer(NamedTuple):
    """An agent's answer to one query: rows or an error."""

    rows: list[Row]
    error: str = ""


class Failure(NamedTuple):
    """A query whose answers differ."""

    seed: int
    number: int
    query: Query
    problem: str

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}, query {self.number} ({self.query.shape}):",
            f"python -m tests.system.differential.run {self.seed} 1 {self.number}",
        ]
        return "\n".join([*lines, *(view for view, _ in self.query.before), self.query.ours, "DuckDB:", self.query.duck, self.problem])


class Overlay:
    """One or two agents in virtual time. Their sources are the files of a data set."""

    def __init__(self, data: DataSet, folder: Path) -> None:
        engine = {"operators_max": 5_000, **({"quantum_rows": 16} if data.seed % 3 == 0 else {})}
        settings: dict[str, Any] = {"telemetry": {"enabled": False}, "optimiser": {"enabled": False}, "engine": engine}
        self._world = settled_world(1 + data.seed % 2, seed=data.seed, data_dir=folder / "agents", settings=settings)
        # Agents read and write only in their own folder when another agent asks.
        self._read_in, self._write_in = (self._world.data_dir_of(number) / "files" for number in (len(self._world.nodes) - 1, 0))
        self._read_in.mkdir(exist_ok=True)
        self._write_in.mkdir(exist_ok=True)
        self._sinks, self._sink = 0, data.sink
        for table in data.tables.values():
            self.add(table, table.name, data.format)

    def add(self, table: Table, name: str, kind: str) -> None:
        """Creates two sources of a stream: one read as a whole, one in batches of two rows."""
        write(table, kind, self._read_in / f"{name}.{kind}")
        columns = ", ".join(f"{column} {type_}" for column, type_ in COLUMNS.items())
        for suffix, option in (("", ""), ("2", ", batch_rows_max = 2")):
            self._world.submit(
                f"CREATE SOURCE {name}{suffix} ({columns}, WATERMARK FOR ts AS ts - INTERVAL '{DELAY_US / SECOND} s')"
                f" WITH (connector = 'file', path = '{self._read_in}/{name}.{kind}', nodes = '{self._world.nodes[-1]}'{option})"
            )

    def answers(self, queries: Sequence[Query], instances: int = 1) -> list[Answer]:
        """Runs the queries at the same time; operators with keys have `instances` instances."""
        option = "" if instances == 1 else f", instances = {instances}"
        refused: dict[int, str] = {}
        sinks: dict[str, int] = {}
        for place, query in enumerate(queries):
            self._sinks += 1
            name = f"o{self._sinks}"
            sink = f"CREATE SINK {name} AS {query.ours} WITH (connector = 'file', path = '{self._write_in}/{name}.{self._sink}'{option})"
            try:
                self._world.submit(";\n".join([*(view for view, _ in query.before), sink]))
                sinks[name] = place
            except SbonError as error:
                refused[place] = f"refused: {error}"
        states = self._states(sinks)
        until = self._world.now + ANSWER_S_MAX
        while any(state == "running" for state, _ in states.values()) and self._world.now < until:
            self._world.run(0.25)
            states = self._states(sinks)
        found = {place: Answer([], error) for place, error in refused.items()}
        for name, place in sinks.items():
            state, reason = states.get(name, ("gone", ""))
            if state == "finished":
                found[place] = Answer(read(self._write_in / f"{name}.{self._sink}", queries[place].kinds))
            else:
                found[place] = Answer([], f"{state}: {reason}")
        return [found[place] for place in range(len(queries))]

    def _states(self, sinks: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Returns the state and the reason of each sink's query."""
        return {query["name"]: (query["state"], query["reason"]) for query in self._world.ask(0, "queries") if query["name"] in sinks}

    def close(self) -> None:
        """Ends the agents."""
        self._world.close()


def problem_of(data: DataSet, oracle: Oracle, query: Query, answer: Answer) -> str:
    """Says what is wrong with an answer; empty if nothing is. Any late rows may be missing."""
    if answer.error:
        return "" if NO_ROW in answer.error and _has_no_row(oracle, query) else answer.error
    problem = ""
    for tables in _variants(data, query.late):
        if tables is not None:
            oracle.load(tables)
        expected = oracle.rows(query.duck, query.kinds)
        if data.sink == "ndjson":
            expected = without_special(expected)
        found = difference(answer.rows, expected, query.tolerances, ordered=query.ordered)
        if not found:
            problem = ""
            break
        problem = problem or found
    if query.late:
        oracle.load(list(data.tables.values()))
    return problem


def _has_no_row(oracle: Oracle, query: Query) -> bool:
    """Returns whether the query, or a view that it uses, has no rows."""
    return not all(oracle.count(sql) for sql in (query.duck, *(sql for _, sql in query.before)))


def _variants(data: DataSet, late: bool) -> Iterable[list[Table] | None]:
    """Yields the tables without each subset of the late rows; None: as they are."""
    if not late:
        yield None
        return
    table = data.tables["p"]
    for count in range(len(table.late) + 1):
        for out in combinations(table.late, count):
            yield [table._replace(rows=[row for place, row in enumerate(table.rows) if place not in out])]


def queries_of(data: DataSet, numbers: Iterable[int]) -> list[Query]:
    """Returns the queries with these numbers over a data set."""
    return [make_query(data.seed, number, bool(data.late_rows)) for number in numbers]


def failures_of(seed: int, numbers: Iterable[int], folder: Path) -> tuple[list[Query], list[Failure]]:
    """Runs queries of a seed; returns all queries, and the failures."""
    data = make_data(seed)
    places = list(numbers)
    queries = queries_of(data, places)
    overlay, oracle = Overlay(data, folder), Oracle(data)
    try:
        failures = []
        for number, query, answer in zip(places, queries, overlay.answers(queries), strict=True):
            problem = problem_of(data, oracle, query, answer)
            if problem:
                failures.append(Failure(seed, number, query, problem))
        return queries, failures
    finally:
        overlay.close()
        oracle.close()


def told(failures: Sequence[Failure], folder: Path) -> str:
    """Describes the failures, then rows that reproduce the first one."""
    parts = [f"{len(failures)} queries have other answers than DuckDB", *map(str, failures[:5])]
    if failures:
        parts += ["rows that reproduce it:", *(f"{name}: {row}" for name, rows in shrunk(failures[0], folder).items() for row in rows)]
    return "\n\n".join(parts[:-1]) + "\n" + parts[-1] if failures else ""


def shrunk(failure: Failure, folder: Path) -> dict[str, list[Row]]:
    """Returns few rows with which a query still fails; all rows if some are late, because their positions matter."""
    data = make_data(failure.seed)
    tables = dict(data.tables)
    tries = 0 if failure.query.late or "\n" not in failure.problem else SHRINK_TRIES
    for name in tables:
        size = len(tables[name].rows) // 2
        while size and tries:
            start = 0
            while start < len(tables[name].rows) and tries:
                tries -= 1
                rows = tables[name].rows
                fewer = {**tables, name: tables[name]._replace(rows=rows[:start] + rows[start + size :])}
                if _fails(data._replace(tables=fewer), failure.query, folder / f"shrunk{tries}"):
                    tables = fewer
                else:
                    start += size
            size //= 2
    return {name: table.rows for name, table in tables.items()}


def _fails(data: DataSet, query: Query, folder: Path) -> bool:
    overlay, oracle = Overlay(data, folder), Oracle(data)
    try:
        (answer,) = overlay.answers([query])
        return not answer.error and bool(problem_of(data, oracle, query, answer))
    finally:
        overlay.close()
        oracle.close()


def main(seed: int, count: int = QUERIES, first: int = 0) -> int:
    """Runs the queries of one seed and prints those that fail."""
    with tempfile.TemporaryDirectory() as folder:
        queries, failures = failures_of(seed, range(first, first + count), Path(folder))
        if failures:
            print(told(failures, Path(folder)), end="\n\n")
    print(f"seed {seed}: {len(queries)} queries, {len(failures)} failed")
    return len(failures)


if __name__ == "__main__":
    sys.exit(1 if main(*map(int, sys.argv[1:])) else 0)
