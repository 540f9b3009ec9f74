"""Computes when work is done that arrives late, by following work from node to node by stimulus time.

This is Lindley's recursion with late arrivals: the work of stimulus times up to s is done at a node by

    max over b <= E(s) of  b + (work of stimulus times up to s that can arrive at b or later) / capacity,

where b is the instant at which the node last had none of this work, and E(s) that at which the last of it arrives. Without delays upstream
E(s) = s, and the formula is the cumulative excess. Time is divided by intervals; between their ends, work and arrivals are taken as even
(assumption A-2).
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from sbon.cost.excess import WorkClock
from sbon.cost.load import OperatorCost, Source, Upstream
from sbon.cost.node_excess import Nodes, check_shapes
from sbon.errors import ShapeError
from sbon.types import FloatArray, IntArray

BLOCK = 64
"""Ends of intervals that are computed at once where several groups of inputs come at a node."""
FORGOTTEN = 4
"""Ends of intervals after which nodes in circles look for the intervals in which a busy period can still begin."""
TINY_S = 1e-12
"""Work below this is rounding."""


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

    Nodes whose work all comes on one way are computed for all intervals at once. For others, and for nodes that send to each other in a
    circle, every interval and every operator with a consumer on another node take a pass over the groups of inputs of that operator's node
    and the intervals since the node was last idle.

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

    def summed(self, of_rows: FloatArray) -> FloatArray:
        """Returns the sum over the groups of each weighting: (weightings, ...).

        Parameters
        ----------
        of_rows : (rows, ...)
        """
        count = len(of_rows)
        if len(self.first) == count:
            return of_rows
        # Several times as fast as `np.add.reduceat` along the first axis.
        found = np.empty((len(self.first), *of_rows.shape[1:]))
        for number, (begin, end) in enumerate(itertools.pairwise((*self.first.tolist(), count))):
            found[number] = of_rows[begin:end].sum(axis=0)
        return found


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
    """Follows work from node to node, interval by interval; keeps for each node only the intervals in which a busy period can still
    begin."""

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
        speed = nodes.capacity_per_s * [left[node, 0] if clock is None else 1.0 for node, clock in enumerate(self._clocks)]
        self._arrived = np.full((count, intervals + 1), np.nan)
        self._done = np.full((count, intervals + 1), np.nan)
        self._there: list[list[int]] = [[] for _ in self._cores]
        for number, node in enumerate(self._node_of):
            self._there[node].append(number)
        self._from = [0] * len(self._cores)
        """For each node, the first end of an interval at which a busy period can still begin."""
        self._groups = grouped(operators, self._node_of, len(self._cores))
        total = np.zeros((count, intervals + 1))
        np.cumsum(work / speed[node_of][:, None], axis=1, out=total[:, 1:])
        self._all = [np.array([total[group].sum(axis=0) for group in groups]) for groups in self._groups]
        """For each node (groups, intervals + 1): work of stimulus times up to each end, in seconds of one core."""
        self._whole = [_weighted_of((), [one]) if len(one) else None for one in self._all]
        self._open = self._with_consumers_elsewhere()
        self._counted = {number: self._weighted(number, total) for number in sorted(self._open)}
        self._found: dict[tuple[int, tuple[int, ...], tuple[bool, ...], float], float] = {}
        """Ends of busy periods of the current interval, by node, operators weighed apart, groups whose arrivals are known, and arrival."""

    def run(self) -> Completions:
        """Returns all arrivals and completions."""
        for nodes, is_circle in circles(self._operators, self._node_of, len(self._there)):
            operators = [number for number, there in enumerate(self._node_of) if there in nodes]
            if is_circle:
                self._run_circle(nodes, operators)
                continue
            for number in operators:
                self._arrived[number] = self._arrivals(number)
            (groups,) = (self._groups[node] for node in nodes)
            if len(groups) == 1:
                for number in self._open.intersection(operators):
                    self._done[number] = self._completions(number)
            elif groups:
                self._run_node(nodes[0], sorted(self._open.intersection(operators)))
        return Completions(self._arrived, self._done)

    def _run_circle(self, circle: Sequence[int], operators: Sequence[int]) -> None:
        """Computes the intervals of nodes that send to each other, one after the other."""
        steps = self._schedule(operators)
        for end in range(len(self._ends_s)):
            self._found.clear()
            for is_arrival, number, known in steps:
                if is_arrival:
                    self._arrived[number, end] = self._arrivals(number, end)
                else:
                    self._done[number, end] = self._completion(number, end, known)
            if end % FORGOTTEN == 0:
                for node in circle:
                    self._forget(node, end)

    def _run_node(self, node: int, operators: Sequence[int]) -> None:
        """Computes the intervals of a node whose arrivals are all known, many at once."""
        count = len(self._ends_s)
        for begin in range(0, count, BLOCK):
            ends = slice(begin, min(begin + BLOCK, count))
            found: dict[tuple[tuple[int, ...], bytes], FloatArray] = {}
            for number in operators:
                counted, arrived = self._counted[number], self._arrived[number, ends]
                key = counted.apart, arrived.tobytes()
                if key not in found:
                    found[key] = self._ends_of(node, counted, ends, arrived)
                self._done[number, ends] = found[key] + self._late_s[number, ends]
            self._forget(node, ends.stop - 1)
        for number in operators:
            self._done[number] = np.maximum.accumulate(self._done[number])

    def _ends_of(self, node: int, counted: _Weighted, ends: slice, arrived: FloatArray) -> FloatArray:
        """Returns what `_end_of` does, for some ends of intervals at once: (ends,).

        Work of later stimulus times does not count, so that each end has its own sum of work that has come by an instant.
        """
        first = self._from[node]
        knots = [self._arrived[group[0], first : ends.stop] for group in self._groups[node]]
        instants = np.unique(np.concatenate([*knots, arrived]))
        instants = instants[: np.searchsorted(instants, np.inf)]
        clock = self._clocks[node]
        if clock is not None and len(instants):  # capacity changes at the ends of intervals
            changes = self._ends_s[first : np.searchsorted(self._ends_s, instants[-1], side="right")]
            instants = np.unique(np.concatenate([instants, changes]))
        could = instants if clock is None else clock.work_by(instants)
        finite = int(np.searchsorted(arrived, np.inf))
        latest = np.full(len(arrived), np.inf)
        if not finite:
            return latest
        until = counted.work[:, ends][:, :finite, None]
        come = self._come(counted, first, knots, instants, by=not self._is_bound)
        left = counted.summed(np.minimum(come[:, :1], until))
        here = np.searchsorted(instants, arrived[:finite])
        if self._is_bound:
            some = np.where(np.arange(len(instants)) <= here[:, None], could - left, -np.inf)
            found = (some.max(axis=2) + counted.summed(until[:, :, 0])).max(axis=0)
        else:
            found = _first_idle(left, counted.summed(np.minimum(come[:, 1:], until)), could, here).max(axis=0)
        latest[:finite] = found if clock is None else np.maximum(arrived[:finite], clock.instant_of(found))
        return latest

    def _come(self, counted: _Weighted, first: int, knots: Sequence[FloatArray], instants: FloatArray, *, by: bool) -> FloatArray:
        """Returns the work that has certainly come before each instant: (rows of `counted`, 1, instants).

        Parameters
        ----------
        first : end of the interval at which the knots begin
        knots : instants at which the work of each group up to that end, the next, ... has come; none if that is not known
        by : the work before the instants is followed by that which has come by them, (rows of `counted`, 2, instants)
        """
        groups, sides, count = len(knots), 2 if by else 1, len(instants) + 1
        lengths = np.array([len(knot) for knot in knots] * sides)
        flat = np.concatenate([*knots, [np.nan]])
        begins = np.minimum((np.cumsum(lengths) - lengths) % max(1, len(flat) - 1), len(flat) - 1)
        # A knot counts from the first instant after it, or by that at it. `place`, (sides x groups, instants), is the number that count.
        there = instants.searchsorted(flat[:-1], side="right")
        if by:
            there = np.concatenate([there, instants.searchsorted(flat[:-1], side="left")])
        cells = np.repeat(count * np.arange(sides * groups), lengths) + there
        place = np.bincount(cells, minlength=sides * groups * count).reshape(-1, count)[:, :-1].cumsum(axis=1)
        low = np.maximum(place - 1, 0)
        high = np.maximum(np.minimum(place, lengths[:, None] - 1), 0)
        since = flat[begins[:, None] + low]
        with np.errstate(invalid="ignore"):  # both knots of an instant may be infinite, and a group may have none
            length = flat[begins[:, None] + high] - since
            share = np.divide(instants - since, length, out=np.zeros(low.shape), where=(length > 0) & (place > 0))
        if not self._even:  # all rows of an interval come when the last of them comes
            share[:] = 0.0
        # (rows, sides, instants)
        row, group = np.arange(len(counted.work))[:, None, None], counted.group[:, None] + groups * np.arange(sides)
        sure = counted.work[row, first + low[group]]
        found: FloatArray = sure + share[group] * (counted.work[row, first + high[group]] - sure)
        return found

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

    def _schedule(self, operators: Sequence[int]) -> list[tuple[bool, int, tuple[bool, ...]]]:
        """Returns the order in which arrivals and completions of an interval are computed, with the groups whose arrivals are known at each
        completion.

        A completion is computed after the arrivals of all operators of its node where possible; nodes that send to each other in a cycle
        prevent it.

        Parameters
        ----------
        operators : all operators of these nodes; what others send has been computed
        """
        open_ = self._open.intersection(operators)
        steps: list[tuple[bool, int, tuple[bool, ...]]] = []
        arrived: set[int] = set()
        done = set(range(len(self._operators))).difference(operators)
        waiting = list(operators)
        while waiting or open_:
            rest = []
            for number in waiting:
                if all(one.operator in (arrived if self._is_local(one, number) else done) for one in upstreams(self._operators[number])):
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

    def _arrivals(self, number: int, end: int | slice = slice(None)) -> FloatArray:
        """Returns when the last of an operator's work of all stimulus times up to an end, or each end, arrives at its node."""
        found: list[FloatArray] = []
        for one in self._operators[number].inputs:
            if isinstance(one, Source):
                found.append(self._ends_s[end])
            elif self._is_local(one, number):
                found.append(self._arrived[one.operator, end])
            else:
                found.append(self._done[one.operator, end] + one.delay_s)
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

    def _completion(self, number: int, end: int, known: tuple[bool, ...]) -> float:
        node, arrived_s = self._node_of[number], float(self._arrived[number, end])
        if np.isinf(arrived_s):
            return np.inf
        counted = self._counted[number]
        latest = self._found.get((node, counted.apart, known, arrived_s))
        if latest is None:
            coming = [
                self._arrived[group[0], end] if is_known else np.nan for group, is_known in zip(self._groups[node], known, strict=True)
            ]
            latest = self._end_of(node, counted, end, coming, arrived_s)
            if not self._is_bound and end and not all(known):
                latest = self._in_circle(number, counted, end, coming, arrived_s, latest)
            self._found[node, counted.apart, known, arrived_s] = latest
        before = self._done[number, end - 1] if end else -np.inf
        return max(latest + float(self._late_s[number, end]), float(before))

    def _end_of(self, node: int, counted: _Weighted, end: int, coming: Sequence[float], arrived_s: float) -> float:
        """Returns the greatest end of all weightings, in s.

        As a bound, it is the latest end of a busy period that begins no later than the last work arrives. As expected, it is the first
        instant at which the node has finished all work with stimulus times up to `end`, but not before `arrived_s`, when the last of that
        work has arrived at the operator. Then all work of a group is assumed to arrive at its latest instant, and work of a group that is
        not known to come in this interval is left out.
        """
        knots, instants, could = self._instants(node, end, coming, arrived_s)
        clock, until = self._clocks[node], counted.work[:, end]
        come = np.minimum(self._come(counted, self._from[node], knots, instants, by=not self._is_bound), until[:, None, None])
        come = counted.summed(come)
        if self._is_bound:
            some = int(np.searchsorted(instants, arrived_s, side="right"))
            ends = (could[:some] - come[:, 0, :some]).max(axis=1) + counted.summed(until)
        else:
            ends = _first_idle(come[:, :1], come[:, 1:], could, np.array([np.searchsorted(instants, arrived_s)]))[:, 0]
        latest = float(ends.max())
        return latest if clock is None else max(arrived_s, float(clock.instant_of(np.array([latest]))[0]))

    def _in_circle(self, number: int, counted: _Weighted, end: int, coming: Sequence[float], arrived_s: float, without_s: float) -> float:
        """Returns the end of an operator's work if work that goes in a circle comes as far behind it as in the interval before.

        The later the end is taken to be, the later that work comes, and the less of it counts. One step of the secant method, from the end
        without this work and the end with it, finds the end that agrees with itself.
        """
        node, offset_s = self._node_of[number], float(self._late_s[number, end]) - self._done[number, end - 1]
        before = self._arrived[[group[0] for group in self._groups[node]], end - 1]

        def end_if(done_s: float) -> float:
            guessed = np.where(np.isnan(coming), before + max(0.0, done_s + offset_s), coming)
            return self._end_of(node, counted, end, np.where(np.isfinite(guessed), guessed, coming).tolist(), arrived_s)

        with_s = end_if(without_s)
        more_s = with_s - without_s
        if more_s <= TINY_S:
            return with_s
        again_s = end_if(with_s)
        return without_s + more_s * more_s / (more_s + with_s - again_s) if again_s < with_s else again_s

    def _instants(self, node: int, end: int, coming: Sequence[float], arrived_s: float) -> tuple[list[FloatArray], FloatArray, FloatArray]:
        """Returns the arrivals of each group, all instants at which something changes, and the node's clock at these instants.

        Parameters
        ----------
        coming : arrival of each group's last work with stimulus times up to `end`; NaN if not known
        """
        first = self._from[node]
        knots = []
        for group, at_s in zip(self._groups[node], coming, strict=True):
            knot = self._arrived[group[0], first : end + 1].copy()
            knot[-1] = at_s
            knots.append(knot[:-1] if np.isnan(at_s) else knot)
        clock = self._clocks[node]
        found = np.concatenate([*knots, [arrived_s]])
        found = found[found < np.inf]
        if clock is not None:  # capacity changes at the ends of intervals
            found = np.concatenate([found, self._ends_s[first : np.searchsorted(self._ends_s, found.max(), side="right")]])
        found.sort()
        found = found[np.append(found[1:] > found[:-1], True)]
        return knots, found, found if clock is None else clock.work_by(found)

    def _forget(self, node: int, end: int) -> None:
        """Drops the intervals in which no busy period can begin any more: all before the best of the instants up to which arrivals are
        known."""
        groups, first = self._groups[node], self._from[node]
        if not groups or end == first:
            return
        latest = self._arrived[[group[0] for group in groups], first : end + 1]
        sure_s = float(latest[:, -1].min())
        if np.isinf(sure_s):
            return
        knots, instants, could = self._instants(node, end, latest[:, -1].tolist(), sure_s)
        some = instants <= sure_s
        # Work counts in full, its greatest weight, so that no earlier instant can be better for any later end.
        whole = self._whole[node]
        assert whole is not None  # a node with groups has work
        come = np.minimum(self._come(whole, first, knots, instants[some], by=False)[:, 0], whole.work[:, end, None])
        best_s = instants[int(np.argmax(could[some] - come.sum(axis=0)))]
        self._from[node] = first + max(0, int(np.searchsorted(latest.max(axis=0), best_s, side="left")) - 1)


