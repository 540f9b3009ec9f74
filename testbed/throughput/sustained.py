"""Tests whether agents sustain predicted rates: whole overlays in virtual time, at a little less and a little more than predicted.

Queries run slowly first, so that agents measure their costs. Then the agents predict, and the same queries run at the rates to test. The
predicted bottleneck is full if the node, or the operator's core, has no time left.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sbon.errors import SbonError
from sbon_testbed.simulator.cpu import CpuConfig
from sbon_testbed.simulator.harness import World
from sbon_testbed.throughput.search import Report
from sbon_testbed.topology import CitiesConfig, build

NODES = 4
BELOW, ABOVE = 0.95, 1.1
"""Multiples of the predicted rate at which nothing (`BELOW`) and something (`ABOVE`) should be held up."""
LEARN_S, GONE_S, BEGUN_S, MOVED_S, SETTLE_S, WATCHED_S = 20.0, 15.0, 1.0, 30.0, 20.0, 60.0
SLOW_ROWS_PER_S = (1000, 3000, 9000)
"""Rates at which costs are measured; with batches of one size, the cost of a batch and that of its rows could not be separated."""
FLAT_S = 1.0
"""Growth of waiting rows, in seconds of the sources' rates, and of latency, in seconds, that still counts as flat."""
HELD_UP = 0.98
"""Share of the due rows below which some count as held up."""
FULL = 0.93
"""Share of a resource that counts as full: operators run one task at a time behind bounded queues, which leaves gaps on two cores."""
SOURCE = """
CREATE SOURCE {name} (ts TIMESTAMP, key BIGINT, value DOUBLE, WATERMARK FOR ts AS ts) WITH (connector = 'datagen', nodes = '{node}',
    rows_per_second = {rate}, seed = {seed}, fields.key.min = 0, fields.key.max = 999)"""
SHAPES = (
    ("ts", "SELECT ts, key, value * 2 AS twice FROM a0 WHERE value > {share}"),
    (
        "window_end",
        "SELECT window_end, key, count(*) AS n, sum(value) AS total FROM TUMBLE(a0, ts, INTERVAL '1 second') WHERE value > {share} "
        "GROUP BY window_end, key",
    ),
    (
        "window_end",
        "SELECT window_end, key, max(value) AS most FROM TUMBLE((SELECT ts, key, value FROM a0 WHERE value > {share} UNION ALL "
        "SELECT ts, key, value FROM a1), ts, INTERVAL '2 seconds') GROUP BY window_end, key",
    ),
    (
        "at",
        "SELECT x.ts AS at, x.value, y.value AS other FROM a0 x JOIN a1 y ON x.key = y.key AND x.value > {share} "
        "AND y.ts BETWEEN x.ts - INTERVAL '20 milliseconds' AND x.ts + INTERVAL '20 milliseconds'",
    ),
)
"""Queries, each after the column of its answers with an event time, from which their latency is computed."""


class Run(NamedTuple):
    """The figures of agents over `WATCHED_S`."""

    given: float
    """Share of the due rows that a source gave; of the source with the least share."""
    grown_s: float
    """Growth of the rows that wait before operators and on links, in seconds of all sources' rates."""
    later_s: float
    """Growth of the median latency of answers, in seconds."""
    busy: dict[str, float]
    """Busy share of each node's cores."""
    alone: dict[str, float]
    """Busy share of one core, for each operator."""
    node_of: dict[str, str]


