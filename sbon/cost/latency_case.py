"""A case of a placed query: its operators and links with their work over time, all figures at one edge, and the latency that follows.

At the high edge, errors of shares of rows that were measured apart do not add up (`sbon.cost.independent_errors`).

The graph of the plan becomes a graph of operators on nodes and on links (Mace, section VII-B), with the work that `flow` computes.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from sbon.cost.arrivals import Series
from sbon.cost.completions import circles, grouped
from sbon.cost.figure import Edge
from sbon.cost.flow import Flow, FlowGraph, FlowLink, OperatorFlow
from sbon.cost.flow_by_way import Carrier, work_by_way
from sbon.cost.independent_errors import at_high_edge
from sbon.cost.load import Input, OperatorCost, Polynomial, Source, Upstream
from sbon.cost.mace import Expected, Terms, beyond_a_core, expected, lemma_epsilon_s, lower_s, overloaded, upper_s
from sbon.cost.merged_batches import SLICE_ROWS, shares_of_batches, wait_for_later_rows_s
from sbon.cost.node_excess import Nodes, excess_s
from sbon.cost.placed_query import PlacedQuery
from sbon.cost.ways import Role, Ways, by_way
from sbon.types import FloatArray, IntArray, NodeId, OperatorId

LADDER = ((0.01, 16), (0.02, 32), (0.1, 64), (1.0, 64))
"""Widths (s) and numbers of intervals to try, in order. The narrowest width is the pace of sources: an interval has one batch of each."""
BURST_S = 0.25
"""Width of the intervals where sources have bursts, which are known by quarters of a second; their number is `PlacedQuery.detail`."""
PARTS = 4
"""Parts of a measured interval for which arrivals in bursts are estimated; the time of a prediction grows with them."""
WAITS = 2
"""Number of times that a batch waits for a processor at each node: when it arrives, and when its task runs."""
WAITING = "waiting for processors"
DRAINED_S = 1e-9
"""Work left at the end, in s, that counts as rounding."""
PROPAGATION_ERROR = 0.1
"""Share by which a one-way latency may differ from half of a measured round trip; without a measurement, three times that."""


def propagation_s(query: PlacedQuery, source: NodeId, target: NodeId, edge: Edge) -> float:
    """Returns the one-way latency at an edge."""
    error = PROPAGATION_ERROR if query.network.is_measured(source, target) else 3 * PROPAGATION_ERROR
    return query.network.propagation_s(source, target) * {Edge.LOW: 1 - error, Edge.EXPECTED: 1.0, Edge.HIGH: 1 + error}[edge]


def ladder(query: PlacedQuery) -> tuple[tuple[float, int], ...]:
    """Returns widths (s) and numbers of intervals to try, in order: shorter periods first."""
    return (bursts(query),) if query.arrivals else LADDER


def bursts(query: PlacedQuery) -> tuple[float, int]:
    """Returns the width (s) and the number of intervals where sources have bursts."""
    return BURST_S, query.detail.intervals


class Case:
    """One walk: all figures at one edge."""

    def __init__(
        self,
        query: PlacedQuery,
        edge: Edge,
        width_s: float,
        intervals: int,
        parts: int = PARTS,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.query, self.edge, self.width_s = query, edge, width_s
        self._is_drawn = rng is not None
        graph = query.flow(edge)
        self._series = query.series(intervals, width_s, parts if edge is Edge.EXPECTED else 1, rng)
        flow = graph.series(self._series)
        row, link_row = graph.index, {name: number for number, name in enumerate(flow.links)}
        slow_or_fast = {Edge.LOW: Edge.HIGH, Edge.HIGH: Edge.LOW}.get(edge, edge)
        self.names: list[NodeId] = list(dict.fromkeys(query.node_of[spec.id] for spec in query.plan.operators))
        hosts = query.nodes_at(tuple(self.names), slow_or_fast, intervals, width_s)
        if edge is Edge.HIGH:
            flow = _at_high_edge(query, graph, flow, self._series, self.names, hosts.cores)
        self.operators: list[OperatorCost] = []
        self._where: list[int] = []
        self._work: list[FloatArray] = []
        self._grain: list[float] = []
        self._carriers: list[Carrier] = []
        self._incoming: list[tuple[FlowLink, ...]] = []
        self.pairs: dict[tuple[NodeId, NodeId], int] = {}
        number: dict[OperatorId, int] = {}
        numbers: list[int] = []
        per_batch, flows = query.rows_per_batch(), graph.operators
        for place, spec in enumerate(query.plan.operators):
            node = query.node_of[spec.id]
            here = self.names.index(node)
            inputs: list[Input] = []
            links = graph.incoming(spec.id)
            for link in links:
                sender = query.node_of[link.source]
                if sender == node:
                    inputs.append(Upstream(number[link.source]))
                    continue
                way = len(self.names) + self.pairs.setdefault((sender, node), len(self.pairs))
                size_bytes = flows[link.source].row_bytes * per_batch[spec.id]
                self._add((Upstream(number[link.source]),), way, flow.link_bytes[link_row[link.id]], size_bytes, link)
                inputs.append(Upstream(len(self.operators) - 1, propagation_s(query, sender, node, edge)))
            if not inputs:
                inputs.append(Source(place))
                if (begun_s := query.begun_s.get(spec.id, 0.0)) > 0:
                    self._add(tuple(inputs), here, np.zeros(intervals), 0.0)
                    inputs = [Upstream(len(self.operators) - 1, begun_s)]
            number[spec.id] = len(self.operators)
            batch_ns = max((port.per_batch_ns + port.per_row_ns * per_batch[spec.id] for port in flows[spec.id].ports), default=0.0)
            self._add(tuple(inputs), here, flow.load_ns[row[spec.id]], batch_ns, flows[spec.id], links)
            numbers.append(number[spec.id])
        bandwidths = [query.network.bandwidths.of(*pair, query.now).at(slow_or_fast) for pair in self.pairs]
        left = np.ones((len(self.pairs), intervals))
        self.nodes = Nodes(
            np.concatenate([hosts.capacity_per_s, bandwidths]),
            np.concatenate([hosts.cores, np.ones(len(bandwidths), dtype=np.int64)]).astype(np.int64),
            None if hosts.left is None else np.concatenate([hosts.left, left]),
        )
        self.node_of, self.work, self.grain = np.array(self._where, dtype=np.int64), np.array(self._work), np.array(self._grain)
        self._kept: FloatArray | None = None
        """Share of the work of each operator that is left where batches are processed together; None if all are processed one by one."""
        if query.arrivals:
            self._kept = np.ones_like(self.work)
            self._kept[numbers] = self._merged(flow, graph)
        self._of_batch = self._uneven(flow, graph) if query.arrivals and edge is Edge.EXPECTED else np.ones((len(self.operators), 1))
        if self._kept is not None:
            self.work = self.work * self._kept
        self.answers = flow.rows_in[row[query.plan.operators[-1].id]] * query.measured(intervals, width_s)

    def _uneven(self, flow: Flow, graph: FlowGraph) -> FloatArray:
        """Returns the work of a batch up to each end, as a share of that of a mean batch: (operators, intervals + 1).

        Batches are larger in bursts. Behind windows and joins, whose rows do not come with those of the sources, all are mean ones.
        """
        found = np.ones((len(self.operators), self.work.shape[1] + 1))
        bent: set[OperatorId] = set()
        for number, (carrier, links) in enumerate(zip(self._carriers, self._incoming, strict=True)):
            if any(link.source in bent for link in links):
                bent.update((carrier.id,) if isinstance(carrier, OperatorFlow) else ())
                continue
            if isinstance(carrier, OperatorFlow) and (carrier.join is not None or carrier.window is not None):
                bent.add(carrier.id)
            if carrier is None or self.grain[number] <= 0:
                continue
            batches = flow.batches[graph.index[carrier.source if isinstance(carrier, FlowLink) else carrier.id]]
            work = np.divide(self.work[number], batches, out=np.zeros(len(batches)), where=batches > 0)
            found[number, 1:] = work / self.grain[number]
            found[number, 0] = found[number, 1]
        return found

    def _merged(self, flow: Flow, graph: FlowGraph) -> FloatArray:
        """Returns the share of the work of each operator of the plan that is left where batches that wait are processed together.

        Only for operators without windows and joins before them, whose rows come with those of the sources. The backlog is followed by
        quarters of a second. At the high edge, work that comes from other nodes may come slowly, so that no batches wait.
        """
        specs = self.query.plan.operators
        rows = [graph.index[spec.id] for spec in specs]
        found = np.ones((len(specs), self.work.shape[1]))
        each = max(1, round(BURST_S / self.width_s))
        starts = np.arange(0, found.shape[1], each)
        taken, batches, fixed, load = (
            np.add.reduceat(one[rows], starts, axis=1) for one in (flow.rows_in, flow.batches, flow.fixed_ns, flow.load_ns)
        )
        can = np.add.reduceat(self.nodes.per_interval(self.width_s, found.shape[1]), starts, axis=1)
        bent, is_bound = _behind_windows(graph), self.edge is Edge.HIGH
        for place, name in enumerate(self.names):
            here = [number for number, spec in enumerate(specs) if self.query.node_of[spec.id] == name]
            left = can[place] - sum(load[number] for number in here if specs[number].id in bent)
            here = [number for number in here if specs[number].id not in bent]
            if is_bound and any(self.query.node_of[link.source] != name for number in here for link in graph.incoming(specs[number].id)):
                left = np.full(len(left), np.inf)
            costs = [graph.operators[specs[number].id].ports[0].per_row_ns for number in here]
            quantum_ns = self.query.quantum_s * self.nodes.capacity_per_s[place]
            most = np.array([max(SLICE_ROWS, quantum_ns / max(cost, 1e-3)) for cost in costs])
            of_rows = load[here] - fixed[here]
            shares = shares_of_batches(taken[here], batches[here], fixed[here], of_rows, left, each * self.width_s, most, is_bound=is_bound)
            whole = np.where(load[here] > 0, load[here], 1.0)
            kept = (of_rows + shares * fixed[here]) / whole
            found[here] = np.repeat(np.where(load[here] > 0, kept, 1.0), each, axis=1)[:, : found.shape[1]]
        return found

    def is_drained(self) -> bool:
        """Tells whether no node or link is behind at the end."""
        return float(excess_s(self.work, self.node_of, self.nodes, self.width_s)[:, -1].max()) <= DRAINED_S

    def is_behind(self) -> bool:
        """Tells whether a node or link is behind at any time."""
        return float(excess_s(self.work, self.node_of, self.nodes, self.width_s).max()) > DRAINED_S

    def is_on_one_way(self) -> bool:
        """Tells whether the work of each node comes on one way, and no nodes send to each other in a circle."""
        groups = grouped(self.operators, self.node_of.tolist(), len(self.nodes.cores))
        return not self.has_circle() and max(map(len, groups)) == 1

    def has_circle(self) -> bool:
        """Tells whether nodes send to each other in a circle."""
        return any(is_circle for _, is_circle in circles(self.operators, self.node_of.tolist(), len(self.nodes.cores)))

    def overloaded(self) -> tuple[str, ...]:
        """Returns the nodes and links with more load than capacity over the whole time."""
        return tuple(self._name(number) for number in overloaded(self.work, self.node_of, self.nodes, self.width_s))

    def beyond_a_core(self) -> tuple[OperatorId, ...]:
        """Returns the operators with more work than one core can do, on nodes of several cores."""
        found = [self._carriers[number] for number in beyond_a_core(self.work, self.node_of, self.nodes, self.width_s)]
        several = {name for name, cores in zip(self.names, self.nodes.cores, strict=False) if cores > 1}
        return tuple(one.id for one in found if isinstance(one, OperatorFlow) and self.query.node_of[one.id] in several)

    def least_s(self) -> float:
        """Returns the lower bound of the worst case in s."""
        return max(float(self.mace_over_time_s().max()), self._longest_s())

    def expected(self) -> Expected:
        """Returns the expected latency of the latest answers, with work by the way on which it comes."""
        late = [place for place, one in enumerate(self._carriers) if isinstance(one, OperatorFlow) and (one.join or one.window)]
        ways = by_way(self.operators, self.node_of, answering_late=late)
        several = len(ways.operators) > len(self.operators)
        work = work_by_way(ways, self._carriers, self._incoming, self._series) if several else self.work
        if several and self._kept is not None:
            work = work * self._kept[ways.of]
        service_s, even = self._service(ways), not self._is_drawn
        where, ahead_s = self.node_of[ways.of], self._ahead_s()
        return expected(ways.operators, work, where, self.nodes, self.width_s, service_s, of=ways.of, even=even, ahead_s=ahead_s)

    def _ahead_s(self) -> FloatArray | None:
        """Returns the time by which rows at each end are earlier than the last rows of their batches; None without known bursts."""
        if self._kept is None:
            return None
        count, rows = len(self.names), np.sum([one.rows for one in self._series.values()], axis=0)
        behind_s = excess_s(self.work, self.node_of, self.nodes, self.width_s)[:count]
        latest = int(np.argmax(behind_s.max(axis=1)))
        of_row = float(self.work[self.node_of == latest].sum()) / max(1e-9, float(rows.sum()))
        full_s = SLICE_ROWS * of_row / float(self.nodes.capacity_per_s[latest] * self.nodes.cores[latest])
        return wait_for_later_rows_s(rows, self.width_s, np.concatenate([[0.0], behind_s[latest]]), SLICE_ROWS, full_s)

    def upper_s(self) -> float:
        """Returns the upper bound of the latency in s."""
        return float(self.upper_over_time_s().max())

    def mace_over_time_s(self) -> FloatArray:
        """Returns how far the node or link with the greatest backlog is behind at the end of each interval: (intervals,)."""
        return lower_s(self.operators, self.work, self.node_of, self.nodes, self.width_s)

    def epsilon_s(self) -> float:
        """Returns the paper's epsilon: a batch of each operator."""
        return lemma_epsilon_s(self.grain, self.node_of, self.nodes)

    def upper_over_time_s(self) -> FloatArray:
        """Returns the latency that no answer of each interval exceeds: (intervals,)."""
        query = self.query
        wait_s = WAITS * max(query.nodes[name].longest_wait_s() for name in self.names)
        terms = Terms(blocking_s=query.quantum_s + wait_s, pace_s=query.pace_s, clock_s=query.clock_s)
        even = not query.arrivals  # bursts begin and end within intervals
        found = upper_s(self.operators, self.work, self.node_of, self.nodes, self.width_s, self.grain, terms, even=even)
        return found if even else self._with_later_rows(found)

    def _with_later_rows(self, late_s: FloatArray) -> FloatArray:
        """Returns upper bounds of rows that are answered with the last row of their batch: (intervals,).

        Batches that wait are taken together, so the last row may be as much later as a full batch takes to come, but not later than this
        row would be done."""
        rows = np.sum([one.rows for one in self._series.values()], axis=0)
        ends_s = self.width_s * np.arange(len(rows) + 1)
        behind_s = np.concatenate([[0.0], late_s])
        ahead_s = wait_for_later_rows_s(rows, self.width_s, 2 * behind_s, 2 * SLICE_ROWS, 0.0)[1:]
        done_s: FloatArray = np.interp(ends_s[1:] + ahead_s, ends_s[1:], ends_s[:-1] + late_s)
        return done_s - ends_s[:-1]

    def _add(
        self,
        inputs: tuple[Input, ...],
        where: int,
        work: FloatArray,
        grain: float,
        carrier: Carrier = None,
        incoming: tuple[FlowLink, ...] = (),
    ) -> None:
        """Adds an operator on a node, or a stream on a link."""
        linear = Polynomial((1.0,) * len(inputs))
        self.operators.append(OperatorCost(inputs, linear, linear))
        self._where.append(where)
        self._work.append(work)
        self._grain.append(grain)
        self._carriers.append(carrier)
        self._incoming.append(incoming)

    def _service(self, ways: Ways) -> FloatArray:
        """Returns the time in s from a batch's arrival at each operator's node until the operator has done it: (ways, intervals + 1), or
        (ways, 1) if all batches are alike.

        A batch waits once for the node's processors, when it arrives.
        """
        node_of = self.node_of[ways.of]
        found = self._of_batch[ways.of] * (self.grain[ways.of] / self.nodes.capacity_per_s[node_of])[:, None]
        if self._is_drawn:  # the work of each batch comes at once
            found = np.zeros((len(ways.operators), 1))
        for way, operator in enumerate(ways.operators):
            local = [
                found[one.operator]
                for one in operator.inputs
                if isinstance(one, Upstream) and one.delay_s == 0.0 and node_of[one.operator] == node_of[way]
            ]
            # The work of a batch has been counted where it came.
            before = functools.reduce(np.maximum, local) if local else self._wait_s(int(node_of[way]))
            found[way] = before + (0.0 if ways.roles[way] is Role.REST else found[way])
        return found

    def _wait_s(self, number: int) -> float:
        """Returns for how long a batch usually waits for the processors of a node; 0 for a link."""
        return self.query.nodes[self.names[number]].usual_wait_s(self.edge) if number < len(self.names) else 0.0

    def rare_wait_s(self, share: float) -> float:
        """Returns the excess in s over the usual wait of the longest wait that this small share of answers meets on its way."""
        of_each = share / (WAITS * len(self.names))
        return max(max(0.0, self.query.nodes[name].rare_wait_s(of_each) - self._wait_s(place)) for place, name in enumerate(self.names))

    def answers_per_s(self) -> float:
        """Returns the batches that the sink is expected to take each second."""
        paces, sink = self.query.paces(), self.query.plan.operators[-1].id
        return sum(paces[link.source].batches_per_s for link in self.query.plan.links if link.target == sink)

    def _longest_s(self) -> float:
        """Returns the longest path through the graph in s if nothing waits: work of one batch, transfer and propagation."""
        alone, found = self.grain / self.nodes.capacity_per_s[self.node_of], np.zeros(len(self.operators))
        for number, operator in enumerate(self.operators):
            ways = [found[one.operator] + one.delay_s for one in operator.inputs if isinstance(one, Upstream)]
            found[number] = alone[number] + max(ways, default=0.0)
        return float(found.max())

    def named(self, parts_s: dict[int, float], propagation_s: float, longest_wait_s: float) -> dict[str, float]:
        """Returns the parts of the worst case in s, by name: nodes and links without the waits there, all waits, and the network."""
        found: dict[str, float] = {}
        waiting_s = longest_wait_s
        for number, part in parts_s.items():
            wait_s = min(part, self._wait_s(number))
            found[self._name(number)] = found.get(self._name(number), 0.0) + part - wait_s
            waiting_s += wait_s
        if waiting_s > 0:
            found[WAITING] = waiting_s
        if propagation_s > 0:
            found["network"] = propagation_s
        return found

    def _name(self, number: int) -> str:
        if number < len(self.names):
            return self.names[number]
        sender, node = next(pair for pair, place in self.pairs.items() if place == number - len(self.names))
        return f"link {sender} > {node}"


