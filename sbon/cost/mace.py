"""Worst-case latency, predicted: Mace, and an upper bound that holds where Mace alone does not (docs/mace.md).

`mace` is the paper's metric: the greatest cumulative excess of any node at the end of each interval, in seconds (definition 9). The worst
case cannot be less. It may be more: an event that waits at one node while another node's load is still to come waits again there, and the
proof of theorem 2 does not see it (lemma 2 assumes that late work arrives no faster than it is served).
`completions` therefore follows work from node to node. It is Lindley's recursion with late arrivals: the work of stimulus times up to s is
done at a node by

    max over b <= E(s) of  b + (work of stimulus times up to s that can arrive at b or later) / capacity,

where b is when the node last had none of it, and E(s) when the last of it arrives. Without delays upstream E(s) = s, and the formula is the
cumulative excess. Time is divided by intervals; between their ends, work and arrivals are taken as even (assumption A-2).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from sbon.cost.excess import WorkClock, cumulative_excess
from sbon.cost.load import OperatorCost, Source, Upstream, add_by_node
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

_TINY_S = 1e-12
"""Work below this is rounding."""


class Nodes(msgspec.Struct, frozen=True):
    """Capacities of nodes and links."""

    capacity_per_s: FloatArray
    """(nodes,): work per second of one core, or bytes per second of a link; above 0."""
    cores: IntArray
    """(nodes,): operators that run at once; 1 for a link."""
    left: FloatArray | None = None
    """(nodes, intervals): share of the capacity that other programs leave, 0 to 1; all of it if left out."""

    def per_interval(self, width_s: float, intervals: int) -> FloatArray:
        """Returns the work that all cores of each node can do in each interval: (nodes, intervals)."""
        whole = np.repeat((self.capacity_per_s * self.cores * width_s)[:, None], intervals, axis=1)
        return whole if self.left is None else whole * self.left

    def of_one_core(self, width_s: float, intervals: int) -> FloatArray:
        """Returns the work that one operator can do in each interval: (nodes, intervals)."""
        one = np.repeat((self.capacity_per_s * width_s)[:, None], intervals, axis=1)
        return one if self.left is None else one * np.minimum(1.0, self.left * self.cores[:, None])


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms that this engine adds to the paper's, which widen the bounds. All are 0 or more."""

    blocking_s: float = 0.0
    """Longest time for which a newer batch, begun before, keeps a core: a quantum, times the operators of a chain run as one task."""
    pace_s: float = 0.0
    """Longest time for which a row waits at its source until its batch leaves. The stimulus time of a batch is that of its latest row."""
    clock_s: float = 0.0
    """Greatest difference of the clocks of two hosts: stimulus time and egress are read on different ones."""


class Prediction(msgspec.Struct, frozen=True):
    """Latency by stimulus time, over intervals."""

    mace_s: FloatArray
    """(intervals,): greatest cumulative excess of any node, with the least propagation of a path through it."""
    likely_s: FloatArray
    """(intervals,): what is expected of the latest answer of each interval."""
    upper_s: FloatArray
    """(intervals,): no answer of the interval is later."""
    parts_s: dict[int, float]
    """What the worst of `likely_s` is made of: seconds at each node or link on the way of the latest event."""
    propagation_s: float
    """Propagation on that way."""
    overloaded: tuple[int, ...]
    """Nodes and links whose load over the whole time is above their capacity: if it goes on like this, latency grows without end."""

    def worst_s(self) -> tuple[float, float, float]:
        """Returns Mace, the expected worst case and the upper bound; all infinite where a node is overloaded for good."""
        if self.overloaded:
            return np.inf, np.inf, np.inf
        return float(self.mace_s.max()), float(self.likely_s.max()), float(self.upper_s.max())

    def mean_s(self, weights: FloatArray | None = None) -> float:
        """Returns the mean over intervals of the latest answer's latency (theorem 3).

        Parameters
        ----------
        weights : (intervals,), for example events in each; equal if left out
        """
        return float(np.average(self.likely_s, weights=weights))

    def quantile_s(self, share: float, weights: FloatArray | None = None) -> float:
        """Returns the latency that the latest answers of so large a share of the intervals keep within (theorem 3)."""
        return quantile(self.likely_s, share, weights)