class _Overlay:
    """One query over a few agents in cities; its sources can be recreated with other rates."""

    def __init__(self, rng: np.random.Generator, seed: int) -> None:
        cores = int(rng.integers(1, 3))
        self._cpu = CpuConfig(cores=cores, batch_us=100.0, row_ns=float(rng.uniform(5e3, 2e4)), timed=True)
        self._topology = build(CitiesConfig(), NODES, seed)
        self.world = World(self._topology, seed=seed, settings={"optimiser": {"enabled": False, "predictions": "fine"}}, cpu=self._cpu)
        self.world.start_all()
        self.world.settle()
        self._places = [self._topology.nodes[int(place)] for place in rng.integers(NODES, size=2)]
        self._home = int(rng.integers(NODES))
        column, query = SHAPES[int(rng.integers(len(SHAPES)))]
        self.select = query.format(share=round(float(rng.uniform(0.0, 0.8)), 2))
        self.placed: dict[str, str] = {}
        """Node of each operator in the predicted placement, by the end of its id."""
        self.sources = [name for name in ("a0", "a1") if re.search(rf"\b{name}\b", self.select)]
        self._sink = f"CREATE SINK out AS {self.select} WITH (connector = 'discard', latency_column = '{column}')"

    def start(self, rate: float) -> None:
        """Starts the query with sources that give `rate` rows a second each."""
        for number, (name, node) in enumerate(zip(self.sources, self._places, strict=False)):
            self.world.submit(SOURCE.format(name=name, node=node, rate=rate, seed=number), at=self._home)
        self.world.submit(self._sink, at=self._home)

    def learn(self) -> dict[str, Any]:
        """Runs the query at slow rates, and returns its home's prediction; the highest rate is a multiple of the last slow rate."""
        found: dict[str, Any] = {}
        for rate in SLOW_ROWS_PER_S:
            self.start(rate)
            self.world.run(LEARN_S)
            self._end_query()
            told = self.world.ask(self._home, "explain", sql=self._sink)
            found, self.placed = told["prediction"], {_end_of(row["id"]): row["node"] for row in told["operators"]}
            self._end_sources()
        return found

    def take_places(self) -> None:
        """Moves the running operators to the nodes that the prediction is about: every submitted query is placed by the latencies of that
        moment, and of two nodes that cost the same, another one may be taken.

        Raises
        ------
        SbonError
            An operator cannot move.
        """
        until_s = self.world.now + MOVED_S
        while elsewhere := {one: row["node"] for one, row in self._operators().items() if row["node"] != self.placed[_end_of(one)]}:
            self.world.run(BEGUN_S)
            for operator, here in elsewhere.items():
                try:
                    self.world.ask(here, "migrate", operator=operator, node=self.placed[_end_of(operator)])
                except SbonError:  # a neighbour has just moved, and not all know it yet
                    if self.world.now > until_s:
                        raise

    def _end_query(self) -> None:
        self.world.submit("DROP SINK out", at=self._home)
        self.world.run(GONE_S)

    def _end_sources(self) -> None:
        for name in self.sources:
            self.world.submit(f"DROP SOURCE {name}", at=self._home)
        self.world.run(1.0)

    def watch(self, rate: float) -> Run:
        """Runs the query in the predicted placement at a rate, and returns the figures after a settling time."""
        self.start(rate)
        self.take_places()
        self.world.run(SETTLE_S)
        before, at, busy = self._operators(), self.world.now, self._busy_ns()
        self.world.run(WATCHED_S)
        after, seconds = self._operators(), self.world.now - at
        busy_after = self._busy_ns()
        self._end_query()
        self._end_sources()
        worked = zip(busy_after, busy, self._topology.nodes, strict=True)
        made = [after[one]["rows_out"] - before[one]["rows_out"] for one in after if after[one]["kind"] == "source"]
        return Run(
            min(made) / (rate * seconds),
            (sum(map(waiting, after.values())) - sum(map(waiting, before.values()))) / (rate * len(self.sources)),
            latency_s(after) - latency_s(before),
            {node: (now - then) / (seconds * 1e9 * self._cpu.cores) for now, then, node in worked},
            {one: (after[one]["cpu_ns"] - before[one]["cpu_ns"]) / (seconds * 1e9) for one in after},
            {row["text"]: row["node"] for row in after.values()},
        )

    def _operators(self) -> dict[str, dict[str, Any]]:
        rows = [
            row for number in range(NODES) for row in self.world.ask(number, "operators") if row["node"] == self._topology.nodes[number]
        ]
        return {row["id"]: row for row in rows}

    def _busy_ns(self) -> list[int]:
        return [machine.cpu.busy_ns for machine in self.world.world.machines[:NODES]]


