"""The load of links between nodes under a tree of operators (`plain_tree`), in plain numbers, and its changes by moves."""

import math
from collections.abc import Callable, Iterable, Sequence

from sbon.search.orders import NONE, Pair
from sbon.search.plain_tree import PlainTree, greatest

Change = tuple[int, float, int]
"""Slot of a link, bytes per second that are added at the tree's multiple, and the power of the multiple with which they grow."""
NOTHING = 1e-9
"""Share of a load taken away that may remain by rounding, and then counts as no load."""


class PlainLinks:
    """The load of each link between two nodes, under a tree at its multiple of the profile.

    Parameters
    ----------
    tree : read only; whoever changes it calls `move` or `swap` first, or `fill` at the end
    bandwidth : (nodes, nodes), bytes per second; infinite without a limit
    row_bytes : bytes of a row of some columns
    """

    def __init__(self, tree: PlainTree, bandwidth: Sequence[Sequence[float]], row_bytes: Callable[[int], float]) -> None:
        self._tree, self._row_bytes = tree, row_bytes
        self._nodes = len(bandwidth)
        self.capacity = [math.inf] * self._nodes + [max(one, 1e-300) for row in bandwidth for one in row]
        """Bytes per second of each slot. The first slots are nodes, which links do not limit; one for each pair of nodes follows."""
        self.load: dict[int, float] = {}
        """Bytes per second of each slot that a stream takes."""
        self._sent: list[float] = []
        """Bytes per second out of each operator."""
        self.fill()

    def fill(self) -> None:
        """Adds up the streams of the tree."""
        tree = self._tree
        self._sent = [rows * self._row_bytes(columns) for rows, columns in zip(tree.rows, tree.columns, strict=True)]
        self.load = {}
        for slot, sent, _ in self.streams():
            self.load[slot] = self.load.get(slot, 0.0) + sent

    def streams(self) -> Iterable[Change]:
        """Yields all streams between nodes."""
        tree = self._tree
        for source, target in enumerate(tree.above):
            if target != NONE and tree.node_of[source] != tree.node_of[target]:
                yield self._nodes * (tree.node_of[source] + 1) + tree.node_of[target], self._sent[source], tree.degree[source]

    def full(self) -> list[int]:
        """Returns the slots of links that are exceeded."""
        capacity = self.capacity
        return [slot for slot, load in self.load.items() if load > capacity[slot]]

    def operators_at(self, slot: int) -> set[int]:
        """Returns the operators at both ends of the streams on a link."""
        tree = self._tree
        source, target = divmod(slot - self._nodes, self._nodes)
        sending = [row for row in tree.on[source] if tree.above[row] != NONE and tree.node_of[tree.above[row]] == target]
        return {*sending, *[tree.above[row] for row in sending]}

    def quality(self) -> float:
        """Returns the multiple of the profile at which the first link is full."""
        terms: dict[int, dict[int, float]] = {}
        for slot, sent, power in self.streams():
            of_slot = terms.setdefault(slot, {})
            of_slot[power] = of_slot.get(power, 0.0) + sent
        return self._tree.x * min([greatest(one.items(), self.capacity[slot]) for slot, one in terms.items()], default=math.inf)

    # What moves change.

    def moved(self, operator: int, node: int) -> list[Change]:
        """Returns the changes if an operator moves to a node."""
        tree, nodes = self._tree, self._nodes
        node_of, degree = tree.node_of, tree.degree
        here = node_of[operator]
        found: list[Change] = []
        for one in tree.below[operator]:
            first, sent = nodes * (node_of[one] + 1), self._sent[one]
            if node_of[one] != here:
                found.append((first + here, -sent, degree[one]))
            if node_of[one] != node:
                found.append((first + node, sent, degree[one]))
        consumer = tree.above[operator]
        if consumer != NONE:
            there, sent = node_of[consumer], self._sent[operator]
            if there != here:
                found.append((nodes * (here + 1) + there, -sent, degree[operator]))
            if there != node:
                found.append((nodes * (node + 1) + there, sent, degree[operator]))
        return found

    def swapped(self, pair: Pair) -> list[Change]:
        """Returns the changes by a swap."""
        tree, nodes, sent = self._tree, self._nodes, self._sent
        node_of, degree = tree.node_of, tree.degree
        top, bottom, moved = pair.top, pair.bottom, pair.moved
        upper, lower, below = node_of[top], node_of[bottom], node_of[moved]
        if upper == lower:
            return []
        between, power = self._between(pair)
        from_upper, from_lower = nodes * (upper + 1), nodes * (lower + 1)
        found = [(from_lower + upper, -sent[bottom], degree[bottom]), (from_upper + lower, between, power)]
        if below != lower:
            found.append((nodes * (below + 1) + lower, -sent[moved], degree[moved]))
        if below != upper:
            found.append((nodes * (below + 1) + upper, sent[moved], degree[moved]))
        consumer = tree.above[top]
        if consumer != NONE:
            there = node_of[consumer]
            if there != upper:
                found.append((from_upper + there, -sent[top], degree[top]))
            if there != lower:
                found.append((from_lower + there, sent[top], degree[top]))
        return found

    def _between(self, pair: Pair) -> tuple[float, int]:
        """Returns the bytes per second between two operators after their swap, and the power with which they grow."""
        tree = self._tree
        columns = power = 0
        for one in tree.below[pair.top]:
            one = pair.moved if one == pair.bottom else one
            columns |= tree.columns[one]
            power += tree.degree[one]
        return tree.swapped(pair)[2] * self._row_bytes(columns & ~tree.drops[pair.top]), power

    def move(self, operator: int, node: int) -> list[Change]:
        """Changes the loads as the tree moves an operator; returns the changes."""
        return self._change(self.moved(operator, node))

    def swap(self, pair: Pair) -> list[Change]:
        """Changes the loads as the tree makes a swap; returns the changes."""
        changes, (between, _) = self.swapped(pair), self._between(pair)
        self._sent[pair.bottom], self._sent[pair.top] = self._sent[pair.top], between
        return self._change(changes)

    def _change(self, changes: list[Change]) -> list[Change]:
        load = self.load
        for slot, sent, _ in changes:
            left = load.get(slot, 0.0) + sent
            if left > -NOTHING * sent:
                load[slot] = left
            else:
                load.pop(slot, None)
        return changes


def together(changes: Iterable[Change], x: float = 1.0) -> dict[int, float]:
    """Returns what is added to each slot at `x` times the tree's multiple."""
    found: dict[int, float] = {}
    for slot, sent, power in changes:
        found[slot] = found.get(slot, 0.0) + (sent if x == 1.0 else sent * x**power)
    return found