def quantile(values: FloatArray, share: float, weights: FloatArray | None = None) -> float:
    """Returns the value that so large a share of the weight does not exceed; equal weights if left out.

    Examples
    --------
    >>> quantile(np.array([3.0, 1.0, 2.0]), 0.5), quantile(np.array([3.0, 1.0, 2.0]), 0.5, np.array([8.0, 1.0, 1.0]))
    (2.0, 3.0)
    """
    order = np.argsort(values)
    passed = np.cumsum(np.ones(len(order)) if weights is None else weights[order])
    return float(values[order][np.searchsorted(passed, share * passed[-1], side="left")])


def excess_s(work: FloatArray, node_of: IntArray, nodes: Nodes, width_s: float) -> FloatArray:
    """Returns how far each node is behind at the end of each interval.

    A node of c cores is behind by the greater of two: all its load at c cores, and the load of one operator at one core, since an operator
    never runs twice at once.

    Parameters
    ----------
    work : (operators, intervals)
    node_of : (operators,)
    width_s : width of an interval

    Returns
    -------
    FloatArray
        (nodes, intervals), s; infinite where capacity ends for good with work left.

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Source
    ------
    Mace, definitions 6, 8 and 9, section X.

    Examples
    --------
    >>> two = Nodes(np.array([1.0, 1.0]), np.array([1, 2]))
    >>> excess_s(np.array([[3.0, 1.0], [3.0, 1.0], [2.0, 0.0]]), np.array([0, 1, 1]), two, 2.0)
    array([[1., 0.],
           [1., 0.]])
    """
    _check(work, node_of, nodes, width_s)
    count, intervals = len(nodes.cores), work.shape[1]
    of_nodes = np.zeros((count, intervals))
    add_by_node(of_nodes, work, node_of)
    ends_s = width_s * np.arange(1, intervals + 1)
    found = _in_seconds(cumulative_excess(of_nodes, nodes.per_interval(width_s, intervals)), nodes, width_s, ends_s, whole=True)
    several = np.flatnonzero(nodes.cores[node_of] > 1)
    if several.size:
        single = nodes.of_one_core(width_s, intervals)[node_of[several]]
        one = _in_seconds(cumulative_excess(work[several], single), nodes, width_s, ends_s, whole=False, node_of=node_of[several])
        np.maximum.at(found, node_of[several], one)
    return found


def mace(excess: FloatArray) -> FloatArray:
    """Returns the greatest excess of any node in each interval.

    Parameters
    ----------
    excess : (nodes, intervals), s

    Source
    ------
    Mace, definition 9.

    Examples
    --------
    >>> mace(np.array([[1.0, 2.0], [0.0, 5.0]])).tolist(), float(mace(np.array([[1.0, 2.0], [0.0, 5.0]])).max())
    ([1.0, 5.0], 5.0)
    """
    found: FloatArray = excess.max(axis=0)
    return found


def lemma_epsilon_s(grain: FloatArray, node_of: IntArray, nodes: Nodes) -> float:
    """Returns the paper's epsilon: one event of each operator at each node, in seconds (lemma 2).

    Parameters
    ----------
    grain : (operators,)
        Work of one event; where an interval's events are served in any order, the most work of an interval (section VII-A).

    Examples
    --------
    >>> lemma_epsilon_s(np.array([0.25, 0.5]), np.array([0, 1]), Nodes(np.array([1.0, 2.0]), np.array([1, 1])))
    0.5
    """
    return float((grain / nodes.capacity_per_s[node_of]).sum())


def predict(
    operators: Sequence[OperatorCost],
    work: FloatArray,
    node_of: IntArray,
    nodes: Nodes,
    width_s: float,
    grain: FloatArray,
    terms: Terms | None = None,
    *,
    even: bool = True,
    service_s: FloatArray | None = None,
) -> Prediction:
    """Returns the latency of the answers of a graph, with bounds.

    Parameters
    ----------
    operators : upstream first; streams over links are operators on links (`sbon.cost.load.with_links`)
    work : (operators, intervals), deterministic load
    node_of : (operators,)
    width_s : width of an interval
    grain : (operators,), work that one event from outside brings at once
    terms : what this engine adds; nothing if left out
    even : events of an interval come evenly (assumption A-2); if not, the upper bound counts an interval's work at each node
    service_s : (operators,), time that one batch takes from its coming to the operator's node until the operator has done it, if nothing
        else is there; added to what is expected at each completion. Nothing if left out

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Source
    ------
    Mace, theorems 2 and 3; where the paper's upper bound fails, this module's.
    """
    _check(work, node_of, nodes, width_s)
    terms = Terms() if terms is None else terms
    least = lower_s(operators, work, node_of, nodes, width_s)
    likely = expected(operators, work, node_of, nodes, width_s, service_s)
    upper = upper_s(operators, work, node_of, nodes, width_s, grain, terms, even=even)
    return Prediction(
        np.maximum(least - terms.clock_s, 0.0),
        likely.likely_s,
        upper,
        likely.parts_s,
        likely.propagation_s,
        overloaded(work, node_of, nodes, width_s),
    )


