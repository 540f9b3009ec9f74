"""`sbon bench placement`: how long the full optimiser takes to place one query among many known nodes, without asking for RTTs.

Nodes lie in clusters, with access links of a few milliseconds; they are arrays, without an object for each node. Each query is a tree of
joins over random producers. A query is timed from the creation of its optimiser to the decision, with the answers of candidates (which
have room and measure nothing). The cost space and its index are made once before, and timed separately.
"""

import resource
import time
from typing import Any

import numpy as np

from sbon.cli.output import count, number, print_table
from sbon.cli.tables import Column
from sbon.cost.problem import PlacementProblem
from sbon.cost.space import CostSpace
from sbon.errors import UsageError
from sbon.optimiser.decision import Decision
from sbon.optimiser.full import AskCandidate, FullOptimiser
from sbon.placement.candidates import CandidateReport
from sbon.placement.config import PlacementConfig
from sbon_testbed.bench.percentiles import p99
from sbon_testbed.placement.queries import join_tree
from sbon_testbed.progress import Progress

CLUSTERS = 200
CLUSTER_SPREAD_MS = 60.0
NODE_SPREAD_MS = 12.0
HEIGHT_MS_MEAN = 3.0
NODES_MAX = 5_000_000
SITES = 5_000
"""Number of nodes among which producers and consumers are drawn."""


def measure(nodes: int, operators: int, queries: int, seed: int, *, progress: bool = True) -> dict[str, Any]:
    """Places queries and measures the time.

    Raises
    ------
    UsageError
        A number is out of range.
    """
    for name, value, least, most in (("nodes", nodes, 2, NODES_MAX), ("operators", operators, 1, 64), ("queries", queries, 1, 1_000_000)):
        if not least <= value <= most:
            raise UsageError(f"--{name} {value}, expected {least} to {most}")
    report = Progress(progress)
    space_rng, query_rng, strategy_rng = np.random.default_rng(seed).spawn(3)
    columns = _columns(nodes, space_rng)
    before_mb = _peak_mb()
    started = time.perf_counter()
    space = CostSpace.from_arrays(*columns)
    _ = space.index, space.cautious_heights_ms  # made when first used; here before the first query
    index_s = time.perf_counter() - started
    sites = [str(name) for name in columns[0][space_rng.integers(nodes, size=min(nodes, SITES))]]
    took_ms = []
    for number_ in range(queries + 1):
        problem = join_tree(sites, query_rng, operators + 1)
        wall, cpu = time.perf_counter(), time.thread_time()
        _place(problem, space, strategy_rng)
        took_ms.append((1000 * (time.perf_counter() - wall), 1000 * (time.thread_time() - cpu)))
        report("queries", number_, queries)
    wall_ms, cpu_ms = np.array(took_ms[1:]).T  # without the first query, which loads modules
    far = p99(list(wall_ms))
    return {
        "nodes": nodes,
        "operators": operators,
        "queries": queries,
        "seed": seed,
        "milliseconds_median": round(float(np.median(wall_ms)), 3),
        "milliseconds_p99": None if far is None else round(far, 3),
        "cpu_milliseconds_median": round(float(np.median(cpu_ms)), 3),
        "index_s": round(index_s, 3),
        "peak_memory_mb": round(_peak_mb(), 1),
        "memory_mb_before_the_space": round(before_mb, 1),
    }


def show(result: dict[str, Any], *, wide: bool = False) -> None:
    """Prints the result as a table."""
    titles = ("nodes", "operators", "queries", "median ms", "p99 ms", "index s")
    row = [count(result[key]) for key in ("nodes", "operators", "queries")]
    row += [number(result[key], 2) for key in ("milliseconds_median", "milliseconds_p99", "index_s", "cpu_milliseconds_median")]
    columns = [Column(title, right=True) for title in titles]
    columns += [Column(title, right=True, wide=True) for title in ("median CPU ms", "peak MB")]
    print_table(columns, [[*row, count(round(result["peak_memory_mb"]))]], wide=wide)


def _columns(nodes: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """Returns names, vectors, heights, loads and error estimates of the nodes."""
    names = np.char.mod("n%07d", np.arange(nodes))
    centres = rng.normal(0, CLUSTER_SPREAD_MS, size=(CLUSTERS, 3))
    vectors = centres[rng.integers(CLUSTERS, size=nodes)] + rng.normal(0, NODE_SPREAD_MS, size=(nodes, 3))
    return names, vectors, rng.exponential(HEIGHT_MS_MEAN, size=nodes), np.zeros(nodes), rng.uniform(0.05, 0.15, size=nodes)


def _place(problem: PlacementProblem, space: CostSpace, rng: np.random.Generator) -> Decision:
    optimiser = FullOptimiser(problem, {}, space, PlacementConfig(probes=0), rng)
    actions = optimiser.begin()
    while True:
        following = []
        for action in actions:
            if isinstance(action, Decision):
                return action
            assert isinstance(action, AskCandidate), "without probes, the optimiser asks no node for remembered RTTs"
            following += optimiser.answered(CandidateReport(action.node, {}, len(problem.unpinned) + len(problem.pinned)))
        actions = following


def _peak_mb() -> float:
    """Returns the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