def _end_of(operator: str) -> str:
    """Returns the part of an operator's id that is the same whenever its query is planned."""
    return operator.rpartition(".")[2]


def latency_s(operators: dict[str, dict[str, Any]]) -> float:
    """Returns the median latency of the latest answers."""
    (found,) = (row["latency"] for row in operators.values() if row["kind"] == "sink")
    return float(found["p50_ms"]) / 1e3


def waiting(row: dict[str, Any]) -> float:
    """Returns the rows that wait before an operator, and those on its links that are sent but not acknowledged."""
    return float(row["queue_rows"]) + sum(float(link["rows_sent"] - link["rows_acknowledged"]) for link in row["links"])


def is_blocked(given: float, grown_s: float, watched_s: float) -> bool:
    """Tells whether rows are held up, at a source or before an operator: less than `HELD_UP` of those that are due get through."""
    return given - grown_s / watched_s < HELD_UP


def evaluate_sustained(
    plans: int, seed: int, report: Report, first: int = 0, so_far: Callable[[dict[str, Any]], None] = lambda found: None
) -> dict[str, Any]:
    """Returns how often rates near the predicted ones are sustained or held up as predicted, over random plans.

    Parameters
    ----------
    first : number of the first plan; each number of a seed is another plan
    so_far : called with the result after each plan, so that a run that is stopped leaves one

    Returns
    -------
    Counts: `plans`, `flat` (nothing is held up below), `blocked` (something is held up above), `binding_full` (the named bottleneck is
        full then); and the results of `each` plan
    """
    each: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for number in range(plans):
        report("sustained", number, plans)
        each.append(sustained(seed * 100_000 + first + number))
        counts = {key: sum(bool(one[key]) for one in each) for key in ("flat", "blocked", "binding_full", "rests_on_rules")}
        found = {"plans": len(each), **counts, "each": each}
        so_far(found)
    report("sustained", plans, plans)
    return found


def sustained(seed: int) -> dict[str, Any]:
    """Returns the predicted highest rate of a random plan, and how agents behave a little below and above it."""
    overlay = _Overlay(np.random.default_rng(seed), seed)
    try:
        found = overlay.learn()
        rate = found["highest_rate"]
        predicted = rate["multiple"] * SLOW_ROWS_PER_S[-1]
        below, above = (overlay.watch(round(predicted * times)) for times in (BELOW, ABOVE))
    finally:
        overlay.world.close()
    return {
        "seed": seed,
        "query": overlay.select,
        "rows_per_s": predicted,
        "binding": rate["binding"],
        "limits": {limit["what"]: limit["multiple"] * SLOW_ROWS_PER_S[-1] for limit in rate["limits"]},
        "rests_on_rules": found["rests_on_rules"],
        **judged(rate["binding"], below, above),
        "below": below._asdict(),
        "above": above._asdict(),
    }


def judged(binding: str, below: Run, above: Run) -> dict[str, bool]:
    """Tells whether nothing is held up below the predicted rate, something above it, and whether the named bottleneck is full then."""
    return {
        "flat": below.given > 0.99 and max(below.grown_s, below.later_s) < FLAT_S,
        "blocked": is_blocked(above.given, above.grown_s, WATCHED_S),
        "binding_full": _fullness(binding, above) >= FULL,
    }


def _fullness(binding: str, run: Run) -> float:
    """Returns the busy share of the resource that a prediction named.

    Raises
    ------
    ValueError
        The resource is neither a node's processors nor an operator's core; nothing else has a limit here.
    """
    if binding.startswith("CPU on node "):
        return run.busy[binding.removeprefix("CPU on node ")]
    if binding.startswith("one core, "):
        of_run = {_end_of(one): busy for one, busy in run.alone.items()}
        named = binding.removeprefix("one core, operators ").removeprefix("one core, operator ").partition(" on node ")[0]
        return sum(of_run[_end_of(one)] for one in named.split(", "))
    raise ValueError(f"bottleneck {binding!r}, expected a node's CPU or an operator's core: nothing else has a limit in this world")