def overloaded(work: FloatArray, node_of: IntArray, nodes: Nodes, width_s: float) -> tuple[int, ...]:
    """Returns the nodes with more load than capacity over the whole time; parameters as for `predict`."""
    load, can = np.zeros(len(nodes.cores)), nodes.per_interval(width_s, work.shape[1]).sum(axis=1)
    np.add.at(load, node_of, work.sum(axis=1))
    return tuple(np.flatnonzero(load > can * (1 + 1e-9)).tolist())


def lower_s(operators: Sequence[OperatorCost], work: FloatArray, node_of: IntArray, nodes: Nodes, width_s: float) -> FloatArray:
    """Returns Mace of each interval with the least propagation of a path through the node: (intervals,); parameters as for `predict`."""
    least_s, _ = path_propagation_s(operators, node_of, len(nodes.cores))
    behind_s = excess_s(work, node_of, nodes, width_s)
    found: FloatArray = np.where(np.isfinite(least_s)[:, None], behind_s + least_s[:, None], 0.0).max(axis=0)
    return found


class Expected(msgspec.Struct, frozen=True):
    """The expected latency of the latest answer of each interval."""

    likely_s: FloatArray
    """(intervals,)"""
    parts_s: dict[int, float]
    """Seconds at each node or link on the way of the latest of all."""
    propagation_s: float
    """Propagation on that way."""


def expected(
    operators: Sequence[OperatorCost],
    work: FloatArray,
    node_of: IntArray,
    nodes: Nodes,
    width_s: float,
    service_s: FloatArray | None = None,
) -> Expected:
    """Returns what is expected of the latest answers; parameters as for `predict`."""
    smooth = completions(operators, work, node_of, nodes, width_s, late_s=service_s)
    exits, knots_s = _exits(operators), width_s * np.arange(work.shape[1] + 1)
    late_s = smooth.done_s[exits] - knots_s
    likely: FloatArray = np.maximum(late_s[:, :-1], late_s[:, 1:]).max(axis=0)
    parts, propagation = _parts(operators, node_of, smooth, exits, knots_s) if np.isfinite(late_s).all() else ({}, 0.0)
    return Expected(likely, parts, propagation)


def upper_s(
    operators: Sequence[OperatorCost],
    work: FloatArray,
    node_of: IntArray,
    nodes: Nodes,
    width_s: float,
    grain: FloatArray,
    terms: Terms,
    *,
    even: bool = True,
) -> FloatArray:
    """Returns the latency that no answer of an interval exceeds: (intervals,); parameters as for `predict`.

    Raises
    ------
    ShapeError
        The shapes do not fit.
    """
    if grain.shape != node_of.shape:
        raise ShapeError(f"grain has the shape {grain.shape}, expected {node_of.shape}")
    late_at_most_s = hop_epsilon_s(grain, node_of, nodes, terms)
    bound = completions(operators, work, node_of, nodes, width_s, late_s=late_at_most_s, even=even, is_bound=True)
    knots_s = width_s * np.arange(work.shape[1] + 1)
    found: FloatArray = (bound.done_s[_exits(operators)][:, 1:] - knots_s[:-1]).max(axis=0) + terms.pace_s + terms.clock_s
    return found


