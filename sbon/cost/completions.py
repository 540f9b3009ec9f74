"""Computes when work is done, by following it from node to node in the order of stimulus times, with the delays upstream.

This is Lindley's recursion with late arrivals: the work of stimulus times up to s is done at a node by

    max over b <= E(s) of  b + (work of stimulus times up to s that can arrive at b or later) / capacity,

where b is the instant at which the node last had none of this work, and E(s) the instant at which the last of this work arrives. Without
delays upstream E(s) = s, and the formula is the cumulative excess. Time is divided by intervals; between their ends, work and arrivals are
taken as even (assumption A-2).
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from sbon.cost.excess import WorkClock
from sbon.cost.free_capacity import FreeCapacity, capacity_of
from sbon.cost.interval_walk import Part, Step, Walk, follow
from sbon.cost.load import OperatorCost, Source, Upstream
from sbon.cost.node_excess import Nodes, check_shapes
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray


class Completions(msgspec.Struct, frozen=True):
    """Instants at which work has arrived and is done. Column 0 is the start; column i covers stimulus times up to the end of interval i."""

    arrived_s: FloatArray
    """(operators, intervals + 1): the last of the work arrives at the operator's node."""
    done_s: FloatArray
    """(operators, intervals + 1): the last of the work is done; NaN for operators whose consumers are all on their own node."""


def completions(
    operators: Sequence[OperatorCost],
    work: FloatArray,
    node_of: IntArray,
    nodes: Nodes,
    width_s: float,
    *,
    late_s: FloatArray | None = None,
    even: bool = True,
    is_bound: bool = False,
    of: IntArray | None = None,
) -> Completions:
    """Returns the instant at which each operator has done its work of all stimulus times up to the end of each interval.

    Nodes whose work all comes on one way are computed for all intervals at once. Others, and nodes that send to each other in a circle, are
    computed interval by interval; the time for each node grows with its groups of inputs and its operators with consumers on other nodes.

    Parameters
    ----------
    operators, work, node_of, nodes, width_s, even : as for `predict`
    late_s : (operators,), added to each completion; or (operators, intervals + 1), that of stimulus times up to each end. 0 if left out
    is_bound : True: no completion is later than returned. False: completions are expected values
    of : (operators,), equal numbers for operators that are ways of the same one (`sbon.cost.ways`), which are never worked on at the same
        time; each is its own if left out

    Raises
    ------
    ShapeError
        The shapes do not fit.
    """
    check_shapes(work, node_of, nodes, width_s)
    if len(operators) != len(work):
        raise ShapeError(f"{len(operators)} operators, work of {len(work)}")
    return _Relay(operators, work, node_of, nodes, width_s, late_s, even, is_bound, of).run()


class _Weighted(NamedTuple):
    """Work of the groups of a node in several weightings; groups that a weighting leaves out have no row."""

    apart: tuple[int, ...]
    """Operators weighed apart from the rest of the node."""
    work: FloatArray
    """(rows, intervals + 1): work of stimulus times up to each end, in seconds of one core; the rows of a weighting follow each other."""
    group: IntArray
    """(rows,): index of the group among those of the node."""
    first: IntArray
    """(weightings,): first row of each weighting."""

    def names(self) -> list[tuple[int, ...]]:
        """Returns a name for each weighting; equal ones on a node have equal work."""
        return [self.apart] if len(self.first) == 1 else [(), *((one,) for one in self.apart)]


def _weighted_of(apart: tuple[int, ...], weightings: Sequence[FloatArray]) -> _Weighted:
    """Returns work by weighting, without the groups that have none.

    Parameters
    ----------
    weightings : each (groups, intervals + 1)
    """
    has = [np.flatnonzero(one[:, -1] > 0) for one in weightings]
    has = [groups if len(groups) else np.zeros(1, dtype=np.int64) for groups in has]
    rows = np.concatenate([one[groups] for one, groups in zip(weightings, has, strict=True)])
    return _Weighted(apart, rows, np.concatenate(has), np.cumsum([0, *map(len, has[:-1])]))