def _first_idle(left: FloatArray, right: FloatArray, could: FloatArray, here: IntArray) -> FloatArray:
    """Returns the first instants, on a node's clock, at which none of the work waits: (weightings, ends).

    Parameters
    ----------
    left, right : (weightings, ends, instants), work that has come before each instant, and by it
    could : (instants,), work that the node could have done by then
    here : (ends,), index of the first instant that counts
    """
    waiting = right - could - np.minimum.accumulate(left - could, axis=2)
    at_once = np.take_along_axis(waiting, np.broadcast_to(here[:, None], (*left.shape[:2], 1)), axis=2)[:, :, 0] <= TINY_S
    if at_once.all():
        return np.broadcast_to(could[here], at_once.shape)
    adding, passing = left[:, :, 1:] - right[:, :, :-1], np.diff(could)
    places = np.arange(len(could))
    is_over = (waiting[:, :, :-1] + adding <= passing) & (places[:-1] >= here[:, None])
    one = is_over.argmax(axis=2) if len(passing) else np.zeros(left.shape[:2], dtype=np.int64)
    found: FloatArray = could[-1] + waiting[:, :, -1]
    ends = is_over.any(axis=2)
    if ends.any():
        which = (*np.nonzero(ends), one[ends])
        passed = passing[one[ends]]
        spare = passed - adding[which]
        found[ends] = could[one[ends]] + np.divide(waiting[which] * passed, spare, out=np.zeros_like(spare), where=spare > 0)
    return np.where(at_once, could[here], found)


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