class Completions(msgspec.Struct, frozen=True):
    """Until when work is there and done, by the latest stimulus time that counts: the ends of intervals, the start first."""

    arrived_s: FloatArray
    """(operators, intervals + 1): the last of it has come to the operator's node."""
    done_s: FloatArray
    """(operators, intervals + 1): the last of it is done; NaN for operators with consumers on their own node alone."""


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
) -> Completions:
    """Returns until when each operator has done its work of all stimulus times up to the end of each interval.

    Costs, for every interval and operator that answers to another node, a pass over the operators of its node and the intervals since that
    node was last idle.

    Parameters
    ----------
    operators, work, node_of, nodes, width_s, even : as for `predict`
    late_s : (operators,), added to each completion; nothing if left out
    is_bound : whether no completion may be later; otherwise completions are what is expected

    Raises
    ------
    ShapeError
        The shapes do not fit.
    """
    _check(work, node_of, nodes, width_s)
    if len(operators) != len(work):
        raise ShapeError(f"{len(operators)} operators, work of {len(work)}")
    return _Relay(operators, work, node_of, nodes, width_s, late_s, even, is_bound).run()


def hop_epsilon_s(grain: FloatArray, node_of: IntArray, nodes: Nodes, terms: Terms) -> FloatArray:
    """Returns what events that do not divide add to the completion at each operator: one event of each operator of its node, and blocking.

    Parameters
    ----------
    grain : (operators,), work

    Returns
    -------
    FloatArray
        (operators,), s
    """
    alone = grain / nodes.capacity_per_s[node_of]
    together, largest = np.zeros(len(nodes.cores)), np.zeros(len(nodes.cores))
    np.add.at(together, node_of, alone)
    np.maximum.at(largest, node_of, alone)
    found: FloatArray = (together + np.maximum(largest, terms.blocking_s))[node_of]
    return found


def path_propagation_s(operators: Sequence[OperatorCost], node_of: IntArray, nodes: int) -> tuple[FloatArray, FloatArray]:
    """Returns the least and greatest propagation of all paths from a source to an exit through each node.

    Returns
    -------
    least, greatest : (nodes,), s
        Infinite and 0 for nodes without operators.

    Source
    ------
    Mace, section VII-B.
    """
    count = len(operators)
    before = np.zeros((2, count))
    behind = np.zeros((2, count))
    for number, operator in enumerate(operators):
        ways = [(0.0, 0.0) if isinstance(one, Source) else tuple(before[:, one.operator] + one.delay_s) for one in operator.inputs]
        before[:, number] = min(way[0] for way in ways), max(way[1] for way in ways)
    consumers: list[list[tuple[int, float]]] = [[] for _ in operators]
    for number, operator in enumerate(operators):
        for one in operator.inputs:
            if isinstance(one, Upstream):
                consumers[one.operator].append((number, one.delay_s))
    for number in reversed(range(count)):
        if consumers[number]:
            onward = [behind[:, target] + delay_s for target, delay_s in consumers[number]]
            behind[:, number] = min(way[0] for way in onward), max(way[1] for way in onward)
    least, greatest = np.full((2, nodes), np.inf), np.zeros((2, nodes))
    for side, ways_s in enumerate((before, behind)):
        np.minimum.at(least[side], node_of, ways_s[0])
        np.maximum.at(greatest[side], node_of, ways_s[1])
    return least.sum(axis=0), greatest.sum(axis=0)


