"""Measures the network usage that a latency bound costs, and how many queries are refused that could be placed (Mace as a constraint of
placement).

Queries are planned from SQL, placed by the optimiser among candidates that answer with their measured RTTs, and admitted as agents do it.
Nodes differ in speed, cores and use by other programs, and operators cost enough to queue. First a query is placed without a bound; then
its bound is a share of the latency predicted for that placement.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sbon.cost.arrivals import Series
from sbon.cost.figure import Source, around
from sbon.cost.latency import KnownLatencies
from sbon.cost.latency_prediction import latest_s
from sbon.cost.law import Law, rule_law
from sbon.cost.model import Conditions
from sbon.cost.network_usage import NetworkUsage
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.problem import problem_of
from sbon.cost.resources import NodeResources, UseSeries
from sbon.cost.statistics import OperatorStatistics, PortStatistics
from sbon.cost.store import CostStore
from sbon.errors import SbonError
from sbon.optimiser.placed import Placed, placed_as
from sbon.placement.config import PlacementConfig
from sbon.placement.latency_bounded import Choices, least_cost_within
from sbon.planning.admission import Admission, Admitted, Attempt, Refused
from sbon.planning.gathering import gathered, placed_query
from sbon.planning.latency_bound import judged, placed_within
from sbon.query.catalog import Catalog
from sbon.query.link_bytes import SOURCE_BATCHES_PER_S
from sbon.query.plan import OperatorSpec, Plan
from sbon.query.planner import plan as planned
from sbon.query.sql import CreateSink, CreateSource, parse
from sbon.types import NodeId
from sbon_testbed.placement.evaluation import Runner
from sbon_testbed.placement.network import Network, from_matrix, read_network, settled
from sbon_testbed.placement.scores import Tally
from sbon_testbed.topology import CitiesConfig, build

RATES = (200, 1000)
"""Least and greatest rows per second of a source."""
BATCH_NS, LOAD = 1e5, (0.05, 0.6)
"""Reference ns of a batch; and least and greatest average share of a core that the rows of an operator take."""
HIGH_OVER_MEAN, HIGH_S, EVERY_S = 3.0, 1.0, 4.0
"""Sources give `HIGH_OVER_MEAN` times their mean rate for `HIGH_S` of every `EVERY_S` seconds: then operators queue, most of all on slow
and busy nodes."""
SPEED_SCATTER = 0.3
CORES = (1, 2, 4)
USED_MAX = 0.7
"""Greatest share of a node's cores that other programs use."""
EXHAUSTIVE_MAX = 1500
"""Most placements that are tried to check a refusal."""
UNLOADED = PlacementConfig(load_weight=0.0)
CITIES = 60
"""Number of nodes if no network is given."""
ROUNDS = 200
"""RTTs that each node measures for its coordinate; the last per cent of accuracy does not matter here."""
SOURCE = """CREATE SOURCE s{number} (ts TIMESTAMP, k BIGINT, v DOUBLE, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', nodes = '{node}', rows_per_second = {rate}, fields.k.min = 0, fields.k.max = 19);"""
WINDOW = """CREATE SINK o AS SELECT window_end, k, sum(v) AS total FROM TUMBLE({stream}, ts, INTERVAL '1 second') GROUP BY window_end, k
WITH (connector = 'discard', node = '{sink}')"""
JOIN = """CREATE SINK o AS SELECT a.ts, a.k, a.v + b.v AS v FROM s0 AS a JOIN s1 AS b
ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '20 milliseconds' AND a.ts + INTERVAL '20 milliseconds'
WITH (connector = 'discard', node = '{sink}')"""


def network_of(matrix: Path | None, seed: int) -> Network:
    """Returns the network of a file; without one, cities of the world."""
    return from_matrix(build(CitiesConfig(), CITIES, seed).rtt_ms) if matrix is None else read_network(matrix)


