"""Compares the predicted and the true latency of a placed query whose source has bursts, known by quarters of a second.

This is what an agent knows of a running query: the rows of each quarter of a second of the last minute. The truth follows each batch of
10 ms through source, filter and sink on three nodes. Its rows are drawn from a rate that jumps or swings at any time.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sbon.cost.figure import Source, around
from sbon.cost.latency_prediction import predicted_latency
from sbon.cost.mace import quantile
from sbon.cost.merged_batches import SLICE_ROWS
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.resources import NodeResources, UseSeries
from sbon.cost.store import CostStore
from sbon.cost.waiting import Waits
from sbon.planning.forecast import by_quarter
from sbon.planning.gathering import placed_query
from sbon.query.link_bytes import SOURCE_BATCHES_PER_S
from sbon.query.params.rowwise import MapParams
from sbon.types import FloatArray, IntArray
from sbon_testbed.mace.bounds import SOURCE, known_costs, plan_of
from sbon_testbed.mace.streams import on_off_rates

RATES = ("on_off", "levels", "waves")
MINUTE_S = 60
RATE_PER_S = 1000.0
LOAD = 0.6
"""Average share of its core that the filter takes."""
HIGH_S = 2.0
LEVEL_S = 3.0
BATCH_NS = 2e4
ONE_WAY_MS = 20.0
QUANTUM_S = 0.005
"""Work that an operator takes at once, or `SLICE_ROWS` rows (`sbon.cost.merged_batches`)."""
NO_WAITS = Waits((0.0,) * 60, (0.0,) * 60, (), (), (0.0,) * 5)
"""Waits for a processor, of which the truth has none."""
QUERY = SOURCE + "CREATE SINK o AS SELECT ts, k, v FROM s0 WHERE v > 0.5 WITH (connector = 'discard', node = 'c')"


class Running(NamedTuple):
    """A running query, as its agent knows it, and the latencies of its answers."""

    query: PlacedQuery
    latency_s: FloatArray
    """(batches,): from the end of a batch at the source to its answer."""
    rows: IntArray
    """(batches,): sinks measure the latency of rows."""


def evaluate_bursts(runs: int, seed: int, report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Returns the part `bursts`: for each kind of rate the median errors of `runs` minutes, and each of them."""
    found: dict[str, Any] = {}
    for kind in RATES:
        each = []
        for run in range(runs):
            report(f"bursts, {kind}", run, runs)
            each.append(_compared(running(kind, np.random.default_rng([seed, run]))))
        report(f"bursts, {kind}", runs, runs)
        found[kind] = {name: float(np.median([one[name] for one in each])) for name in ("error", "p99_error")}
        found[kind] |= {"outside_bounds": sum(one["measured_s"] > one["upper_s"] for one in each), "runs": each}
    return found


def running(kind: str, rng: np.random.Generator) -> Running:
    """Draws a minute of a source, and follows its batches through the query."""
    batch_s = 1.0 / SOURCE_BATCHES_PER_S
    rows = rng.poisson(_rates(kind, rng, int(MINUTE_S / batch_s), batch_s) * RATE_PER_S * batch_s)
    plan = plan_of(QUERY.format(number=0, node="a", rate=int(RATE_PER_S)), ("a", "b", "c"), "c")
    row_ns = {spec.signature: LOAD * 1e9 / RATE_PER_S if isinstance(spec.params, MapParams) else 0.0 for spec in plan.operators}
    store = CostStore("c")
    for name in ("a", "b", "c"):
        speed = around(1.0, 0.01, Source.MEASURED, samples=9)
        store.nodes.told(name, NodeResources(node=name, cores=1, speed=speed, others=UseSeries((0.0,) * 10), waits=NO_WAITS), 0.0)
    store.statistics.restore([known_costs(spec, BATCH_NS, row_ns[spec.signature]) for spec in plan.operators], 0.0)
    (source,) = (spec.id for spec in plan.operators if not spec.ports)
    bursts = by_quarter(rows.reshape(4 * MINUTE_S, -1).sum(axis=1).tolist())
    links = [(one, other, ONE_WAY_MS, True) for one in "abc" for other in "abc" if one != other]
    node_of = {spec.id: "b" if isinstance(spec.params, MapParams) else spec.pinned or "c" for spec in plan.operators}
    query = placed_query(store, plan, node_of, links, now=0.0, arrivals={source: bursts})
    at_s: FloatArray = batch_s * np.arange(1.0, len(rows) + 1)[rows > 0]
    done_s = at_s
    for number, spec in enumerate(plan.operators):  # one after the other, each on a node of its own
        arrived_s = done_s + (ONE_WAY_MS / 1e3 if number else 0.0)
        row_s = row_ns[spec.signature] / 1e9
        done_s = _served(arrived_s, rows[rows > 0], BATCH_NS / 1e9, row_s, max(SLICE_ROWS, QUANTUM_S / max(1e-9, row_s)))
    return Running(query, done_s - at_s, rows[rows > 0])


def _rates(kind: str, rng: np.random.Generator, count: int, batch_s: float) -> FloatArray:
    """Returns the rate in each batch's time, with the mean 1."""
    if kind == "on_off":
        found = on_off_rates(rng, count, HIGH_S, batch_s)
    elif kind == "levels":
        lengths = rng.exponential(LEVEL_S / batch_s, MINUTE_S).astype(np.int64) + 1
        found = np.resize(np.repeat(rng.uniform(0.1, 3.0, MINUTE_S), lengths), count)
    else:
        found = 1 + 0.9 * np.sin(2 * np.pi * (batch_s * np.arange(count) / rng.uniform(8, 20) + rng.random()))
    return found / found.mean()  # type: ignore[no-any-return]


def _served(arrived_s: FloatArray, rows: IntArray, batch_s: float, row_s: float, most: float) -> FloatArray:
    """Returns when each batch is done. Those that wait are taken together, up to `most` rows, and cost once beside their rows."""
    at_s, sizes = arrived_s.tolist(), rows.tolist()
    free_s, first, found = 0.0, 0, np.empty(len(at_s))
    while first < len(at_s):
        begin_s = max(at_s[first], free_s)
        last, taken = first + 1, sizes[first]
        while last < len(at_s) and at_s[last] <= begin_s and taken + sizes[last] <= most:
            taken += sizes[last]
            last += 1
        free_s = begin_s + batch_s + row_s * taken
        found[first:last] = free_s
        first = last
    return found


def _compared(one: Running) -> dict[str, float]:
    told, worst_s, p99_s = (
        predicted_latency(one.query),
        float(one.latency_s.max()),
        quantile(one.latency_s, 0.99, one.rows.astype(np.float64)),
    )
    if told.worst_s is None or told.p99_s is None:
        raise AssertionError(f"{told.overloaded} have more load than capacity, expected {LOAD:.0%} on average")
    return {
        "predicted_s": told.worst_s.value,
        "measured_s": worst_s,
        "mace_s": told.worst_s.low,
        "upper_s": told.worst_s.high,
        "error": abs(told.worst_s.value / worst_s - 1),
        "p99_error": abs(told.p99_s / p99_s - 1),
    }