def expected_case(query: PlacedQuery) -> Case:
    """Returns the expected case: the shortest period in which the peak of the query's own work is done, or the last minute, if a burst of
    other programs or of running queries makes answers later there.

    The short periods see only the latest seconds of the use by others. Where sources have bursts, the case has parts of the measured
    intervals, but not where nodes send to each other in circles: there the prediction would take seconds.
    """
    if query.arrivals:
        width_s, intervals = bursts(query)
        whole = Case(query, Edge.EXPECTED, width_s, intervals)
        return whole if whole.has_circle() else Case(query, Edge.EXPECTED, width_s / PARTS, PARTS * intervals)
    short, minute = case_at(query, Edge.EXPECTED), Case(query, Edge.EXPECTED, *LADDER[-1])
    if short.width_s == minute.width_s or not minute.is_behind() or minute.overloaded():
        return short
    return max(short, minute, key=lambda case: float(case.expected().likely_s.max()))


def case_at(query: PlacedQuery, edge: Edge) -> Case:
    """Returns the case of the shortest period of the ladder in which all work of its peak is done, else of the longest."""
    for width_s, intervals in ladder(query):
        case = Case(query, edge, width_s, intervals)
        if case.is_drained():
            break
    return case


def _at_high_edge(
    query: PlacedQuery, graph: FlowGraph, flow: Flow, series: Mapping[OperatorId, Series], names: Sequence[NodeId], cores: IntArray
) -> Flow:
    """Returns the flow of all figures together at their high edge, of that of each figure at its own."""
    expected = query.flow(Edge.EXPECTED)
    sources = {
        spec.id: tuple(one for port in query.statistics[spec.id].ports for one in (port.law.source, port.selectivity.source))
        for spec in query.plan.operators
    }
    node_of = np.array([names.index(query.node_of[spec.id]) for spec in query.plan.operators], dtype=np.int64)
    ends = [(names.index(query.node_of[link.source]), names.index(query.node_of[link.target])) for link in query.plan.links]
    link_of = np.array([-1 if one == other else one * len(names) + other for one, other in ends], dtype=np.int64)
    return at_high_edge((expected, expected.series(series)), (graph, flow), sources, node_of, link_of, cores)


def _behind_windows(graph: FlowGraph) -> set[OperatorId]:
    """Returns the windows and joins, and all operators that get rows of one, whose rows do not come with those of the sources."""
    found = {name for name, one in graph.operators.items() if one.join is not None or one.window is not None}
    size = -1
    while len(found) > size:
        size = len(found)
        found |= {name for name in graph.operators if any(link.source in found for link in graph.incoming(name))}
    return found
