"""Computes the highest rates that a placed query carries (docs/throughput.md), and their line in the prediction.

The profile is that of the sources (`profile` in CREATE SOURCE), else their expected rates, or the greatest measured rates where these are
higher. Costs per batch count at the batches per second of a source when some resource is full: faster sources make larger batches, not
more.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sbon.chaining import passes_on
from sbon.cost.chains import chains_of
from sbon.cost.explaining import amount
from sbon.cost.figure import Edge
from sbon.cost.flow import FlowGraph, FlowPolynomials, OperatorFlow
from sbon.cost.line import Line
from sbon.cost.placed_query import PlacedQuery, flow_link
from sbon.cost.polynomial import Polynomial, constant
from sbon.cost.resources import NS_PER_S
from sbon.cost.throughput import Demand, Limit, Profile, Supply, limits
from sbon.query.link_bytes import row_bytes
from sbon.query.params.joined import JoinParams
from sbon.query.params.source import SourceParams
from sbon.query.plan import LinkSpec, Plan
from sbon.types import FloatArray, IntArray, NodeId, OperatorId

MULTIPLE_MAX = 1e6
"""Greatest multiple that is shown; above it, only `more than` this."""
MADE_AHEAD = frozenset({"datagen"})
"""Connectors whose rows threads make ahead (`prefetch`)."""
FULL_PACE_S = 0.05
"""Pause between two batches of a source at a limit, where some resource is full: the longest pause (`engine.batch_interval_s`), because a
source waits longer if the machine is busy or batches are acknowledged late."""
STEADY_S = 10.0
"""Time over which the latest use by others is averaged: others' work of a single second does not limit a sustained rate."""
SETTLING = 8
"""Greatest number of multiples at which batch sizes are computed."""
_OTHER_EDGE = {Edge.LOW: Edge.HIGH, Edge.HIGH: Edge.LOW, Edge.EXPECTED: Edge.EXPECTED}


def profile_of(query: PlacedQuery) -> Profile:
    """Returns the target points: those of the plan, else the expected or the greatest measured rates as the only one."""
    expected = query.rows_per_s()
    for operator, series in query.arrivals.items():
        if len(series.rows) * series.width_s >= 1.0:
            by_second = series.merged(max(1, round(1.0 / series.width_s)))
            expected[operator] = max(expected.get(operator, 0.0), float(by_second.rows.max()) / by_second.width_s)
    rates = {spec.id: expected.get(spec.id, 0.0) for spec in query.sources}
    points = {point.name: {**rates, **{one: rate for one, rate in point.rates if one in rates}} for point in query.plan.profile}
    return points or {"": rates}


