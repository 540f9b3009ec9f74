"""Algorithm 2: keeps the set of algorithm 1 in a balanced tree of deadlines, each with a heap of costs, in O(log m) for each row.

Each node has figures of its subtree: the sum of costs, the greatest cost, and the latest instant at which work may begin so that all rows
are in time. So each question of algorithm 1 follows one path down the tree: do all rows fit, which deadline does not, which row before it
is the most expensive? The tree is a treap; its priorities are hashes of a counter, so that every run is the same.

Source: Latency-constrained analytics, section 4.2, algorithm 2, table 3 and figure 5.
"""

import heapq
import math

import numpy as np

from sbon.deadline_scheduling.interface import NOTHING, Costs, Lost
from sbon.types import FloatArray, IntArray


class _Node:
    """Rows of one deadline, with figures of the subtree."""

    __slots__ = ("cost", "deadline_s", "dearest", "heap", "latest_s", "left", "own_s", "priority", "right")

    def __init__(self, deadline_s: float, priority: int) -> None:
        self.deadline_s, self.priority = deadline_s, priority
        self.heap: list[tuple[float, int]] = []
        """Negated cost and row."""
        self.own_s = 0.0
        self.left: _Node | None = None
        self.right: _Node | None = None
        self.cost = 0.0
        self.dearest = -math.inf
        self.latest_s = math.inf

    def update(self) -> None:
        """Computes the figures of the subtree from the node and its two children."""
        own = -self.heap[0][0] if self.heap else -math.inf
        left, right = self.left, self.right
        before = left.cost if left else 0.0
        self.cost = before + self.own_s + (right.cost if right else 0.0)
        self.dearest = max(own, left.dearest if left else -math.inf, right.dearest if right else -math.inf)
        latest = self.deadline_s - before - self.own_s if self.heap else math.inf
        if left:
            latest = min(latest, left.latest_s)
        if right:
            latest = min(latest, right.latest_s - before - self.own_s)
        self.latest_s = latest


class DeadlineTree:
    """Rows by deadline and cost. All operations take the logarithm of the number of rows."""

    def __init__(self) -> None:
        self._root: _Node | None = None
        self._count = 0
        self.size = 0

    def insert(self, deadline_s: float, row: int, cost_s: float) -> None:
        """Adds a row."""
        self.size += 1
        self._root = self._inserted(self._root, deadline_s, row, cost_s)

    def fits(self, now_s: float) -> bool:
        """Tells whether all rows can be in time if work begins now."""
        return self._root is None or now_s <= self._root.latest_s + 1e-12

    def first_that_does_not_fit(self, now_s: float) -> float:
        """Returns the earliest deadline for which not all rows up to it can be in time; infinite if there is none."""
        node, begin_s, found = self._root, now_s, math.inf
        while node is not None:
            if node.left is not None and begin_s > node.left.latest_s + 1e-12:
                node = node.left
                continue
            end_s = begin_s + (node.left.cost if node.left else 0.0) + node.own_s
            if node.heap and end_s > node.deadline_s + 1e-12:
                return node.deadline_s
            node, begin_s = node.right, end_s
        return found

    def remove_dearest(self, until_s: float) -> int:
        """Removes and returns the most expensive row with a deadline up to `until_s`; among equal ones, that of the earliest deadline."""
        cost, node = -math.inf, self._root
        while node is not None:  # the greatest cost of the deadlines up to until_s
            if node.deadline_s > until_s:
                node = node.left
                continue
            cost = max(cost, node.left.dearest if node.left else -math.inf, -node.heap[0][0] if node.heap else -math.inf)
            node = node.right
        path: list[_Node] = []
        node = self._root
        while node is not None:
            path.append(node)
            if node.left is not None and node.left.dearest >= cost:
                node = node.left
            elif node.heap and -node.heap[0][0] >= cost and node.deadline_s <= until_s:
                break
            else:
                node = node.left if node.deadline_s > until_s else node.right
        assert node is not None, "a cost that no row has"
        return self._popped(node, path)

    def pop_earliest(self) -> int | None:
        """Removes and returns a row with the earliest deadline; None if there is none."""
        if self._root is None:
            return None
        path, node = [self._root], self._root
        while node.left is not None:
            node = node.left
            path.append(node)
        return self._popped(node, path)

    def _popped(self, node: _Node, path: list[_Node]) -> int:
        negated, row = heapq.heappop(node.heap)
        node.own_s = node.own_s + negated if node.heap else 0.0
        self.size -= 1
        if not node.heap:
            self._root = self._without(self._root, node.deadline_s)
        else:
            for one in reversed(path):
                one.update()
        return row

    def _inserted(self, node: _Node | None, deadline_s: float, row: int, cost_s: float) -> _Node:
        if node is None:
            self._count += 1
            made = _Node(deadline_s, (self._count * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) >> 16)
            made.heap.append((-cost_s, row))
            made.own_s = cost_s
            made.update()
            return made
        if deadline_s == node.deadline_s:
            heapq.heappush(node.heap, (-cost_s, row))
            node.own_s += cost_s
        elif deadline_s < node.deadline_s:
            node.left = self._inserted(node.left, deadline_s, row, cost_s)
            if node.left.priority > node.priority:
                node = _rotated_right(node)
        else:
            node.right = self._inserted(node.right, deadline_s, row, cost_s)
            if node.right.priority > node.priority:
                node = _rotated_left(node)
        node.update()
        return node

    def _without(self, node: _Node | None, deadline_s: float) -> _Node | None:
        assert node is not None, "a deadline that is not in the tree"
        if deadline_s < node.deadline_s:
            node.left = self._without(node.left, deadline_s)
        elif deadline_s > node.deadline_s:
            node.right = self._without(node.right, deadline_s)
        else:
            return _merged(node.left, node.right)
        node.update()
        return node


def _rotated_right(node: _Node) -> _Node:
    top = node.left
    assert top is not None
    node.left, top.right = top.right, node
    node.update()
    return top


def _rotated_left(node: _Node) -> _Node:
    top = node.right
    assert top is not None
    node.right, top.left = top.left, node
    node.update()
    return top


def _merged(left: _Node | None, right: _Node | None) -> _Node | None:
    if left is None or right is None:
        return left or right
    if left.priority > right.priority:
        left.right = _merged(left.right, right)
        left.update()
        return left
    right.left = _merged(left, right.left)
    right.update()
    return right


class Tree:
    """Processes a largest set of rows that can be in time, row by row, like `Tuples`."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._tree = DeadlineTree()
        self._lost = Lost()

    def release(self, rows: IntArray, deadline_s: FloatArray, cost_class: IntArray, now_s: float) -> None:
        """Adds rows, and leaves out those that do not fit."""
        for deadline, row, cost in zip(deadline_s.tolist(), rows.tolist(), self._costs.of_class[cost_class].tolist(), strict=True):
            self._tree.insert(deadline, row, cost)
        lost = []
        while not self._tree.fits(now_s):
            lost.append(self._tree.remove_dearest(self._tree.first_that_does_not_fit(now_s)))
        self._lost.add(np.array(lost, dtype=np.int64))

    def next(self, now_s: float) -> IntArray:
        """Returns a row with the earliest deadline."""
        row = self._tree.pop_earliest()
        return NOTHING if row is None else np.array([row], dtype=np.int64)

    def take_lost(self) -> IntArray:
        """Returns the rows that were left out since the last call."""
        return self._lost.take()
