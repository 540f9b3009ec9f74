"""A query with a placement, and the known figures of its operators, nodes and links: the input of every model.

`placed_query` gathers it once; models ask for plain numbers at one edge of all figures (`flow`, `nodes_at`). An operator without known
costs has those of `by_rule`, which are marked as such and have wide bounds.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from sbon.cost.arrivals import Series
from sbon.cost.figure import Edge, Figure, Source, by_rule
from sbon.cost.flow import FlowGraph, FlowLink, JoinFlow, OperatorFlow, PortFlow, WindowFlow
from sbon.cost.law import rule_law
from sbon.cost.node_excess import Nodes
from sbon.cost.resources import NS_PER_S, Network, NodeResources
from sbon.cost.statistics import OperatorStatistics, PortStatistics
from sbon.cost.unequal_batches import dispersion, drawn
from sbon.cost.within_intervals import refined
from sbon.errors import ShapeError
from sbon.query.link_bytes import SOURCE_BATCHES_PER_S, Pace, expected_pace
from sbon.query.params.joined import JoinParams, WindowJoinParams
from sbon.query.params.ordered import DeduplicateParams
from sbon.query.params.rowwise import MapParams
from sbon.query.params.streams import ExchangeParams, MergeParams, MulticastParams, UnionParams
from sbon.query.params.windowed import WindowParams
from sbon.query.plan import LinkSpec, OperatorSpec, Plan
from sbon.types import NodeId, OperatorId

PART_FACTOR = 2.0
"""Rule of thumb: a part of an exchange gets at most so many times the rows that it would get if all parts were equal. With 1,000 keys by
Zipf's law (exponent 1), the fullest of 2, 4 and 8 parts has about 1.2, 1.4 and 1.9 times that."""
LEAST_FLOW = 1e-9
"""Selectivity by rule of an operator that is expected to give nothing."""

NEVER_MORE = (MapParams, DeduplicateParams, ExchangeParams, MergeParams, MulticastParams, UnionParams)
"""Operators that give each consumer at most one row for each row in, whatever a rule of thumb says."""


class BurstDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The effort with which the latency of a query whose sources have bursts is predicted."""

    intervals: int
    """Number of quarters of a second around the greatest burst. 512 have each burst of the measured minute whole, wherever the greatest
    one is."""
    draws: int
    """Draws of batches of unequal size, of which the median counts."""


FINE = BurstDetail(intervals=512, draws=5)
DETAILS: Mapping[str, BurstDetail] = {"fine": FINE, "coarse": BurstDetail(intervals=64, draws=1)}
"""Effort by the value of `optimiser.predictions`."""


class PlacedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A placed query with its figures. Mappings by operator have every operator of `plan`, those by node every node that may be used."""

    plan: Plan
    """With expected rates on its links (`sbon.query.estimate`)."""
    node_of: Mapping[OperatorId, NodeId]
    shared: frozenset[OperatorId] = frozenset()
    """Operators that run already for other queries: their work counts as other use of their nodes."""
    begun_s: Mapping[OperatorId, float] = {}
    """Latency from a source to each shared operator whose inputs are left out of the plan."""
    statistics: Mapping[OperatorId, OperatorStatistics]
    nodes: Mapping[NodeId, NodeResources]
    network: Network
    arrivals: Mapping[OperatorId, Series] = {}
    """Measured arrivals of sources; those left out come evenly, at the rate of their links."""
    detail: BurstDetail = FINE
    network_usage_bytes: float = 0.0
    now: float = 0.0
    """Instant of the prediction, on the clock of the cost store."""
    quantum_s: float = 0.005
    """Longest time for which a batch that has begun keeps a thread (`engine.quantum_s`)."""
    pace_s: float = 1.0 / SOURCE_BATCHES_PER_S
    """Longest time for which a row waits until its source's batch leaves."""
    clock_s: float = 0.0
    """Greatest difference of two hosts' clocks."""

    def __post_init__(self) -> None:
        for spec in self.plan.operators:
            if spec.id not in self.node_of or spec.id not in self.statistics:
                raise ShapeError(f"operator {spec.id!r} without node or statistics, expected both for every operator of the plan")
            if self.node_of[spec.id] not in self.nodes:
                raise ShapeError(f"operator {spec.id!r} is on {self.node_of[spec.id]!r}, of which there are no resources")

    @property
    def sources(self) -> tuple[OperatorSpec, ...]:
        """Returns the operators without inputs: sources, and shared operators whose inputs are left out of the plan."""
        fed = {link.target for link in self.plan.links}
        return tuple(spec for spec in self.plan.operators if spec.id not in fed)

    def rows_per_s(self) -> dict[OperatorId, float]:
        """Returns the expected rows out of each operator that has a link."""
        return {link.source: link.rate_rows_per_s / link.share for link in self.plan.links}

    def known(self) -> dict[Source, int]:
        """Returns the number of operators by the source of their costs."""
        return dict(Counter(self.statistics[spec.id].source for spec in self.plan.operators))

    def flow(self, edge: Edge) -> FlowGraph:
        """Returns the graph with the numbers of one edge of all figures."""
        return FlowGraph(self.operators(edge), [flow_link(link, edge) for link in self.plan.links])

    def operators(self, edge: Edge) -> list[OperatorFlow]:
        """Returns the operators with the numbers of one edge of all figures, in the order of the plan."""
        return [_flow_of(spec, self, edge) for spec in self.plan.operators]

    def paces(self) -> dict[OperatorId, Pace]:
        """Returns the frames per second that each operator is expected to send."""
        rates, found = self.rows_per_s(), dict[OperatorId, Pace]()
        for spec in self.plan.operators:
            inputs = [found[link.source] for link in self.plan.links if link.target == spec.id]
            found[spec.id] = expected_pace(spec.params, rates.get(spec.id, 0.0), inputs, 1.0 / self.pace_s)
        return found

    def series(self, intervals: int, width_s: float, parts: int = 1, rng: np.random.Generator | None = None) -> dict[OperatorId, Series]:
        """Returns the arrivals of all sources. All windows end at once in the middle of the series, as they sometimes do on any clock.

        Parameters
        ----------
        parts : measured arrivals are estimated for so many parts of each of their intervals (`sbon.cost.within_intervals`)
        rng : draws the rows of each part (`sbon.cost.unequal_batches`); if left out, they are as expected
        """
        rates, found = self.rows_per_s(), dict[OperatorId, Series]()
        start_s = -(intervals // 2) * width_s
        for spec in self.sources:
            given = self.arrivals.get(spec.id)
            if given is not None and given.rows.sum() > 0:
                begin_s = begin_s_of(given, intervals, width_s)
                found[spec.id] = _resampled(_in_parts(given, parts, rng), begin_s, start_s, intervals, width_s)
                continue
            rate = rates.get(spec.id, 0.0)
            ones = np.ones(intervals)
            found[spec.id] = Series(start_s, width_s, rate * width_s * ones, min(rate, SOURCE_BATCHES_PER_S) * width_s * ones, 0.0 * ones)
        return found

    def measured(self, intervals: int, width_s: float) -> npt.NDArray[np.bool_]:
        """Tells which intervals of the series have measured arrivals of a source: (intervals,). All, if there are none."""
        found = np.full(intervals, not self.arrivals)
        for given in self.arrivals.values():
            middle_s = begin_s_of(given, intervals, width_s) + (np.arange(intervals) + 0.5) * width_s
            found |= (middle_s > 0) & (middle_s < len(given.rows) * given.width_s)
        return found

    def nodes_at(self, names: tuple[NodeId, ...], edge: Edge, intervals: int, width_s: float) -> Nodes:
        """Returns the capacity of nodes for operators, in reference ns; the edge LOW gives the least."""
        told = [self.nodes[name] for name in names]
        cores = np.array([max(1, int(one.cores)) for one in told], dtype=np.int64)
        speed = np.array([one.speed.at(edge) * min(1.0, one.cores) * NS_PER_S for one in told])
        free = np.array([one.capacity_ns(intervals, width_s, edge) for one in told]).reshape(len(told), intervals)
        return Nodes(speed, cores, np.minimum(1.0, free / (speed * cores * width_s)[:, None]))

    def rows_per_batch(self) -> dict[OperatorId, float]:
        """Returns the rows of a batch at each operator's input, as expected."""
        rates, paces, found = self.rows_per_s(), self.paces(), dict[OperatorId, float]()
        for spec in self.plan.operators:
            incoming = [link.source for link in self.plan.links if link.target == spec.id] or [spec.id]
            rows, batches = sum(rates.get(one, 0.0) for one in incoming), sum(paces[one].batches_per_s for one in incoming)
            found[spec.id] = rows / batches if batches > 0 else 1.0
        return found


def by_rule_of(spec: OperatorSpec, rows_out_per_row: float) -> OperatorStatistics:
    """Returns the statistics of an operator without known figures: costs by rules, and the expected selectivity."""
    selectivity = by_rule(max(LEAST_FLOW, rows_out_per_row)) if spec.ports else Figure(value=1.0, low=1.0, high=1.0, source=Source.RULE)
    if isinstance(spec.params, NEVER_MORE):
        low, value, high = (min(1.0, one) for one in (selectivity.low, selectivity.value, selectivity.high))
        selectivity = msgspec.structs.replace(selectivity, low=low, value=value, high=high)
    port = PortStatistics(law=rule_law(), selectivity=selectivity)
    return OperatorStatistics(signature=spec.signature, ports=(port,) * max(1, spec.ports))


def flow_link(link: LinkSpec, edge: Edge) -> FlowLink:
    """Returns a link as `FlowGraph` reads it, with its share of the rows at one edge."""
    share = link.share if edge is not Edge.HIGH else min(1.0, link.share * PART_FACTOR)
    return FlowLink(link.id, link.source, link.target, link.port, share)


def _flow_of(spec: OperatorSpec, query: PlacedQuery, edge: Edge) -> OperatorFlow:
    """Returns an operator as `FlowGraph` reads it; the output of a join or window is scaled to its expected rows."""
    known, links = query.statistics[spec.id], query.plan.links
    rows_per_batch = query.rows_per_batch()[spec.id]
    given = known.ports if len(known.ports) == max(1, spec.ports) else by_rule_of(spec, spec.selectivity).ports
    ports = tuple(port.flow(edge, rows_per_batch) for port in given)
    out = [link for link in links if link.source == spec.id]
    row_bytes = known.row_bytes.at(edge) if known.row_bytes is not None else 0.0
    if not row_bytes and out and out[0].rate_rows_per_s > 0:
        row_bytes = out[0].rate_bytes_per_s / out[0].rate_rows_per_s
    rates = [0.0] * len(ports)
    for link in links:
        if link.target == spec.id:
            rates[link.port] += link.rate_rows_per_s
    measured = [port.rows_per_s for port in given]
    if all(measured):  # selectivities of joins and windows hold at the rates at which they were measured
        rates = measured
    rows_out = sum(port.selectivity * rate for port, rate in zip(ports, rates, strict=True))
    join = window = None
    match spec.params:
        case WindowParams(slide_us=slide_us, size_us=size_us) if size_us > 1:
            window = WindowFlow(size_s=size_us / 1e6, slide_s=slide_us / 1e6, groups=rows_out * slide_us / 1e6)
        case JoinParams(before_us=before_us, after_us=after_us) if len(ports) == 2:
            before_s, after_s = max(0.0, before_us / 1e6), max(0.0, after_us / 1e6)
            out_of = [port.selectivity * rate for port, rate in zip(ports, rates, strict=True)]
            apart = [port.flow_of_join(edge, rows_per_batch) for port in given]
            per_row_out_ns = sum(cost_ns * out for (_, cost_ns), out in zip(apart, out_of, strict=True)) / rows_out if rows_out > 0 else 0.0
            ports = tuple(port for port, _ in apart)
            join = _join(before_s, max(after_s, 1e-3 - before_s), rows_out, rates, per_row_out_ns)
        case WindowJoinParams(size_us=size_us) if len(ports) == 2:
            join = _join(size_us / 2e6, size_us / 2e6, rows_out, rates)
    if window is not None or join is not None:
        ports = tuple(msgspec.structs.replace(port, selectivity=0.0) for port in ports)
    if spec in query.sources:
        join = window = None
        ports = (PortFlow(selectivity=1.0, per_row_ns=ports[0].per_row_ns, per_batch_ns=ports[0].per_batch_ns),)
    if spec.id in query.shared:
        ports = tuple(msgspec.structs.replace(port, per_row_ns=0.0, per_batch_ns=0.0) for port in ports)
    return OperatorFlow(id=spec.id, ports=ports, join=join, window=window, row_bytes=row_bytes)


def _join(before_s: float, after_s: float, rows_out: float, rates: list[float], per_row_out_ns: float = 0.0) -> JoinFlow:
    pairs = rates[0] * rates[1] * (before_s + after_s)
    selectivity = rows_out / pairs if pairs > 0 else 0.0
    return JoinFlow(selectivity=selectivity, before_s=before_s, after_s=after_s, per_row_out_ns=per_row_out_ns)


def _in_parts(given: Series, parts: int, rng: np.random.Generator | None) -> Series:
    rows, batches, sizes = refined(np.array([given.rows, given.batches, given.size_bytes]), parts)
    if rng is not None:
        rows = drawn(rows, parts, dispersion(given.rows), rng)
    return Series(given.start_s, given.width_s / parts, rows, batches, sizes)


def _resampled(given: Series, begin_s: float, start_s: float, intervals: int, width_s: float) -> Series:
    """Returns measured arrivals in narrower or wider intervals. Before and after what was measured, rows come at the mean rate.

    Parameters
    ----------
    begin_s : start of the first interval, since the start of what was measured
    start_s : the same on the clock of the returned series
    """
    ends = begin_s + np.arange(intervals + 1) * width_s
    edges = np.arange(len(given.rows) + 1) * given.width_s
    beyond_s = np.minimum(ends, 0.0) + np.maximum(ends - edges[-1], 0.0)
    made = []
    for values in (given.rows, given.batches, given.size_bytes):
        by_end = np.interp(ends, edges, np.concatenate([[0.0], np.cumsum(values)])) + beyond_s * values.sum() / edges[-1]
        made.append(np.diff(by_end))
    return Series(start_s, width_s, *(np.maximum(0.0, values) for values in made))


def begin_s_of(given: Series, intervals: int, width_s: float) -> float:
    """Returns the start of the first interval, in s since the start of the measured ones, so that the interval with the most rows is in the
    middle of the series."""
    step_s = min(width_s, given.width_s)  # other steps would divide an interval between two, and blur jumps
    middle_s = (int(np.argmax(given.rows)) + 0.5) * given.width_s
    return float(np.floor((middle_s - intervals * width_s / 2) / step_s + 1e-9) * step_s)