class Rates:
    """Demand of a placed query and supply of its nodes, at one edge of all figures.

    Parameters
    ----------
    query : with its placement
    profile : rows per second of each source at each target point
    edge : HIGH for the greatest costs, on nodes and links of the least capacity
    nodes : nodes that may be used; those of the query if left out
    order : plan of the same operators in another order; that of the query if left out
    at : multiple of the profile at which batch sizes and groups of windows are computed
    """

    def __init__(
        self,
        query: PlacedQuery,
        profile: Profile,
        edge: Edge = Edge.EXPECTED,
        nodes: Sequence[NodeId] | None = None,
        order: Plan | None = None,
        at: float = 1.0,
    ) -> None:
        self.query, self.profile, self.edge, self.at = query, profile, edge, at
        self._links = (query.plan if order is None else order).links
        self.nodes = tuple(nodes if nodes is not None else sorted(set(query.node_of.values())))
        self._parts = [_Point(query, rates, edge, order, at) for rates in profile.values()]
        self.demand = self._demand({})
        self.supply = _supply(query, self.nodes, _OTHER_EDGE[edge])
        row = {node: number for number, node in enumerate(self.nodes)}
        self.node_of: IntArray = np.array([row[query.node_of[spec.id]] for spec in query.plan.operators], dtype=np.int64)

    @classmethod
    def settled(cls, query: PlacedQuery, profile: Profile, edge: Edge = Edge.EXPECTED, nodes: Sequence[NodeId] | None = None) -> "Rates":
        """Returns the rates with the batch sizes near the multiple that the query carries, because costs per row depend on the size."""
        at = 1.0
        for _ in range(SETTLING):
            found = cls(query, profile, edge, nodes, at=at)
            binding = found.limits()
            quality = binding[0].quality if binding else at
            if at / 2 <= quality <= at * 2 or quality > MULTIPLE_MAX:
                break
            at = quality if quality > 0 else at / 16
        return found

    @classmethod
    def of_order(cls, first: "Rates", order: Plan) -> "Rates":
        """Returns the rates of the same query in another order."""
        return cls(first.query, first.profile, first.edge, first.nodes, order, first.at)

    def limits(self) -> list[Limit]:
        """Returns the limits of the query as it is placed, the binding one first."""
        return limits(self.demand, self.supply, self.node_of)

    def headroom(self) -> dict[OperatorId, float]:
        """Returns the factor by which the rate of each source may grow while the others keep to the profile; 0 if the others alone are too
        much."""
        found = {}
        for spec in self.query.sources:
            fixed = {other.id for other in self.query.sources if other.id != spec.id}
            binding = limits(self._demand(dict.fromkeys(fixed, True)), self.supply, self.node_of)
            found[spec.id] = binding[0].quality if binding else math.inf
        return found

    def _demand(self, fixed: Mapping[OperatorId, bool]) -> Demand:
        operators = self.query.plan.operators
        row = {spec.id: number for number, spec in enumerate(operators)}
        terms = max(part.degree for part in self._parts) + 1
        return Demand(
            operators=tuple(spec.id for spec in operators),
            work=np.stack([np.stack([part.along(part.work[spec.id], fixed, terms) for spec in operators]) for part in self._parts]),
            memory=np.stack([np.stack([part.along(part.memory[spec.id], fixed, terms) for spec in operators]) for part in self._parts]),
            ends=np.array([(row[link.source], row[link.target]) for link in self._links], dtype=np.int64).reshape(-1, 2),
            sent=np.stack(
                [
                    np.array([part.along(part.sent[link.id], fixed, terms) for link in self._links]).reshape(-1, terms)
                    for part in self._parts
                ]
            ),
            tuple_ns=np.array([self._parts[0].tuple_ns[spec.id] for spec in operators]),
            points=tuple(self.profile),
            chains=chains_of((row[link.source], row[link.target]) for link in self._links if self._is_direct(link)),
        )

    def _is_direct(self, link: LinkSpec) -> bool:
        """Tells whether the target can be in one task with the source, if both are on one node.

        In the model, a target with several inputs cannot: while it works on one input, the operator before the other is a task of its own.
        Neither can the target of a source whose rows any thread may make, or of an operator that other queries use as well.
        """
        source = next(spec for spec in self.query.plan.operators if spec.id == link.source)
        if isinstance(source.params, SourceParams) and source.params.connector in MADE_AHEAD:
            return False
        outputs, inputs = (sum(getattr(one, end) == getattr(link, end) for one in self._links) for end in ("source", "target"))
        return inputs == 1 and link.source not in self.query.shared and passes_on(outputs, is_part=link.part is not None)


