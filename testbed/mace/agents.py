"""Compares predicted and measured latency of queries on whole agents: in virtual time, or as processes on loopback (section VIII.5,
figure 8).

Sources give rows at a steady rate, so the worst case comes from work, batches and the network, not from bursts. The agents predict from
their own measurements (`sbon queries`), and sinks measure the latency.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from sbon_testbed.backend import Backend
from sbon_testbed.leftovers import run_directory
from sbon_testbed.topology import CitiesConfig, Topology, build

SETTLE_S = 20.0
WATCHED_S = 90.0
"""Seconds that queries run: long enough that the sinks' latest figures no longer include the start."""
SETTINGS: dict[str, Any] = {"optimiser": {"enabled": False, "predictions": "fine"}}
"""Operators stay where they were placed, so that the prediction is for the placement that runs."""
QUERY = """
CREATE SOURCE s{number} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{source}', rows_per_second = {rate}, seed = {number}, fields.key.min = 0, fields.key.max = 19);
CREATE SINK out{number} AS
SELECT window_end, key, count(*) AS n, sum(value) AS total FROM TUMBLE(s{number}, ts, INTERVAL '1 second')
WHERE value > 0.2 GROUP BY window_end, key HAVING count(*) > 1 WITH (connector = 'discard', node = '{sink}')
"""


def evaluate_agents(
    agents: int, queries: int, rate: int, seed: int, *, real: bool, report: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Returns predicted and measured latencies of queries over `agents` agents in cities.

    Parameters
    ----------
    rate : rows per second of each source
    real : True: agents are processes on loopback with added latencies; False: they run in virtual time
    """
    topology = build(CitiesConfig(), agents, seed)
    rng = np.random.default_rng(seed)
    with ExitStack() as stack:
        world = _started(topology, seed, stack, real=real)
        report("agents", 0, 3)
        world.run(SETTLE_S)
        for number in range(queries):
            source, sink = (topology.nodes[place] for place in rng.choice(agents, 2, replace=False))
            world.ask(sink, "submit", sql=QUERY.format(number=number, source=source, sink=sink, rate=rate))
        report("agents", 1, 3)
        world.run(WATCHED_S)
        rows = [row for node in topology.nodes for row in world.ask(node, "queries") if row["owner"] == node]
        report("agents", 3, 3)
    return compared(rows) | {"backend": "loopback" if real else "virtual", "rows_per_s": rate, "load": os.getloadavg()[0]}


def _started(topology: Topology, seed: int, stack: ExitStack, *, real: bool) -> Backend:
    if real:
        from sbon_testbed.processes.local import LocalWorld
        from sbon_testbed.simulator.network import NetworkConfig

        directory = stack.enter_context(run_directory())
        layers = [dict(SETTINGS) for _ in topology.nodes]
        world: Any = LocalWorld(topology, directory, NetworkConfig(), layers)
        stack.callback(world.close)
        for number in range(len(topology.nodes)):
            world.start(number)
        for number in range(len(topology.nodes)):
            world.wait_started(number)
    else:
        from sbon_testbed.simulator.harness import World

        world = World(topology, seed=seed, settings=SETTINGS)
        stack.callback(world.close)
        world.start_all()
    return world  # type: ignore[no-any-return]


def compared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the errors of the predictions in rows of `sbon queries --json`."""
    each = []
    for row in rows:
        told = row["prediction"]
        if told is None or told["measured"] is None or told["worst_ms"] is None:
            continue
        measured = told["measured"]
        each.append(
            {
                "operators": len(row["operators"]),
                "predicted_s": told["worst_ms"] / 1e3,
                "measured_s": measured["max_ms"] / 1e3,
                "upper_s": None if told["worst_high_ms"] is None else told["worst_high_ms"] / 1e3,
                "predicted_mean_s": told["mean_ms"] / 1e3,
                "measured_mean_s": measured["mean_ms"] / 1e3,
                "predicted_p99_s": told["p99_ms"] / 1e3,
                "measured_p99_s": measured["p99_ms"] / 1e3,
                "error": _error(told["worst_ms"], measured["max_ms"]),
                "mean_error": _error(told["mean_ms"], measured["mean_ms"]),
                "p99_error": _error(told["p99_ms"], measured["p99_ms"]),
                "is_above_upper": told["worst_high_ms"] is not None and measured["max_ms"] > told["worst_high_ms"],
                "rests_on_rules": told["rests_on_rules"],
            }
        )
    found: dict[str, Any] = {"queries": len(rows), "compared": len(each), "operators": sum(len(row["operators"]) for row in rows)}
    for key in ("error", "mean_error", "p99_error"):
        values = [float(one[key]) for one in each]
        found[key] = float(np.median(values)) if values else None
        found[f"{key}_max"] = max(values, default=None)
    return found | {"outside_bounds": sum(bool(one["is_above_upper"]) for one in each), "each": each}


def _error(predicted: float, measured: float) -> float:
    return abs(predicted - measured) / measured if measured > 0 else 0.0
