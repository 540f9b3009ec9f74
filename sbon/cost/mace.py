"""Worst-case latency, predicted: Mace, and an upper bound that holds where Mace alone does not (docs/mace.md).

Mace (`sbon.cost.node_excess`) is the paper's metric: the greatest cumulative excess of any node at the end of each interval, in seconds.
The worst latency cannot be less than Mace, but it may be more: an event that waits at one node may wait again at the next, whose load comes
later. The proof of theorem 2 misses this case (lemma 2 assumes that late work arrives no faster than it is served). Completions
(`sbon.cost.completions`) therefore follow work from node to node; the expected latency and the upper bound come from them.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from sbon.cost.completions import Completions, completions, exits_of
from sbon.cost.load import OperatorCost, Source, Upstream
from sbon.cost.node_excess import Nodes, check_shapes, excess_s
from sbon.cost.ways import Ways
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms that this engine adds to the paper's, which widen the bounds. All are 0 or more."""

    blocking_s: float = 0.0
    """Longest time for which a newer batch that has begun earlier keeps a core: a quantum, times the operators of a chain that is one
    task."""
    pace_s: float = 0.0
    """Longest time for which a row waits at its source until its batch leaves. The stimulus time of a batch is that of its latest row."""
    clock_s: float = 0.0
    """Greatest difference of the clocks of two hosts: stimulus time and egress are read on different ones."""


class Prediction(msgspec.Struct, frozen=True):
    """Latency by stimulus time, over intervals."""

    mace_s: FloatArray
    """(intervals,): greatest cumulative excess of any node, with the least propagation of a path through it."""
    likely_s: FloatArray
    """(intervals,): expected latency of the latest answer of each interval; 0 where none is expected."""
    upper_s: FloatArray
    """(intervals,): no answer of the interval is later."""
    parts_s: dict[int, float]
    """Parts of the worst of `likely_s`: seconds at each node or link on the way of the latest event."""
    propagation_s: float
    """Propagation on that way."""
    overloaded: tuple[int, ...]
    """Nodes and links whose load over the whole time is above their capacity: if the load stays like this, latency grows without end."""

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
        """Returns the latency that the latest answers of this share of the intervals do not exceed (theorem 3)."""
        return quantile(self.likely_s, share, weights)


def quantile(values: FloatArray, share: float, weights: FloatArray | None = None) -> float:
    """Returns the value that this share of the weight does not exceed; weights are equal if left out.

    Examples
    --------
    >>> quantile(np.array([3.0, 1.0, 2.0]), 0.5), quantile(np.array([3.0, 1.0, 2.0]), 0.5, np.array([8.0, 1.0, 1.0]))
    (2.0, 3.0)
    """
    order = np.argsort(values)
    passed = np.cumsum(np.ones(len(order)) if weights is None else weights[order])
    return float(values[order][np.searchsorted(passed, share * passed[-1], side="left")])


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
    work_of_parts: FloatArray | None = None,
    rows_of_parts: FloatArray | None = None,
    ways: Ways | None = None,
) -> Prediction:
    """Returns the latency of the answers of a graph, with bounds.

    Parameters
    ----------
    operators : upstream first; streams over links are operators on links (`sbon.cost.load.with_links`)
    work : (operators, intervals), deterministic load
    node_of : (operators,)
    width_s : width of an interval
    grain : (operators,), work that one event from outside brings at once
    terms : terms that this engine adds; all 0 if left out
    even : events of an interval come evenly (assumption A-2); if not, the upper bound counts an interval's work at each node
    service_s : (operators,), time from a batch's arrival at the operator's node until the operator has done it, if the node is idle; added
        to each expected completion. Or (operators, intervals x parts + 1), that of batches up to each end. 0 if left out
    work_of_parts : (operators, intervals x parts), deterministic load of equal parts of the intervals, as expected
        (`sbon.cost.within_intervals`). The expected latency, and its parts, follow from this; the bounds follow from `work`. If left out,
        an interval's work is even
    rows_of_parts : (operators, intervals x parts), rows out of each, for the expected latency: an operator answers nothing in parts without
        any. If left out, it answers in all
    ways : operators by way (`sbon.cost.ways`), for the expected latency; `work_of_parts`, `rows_of_parts` and `service_s` are then by way,
        and `work_of_parts` and `service_s` are needed

    Raises
    ------
    ShapeError
        The shapes do not fit.

    Source
    ------
    Mace, theorems 2 and 3; where the paper's upper bound fails, this module's.
    """
    check_shapes(work, node_of, nodes, width_s)
    terms = Terms() if terms is None else terms
    least = lower_s(operators, work, node_of, nodes, width_s)
    parted, where, of = (operators, node_of, None) if ways is None else (ways.operators, node_of[ways.of], ways.of)
    parts = work if work_of_parts is None else work_of_parts
    likely = expected(parted, parts, where, nodes, width_s, service_s, work.shape[1], of, rows=rows_of_parts)
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
    """Returns the nodes with more load than capacity over the whole time, of all operators together or of one, which has one core at most;
    parameters as for `predict`."""
    load, can = np.zeros(len(nodes.cores)), nodes.per_interval(width_s, work.shape[1]).sum(axis=1)
    np.add.at(load, node_of, work.sum(axis=1))
    alone = node_of[list(beyond_a_core(work, node_of, nodes, width_s))].tolist()
    return tuple(sorted({*np.flatnonzero(load > can * (1 + 1e-9)).tolist(), *alone}))


