"""One move at a time, with plain numbers: for annealing where only processors limit."""

import math
from collections.abc import Sequence

from sbon.search.limit_loads import TO_NODE, LimitLoads, Prepared
from sbon.types import IntArray


class OneMove:
    """Loads of processors as plain numbers, for one move at a time; only where nothing else limits.

    A move is within a bound if the two nodes are that it changes: the others were before. So most moves need two values of a polynomial,
    and no root. The quality of a node is known, or known to be no less than the worst one.
    """

    def __init__(self, loads: LimitLoads) -> None:
        self._limit: list[float] = loads.supply.work.tolist()
        self._loads: list[list[list[float]]] = loads.loads.tolist()
        self._known: list[float | None] = loads.by_limit.tolist()

    def value(self) -> float:
        """Returns 1 / quality."""
        worst = min((one for one in self._known if one is not None), default=math.inf)
        for node, quality in enumerate(self._known):
            if quality is None and not self._fits(node, worst):
                worst = self._known[node] = min(_root_of(one, self._limit[node]) for one in self._loads[node])
        return 1 / worst if worst else math.inf

    def _fits(self, node: int, x: float) -> bool:
        if math.isinf(x):
            return not any(any(one[1:]) or one[0] > self._limit[node] for one in self._loads[node])
        return all(_at(one, x) <= self._limit[node] for one in self._loads[node])

    def is_within(self, at: Prepared, node_of: IntArray, move: Sequence[int], value: float) -> bool:
        """Tells whether the value after a move is at most this."""
        kind, one, other = move
        if math.isinf(value):
            return True
        x = 1 / value
        if kind == TO_NODE:
            most = self._limit[other]
            added = at.work_of(one)
            return all(_at(load, x) + _at(more, x) <= most for load, more in zip(self._loads[other], added, strict=True))
        swap = at.order.swap(at.moves[one])
        changes: dict[int, list[float]] = {}
        for operator, work in zip(swap.operators, swap.work, strict=True):
            node = int(node_of[operator])
            before = changes.get(node) or [0.0] * len(work)
            changes[node] = [
                sum_ + _at(now, x) - _at(old, x) for sum_, now, old in zip(before, work.tolist(), at.work_of(operator), strict=True)
            ]
        return all(
            change <= 0 or _at(load, x) + change <= self._limit[node]
            for node, changed in changes.items()
            for load, change in zip(self._loads[node], changed, strict=True)
        )

    def apply(self, at: Prepared, node_of: IntArray, kind: int, one: int, other: int) -> None:
        """Makes a move of a configuration, given as it is before."""
        if kind == TO_NODE:
            self._add(int(node_of[one]), at.work_of(one), -1.0)
            self._add(other, at.work_of(one), 1.0)
            return
        swap = at.order.swap(at.moves[one])
        for operator, work in zip(swap.operators, swap.work, strict=True):
            self._add(int(node_of[operator]), at.work_of(operator), -1.0)
            self._add(int(node_of[operator]), work.tolist(), 1.0)

    def _add(self, node: int, work: list[list[float]], sign: float) -> None:
        self._loads[node] = [
            [max(0.0, load + sign * more) for load, more in zip(loads, mores, strict=True)]
            for loads, mores in zip(self._loads[node], work, strict=True)
        ]
        self._known[node] = None


def _at(coefficients: list[float], x: float) -> float:
    found = 0.0
    for one in reversed(coefficients):
        found = found * x + one
    return found


def _root_of(coefficients: list[float], limit: float) -> float:
    """`greatest_multiple` of one polynomial."""
    left = limit - coefficients[0]
    if left <= 0:
        return 0.0 if left < 0 or any(coefficients[1:]) else math.inf
    terms = [(power, one) for power, one in enumerate(coefficients) if power and one > 0]
    found = min(((left / one) ** (1 / power) for power, one in terms), default=math.inf)
    if len(terms) < 2:
        return found
    target = math.log(left)
    for _ in range(60):
        total = slope = 0.0
        for power, one in terms:
            value = one * found**power
            total += value
            slope += power * value
        step = (math.log(total) - target) * total / slope
        found *= math.exp(-step)
        if abs(step) < 1e-10:
            break
    return found
