"""The correct answers to the queries of a workload: those of one node without faults, compared with DuckDB's if it is installed."""

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from sbon.errors import SbonError
from sbon_testbed.random_queries.comparing import difference
from sbon_testbed.random_queries.reading import without_special
from sbon_testbed.simulator.harness import World
from sbon_testbed.simulator.workload import RUN, Asked, Workload
from sbon_testbed.topology import CitiesConfig, build

Rows: TypeAlias = list[tuple[Any, ...]]
ONE_NODE_S_MAX = 120.0


class Reference(NamedTuple):
    """The queries to run, and their answers."""

    queries: tuple[Asked, ...]
    rows: dict[str, Rows]
    """For each query, by the name of its sink, the rows that one node gives."""
    problem: str
    """Difference between one node and DuckDB; empty if there is none."""


def make_reference(workload: Workload, folder: Path) -> Reference:
    """Runs the queries of a workload on one node, as fast as possible, and in DuckDB.

    Leaves out queries that the node refuses because they can give no row.

    Parameters
    ----------
    folder : an empty folder for the agent's data
    """
    world = World(
        build(CitiesConfig(), 1, 1),
        seed=1,
        data_dir=folder,
        settings={"engine": {"batch_interval_s": 0.1}, "telemetry": {"enabled": False}, "optimiser": {"enabled": False}},
    )
    try:
        world.start_all()
        alone = workload._replace(sources=dict.fromkeys(workload.sources, 0))
        world.submit(alone.declare(world).replace("replay = 'event_time'", "replay = 'fast'"))
        taken: list[Asked] = []
        for asked in workload.queries:
            if len(taken) < RUN:
                try:
                    world.submit(asked._replace(dealing="").sql([world.nodes[0]] * len(workload.topology.nodes)))
                except SbonError:
                    continue
                taken.append(asked)

        def running() -> bool:
            return any(query["state"] == "running" for query in world.ask(0, "queries"))

        until = world.now + ONE_NODE_S_MAX
        while running() and world.now < until:
            world.run(0.5)
        rows = {asked.name: asked.rows(world.data_dir_of(0)) for asked in taken}
    finally:
        world.close()
    return Reference(tuple(taken), rows, _against_duckdb(workload, taken, rows))


def _against_duckdb(workload: Workload, taken: list[Asked], rows: dict[str, Rows]) -> str:
    if importlib.util.find_spec("duckdb") is None:
        return ""
    from sbon_testbed.random_queries.oracle import Oracle

    oracle = Oracle(workload.data)
    try:
        for asked in taken:
            query = asked.query
            expected = oracle.rows(query.duck, query.kinds)
            if asked.format == "ndjson":
                expected = without_special(expected)
            problem = difference(rows[asked.name], expected, query.tolerances, ordered=query.ordered)
            if problem:
                return f"one node and DuckDB differ for {asked.name}: {query.ours}\n{problem}"
    finally:
        oracle.close()
    return ""