def beyond_a_core(work: FloatArray, node_of: IntArray, nodes: Nodes, width_s: float) -> tuple[int, ...]:
    """Returns the operators with more work than one core of their node can do over the whole time; parameters as for `predict`."""
    can = nodes.of_one_core(width_s, work.shape[1]).sum(axis=1)[node_of]
    return tuple(np.flatnonzero(work.sum(axis=1) > can * (1 + 1e-9)).tolist())


def lower_s(operators: Sequence[OperatorCost], work: FloatArray, node_of: IntArray, nodes: Nodes, width_s: float) -> FloatArray:
    """Returns Mace of each interval with the least propagation of a path through the node: (intervals,); parameters as for `predict`."""
    least_s, _ = path_propagation_s(operators, node_of, len(nodes.cores))
    behind_s = excess_s(work, node_of, nodes, width_s)
    found: FloatArray = np.where(np.isfinite(least_s)[:, None], behind_s + least_s[:, None], 0.0).max(axis=0)
    return found


class Expected(msgspec.Struct, frozen=True):
    """The expected latency of the latest answer of each interval."""

    likely_s: FloatArray
    """(intervals,); 0 where no answer is expected."""
    parts_s: dict[int, float]
    """Seconds at each node or link on the way of the latest answer of all."""
    propagation_s: float
    """Propagation on that way."""


def expected(
    operators: Sequence[OperatorCost],
    work: FloatArray,
    node_of: IntArray,
    nodes: Nodes,
    width_s: float,
    service_s: FloatArray | None = None,
    intervals: int | None = None,
    of: IntArray | None = None,
    *,
    even: bool = True,
    rows: FloatArray | None = None,
    ahead_s: FloatArray | None = None,
) -> Expected:
    """Returns the expected latency of the latest answers.

    Parameters
    ----------
    operators, node_of, nodes, width_s, service_s : as for `predict`
    work : (operators, intervals x parts), deterministic load of equal parts of the intervals
    intervals : number of intervals; if left out, each has one part
    of : (operators,), as for `completions`
    even : False: all work of a part comes at its end, as a batch does; then `service_s` leaves out the work of batches
    rows : as `rows_of_parts` for `predict`
    ahead_s : (intervals x parts + 1,), time by which rows at each end are earlier than the last rows of their batches, with which they are
        answered; 0 if left out

    Raises
    ------
    ShapeError
        The shapes do not fit.
    """
    count = work.shape[1] if intervals is None else intervals
    if count == 0 or work.shape[1] % count:
        raise ShapeError(f"work of {work.shape[1]} parts in {count} intervals, expected the same number of parts in each")
    parts = work.shape[1] // count
    if parts > 1 and nodes.left is not None:
        nodes = Nodes(nodes.capacity_per_s, nodes.cores, np.repeat(nodes.left, parts, axis=1))
    smooth = completions(operators, work, node_of, nodes, width_s / parts, late_s=service_s, even=even, of=of)
    exits, knots_s = exits_of(operators), width_s / parts * np.arange(work.shape[1] + 1)
    done_s = smooth.done_s[exits]
    ends = np.isfinite(done_s).all()
    if ahead_s is not None and ends:
        done_s = np.array([np.interp(knots_s + ahead_s, knots_s, one) for one in done_s])
    late_s = done_s - knots_s
    of_parts = np.maximum(late_s[:, :-1], late_s[:, 1:])
    if rows is not None:
        answers = rows[exits] > 0
        of_parts = np.where(answers, of_parts, 0.0)
        late_s = np.where(np.pad(answers, ((0, 0), (0, 1))) | np.pad(answers, ((0, 0), (1, 0))), late_s, 0.0)
    likely: FloatArray = of_parts.max(axis=0).reshape(count, parts).max(axis=1)
    parts_s, propagation = _parts(operators, node_of, smooth, exits, late_s) if ends else ({}, 0.0)
    return Expected(likely, parts_s, propagation)


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
    found: FloatArray = (bound.done_s[exits_of(operators)][:, 1:] - knots_s[:-1]).max(axis=0) + terms.pace_s + terms.clock_s
    return found


def hop_epsilon_s(grain: FloatArray, node_of: IntArray, nodes: Nodes, terms: Terms) -> FloatArray:
    """Returns the time that indivisible events add to the completion at each operator: one event of each operator of its node, and
    blocking.

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


def _parts(
    operators: Sequence[OperatorCost], node_of: IntArray, found: Completions, exits: list[int], late_s: FloatArray
) -> tuple[dict[int, float], float]:
    """Returns where the latest event of all spends its time: seconds at each node, and seconds between nodes.

    Parameters
    ----------
    late_s : (exits, ends), latency of the latest answer of stimulus times up to each end
    """
    which, end = divmod(int(np.argmax(late_s)), late_s.shape[1])
    number = exits[which]
    parts: dict[int, float] = {}
    way_s, done_s = 0.0, float(found.done_s[number, end])
    while True:
        node = int(node_of[number])
        parts[node] = parts.get(node, 0.0) + done_s - float(found.arrived_s[number, end])
        while True:  # back through the operators of this node, to the one at which the event arrived
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