class _Point:
    """Work, memory and bytes of one target point, as polynomials of the sources' rates."""

    def __init__(self, query: PlacedQuery, rates: Mapping[OperatorId, float], edge: Edge, order: Plan | None, at: float) -> None:
        self.rates = rates
        given = query.plan
        plan = given if order is None else order
        known = query.operators(edge)
        links = plan.links
        asked = {name: rate * at for name, rate in rates.items()}

        def found_with(flows: list[OperatorFlow]) -> FlowPolynomials:
            if order is not None:
                flows = _with_streams_of(order, given, flows)
            graph = FlowGraph(flows, [flow_link(link, edge) for link in links])
            # Costs per batch are added below: the graph would let the number of batches grow with the rates.
            return graph.polynomials(asked, dict.fromkeys(rates, math.inf))

        # The known selectivities, including those of joins and windows, give the rows of every stream at the requested rates. The rows give
        # the sizes of batches, and these the costs of rows.
        rows = {name: out.at(asked) for name, out in found_with(known).rows_out.items()}
        query = msgspec.structs.replace(query, plan=_with_rows(plan, rows), arrivals={}, pace_s=FULL_PACE_S)
        scaled = {one.id: one for one in query.operators(edge)}
        flows = [_with_costs_of(scaled[one.id], one) for one in known]
        found = found_with(flows)
        batches = query.paces()
        self.work, self.memory, self.sent = dict(found.load_ns), dict[OperatorId, Polynomial](), found.link_bytes
        self.tuple_ns: dict[OperatorId, float] = {}
        per_batch = query.rows_per_batch()
        for spec in query.plan.operators:
            incoming = [link for link in links if link.target == spec.id]
            ports = [port.flow(edge, per_batch[spec.id]) for port in query.statistics[spec.id].ports]
            count = sum(batches[link.source].batches_per_s for link in incoming) if incoming else batches[spec.id].batches_per_s
            is_mine = spec.id not in query.shared
            self.tuple_ns[spec.id] = max(port.per_row_ns for port in ports)
            self.memory[spec.id] = constant(0.0)
            if is_mine:
                self.work[spec.id] = self.work[spec.id].plus(constant(max(port.per_batch_ns for port in ports) * count))
            state = query.statistics[spec.id].state_bytes
            if is_mine and isinstance(spec.params, JoinParams):
                span_s = max(0.0, (spec.params.before_us + spec.params.after_us) / 1e6)
                for link in incoming:
                    self.memory[spec.id] = self.memory[spec.id].plus(self.sent[link.id].scaled(span_s))
            elif is_mine and state is not None:
                self.memory[spec.id] = constant(state.at(edge))
        polynomials = [*self.work.values(), *self.memory.values(), *self.sent.values()]
        self.degree = max((sum(power for _, power in one) for each in polynomials for one in each.terms), default=0)

    def along(self, polynomial: Polynomial, fixed: Mapping[OperatorId, bool], terms: int) -> FloatArray:
        """Returns the coefficients of 1, x, x^2 ... if x multiplies the rates of all sources but the fixed ones."""
        found = np.zeros(terms)
        for exponents, coefficient in polynomial.terms.items():
            degree = 0
            for name, power in exponents:
                coefficient *= self.rates[name] ** power
                degree += 0 if name in fixed else power
            found[degree] += coefficient
        return found


def _with_rows(plan: Plan, rows: Mapping[OperatorId, float]) -> Plan:
    """Returns a plan with these rows out of its operators on its links."""
    return msgspec.structs.replace(
        plan, links=tuple(msgspec.structs.replace(link, rate_rows_per_s=rows[link.source] * link.share) for link in plan.links)
    )


def _with_costs_of(costs: OperatorFlow, flow: OperatorFlow) -> OperatorFlow:
    """Returns an operator with the costs of another batch size."""
    ports = tuple(
        msgspec.structs.replace(port, per_row_ns=now.per_row_ns, per_batch_ns=now.per_batch_ns)
        for port, now in zip(flow.ports, costs.ports, strict=True)
    )
    join = flow.join
    if join is not None and costs.join is not None:
        join = msgspec.structs.replace(join, per_row_out_ns=costs.join.per_row_out_ns)
    return msgspec.structs.replace(flow, ports=ports, join=join)


def _with_streams_of(order: Plan, plan: Plan, flows: Sequence[OperatorFlow]) -> list[OperatorFlow]:
    """Returns the operators with the sizes of their rows in another order: from the plan's stream of equal signature, else from the
    columns."""
    bytes_of = {spec.signature: flow.row_bytes for spec, flow in zip(plan.operators, flows, strict=True)}
    was = {spec.id: spec for spec in plan.operators}
    found = {}
    for spec in order.operators:
        mine = bytes_of[was[spec.id].signature]
        found[spec.id] = bytes_of.get(spec.signature, max(1.0, mine + row_bytes(spec.schema) - row_bytes(was[spec.id].schema)))
    return [msgspec.structs.replace(one, row_bytes=found[one.id]) for one in flows]


