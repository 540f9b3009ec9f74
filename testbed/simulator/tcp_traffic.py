"""Queries of one seed whose answers, or rows, pass through programs outside the overlay by the connector `tcp`.

Half of the drawn queries write to a program instead of a file. One more query works row by row on a stream that a program feeds: its rows
are those of a stream of the workload, one by one, with NULL for numbers that NDJSON cannot write. Each program runs on the machine of some
agent, so that all faults of networks and machines hit its streams, too; it lives as long as the seed.
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sbon_testbed.random_queries.data import COLUMNS, DELAY_US, SECOND, Row, Table, members
from sbon_testbed.random_queries.parts import QUERIES, Query
from sbon_testbed.random_queries.reading import read
from sbon_testbed.random_queries.statements import make_query
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.reference import Reference, Rows, make_reference
from sbon_testbed.simulator.tcp_programs import Collector, Feeder
from sbon_testbed.simulator.workload import ROW_BY_ROW, Asked, Workload

CONNECTORS = ("file", "tcp")
"""Connectors that workloads can use."""
FILES = ("file",)
"""Connectors of a workload without programs, the default."""
SHARE = 0.5
"""Share of the drawn queries that write to a program."""
CANDIDATES = 3
"""Number of queries of which the one with the most answers reads from a program."""
PACE_S = 0.2
"""Virtual seconds between two rows of a program."""
PORT = 9000
ALLOWED = {"connectors": {"tcp": {"allow": ["10.0.0.0/8"]}}}
"""Settings that allow agents to reach each other's machines."""


class Place(NamedTuple):
    """The program at one end of a query."""

    machine: int
    port: int
    agent_listens: bool

    def options(self, world: World, agent: int) -> str:
        """Returns the connector's options on an agent."""
        host = world.world.machines[agent if self.agent_listens else self.machine].ip
        return f"connector = 'tcp', host = '{host}', port = {self.port}, mode = '{'listen' if self.agent_listens else 'connect'}'"


class TcpQuery(NamedTuple):
    """One query, as it would be with files, and its programs."""

    asked: Asked
    sink: Place | None
    """None: the query writes to a file."""
    source: Place | None = None
    """None: the query reads the workload's files."""
    stream: str = ""
    """The workload's stream whose rows the program feeds."""


class TcpTraffic:
    """One query under way, with its programs."""

    def __init__(self, query: TcpQuery, workload: Workload, world: World) -> None:
        self.asked, self.query, self._workload, self._world = query.asked, query, workload, world
        self.feeder: Feeder | None = None
        self.collector: Collector | None = None
        agent = workload.sources[query.stream] if query.source is not None else 0
        self._source_on = agent
        if query.source is not None:
            lines = [json.dumps(members(row), ensure_ascii=False).encode() + b"\n" for row in self.rows]
            place, host = query.source, world.world.machines[agent].ip
            process = world.world.boot(place.machine)
            self.feeder = Feeder(
                process, host, place.port, lines, PACE_S, lambda: world.agents[agent] is not None, listens=not place.agent_listens
            )
        if query.sink is not None:
            place, host = query.sink, world.world.machines[self.asked.sink].ip
            self.collector = Collector(world.world.boot(place.machine), host, place.port, listens=not place.agent_listens)

    @property
    def rows(self) -> list[Row]:
        """Returns all rows of the program's stream."""
        return [tuple(map(_writable, row)) for row in self._workload.data.tables[self.query.stream].rows]

    def sql(self) -> str:
        """Returns the statements that start the query."""
        world, query, asked = self._world, self.query, self.asked
        sql = asked.sql(world.nodes)
        if query.sink is not None:
            sql = sql.replace(f"connector = 'file', path = '{asked.file}'", query.sink.options(world, asked.sink))
        if query.source is None:
            return sql
        columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
        options = f"{query.source.options(world, self._source_on)}, nodes = '{world.nodes[self._source_on]}'"
        declared = f"CREATE SOURCE fed ({columns}, WATERMARK FOR ts AS ts - INTERVAL '{DELAY_US / SECOND} s') WITH ({options})"
        return ";\n".join((declared, re.sub(rf"\b(FROM|JOIN) {query.stream}2?\b", r"\1 fed", sql)))

    def found(self, folder: Path) -> Rows:
        """Returns the answers so far.

        Parameters
        ----------
        folder : a folder for the text that a program has taken
        """
        if self.collector is None:
            return self.asked.rows(self._world.data_dir_of(self.asked.sink))
        path = folder / f"{self.asked.name}.taken.ndjson"
        path.write_bytes(self.collector.text)
        return read(path, self.asked.query.kinds)

    def expected(self, numbers: Sequence[int], folder: Path) -> Reference:
        """Returns the right answers to these rows of the program: those of one node, compared with DuckDB's, for the same rows in a file.

        Parameters
        ----------
        folder : an empty folder
        """
        rows, data = self.rows, self._workload.data
        table = Table(self.query.stream, [rows[number] for number in numbers])
        data = data._replace(format="ndjson", tables={**data.tables, table.name: table})
        asked = self.asked._replace(format="ndjson")
        return make_reference(self._workload._replace(data=data, queries=(asked,)), folder)


def draw_tcp(workload: Workload, reference: Reference, folder: Path) -> list[TcpQuery]:
    """Draws which of the queries of a reference write to programs, and the query that reads from one; none if no query can.

    Parameters
    ----------
    folder : an empty folder
    """
    rng = np.random.default_rng([workload.seed, 11])
    machines = len(workload.topology.nodes)

    def place(number: int) -> Place:
        return Place(int(rng.integers(machines)), PORT + number, bool(rng.integers(2)))

    drawn = [(place(number), rng.random() < SHARE) for number in range(len(reference.queries))]
    found = [TcpQuery(asked, at) for asked, (at, is_tcp) in zip(reference.queries, drawn, strict=True) if is_tcp]
    source, sink = place(len(drawn)), place(len(drawn) + 1)
    queries = (make_query(workload.data.seed, int(number)) for number in rng.permutation(QUERIES))
    able = [query for query in queries if query.shape in ROW_BY_ROW and _stream_of(query) and not query.before][:CANDIDATES]
    asked = workload.queries[0]._replace(format="ndjson")
    candidates = tuple(asked._replace(name=f"fed{number}", query=query) for number, query in enumerate(able))
    known = make_reference(workload._replace(queries=candidates), folder)
    if rows := {asked: len(known.rows[asked.name]) for asked in known.queries if known.rows[asked.name]}:
        best = max(rows, key=lambda asked: rows[asked])
        found.append(TcpQuery(best, sink if rng.random() < SHARE else None, source, _stream_of(best.query)))
    return found


def _stream_of(query: Query) -> str:
    """Returns the only stream that a query reads; empty if it reads several."""
    names = set(re.findall(r"\b(?:FROM|JOIN) ([pq])2?\b", query.ours))
    return names.pop() if len(names) == 1 else ""


def _writable(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