def evaluate_bounds(network: Network, queries: int, share: float, seed: int, report: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Returns the usage paid for bounds, and the numbers of refused queries.

    Parameters
    ----------
    share : a query's bound, as a share of the latency predicted for its placement without a bound
    """
    coordinate_rng, query_rng, node_rng, place_rng = np.random.default_rng(seed).spawn(4)
    found = settled(network, ROUNDS, coordinate_rng, report)
    truth = KnownLatencies(network.names, network.rtt_ms)
    runner = Runner("least-usage", network, found, truth, place_rng, 0.0)
    world = _World(network, runner, truth, resources(network, node_rng), place_rng)
    each: list[dict[str, Any]] = []
    for number in range(queries):
        report("bounds, queries", number, queries)
        each.append(world.one(*drawn(network, query_rng), share))
    report("bounds, queries", queries, queries)
    paid = [one["paid"] for one in each if one["paid"] is not None]
    refused = [one for one in each if one["refused"]]
    return {
        "queries": queries,
        "nodes": len(network.names),
        "share": share,
        "admitted": len(paid),
        "paid_p50": float(np.median(paid)) if paid else None,
        "paid_p90": float(np.quantile(paid, 0.9)) if paid else None,
        "paid_mean": float(np.mean(paid)) if paid else None,
        "moved": sum(one["moved"] for one in each if one["paid"] is not None),
        "refused": len(refused),
        "refused_checked": sum(one["possible"] is not None for one in refused),
        "refused_wrongly": sum(one["possible"] is True for one in refused),
        "without_end": sum(one["bound_ms"] is None for one in each),
        "seconds_p50": float(np.median([one["seconds"] for one in each])),
    }


def resources(network: Network, rng: np.random.Generator) -> dict[NodeId, NodeResources]:
    """Draws the resources of the nodes: cores, speed and use by other programs."""
    made = {}
    for name in network.names:
        cores = int(rng.choice(CORES))
        used = (float(rng.uniform(0.0, USED_MAX) * cores),) * 10
        speed = float(np.exp(rng.normal(0.0, SPEED_SCATTER)))
        made[name] = NodeResources(
            node=name, cores=cores, speed=around(speed, 0.02 * speed, Source.MEASURED, samples=9), others=UseSeries(used)
        )
    return made


def drawn(network: Network, rng: np.random.Generator) -> tuple[Plan, dict[str, float]]:
    """Draws a query: a window over one stream or two, or a join. Returns its plan, and the ns of a row by signature."""
    shape = int(rng.integers(3))
    nodes = [network.names[place] for place in rng.choice(len(network.names), 3, replace=False)]
    sources = 1 if shape == 0 else 2
    text = [SOURCE.format(number=number, node=nodes[number], rate=int(rng.integers(*RATES))) for number in range(sources)]
    if shape == 2:
        text.append(JOIN.format(sink=nodes[2]))
    else:
        if sources == 2:
            text.append("CREATE VIEW both AS SELECT ts, k, v FROM s0 UNION ALL SELECT ts, k, v FROM s1;")
        text.append(WINDOW.format(stream="s0" if sources == 1 else "both", sink=nodes[2]))
    plan = plan_of("\n".join(text), network.names, nodes[2])
    row_ns = {}
    for spec in (spec for spec in plan.operators if spec.pinned is None):
        rate = sum(link.rate_rows_per_s for link in plan.links if link.target == spec.id)
        row_ns[spec.signature] = float(np.exp(rng.uniform(*np.log(LOAD)))) * 1e9 / max(1.0, rate)
    return plan, row_ns


def in_bursts(query: PlacedQuery) -> PlacedQuery:
    """Returns the query with sources that all have their high periods at the same time."""
    width_s = 0.25
    at_s = width_s * np.arange(round(15 * EVERY_S / width_s))
    low = (EVERY_S - HIGH_OVER_MEAN * HIGH_S) / (EVERY_S - HIGH_S)
    shape = np.where(at_s % EVERY_S < HIGH_S, HIGH_OVER_MEAN, low)
    rates = query.rows_per_s()
    batches = np.full(len(shape), SOURCE_BATCHES_PER_S * width_s)
    arrivals = {
        spec.id: Series(0.0, width_s, rates[spec.id] * width_s * shape, batches, 0.0 * shape) for spec in query.sources if spec.id in rates
    }
    return msgspec.structs.replace(query, arrivals=arrivals)


def plan_of(text: str, nodes: tuple[NodeId, ...], home: NodeId) -> Plan:
    """Returns the plan of the last statement; the earlier statements create sources and views."""
    catalog = Catalog()
    *before, last = parse(text)
    for number, statement in enumerate(before):
        if isinstance(statement, CreateSource):
            source = msgspec.structs.replace(statement.definition, home=home)
            catalog.put("source", statement.name, sql=statement.sql, owner=home, stamp=number, source=source)
        else:
            catalog.put("view", statement.name, sql=statement.sql, owner=home, stamp=number)  # type: ignore[union-attr]
    assert isinstance(last, CreateSink)
    return planned(last, catalog, {name: {} for name in nodes}, home, "q")


def known_costs(spec: OperatorSpec, batch_ns: float, row_ns: float) -> OperatorStatistics:
    """Returns the statistics of an operator after long measurement: a law known within 2 %, and the selectivity that the plan expects."""
    coefficients = rule_law(batch_ns, row_ns, 0.0).coefficients
    law = Law(
        coefficients=coefficients,
        covariance=tuple(map(tuple, np.diag((0.01 * np.array(coefficients)) ** 2).tolist())),
        source=Source.MEASURED,
        scatter=0.05,
        samples=10_000.0,
    )
    expected = max(1e-9, spec.selectivity)
    port = PortStatistics(law=law, selectivity=around(expected, 0.01 * expected, Source.MEASURED, samples=10_000.0))
    return OperatorStatistics(signature=spec.signature, ports=(port,) * max(1, spec.ports))


class _World:
    """Nodes with their resources, and the steps by which an agent places and admits a query."""

    def __init__(
        self,
        network: Network,
        runner: Runner,
        truth: KnownLatencies,
        nodes: dict[NodeId, NodeResources],
        rng: np.random.Generator,
    ) -> None:
        self._network, self._runner, self._truth, self._nodes, self._rng = network, runner, truth, nodes, rng

    def one(self, plan: Plan, row_ns: dict[str, float], share: float) -> dict[str, Any]:
        cost_store = self._cost_store(plan, row_ns)
        tally = Tally()
        _, decision = self._runner.decided(problem_of(plan), tally)
        free = placed_as(plan, decision)
        upper_s, _ = latest_s(in_bursts(gathered(cost_store, plan, free, 0.0)))
        if math.isinf(upper_s):
            return {"bound_ms": None, "paid": None, "refused": False, "possible": None, "moved": False, "seconds": tally.seconds}
        bound_ms = share * upper_s * 1e3
        bounded = msgspec.structs.replace(plan, max_latency_ms=bound_ms)
        ended = self._admitted(bounded, cost_store, bound_ms, tally)
        result: dict[str, Any] = {"bound_ms": bound_ms, "refused": isinstance(ended, Refused), "seconds": tally.seconds}
        if isinstance(ended, Refused):
            return result | {"paid": None, "moved": False, "possible": self._possible(bounded, cost_store, bound_ms)}
        before, after = self._usage(plan, free), self._usage(plan, ended.placed)
        return result | {"paid": after / before - 1 if before > 0 else 0.0, "moved": ended.placed.nodes != free.nodes, "possible": True}

    def _admitted(self, plan: Plan, cost_store: CostStore, bound_ms: float, tally: Tally) -> Admitted | Refused:
        admission = Admission(plan)
        action: Any = admission.begin()
        while isinstance(action, Attempt):
            try:
                optimiser, decision = self._runner.decided(problem_of(action.plan), tally, action.excluded)
            except SbonError as problem:
                action = admission.unplaceable(problem)
                continue
            placed = placed_as(action.plan, decision)
            other = placed_within(placed, in_bursts(gathered(cost_store, plan, placed, 0.0)), bound_ms, UNLOADED, self._rng)
            if other is not None:
                placed = placed_as(action.plan, optimiser.elsewhere(other))
            action = admission.predicted(placed, in_bursts(gathered(cost_store, plan, placed, 0.0)))
        return action  # type: ignore[no-any-return]

    def _possible(self, plan: Plan, cost_store: CostStore, bound_ms: float) -> bool | None:
        """Tells whether any placement keeps the bound, by true latencies; None if there are too many to try."""
        names = self._network.names
        free = [spec.id for spec in plan.operators if spec.pinned is None]
        if len(names) ** len(free) > EXHAUSTIVE_MAX * EXHAUSTIVE_MAX:
            return None
        order = tuple(spec.id for spec in plan.operators)
        row = {name: place for place, name in enumerate(names)}
        links = [(a, b, self._truth.one_way_ms(a, b), True) for a in names for b in names if a != b]
        base = placed_query(cost_store, plan, {spec.id: spec.pinned or names[0] for spec in plan.operators}, links, now=0.0)
        query = msgspec.structs.replace(in_bursts(base), nodes={name: cost_store.nodes.of(name, 0.0) for name in names})

        def judge(nodes: tuple[NodeId, ...]) -> tuple[float, dict[NodeId, float]]:
            upper_s, behind = judged(msgspec.structs.replace(query, node_of=dict(zip(order, nodes, strict=True))))
            return upper_s, dict(behind)

        one_way_s = self._truth.matrix_ms(names, names) / 1e3
        choices = Choices(
            nodes=names,
            options=tuple((row[spec.pinned],) if spec.pinned is not None else tuple(range(len(names))) for spec in plan.operators),
            host_cost=tuple((0.0,) if spec.pinned is not None else (0.0,) * len(names) for spec in plan.operators),
            links=tuple((order.index(link.source), order.index(link.target)) for link in plan.links),
            link_cost=np.repeat(one_way_s[None], len(plan.links), axis=0),
            least_s=1.1 * one_way_s,
        )
        possible = choices.ways_s(choices.all()) <= bound_ms / 1e3
        if possible.sum() > EXHAUSTIVE_MAX:
            return None
        return least_cost_within(choices, judge, bound_ms / 1e3, self._rng, judged_max=EXHAUSTIVE_MAX) is not None

    def _cost_store(self, plan: Plan, row_ns: dict[str, float]) -> CostStore:
        """Returns a cost store as if every operator had run, with the drawn costs and the selectivities that the plan expects."""
        cost_store = CostStore("n")
        for name, node in self._nodes.items():
            cost_store.nodes.told(name, node, 0.0)
        cost_store.statistics.restore([known_costs(spec, BATCH_NS, row_ns.get(spec.signature, 2e3)) for spec in plan.operators], 0.0)
        return cost_store

    def _usage(self, plan: Plan, placed: Placed) -> float:
        return NetworkUsage().of_assignment(problem_of(plan), placed.decision.assignment, Conditions(self._truth))