class _Relay:
    """Follows work from node to node, interval by interval; keeps for each node only what a busy time can still reach back to."""

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
    ) -> None:
        count, intervals = work.shape
        self._operators, self._node_of, self._even = operators, node_of.tolist(), even
        self._is_bound = is_bound
        self._late_s = np.zeros(count) if late_s is None else late_s
        self._ends_s = width_s * np.arange(intervals + 1)
        self._cores = nodes.cores.tolist()
        # Capacity that varies is turned into constant capacity of 1 on a clock that runs with it.
        self._clocks = [WorkClock(row, width_s) for row in nodes.left] if nodes.left is not None else [None] * len(self._cores)
        self._arrived = np.full((count, intervals + 1), np.nan)
        self._done = np.full((count, intervals + 1), np.nan)
        self._there: list[list[int]] = [[] for _ in self._cores]
        for number, node in enumerate(self._node_of):
            self._there[node].append(number)
        self._from = [0] * len(self._cores)
        """First end of an interval that a busy time of each node can begin at."""
        self._groups = self._together()
        total = np.zeros((count, intervals + 1))
        np.cumsum(work / nodes.capacity_per_s[node_of][:, None], axis=1, out=total[:, 1:])
        self._all = [np.array([total[group].sum(axis=0) for group in groups]) for groups in self._groups]
        """For each node (groups, intervals + 1): work of stimulus times up to each end, in seconds of one core."""
        self._steps = self._schedule()
        self._counted = {number: self._weighted(number, total) for is_arrival, number, _ in self._steps if not is_arrival}

    def run(self) -> Completions:
        """Returns all arrivals and completions."""
        for end in range(len(self._ends_s)):
            for is_arrival, number, known in self._steps:
                if is_arrival:
                    self._arrived[number, end] = self._arrival(number, end)
                else:
                    self._done[number, end] = self._completion(number, end, known)
            for node in range(len(self._there)):
                self._forget(node, end)
        return Completions(self._arrived, self._done)

    def _is_local(self, one: Upstream, target: int) -> bool:
        return one.delay_s == 0.0 and self._node_of[one.operator] == self._node_of[target]

    def _together(self) -> list[list[list[int]]]:
        """Returns the operators of each node, grouped by inputs: the work of a group arrives at the same instants."""
        ways: list[frozenset[tuple[int, float]]] = []
        groups: list[dict[frozenset[tuple[int, float]], list[int]]] = [{} for _ in self._there]
        for number, operator in enumerate(self._operators):
            way: set[tuple[int, float]] = set()
            for one in operator.inputs:
                if isinstance(one, Source):
                    way.add((-1, 0.0))
                elif self._is_local(one, number):
                    way |= ways[one.operator]
                else:
                    way.add((one.operator, one.delay_s))
            ways.append(frozenset(way))
            groups[self._node_of[number]].setdefault(ways[-1], []).append(number)
        return [list(found.values()) for found in groups]

    def _weighted(self, number: int, total: FloatArray) -> list[FloatArray]:
        """Work of each group of the node, as long as it keeps one operator from its end; the greatest of several ways counts.

        On c cores a second of others' work takes a c-th; but what one operator does, or passes from one to the next on the node, is done
        one after the other. As a bound: all of it, and a c-th of the rest (Graham). As expected: the greater of a c-th of all, and all of
        any one operator on the way.
        """
        node = self._node_of[number]
        cores = self._cores[node]
        if cores == 1:
            return [self._all[node]]
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
            return [summed(dict.fromkeys(chain, 1.0), 1.0 / cores)]
        return [self._all[node] / cores, *(summed({one: 1.0}, 0.0) for one in sorted(chain))]

    def _schedule(self) -> list[tuple[bool, int, tuple[bool, ...]]]:
        """Returns the order in which arrivals and completions of an interval are computed, with the groups whose arrivals are known at each
        completion.

        A completion is computed after the arrivals of all operators of its node where possible; nodes that send to each other in circles
        prevent it.
        """
        local: set[int] = set()
        for target, operator in enumerate(self._operators):
            local.update(one.operator for one in _upstream(operator) if self._is_local(one, target))
        open_ = set(range(len(self._operators))) - local
        for target, operator in enumerate(self._operators):
            open_.update(one.operator for one in _upstream(operator) if not self._is_local(one, target))
        steps: list[tuple[bool, int, tuple[bool, ...]]] = []
        arrived: set[int] = set()
        done: set[int] = set()
        waiting = list(range(len(self._operators)))
        while waiting or open_:
            rest = []
            for number in waiting:
                if all(one.operator in (arrived if self._is_local(one, number) else done) for one in _upstream(self._operators[number])):
                    arrived.add(number)
                    steps.append((True, number, ()))
                else:
                    rest.append(number)
            waiting = rest
            known = {number: tuple(group[0] in arrived for group in self._groups[self._node_of[number]]) for number in open_ & arrived}
            fewest = min((one.count(False) for one in known.values()), default=0)
            ready = sorted(number for number, one in known.items() if one.count(False) == fewest)
            for number in ready if fewest == 0 else ready[:1]:
                steps.append((False, number, known[number]))
                done.add(number)
                open_.remove(number)
        return steps

    def _arrival(self, number: int, end: int) -> float:
        latest = -np.inf
        for one in self._operators[number].inputs:
            if isinstance(one, Source):
                latest = max(latest, self._ends_s[end])
            elif self._is_local(one, number):
                latest = max(latest, self._arrived[one.operator, end])
            else:
                latest = max(latest, self._done[one.operator, end] + one.delay_s)
        return float(latest)

    def _completion(self, number: int, end: int, known: Sequence[bool]) -> float:
        node, arrived_s = self._node_of[number], float(self._arrived[number, end])
        if np.isinf(arrived_s):
            return np.inf
        find = self._latest if self._is_bound else self._expected
        latest = max(find(node, total, end, known, arrived_s) for total in self._counted[number])
        clock = self._clocks[node]
        if clock is not None:
            latest = float(clock.instant_of(np.array([latest]))[0])
        before = self._done[number, end - 1] if end else -np.inf
        return max(latest + float(self._late_s[number]), float(before))

    def _latest(self, node: int, total: FloatArray, end: int, known: Sequence[bool], arrived_s: float) -> float:
        """The most that a busy time can last which has begun by the time that the last work came."""
        knots, instants, could = self._instants(node, end, known, arrived_s)
        some = instants <= arrived_s
        return float((could[some] + total[:, end].sum() - self._before(total, node, knots, instants[some], end)).max())

    def _expected(self, node: int, total: FloatArray, end: int, known: Sequence[bool], arrived_s: float) -> float:
        """Returns the first instant, in s, at which the node has finished all work with stimulus times up to `end`; not before `arrived_s`,
        when the last of that work has arrived at the operator.

        All work is assumed to arrive at its latest instant. Work that goes from this operator over other nodes and back within the same
        interval is left out, because it mostly arrives later.
        """
        knots, instants, could = self._instants(node, end, known, arrived_s)
        left = self._before(total, node, knots, instants, end)
        right = self._before(total, node, knots, instants, end, side="right")
        here = int(np.searchsorted(instants, arrived_s))
        waiting = right - could - np.minimum.accumulate(left - could)
        if waiting[here] <= _TINY_S:
            return float(could[here])
        coming, passing = left[1:] - right[:-1], could[1:] - could[:-1]
        ends = np.flatnonzero((waiting[:-1] + coming <= passing)[here:])
        if not ends.size:
            return float(could[-1] + waiting[-1])
        one = here + int(ends[0])
        return float(could[one] + waiting[one] * passing[one] / (passing[one] - coming[one]))

    def _instants(self, node: int, end: int, known: Sequence[bool], arrived_s: float) -> tuple[list[FloatArray], FloatArray, FloatArray]:
        """Arrivals of each group, all instants at which something changes, and the time that the node's clock shows then."""
        first = self._from[node]
        knots = [self._arrived[group[0], first : end + is_known] for group, is_known in zip(self._groups[node], known, strict=True)]
        found = np.concatenate([*knots, self._ends_s[first : end + 1], [arrived_s]])
        found.sort()
        found = found[np.append(found[1:] > found[:-1], True) & (found < np.inf)]
        clock = self._clocks[node]
        return knots, found, found if clock is None else clock.work_by(found)

    def _before(
        self,
        total: FloatArray,
        node: int,
        knots: Sequence[FloatArray],
        instants: FloatArray,
        end: int,
        *,
        side: Literal["left", "right"] = "left",
    ) -> FloatArray:
        """Work that has arrived for sure before each instant (`side` right: by then), of stimulus times up to an end."""
        first = self._from[node]
        found = np.zeros(len(instants))
        for row, knot in zip(total, knots, strict=True):
            if not len(knot):
                found += row[first]
                continue
            place = np.searchsorted(knot, instants, side=side)  # knot[place - 1] < instant <= knot[place]
            low = np.maximum(place - 1, 0)
            sure = row[first + low]
            if self._even or side == "right":
                high = np.minimum(place, len(knot) - 1)
                with np.errstate(invalid="ignore"):  # both may be infinite
                    length = knot[high] - knot[low]
                share = np.divide(instants - knot[low], length, out=np.zeros(len(instants)), where=(length > 0) & (place > 0))
                sure = sure + share * (row[first + high] - sure)
            found += np.minimum(sure, row[end])
        return found

    def _forget(self, node: int, end: int) -> None:
        """Drops what no busy time can reach back to any more: all before the best of the instants until when arrivals are known."""
        groups, first = self._groups[node], self._from[node]
        if not groups or end == first:
            return
        latest = self._arrived[[group[0] for group in groups], first : end + 1]
        sure_s = float(latest[:, -1].min())
        if np.isinf(sure_s):
            return
        knots, instants, could = self._instants(node, end, [True] * len(groups), sure_s)
        some = instants <= sure_s
        # Work counts in full, as it does at most: no earlier instant can be better at any later end.
        best_s = instants[int(np.argmax(could[some] - self._before(self._all[node], node, knots, instants[some], end)))]
        self._from[node] = first + max(0, int(np.searchsorted(latest.max(axis=0), best_s, side="left")) - 1)


