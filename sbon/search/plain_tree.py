"""A tree of operators at one multiple of the profile, with plain numbers instead of arrays, for searches where processors and links are the
only limits.

Each stream is a product of sources' rates and factors, so at x times the profile it is one number that grows as a power of x: the number of
sources behind it. A swap costs a few multiplications, and is made in place.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from sbon.search.orders import NONE, Order, Pair, Query

ROUNDS = 60
"""Most steps of the search for a root."""
PRECISION = 1e-10
"""Relative change at which the search for a root ends."""

State = tuple[list[tuple[int, ...]], list[int], list[int], list[int]]
"""Inputs and consumer of each operator, its columns and its node."""
Swap = tuple[Pair, float, float]
"""A swap, and the growth of the work of its top and of its bottom."""


class PlainTree:
    """An order of a query and a node for each operator, at a multiple of its only target point.

    Parameters
    ----------
    order : of a query with one target point
    node_of : node of each operator
    capacity : of each node, reference ns per second
    """

    def __init__(self, order: Order, node_of: Sequence[int], capacity: Sequence[float]) -> None:
        query = order.query
        self.query: Query = query
        self.capacity = [max(one, 1e-300) for one in capacity]
        pieces = query.pieces
        self.cost = [piece.per_row_ns for piece in pieces]
        self._is_join = [piece.span_s is not None for piece in pieces]
        self._factor = [piece.selectivity * (1.0 if piece.span_s is None else piece.span_s) for piece in pieces]
        """Rows out per row in, or per pair of rates."""
        self._given = [piece.rates[0] if piece.rates else 0.0 for piece in pieces]
        self._reads = [piece.reads for piece in pieces]
        self.drops = [piece.drops for piece in pieces]
        self.below = [tuple(one) for one in order.below]
        self.above = list(order.above)
        self.columns = list(order.columns)
        self.node_of = list(node_of)
        self.on: list[set[int]] = [set() for _ in capacity]
        self.x = 1.0
        count = len(pieces)
        self.rows, self.work, self.degree = [0.0] * count, [0.0] * count, [1] * count
        self.load = [0.0] * len(capacity)
        self._swaps: list[list[Swap] | None] = []
        """Swaps that `swaps` has found for each operator; None after a change near it."""
        self.scale(1.0)

    def state(self) -> State:
        """Returns the state that `back_to` takes."""
        return list(self.below), list(self.above), list(self.columns), list(self.node_of)

    def back_to(self, state: State) -> None:
        """Goes back to an earlier order and placement; `scale` must follow."""
        below, above, columns, node_of = state
        self.below, self.above, self.columns, self.node_of = list(below), list(above), list(columns), list(node_of)

    def scale(self, x: float) -> None:
        """Computes all rates and loads at a multiple of the profile."""
        self.x = x
        below, rows, work, degree = self.below, self.rows, self.work, self.degree
        stack = [self.above.index(NONE)]
        order = []
        while stack:
            row = stack.pop()
            order.append(row)
            stack.extend(below[row])
        for row in reversed(order):
            inputs = below[row]
            if not inputs:
                rows[row] = self._given[row] * x
                degree[row] = 1
                work[row] = self.cost[row] * rows[row]
            elif len(inputs) == 1:
                came = rows[inputs[0]]
                rows[row], degree[row], work[row] = came * self._factor[row], degree[inputs[0]], self.cost[row] * came
            else:
                left, right = rows[inputs[0]], rows[inputs[1]]
                rows[row] = left * right * self._factor[row]
                degree[row] = degree[inputs[0]] + degree[inputs[1]]
                work[row] = self.cost[row] * (left + right)
        self._swaps = [None] * len(rows)
        self.load = [0.0] * len(self.capacity)
        for one in self.on:
            one.clear()
        for row, node in enumerate(self.node_of):
            self.load[node] += work[row]
            self.on[node].add(row)

    def quality(self) -> float:
        """Returns the multiple of the profile at which the first node is full, by Newton's method on logarithms."""
        best = math.inf
        for node, capacity in enumerate(self.capacity):
            terms: dict[int, float] = {}
            for row in self.on[node]:
                cost = self.cost[row]
                for one in self.below[row] or (row,):
                    power = self.degree[one]
                    terms[power] = terms.get(power, 0.0) + cost * self.rows[one]
            if math.isinf(best) or sum([value * best**power for power, value in terms.items()]) > capacity:
                best = min(best, greatest(terms.items(), capacity))
        return best * self.x

    # Swaps.

    def swaps_of(self, top: int) -> Iterator[Pair]:
        """Yields the swaps of an operator with each of its inputs."""
        for bottom in self.below[top]:
            for moved in self.below[bottom]:
                pair = self.allowed(top, bottom, moved)
                if pair is not None:
                    yield pair

    def swaps(self, top: int) -> list[Swap]:
        """Returns the swaps of an operator with each of its inputs, at the tree's multiple."""
        found = self._swaps[top]
        if found is None:
            work = self.work
            found = []
            for pair in self.swaps_of(top):
                one, other, _ = self.swapped(pair)
                found.append((pair, one - work[top], other - work[pair.bottom]))
            self._swaps[top] = found
        return found

    def allowed(self, top: int, bottom: int, moved: int) -> Pair | None:
        """Returns the swap by which an input of `bottom` becomes one of `top`, if there is one (`sbon.search.orders.allowed`)."""
        if not self._is_join[top]:
            if self.drops[top] & self._reads[bottom] or (self._reads[top] | self.drops[top]) & ~self.columns[moved]:
                return None
        elif not self._is_join[bottom]:
            if not self.query.lifts:
                return None
        else:
            one, two = self.below[top]
            if self._reads[top] & ~(self.columns[moved] | self.columns[two if one == bottom else one]):
                return None
        return Pair(top, bottom, moved)

    def swapped(self, pair: Pair) -> tuple[float, float, float]:
        """Returns the work of the two operators after a swap, and the rows between them."""
        top, bottom, moved = pair.top, pair.bottom, pair.moved
        rows = self.rows
        came = rows[moved]
        if self._is_join[top]:
            one, two = self.below[top]
            other = rows[two if one == bottom else one]
            work, between = self.cost[top] * (came + other), came * other * self._factor[top]
        else:
            work, between = self.cost[top] * came, came * self._factor[top]
        if self._is_join[bottom]:
            one, two = self.below[bottom]
            return work, self.cost[bottom] * (between + rows[two if one == moved else one]), between
        return work, self.cost[bottom] * between, between

    def swapped_at(self, pair: Pair, x: float) -> tuple[float, float]:
        """Returns the work of the two operators after a swap, at `x` times the tree's multiple."""
        top, bottom, moved = pair.top, pair.bottom, pair.moved
        rows, degree = self.rows, self.degree
        came = rows[moved] * x ** degree[moved]
        if self._is_join[top]:
            one, two = self.below[top]
            other = two if one == bottom else one
            met = rows[other] * x ** degree[other]
            work, between = self.cost[top] * (came + met), came * met * self._factor[top]
        else:
            work, between = self.cost[top] * came, came * self._factor[top]
        if self._is_join[bottom]:
            one, two = self.below[bottom]
            other = two if one == moved else one
            between += rows[other] * x ** degree[other]
        return work, self.cost[bottom] * between

    def work_at(self, row: int, x: float) -> float:
        """Returns the work of an operator, at `x` times the tree's multiple."""
        rows, degree, inputs = self.rows, self.degree, self.below[row]
        if len(inputs) == 2:
            one, two = inputs
            return self.cost[row] * (rows[one] * x ** degree[one] + rows[two] * x ** degree[two])
        one = inputs[0] if inputs else row
        return self.cost[row] * rows[one] * x ** degree[one]

    def swap(self, pair: Pair) -> None:
        """Makes a swap."""
        top, bottom, moved = pair.top, pair.bottom, pair.moved
        work, other_work, between = self.swapped(pair)
        below, above = self.below, self.above
        consumer = above[top]
        below[top] = tuple([moved if one == bottom else one for one in below[top]])
        below[bottom] = tuple([top if one == moved else one for one in below[bottom]])
        if consumer != NONE:
            below[consumer] = tuple([bottom if one == top else one for one in below[consumer]])
        above[moved], above[top], above[bottom] = top, bottom, consumer
        self.columns[bottom] = self.columns[top]
        found = degree = 0
        for one in below[top]:
            found |= self.columns[one]
            degree += self.degree[one]
        self.columns[top] = found & ~self.drops[top]
        self.rows[bottom], self.rows[top] = self.rows[top], between
        self.degree[bottom], self.degree[top] = self.degree[top], degree
        self.load[self.node_of[top]] += work - self.work[top]
        self.load[self.node_of[bottom]] += other_work - self.work[bottom]
        self.work[top], self.work[bottom] = work, other_work
        # A swap depends on its two operators and their inputs: the swaps of the two consumers above change, too.
        swaps = self._swaps
        swaps[top] = swaps[bottom] = None
        if consumer != NONE:
            swaps[consumer] = None
            if above[consumer] != NONE:
                swaps[above[consumer]] = None

    def move(self, operator: int, node: int) -> None:
        """Moves an operator to a node."""
        before, work = self.node_of[operator], self.work[operator]
        self.load[before] -= work
        self.load[node] += work
        self.on[before].discard(operator)
        self.on[node].add(operator)
        self.node_of[operator] = node

    def order(self) -> Order:
        """Returns the order, with all its streams and loads."""
        return Order(self.query, self.below)


def greatest(terms: Iterable[tuple[int, float]], limit: float) -> float:
    """Returns the greatest x at which a polynomial without a constant is at most a limit above 0, by Newton's method on logarithms."""
    parts = [(power, value) for power, value in terms if value > 0]
    at = min([(limit / value) ** (1 / power) for power, value in parts], default=math.inf)
    if len(parts) > 1:
        target = math.log(limit)
        for _ in range(ROUNDS):
            total = slope = 0.0
            for power, one in parts:
                value = one * at**power
                total += value
                slope += power * value
            step = (math.log(total) - target) * total / slope
            at *= math.exp(-step)
            if abs(step) < PRECISION:
                break
    return at