class _Relay:
    """Follows work from node to node, upstream first."""

    def __init__(
        self,
        operators: Sequence[OperatorCost],
        work: FloatArray,
        node_of: IntArray,
        nodes: Nodes,
        width_s: float,
        late_s: FloatArray | None,
        even: bool,
        is_bound: bool,
        of: IntArray | None,
    ) -> None:
        count, intervals = work.shape
        self._of = list(range(count)) if of is None else of.tolist()
        self._operators, self._node_of, self._even = operators, node_of.tolist(), even
        self._is_bound = is_bound
        late = np.zeros(count) if late_s is None else late_s
        self._late_s = np.broadcast_to(late if late.ndim > 1 else late[:, None], (count, intervals + 1))
        self._ends_s = width_s * np.arange(intervals + 1)
        self._cores = nodes.cores.tolist()
        left = np.ones((len(self._cores), 1)) if nodes.left is None else nodes.left
        # Varying capacity becomes a constant capacity of 1 on a clock that runs with it.
        self._clocks = [None if 0 < row.min() == row.max() else WorkClock(row, width_s) for row in left]
        self._left, self._width_s = left, width_s
        speed = nodes.capacity_per_s * [left[node, 0] if clock is None else 1.0 for node, clock in enumerate(self._clocks)]
        self._arrived = np.full((count, intervals + 1), np.nan)
        self._done = np.full((count, intervals + 1), np.nan)
        self._there: list[list[int]] = [[] for _ in self._cores]
        for number, node in enumerate(self._node_of):
            self._there[node].append(number)
        self._groups = grouped(operators, self._node_of, len(self._cores))
        total = np.zeros((count, intervals + 1))
        np.cumsum(work / speed[node_of][:, None], axis=1, out=total[:, 1:])
        self._all = [np.array([total[group].sum(axis=0) for group in groups]) for groups in self._groups]
        """For each node (groups, intervals + 1): work of stimulus times up to each end, in seconds of one core."""
        self._open = self._with_consumers_elsewhere()
        self._counted = {number: self._weighted(number, total) for number in sorted(self._open)}

    def run(self) -> Completions:
        """Returns all arrivals and completions."""
        for nodes, is_circle in circles(self._operators, self._node_of, len(self._there)):
            operators = [number for number, there in enumerate(self._node_of) if there in nodes]
            if is_circle or len(self._groups[nodes[0]]) > 1:
                self._walk(nodes, operators)
                continue
            for number in operators:
                self._arrived[number] = self._arrivals(number)
            for number in self._open.intersection(operators):
                self._done[number] = self._completions(number)
        return Completions(self._arrived, self._done)

    def _walk(self, nodes: Sequence[int], operators: Sequence[int]) -> None:
        """Computes the intervals of nodes that send to each other, or of one node, one after the other (`sbon.cost.interval_walk`)."""
        sources: dict[int, list[list[float]]] = {number: [] for number in operators}
        senders: dict[int, list[tuple[int, float]]] = {number: [] for number in operators}
        for number in operators:
            for one in self._operators[number].inputs:
                if isinstance(one, Source):
                    sources[number].append(self._ends_s.tolist())
                elif self._node_of[one.operator] not in nodes:
                    sources[number].append((self._done[one.operator] + one.delay_s).tolist())
                else:
                    senders[number].append((one.operator, -1.0 if self._is_local(one, number) else one.delay_s))
        servers: list[FreeCapacity] = []
        clocks: list[WorkClock | None] = []
        parts: list[Part] = []
        number_of: dict[tuple[int, tuple[int, ...]], int] = {}
        servers_of: dict[int, list[int]] = {}
        for number in sorted(self._open.intersection(operators)):
            node, counted = self._node_of[number], self._counted[number]
            servers_of[number] = []
            for apart, rows in zip(counted.names(), itertools.pairwise((*counted.first.tolist(), len(counted.work))), strict=True):
                if (node, apart) not in number_of:
                    number_of[node, apart] = len(servers)
                    left, clock = self._left[node], self._clocks[node]
                    servers.append(FreeCapacity([0.0], [1.0]) if clock is None else capacity_of(left, self._width_s))
                    clocks.append(clock)
                    for row in range(*rows):
                        first = self._groups[node][counted.group[row]][0]
                        parts.append(Part(first, number_of[node, apart], np.diff(counted.work[row], prepend=0.0).tolist()))
                servers_of[number].append(number_of[node, apart])
        late_s = {number: self._late_s[number].tolist() for number in servers_of}
        walk = Walk(self._schedule(operators), sources, senders, late_s, parts, servers_of, servers, clocks)
        found = follow(walk, len(self._ends_s), even=self._even, is_bound=self._is_bound)
        for number in operators:
            self._arrived[number] = found.arrived_s[number]
        for number in servers_of:
            self._done[number] = found.done_s[number]

    def _with_consumers_elsewhere(self) -> set[int]:
        """Returns the operators whose completions are needed: those with a consumer behind propagation, or without one on their node."""
        local: set[int] = set()
        elsewhere: set[int] = set()
        for target, operator in enumerate(self._operators):
            for one in upstreams(operator):
                (local if self._is_local(one, target) else elsewhere).add(one.operator)
        return set(range(len(self._operators))) - local | elsewhere

    def _is_local(self, one: Upstream, target: int) -> bool:
        return one.delay_s == 0.0 and self._node_of[one.operator] == self._node_of[target]

    def _weighted(self, number: int, total: FloatArray) -> _Weighted:
        """Returns the work of each group of the node, weighted by the time for which it delays one operator's end; the greatest of several
        weightings counts.

        On c cores, a second of other operators' work takes 1/c s. But the work of one operator, and of operators that follow each other on
        the node, is done one after the other. As a bound: all work of this chain, and 1/c of the rest (Graham). As expected: the greater of
        1/c of all work, and all work of any single operator of the chain.
        """
        node = self._node_of[number]
        cores = self._cores[node]
        if cores == 1:
            return _weighted_of((), [self._all[node]])
        chain, waiting = {number}, [number]
        while waiting:
            target = waiting.pop()
            for one in self._operators[target].inputs:
                if isinstance(one, Upstream) and self._is_local(one, target) and one.operator not in chain:
                    chain.add(one.operator)
                    waiting.append(one.operator)

        def summed(weights: Mapping[int, float], otherwise: float) -> FloatArray:
            return np.array([sum(weights.get(one, otherwise) * total[one] for one in group) for group in self._groups[node]])

        if self._is_bound:
            return _weighted_of(tuple(sorted(chain)), [summed(dict.fromkeys(chain, 1.0), 1.0 / cores)])
        ways: dict[int, list[int]] = {self._of[one]: [] for one in sorted(chain)}
        for one in self._there[node]:
            if self._of[one] in ways:
                ways[self._of[one]].append(one)
        each = [summed(dict.fromkeys(some, 1.0), 0.0) for some in ways.values()]
        return _weighted_of(tuple(ways), [self._all[node] / cores, *each])

    def _schedule(self, operators: Sequence[int]) -> list[Step]:
        """Returns the order in which arrivals and completions of an interval are computed.

        A completion is computed after the arrivals of all operators of its node where possible; nodes that send to each other in a cycle
        prevent it.

        Parameters
        ----------
        operators : all operators of these nodes; what others send has been computed
        """
        open_ = self._open.intersection(operators)
        steps: list[Step] = []
        arrived: set[int] = set()
        done = set(range(len(self._operators))).difference(operators)
        waiting = list(operators)
        while waiting or open_:
            rest = []
            for number in waiting:
                if all(one.operator in (arrived if self._is_local(one, number) else done) for one in upstreams(self._operators[number])):
                    arrived.add(number)
                    steps.append(Step(True, number))
                else:
                    rest.append(number)
            waiting = rest
            unknown = {number: sum(group[0] not in arrived for group in self._groups[self._node_of[number]]) for number in open_ & arrived}
            fewest = min(unknown.values(), default=0)
            ready = sorted(number for number, count in unknown.items() if count == fewest)
            for number in ready if fewest == 0 else ready[:1]:
                steps.append(Step(False, number))
                done.add(number)
                open_.remove(number)
        return steps

    def _arrivals(self, number: int) -> FloatArray:
        """Returns when the last of an operator's work of all stimulus times up to each end arrives at its node: (intervals + 1,)."""
        found: list[FloatArray] = []
        for one in self._operators[number].inputs:
            if isinstance(one, Source):
                found.append(self._ends_s)
            elif self._is_local(one, number):
                found.append(self._arrived[one.operator])
            else:
                found.append(self._done[one.operator] + one.delay_s)
        return functools.reduce(np.maximum, found)

    def _completions(self, number: int) -> FloatArray:
        """Returns when an operator has done its work of all stimulus times up to each end, if all work of its node comes on one way:
        (intervals + 1,).

        The node was last without work at the instant b before the arrival for which b less the work that came before it is greatest.
        """
        node = self._node_of[number]
        arrived, clock = self._arrived[number], self._clocks[node]
        count = int(np.searchsorted(arrived, np.inf))
        arrived, work = arrived[:count], self._counted[number].work[:, :count]
        before = work if self._even else np.concatenate([work[:, :1], work[:, :-1]], axis=1)
        idle = np.maximum.accumulate((arrived if clock is None else clock.work_by(arrived)) - before, axis=1)
        if clock is not None and self._even:  # capacity changes while work arrives
            before = np.array([np.interp(self._ends_s, arrived, row) for row in before])
            at_ends = np.maximum.accumulate(clock.work_by(self._ends_s) - before, axis=1)
            idle = np.maximum(idle, at_ends[:, np.searchsorted(self._ends_s, arrived, side="right") - 1])
        done = (work + idle).max(axis=0)
        found = np.full(len(self._ends_s), np.inf)
        found[:count] = np.maximum(arrived, done if clock is None else clock.instant_of(done)) + self._late_s[number, :count]
        latest: FloatArray = np.maximum.accumulate(found)
        return latest