def _in_seconds(
    excess: FloatArray, nodes: Nodes, width_s: float, ends_s: FloatArray, *, whole: bool, node_of: IntArray | None = None
) -> FloatArray:
    """Time that the excess of each row takes from the end of each interval, on all cores of its node or on one."""
    node_of = np.arange(len(nodes.cores)) if node_of is None else node_of
    if nodes.left is None:
        speed = nodes.capacity_per_s * (nodes.cores if whole else 1)
        found: FloatArray = excess / speed[node_of][:, None]
        return found
    per_interval = nodes.per_interval(width_s, len(ends_s)) if whole else nodes.of_one_core(width_s, len(ends_s))
    found = np.empty_like(excess)
    for row, node in enumerate(node_of):
        clock = WorkClock(per_interval[node] / width_s, width_s)
        found[row] = np.where(excess[row] > 0, clock.instant_of(clock.work_by(ends_s) + excess[row]) - ends_s, 0.0)
    return found


def _upstream(operator: OperatorCost) -> Iterator[Upstream]:
    return (one for one in operator.inputs if isinstance(one, Upstream))


def _exits(operators: Sequence[OperatorCost]) -> list[int]:
    read = {one.operator for operator in operators for one in operator.inputs if isinstance(one, Upstream)}
    return [number for number in range(len(operators)) if number not in read]


