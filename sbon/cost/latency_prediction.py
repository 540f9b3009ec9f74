"""Predicts the latency of a placed query's answers, with bounds: Mace on the query's known figures (docs/mace.md).

It computes three cases: low figures on nodes at their fastest give the lower bound, expected figures the prediction, and high figures on
nodes at their slowest the upper bound.
"""

import math
from typing import Any

import msgspec
import numpy as np

from sbon.cost.figure import Edge, Figure
from sbon.cost.figure import Source as FigureSource
from sbon.cost.latency_case import Case, bursts, case_at, expected_case, ladder, propagation_s
from sbon.cost.mace import Expected, quantile
from sbon.cost.node_excess import excess_s
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.unequal_batches import dispersion
from sbon.types import FloatArray, NodeId, OperatorId

EVEN = 0.05
"""Dispersion up to which batches count as equal."""
HORIZON_S = 60.0
"""Period whose worst case is predicted. The worst case of a longer period is later, because rare waits are long."""
PARTS_SHOWN = 3
PART_LEAST = 0.01
"""Share of the worst case below which a part is not named."""


class LatencyPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of answers, from the entry of the latest row behind them to the sink, in seconds."""

    worst_s: Figure | None
    """None where the latency grows without end; `high` is the greatest float where only the upper bound does."""
    p99_s: float | None
    mean_s: float | None
    parts_s: dict[str, float]
    """Seconds of the worst case by its part: "nyc", "link nyc > ams", "batching", "network"."""
    overloaded: tuple[str, ...] = ()
    """Nodes and links whose load is above their capacity, as expected."""
    beyond_a_core: tuple[OperatorId, ...] = ()
    """Operators of these nodes that alone have more work than one of several cores can do, as expected."""
    at_worst_overloaded: tuple[str, ...] = ()
    """Nodes and links whose load is above their capacity at the high edge of all figures."""

    @property
    def ends(self) -> bool:
        """Tells whether the worst case is finite, as expected."""
        return self.worst_s is not None

    @property
    def upper_s(self) -> float:
        """Returns the upper bound of the worst case; infinite where there is none."""
        return math.inf if self.worst_s is None or self.at_worst_overloaded else self.worst_s.high

    def text(self) -> str:
        """Returns the line for people."""
        if self.worst_s is None or self.p99_s is None or self.mean_s is None:
            return f"never ends: {', '.join(self.overloaded)} {'have' if len(self.overloaded) > 1 else 'has'} {self.overload()}"
        high = "no upper bound" if self.at_worst_overloaded else f"{milliseconds(self.worst_s.high)}"
        bounds = f"({milliseconds(self.worst_s.low)} to {high})"
        if self.at_worst_overloaded:
            bounds = f"({milliseconds(self.worst_s.low)} or more: {', '.join(self.at_worst_overloaded)} may be overloaded)"
        total = sum(self.parts_s.values())
        parts = sorted(((part / total, name) for name, part in self.parts_s.items()), reverse=True)[:PARTS_SHOWN] if total > 0 else []
        made_of = ", ".join(f"{name} {share:.0%}" for share, name in parts if share >= PART_LEAST)
        shown = f"worst {milliseconds(self.worst_s.value)} ms {bounds}, 99 % {milliseconds(self.p99_s)}, mean {milliseconds(self.mean_s)}"
        return shown + (f"; {made_of}" if made_of else "")

    def overload(self) -> str:
        """Returns what overloaded nodes have too much of, for people."""
        alone = ", ".join(self.beyond_a_core)
        return "more load than capacity" + (f" (one core is too little for {alone})" if alone else "")

    def figures(self) -> dict[str, Any]:
        """Returns the figures for programs, in ms; None where a latency grows without end."""
        worst = self.worst_s
        return {
            "worst_ms": None if worst is None else worst.value * 1e3,
            "worst_low_ms": None if worst is None else worst.low * 1e3,
            "worst_high_ms": None if math.isinf(self.upper_s) else self.upper_s * 1e3,
            "p99_ms": None if self.p99_s is None else self.p99_s * 1e3,
            "mean_ms": None if self.mean_s is None else self.mean_s * 1e3,
            "parts_ms": {name: part * 1e3 for name, part in self.parts_s.items()},
            "overloaded": list(self.overloaded),
            "beyond_a_core": list(self.beyond_a_core),
            "may_be_overloaded": list(self.at_worst_overloaded),
        }


def predicted_latency(query: PlacedQuery) -> LatencyPrediction:
    """Returns the latency of a query's answers, with bounds.

    Source
    ------
    Mace, sections IV, VI-C and VII.
    """
    expected, most = expected_case(query), case_at(query, Edge.HIGH)
    overloaded, at_worst = expected.overloaded(), most.overloaded()
    if overloaded:
        return LatencyPrediction(
            worst_s=None,
            p99_s=None,
            mean_s=None,
            parts_s={},
            overloaded=overloaded,
            beyond_a_core=expected.beyond_a_core(),
            at_worst_overloaded=at_worst,
        )
    found, weights = drawn_answers(query, expected)
    late_s = expected.rare_wait_s(min(0.01, 1 / max(1.0, expected.answers_per_s() * HORIZON_S)))  # with few answers, the 99th percentile's
    worst_s = float(found.likely_s.max()) + late_s
    high_s = np.finfo(float).max if at_worst else max(worst_s, most.upper_s())
    return LatencyPrediction(
        worst_s=Figure(
            value=worst_s,
            low=min(case_at(query, Edge.LOW).least_s(), worst_s),
            high=high_s,
            source=max(query.known(), key=list(FigureSource).index),
            samples=min(query.statistics[spec.id].samples for spec in query.plan.operators),
        ),
        p99_s=quantile(found.likely_s, 0.99, weights) + expected.rare_wait_s(0.01),
        mean_s=float(np.average(found.likely_s, weights=weights)),
        parts_s=expected.named(found.parts_s, found.propagation_s, late_s),
        at_worst_overloaded=at_worst,
    )


def drawn_answers(query: PlacedQuery, case: Case) -> tuple[Expected, FloatArray | None]:
    """Returns the expected latency of the latest answers, and the rows of each interval that are answered; None if there are none.

    Where sources have bursts and the work of each node comes on one way, it is that of the median of some draws of batches of unequal size.
    """
    if not query.arrivals or not case.is_on_one_way() or max(map(dispersion, (one.rows for one in query.arrivals.values()))) < EVEN:
        cases, found = [case], [case.expected()]
    else:
        width_s, intervals = bursts(query)
        parts = round(width_s / query.pace_s)
        rng = np.random.default_rng(0)
        cases = [Case(query, Edge.EXPECTED, width_s / parts, parts * intervals, parts, rng) for _ in range(query.detail.draws)]
        found = [one.expected() for one in cases]
    middle = int(np.argsort([float(one.likely_s.max()) for one in found])[len(found) // 2])
    answers = cases[middle].answers
    return found[middle], answers if answers.sum() > 0 else None


def latest_s(query: PlacedQuery) -> tuple[float, dict[NodeId, float]]:
    """Returns the upper bound of the latency in s, infinite if there is none, and by how many s each node is behind at most."""
    most = case_at(query, Edge.HIGH)
    peaks = excess_s(most.work, most.node_of, most.nodes, most.width_s).max(axis=1)
    behind = dict(zip(most.names, peaks.tolist(), strict=False))
    return (math.inf if most.overloaded() else most.upper_s()), behind


def least_way_s(query: PlacedQuery, source: NodeId, target: NodeId) -> float:
    """Returns the least time in s that a link between two nodes adds to an upper bound: propagation, and a quantum each at sender and
    link."""
    return propagation_s(query, source, target, Edge.HIGH) + 2 * query.quantum_s


def likely_worst_s(query: PlacedQuery) -> tuple[float, float]:
    """Returns the key that orders placements of one query: the greatest load / capacity (1 if below), and the expected worst case in s (0
    if the load is above 1)."""
    case = expected_case(query)
    most = max(loads(query).values())
    return (most, 0.0) if most > 1 else (1.0, float(case.expected().likely_s.max()))


def work_s(query: PlacedQuery) -> dict[NodeId, float]:
    """Returns the longest time in s for which the query delays others at once on each node: a batch of each of its operators there, and a
    quantum."""
    case = case_at(query, Edge.HIGH)
    found = np.zeros(len(case.nodes.cores))
    np.add.at(found, case.node_of, case.grain / case.nodes.capacity_per_s[case.node_of])
    return {name: float(found[number]) + query.quantum_s for number, name in enumerate(case.names)}


def loads(query: PlacedQuery) -> dict[NodeId, float]:
    """Returns the share of each node's capacity that the query's operators use, over the longest period."""
    case = Case(query, Edge.EXPECTED, *ladder(query)[-1])
    load = np.zeros(len(case.nodes.cores))
    np.add.at(load, case.node_of, case.work.sum(axis=1))
    can = case.nodes.per_interval(case.width_s, case.work.shape[1]).sum(axis=1)
    return dict(zip(case.names, (load / can).tolist(), strict=False))


def milliseconds(seconds: float) -> str:
    """Returns a time in ms for people: two digits below 10."""
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