def _supply(query: PlacedQuery, nodes: Sequence[NodeId], edge: Edge) -> Supply:
    given = query.nodes_at(tuple(nodes), edge, 1, STEADY_S)
    count = len(nodes)
    bandwidth, propagation_s = np.full((count, count), math.inf), np.zeros((count, count))
    for i, source in enumerate(nodes):
        for j, target in enumerate(nodes):
            if i != j:
                bandwidth[i, j] = query.network.bandwidths.of(source, target, query.now).at(edge)
                propagation_s[i, j] = _one_way_s(query, source, target)
    memory = [query.nodes[node].memory_bytes for node in nodes]
    return Supply(
        nodes=tuple(nodes),
        work=given.per_interval(1.0, 1)[:, 0],
        core=given.of_one_core(1.0, 1)[:, 0],
        memory=np.array([one if one > 0 else math.inf for one in memory]),
        bandwidth=bandwidth,
        propagation_s=propagation_s,
        latency_s_max=math.inf if query.plan.max_latency_ms is None else query.plan.max_latency_ms / 1e3,
    )


def _one_way_s(query: PlacedQuery, source: NodeId, target: NodeId) -> float:
    try:
        return query.network.propagation_s(source, target)
    except KeyError:  # no stream goes there as the query is placed
        return 0.0


def highest_rate(query: PlacedQuery) -> Line | None:
    """Returns the line of `sbon explain`: the multiple of the profile, the binding limit, the next limit, and the headroom of each source.
    None without rates."""
    profile = profile_of(query)
    if not any(rate > 0 for rates in profile.values() for rate in rates.values()):
        return None
    rates = Rates.settled(query, profile)
    found = rates.limits()
    least = Rates.settled(query, profile, Edge.HIGH).limits()
    figures = {**figures_of(found, rates.headroom(), least), "nodes": {node: _there(query, node) for node in rates.nodes}}
    return Line("highest rate", text_of(found, declared=bool(query.plan.profile)), figures)


def _there(query: PlacedQuery, node: NodeId) -> dict[str, float | None]:
    """Returns what a prediction assumes of a node: its speed, the cores that operators can have, those of the agent itself, and the share
    of a core that work without pauses gets."""
    told = query.nodes[node]
    speed = told.speed.value
    free_ns = float(told.capacity_ns(1, STEADY_S)[0]) / STEADY_S
    return {"speed": speed, "operators_cores": free_ns / (speed * NS_PER_S), "agent_cores": told.agent, "share": told.share}


def text_of(found: Sequence[Limit], *, declared: bool) -> str:
    """Returns limits as a sentence for people."""
    what = "profile" if declared else "expected rates"
    if not found or found[0].quality > MULTIPLE_MAX:
        return f"more than {MULTIPLE_MAX:,.0f} times the {what}"
    first = found[0]
    at = f" at {first.point}" if first.point else ""
    text = f"{amount(first.quality)} times the {what}{at}, by {first.what}"
    return text + (f"; next {found[1].what} at {amount(found[1].quality)}" if len(found) > 1 and found[1].quality <= MULTIPLE_MAX else "")


def figures_of(found: Sequence[Limit], headroom: Mapping[OperatorId, float], least: Sequence[Limit] = ()) -> dict[str, object]:
    """Returns limits for programs."""
    return {
        "multiple": found[0].quality if found else None,
        "multiple_low": least[0].quality if least else None,
        "binding": found[0].what if found else None,
        "point": found[0].point if found else None,
        "limits": [
            {
                "what": limit.what,
                "multiple": limit.quality,
                "point": limit.point,
                "nodes": list(limit.nodes),
                "demand": list(limit.demand),
                "supply": limit.supply,
            }
            for limit in found[:8]
        ],
        "headroom": {source: value if math.isfinite(value) else None for source, value in headroom.items()},
    }