def grouped(operators: Sequence[OperatorCost], node_of: Sequence[int], nodes: int) -> list[list[list[int]]]:
    """Returns the operators of each node, grouped by inputs: the work of a group arrives at the same instants."""
    ways: list[frozenset[tuple[int, float]]] = []
    groups: list[dict[frozenset[tuple[int, float]], list[int]]] = [{} for _ in range(nodes)]
    for number, operator in enumerate(operators):
        way: set[tuple[int, float]] = set()
        for one in operator.inputs:
            if isinstance(one, Source):
                way.add((-1, 0.0))
            elif one.delay_s == 0.0 and node_of[one.operator] == node_of[number]:
                way |= ways[one.operator]
            else:
                way.add((one.operator, one.delay_s))
        ways.append(frozenset(way))
        groups[node_of[number]].setdefault(ways[-1], []).append(number)
    return [list(found.values()) for found in groups]


def circles(operators: Sequence[OperatorCost], node_of: Sequence[int], nodes: int) -> list[tuple[list[int], bool]]:
    """Returns the nodes that send to each other in circles together, and each other node alone, upstream first.

    Returns
    -------
    nodes, and True for those that send to each other, or to themselves with propagation
    """
    senders: list[set[int]] = [set() for _ in range(nodes)]
    to_themselves: set[int] = set()
    for operator, node in zip(operators, node_of, strict=True):
        for one in upstreams(operator):
            senders[node].add(node_of[one.operator])
            if node_of[one.operator] == node and one.delay_s > 0:
                to_themselves.add(node)
    reached: list[set[int]] = []
    for node in range(nodes):
        found, waiting = {node}, [node]
        while waiting:
            new = senders[waiting.pop()] - found
            found |= new
            waiting += new
        reached.append(found)
    made = {frozenset(one for one in reached[node] if node in reached[one]) for node in range(nodes)}
    ordered = sorted(map(sorted, made), key=lambda some: (len(reached[some[0]]), some[0]))
    return [(some, len(some) > 1 or some[0] in to_themselves) for some in ordered]


def upstreams(operator: OperatorCost) -> Iterator[Upstream]:
    """Returns the inputs of an operator that come from other operators."""
    return (one for one in operator.inputs if isinstance(one, Upstream))


def exits_of(operators: Sequence[OperatorCost]) -> list[int]:
    """Returns the indices of the operators that feed no other operator."""
    read = {one.operator for operator in operators for one in operator.inputs if isinstance(one, Upstream)}
    return [number for number in range(len(operators)) if number not in read]
