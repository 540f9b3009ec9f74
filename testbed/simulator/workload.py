"""The workload of one seed: a topology, two streams of unusual rows, and random queries whose answers go to files.

The streams are replayed by their event times, so that rows flow for some seconds while faults happen. No row is late, so each query has one
correct answer, whatever the network does. Queries share no operators, because a query that joined a running stream would miss its first
rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sbon_testbed.random_queries.data import COLUMNS, DELAY_US, SECOND, DataSet, make_data, write
from sbon_testbed.random_queries.parts import QUERIES, Query
from sbon_testbed.random_queries.reading import read
from sbon_testbed.random_queries.statements import make_query
from sbon_testbed.simulator.harness import World
from sbon_testbed.topology import CitiesConfig, Topology, TransitStubConfig, build

SPEED = 4.0
"""Factor by which streams are replayed faster than their event times; they last about twelve seconds."""
DRAWN = 10
"""Number of queries drawn for a seed; the first ones that a node accepts run."""
RUN = 3
"""Number of queries that run."""
LARGE = ("twice", "join_of_aggregates", "window_join", "interval_join")
"""Shapes of queries with several movable operators; one such query runs if one was drawn."""
ROW_BY_ROW = ("scalars", "filters", "taken_apart", "union_all")
"""Shapes of queries without state: each of their rows results from one row. At most one such query runs."""
SMALL_TRANSIT_STUB = TransitStubConfig(transit_domains=3, transit_nodes=2, stub_domains=12, stub_nodes=3)
FORMATS = ("csv", "ndjson", "parquet")


class Asked(NamedTuple):
    """One query of a workload."""

    name: str
    """Name of its sink."""
    query: Query
    owner: int
    """Number of the node that takes the statement."""
    sink: int
    """Number of the node that writes the answers."""
    format: str
    dealing: str = ""
    """Further options of the sink that do not change the answers; empty if there are none."""

    def sql(self, nodes: Sequence[str]) -> str:
        """Returns the statements that start the query."""
        options = f"connector = 'file', path = '{self.file}', node = '{nodes[self.sink]}'" + (f", {self.dealing}" if self.dealing else "")
        return ";\n".join([*(view for view, _ in self.query.before), f"CREATE SINK {self.name} AS {self.query.ours} WITH ({options})"])

    @property
    def file(self) -> str:
        """Returns the name of the file that the sink writes."""
        return f"{self.name}.{self.format}"

    def rows(self, folder: Path) -> list[tuple[Any, ...]]:
        """Returns the rows that the sink's agent has written, from the agent's data directory; none if there is no file yet."""
        found = sorted(folder.rglob(self.file))
        return read(found[0], self.query.kinds) if found else []


class Workload(NamedTuple):
    """The topology, streams and queries of one seed."""

    seed: int
    topology: Topology
    data: DataSet
    sources: dict[str, int]
    """Number of the node of each stream."""
    queries: tuple[Asked, ...]

    @property
    def spare(self) -> list[int]:
        """Returns the nodes without source, sink or home, which may leave without loss."""
        busy = {*self.sources.values(), *(asked.owner for asked in self.queries), *(asked.sink for asked in self.queries)}
        return [number for number in range(len(self.topology.nodes)) if number not in busy]

    def declare(self, world: World) -> str:
        """Writes the streams' files to their nodes' folders and returns the statements that declare the sources."""
        statements = []
        columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS.items())
        for name, number in self.sources.items():
            folder = world.data_dir_of(number) / "files"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.{self.data.format}"
            write(self.data.tables[name], self.data.format, path)
            for suffix, option in (("", ""), ("2", ", batch_rows_max = 2")):
                options = (
                    f"connector = 'file', path = '{path}', nodes = '{world.nodes[number]}', replay = 'event_time', speed = {SPEED}{option}"
                )
                statements.append(
                    f"CREATE SOURCE {name}{suffix} ({columns}, WATERMARK FOR ts AS ts - INTERVAL '{DELAY_US / SECOND} s') WITH ({options})"
                )
        return ";\n".join(statements)


def make_workload(seed: int) -> Workload:
    """Returns the workload of a seed."""
    rng = np.random.default_rng([seed, 10])
    nodes = int(rng.integers(4, 8))
    kind = CitiesConfig() if rng.random() < 0.7 else SMALL_TRANSIT_STUB
    data = make_data(5 * seed)  # every fifth data set, from number 4, has late rows; multiples of 5 have none
    at_work = nodes - 1  # the last node may always leave

    def node() -> int:
        return int(rng.integers(at_work))

    sources = {name: node() for name in data.tables}
    numbers = [int(number) for number in rng.choice(QUERIES, DRAWN, replace=False)]
    drawn = [make_query(data.seed, number) for number in numbers]
    plain = [query for query in drawn if query.shape in ROW_BY_ROW][: int(rng.integers(2))]
    large = [query for query in drawn if query.shape in LARGE][:1]
    rest = [query for query in drawn if query.shape not in ROW_BY_ROW and query not in large]
    queries = tuple(
        Asked(f"k{place}", query, node(), node(), FORMATS[int(rng.integers(len(FORMATS)))])
        for place, query in enumerate([*large, *plain, *rest])
    )
    return Workload(seed, build(kind, nodes, seed), data, sources, queries)