def _parts(
    operators: Sequence[OperatorCost], node_of: IntArray, found: Completions, exits: list[int], knots_s: FloatArray
) -> tuple[dict[int, float], float]:
    """Returns where the latest event of all spends its time: seconds at each node, and seconds between nodes."""
    late_s = found.done_s[exits] - knots_s
    which, end = divmod(int(np.argmax(late_s)), late_s.shape[1])
    number = exits[which]
    parts: dict[int, float] = {}
    way_s, done_s = 0.0, float(found.done_s[number, end])
    while True:
        node = int(node_of[number])
        parts[node] = parts.get(node, 0.0) + done_s - float(found.arrived_s[number, end])
        while True:  # back through the operators of this node, to the one by which it came
            inputs = [one for one in operators[number].inputs if isinstance(one, Upstream)]
            outside = [one for one in inputs if one.delay_s > 0 or int(node_of[one.operator]) != node]
            came_s = found.arrived_s[number, end]
            late = [one for one in outside if found.done_s[one.operator, end] + one.delay_s >= came_s]
            if late:
                break
            local = [one for one in inputs if one not in outside and found.arrived_s[one.operator, end] >= came_s]
            if not local:
                return {node: part for node, part in parts.items() if part > 0}, way_s
            number = local[0].operator
        way_s += late[0].delay_s
        number = late[0].operator
        done_s = float(found.done_s[number, end])


def _check(work: FloatArray, node_of: IntArray, nodes: Nodes, width_s: float) -> None:
    count = len(nodes.cores)
    if work.ndim != 2 or 0 in work.shape or node_of.shape != work.shape[:1]:
        raise ShapeError(f"work {work.shape}, nodes of operators {node_of.shape}, expected (operators, intervals) and (operators,)")
    if not (node_of.min() >= 0 and node_of.max() < count) or nodes.capacity_per_s.shape != (count,):
        raise ShapeError(f"operators on nodes {node_of.min()} to {node_of.max()}, capacities {nodes.capacity_per_s.shape}, {count} nodes")
    if nodes.left is not None and nodes.left.shape != (count, work.shape[1]):
        raise ShapeError(f"capacity that is left {nodes.left.shape}, expected {(count, work.shape[1])}")
    if not (0 < width_s < np.inf and (nodes.capacity_per_s > 0).all() and (nodes.cores >= 1).all()):
        raise ShapeError(f"width {width_s} s, expected above 0, as all capacities, and cores of 1 or more")
